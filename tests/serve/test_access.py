"""Who is let in over HTTP, how often and how many at once, and from which pages."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from pipeline.events import TextDelta, TurnEnd
from pipeline.serve.routes import health
from tests.serve.scripted import CHAT, FAILS, HELLO, ScriptedBackend, Served, body, served
from tests.serve.wire import post, request, wire

ALICE, BOB = "k7Qz-2m9Xw-41bVtRp8LcYd", "p0Hj_8sKd3LmQx7TzWc2Vb9N"
KEYS = f"alice:{ALICE},bob:{BOB}"
PAGE = {"Origin": "http://localhost:5173"}
STRANGE_PAGE = {"Origin": "https://evil.example"}


def with_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("GET", "/v1/models/gpt-5"),
        ("GET", "/v1/mcp/tools"),
        ("GET", "/v1/nothing"),
        ("GET", "//v1/models"),
        ("GET", "/%761/models"),
        ("DELETE", CHAT),
        ("GET", "http://localhost/v1/models"),
    ],
)
@pytest.mark.parametrize("header", ["", f"Authorization: Bearer {ALICE}x"])
async def test_nothing_of_the_api_is_there_without_a_key(
    method: str, path: str, header: str
) -> None:
    async with served(api_keys=KEYS) as here, wire(here) as connection:
        await connection.write(request(method, path, *filter(None, [header])))
        answer = await connection.read(method=method)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    if method != "HEAD":
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert ALICE not in str(answer.json())


async def test_a_key_opens_and_its_name_is_logged_but_never_the_key() -> None:
    async with served(api_keys=KEYS, log_level="debug") as here:
        assert (await here.ask(headers=with_key(BOB))).status_code == 200
        assert (await here.ask(headers=with_key(BOB), stream=True)).status_code == 200
        assert (await here.ask(headers=with_key(f"{BOB}!"))).status_code == 401
        await here.client.get(f"/v1/models/{BOB[:4]}?api_key={BOB}", headers=with_key(BOB))
        assert (await here.client.get("/healthz", headers=with_key(BOB))).status_code == 200
        await here.ask(n=99, headers=with_key(BOB))
        lines = await here.until_logged(6)
        assert lines[0]["key"] == "bob"
        assert "key" not in lines[2]
        assert BOB not in here.log.getvalue()
        assert ALICE not in here.log.getvalue()


async def test_a_key_is_not_logged_by_a_server_that_asks_for_none(shared: Served) -> None:
    await shared.ask(headers=with_key(BOB))
    await shared.until_logged()
    assert BOB not in shared.log.getvalue()


async def test_the_health_summary_needs_no_key() -> None:
    backend = ScriptedBackend()
    async with served(backend, api_keys=KEYS) as here:
        for path in ("/livez", "/readyz", "/healthz"):
            assert (await here.client.get(path)).status_code == 200
            assert (await here.client.head(path)).status_code == 200
        backend.why_not = "codex is not there"
        assert (await here.client.get("/livez")).status_code == 200
        assert (await here.client.get("/healthz")).json()["status"] == "degraded"
        ready = await here.client.get("/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "codex is not there")
        here.server.turns.end()
        assert "shutting down" in (await here.client.get("/readyz")).json()["reason"]
        await trio.testing.wait_all_tasks_blocked()
        assert here.lines() == []  # health is asked for every second


def nowhere(_: str) -> bool:
    return False


async def test_metrics_are_for_this_machine_or_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as here:
        assert (await here.client.get("/metrics")).status_code == 200
        monkeypatch.setattr(health, "is_loopback", nowhere)
        assert (await here.client.get("/metrics")).status_code == 401
    async with served(metrics_token="open sesame", api_keys=KEYS) as here:  # noqa: S106
        assert (await here.client.get("/metrics")).status_code == 401
        assert (await here.client.get("/metrics", headers=with_key(ALICE))).status_code == 401
        allowed = await here.client.get("/metrics", headers=with_key("open sesame"))
        assert allowed.status_code == 200
        assert allowed.headers["content-type"].startswith("text/plain; version=")


# -- pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/models", "/v1/models/x", "/healthz", "/metrics", "/?", "/x"]
)
async def test_every_route_answers_a_browsers_question_without_a_key(path: str) -> None:
    wish = {"Access-Control-Request-Headers": "x-stainless-os, authorization"}
    wish |= {"Access-Control-Request-Private-Network": "true"}
    async with served(api_keys=KEYS) as here:
        answer = await here.client.options(path, headers=PAGE | wish)
        stranger = await here.client.options(path, headers=STRANGE_PAGE | wish)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == PAGE["Origin"]
    assert answer.headers["access-control-allow-headers"] == "x-stainless-os, authorization"
    assert answer.headers["access-control-allow-private-network"] == "true"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert stranger.status_code == 204
    assert not [name for name in stranger.headers if name.startswith("access-control")]


async def test_a_page_may_read_answers_streams_and_errors() -> None:
    scripts = [HELLO, HELLO, FAILS, FAILS]
    async with served(ScriptedBackend(lambda _: scripts.pop(0))) as here:
        answers = [
            await here.ask(headers=PAGE),
            await here.ask(headers=PAGE, stream=True),
            await here.ask(headers=PAGE),
            await here.ask(headers=PAGE, stream=True),
            await here.ask(headers=PAGE, n=99),
            await here.client.get("/nowhere", headers=PAGE),
            await here.client.put(CHAT, headers=PAGE),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 502, 502, 400, 404, 405]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == PAGE["Origin"]
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert answer.headers["vary"] == "Origin"


async def test_strange_pages_and_names_are_kept_off_a_server_without_keys(shared: Served) -> None:
    assert (await shared.ask(headers=STRANGE_PAGE)).status_code == 403
    assert (await shared.ask(headers={"Host": "evil.example"})).status_code == 403
    assert (
        await shared.client.get("/metrics", headers={"Host": "evil.example"})
    ).status_code == 403
    assert (await shared.client.get("/nowhere", headers=STRANGE_PAGE)).status_code == 403
    assert (await shared.client.get("/livez", headers={"Host": "evil.example"})).status_code == 200
    refused = (await shared.ask(headers=STRANGE_PAGE)).json()["error"]
    assert refused["code"] == "forbidden_origin"


async def test_with_keys_every_page_and_name_may_ask() -> None:
    async with served(api_keys=KEYS) as here:
        for more in (STRANGE_PAGE, {"Host": "proxy.example"}, {"Host": "a" * 100}):
            answer = await here.ask(headers=with_key(ALICE) | more)
            assert answer.status_code == 200
            assert "access-control-allow-origin" not in answer.headers


# -- how much --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_server_says_so_before_any_byte(stream: bool) -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *HELLO))
    async with served(backend, concurrency=1, queue_size=0) as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.ask)
        await backend.until_turn()
        refused = await here.ask(stream=stream)
        assert refused.status_code in (429, 503)
        assert int(refused.headers["retry-after"]) >= 1
        assert "x-should-retry" not in refused.headers
        go.set()
    assert len(backend.turns) == 1


async def test_who_waits_too_long_gets_a_503() -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, concurrency=1, queue_timeout=0.02) as here:
        async with wire(here) as connection:
            await connection.write(post())
            await backend.until_turn()
            refused = await here.ask(stream=True)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        assert refused.headers["retry-after"] == "1"


async def test_keys_take_turns() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *HELLO))
    async with (
        served(backend, api_keys=KEYS, concurrency=1) as here,
        trio.open_nursery() as nursery,
    ):

        async def ask(words: str, key: str) -> None:
            await here.ask(words, headers=with_key(key))

        nursery.start_soon(ask, "a1", ALICE)
        await backend.until_turn()
        for words, key in [("a2", ALICE), ("a3", ALICE), ("b1", BOB)]:
            before = here.server.admission.waiting
            nursery.start_soon(ask, words, key)
            while here.server.admission.waiting == before:  # noqa: ASYNC110  (a counter)
                await trio.sleep(0.002)
        go.set()
    said = [turn.items[-1]["content"] for turn in backend.asked]
    assert said.index("b1") < said.index("a3")


async def test_places_are_free_again_however_an_answer_ends() -> None:
    def refuse(_: object) -> tuple[()]:
        raise ValueError("the folder for records is full")

    forever = trio.Event()
    scripts = [FAILS, (TextDelta("Hi"), *FAILS), (ValueError("oops"),), (TurnEnd(),), (forever,)]
    async with served(
        ScriptedBackend(lambda _: scripts.pop(0)), concurrency=1, queue_size=0
    ) as here:
        for stream in (True, True, True, False):
            await here.ask(stream=stream)
            await here.until(lambda: here.server.admission.running == 0)
        async with wire(here) as connection:
            await connection.write(post(body(stream=True)))
            await here.until(lambda: here.server.admission.running == 1)
        await here.until(lambda: here.server.admission.running == 0)
    async with served(ScriptedBackend(refuse)) as here:  # a turn that cannot even be made
        for stream in (True, False):
            assert (await here.ask(stream=stream)).status_code == 500
            assert here.server.admission.running == 0


async def test_a_key_that_has_spent_its_requests_waits_and_others_do_not() -> None:
    async with served(api_keys=KEYS, requests_per_minute=2) as here:
        answers = [await here.ask(headers=with_key(ALICE)) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        refused = answers[2]
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 25 <= int(refused.headers["retry-after"]) <= 30
        assert (await here.ask(headers=with_key(BOB))).status_code == 200
        listed = await here.client.get("/v1/models", headers=with_key(ALICE))
        assert listed.status_code == 200
