"""The models that a client can list."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from pipeline.assembly import Settings
from pipeline.serve import backends
from pipeline.serve.backends import CodexBackend, open_backend
from tests.serve.scripted import ScriptedBackend, Served, served
from tests.support.raw_http import KEY, Talk, backend, http, says


async def listed(here: Served) -> list[str]:
    answer = await here.client.get("/v1/models")
    assert answer.status_code == 200, answer.text
    return [model["id"] for model in answer.json()["data"]]


async def found(here: Served, name: str) -> tuple[int, str]:
    """The status of a model, and its id or the code of the error."""
    answer = await here.client.get(f"/v1/models/{name}")
    told = answer.json()
    return answer.status_code, told["error"]["code"] if "error" in told else told["id"]


async def test_models_are_listed_and_found() -> None:
    async with served(ScriptedBackend(models=["gpt-5", "org/codex-mini"])) as here:
        listed = (await here.client.get("/v1/models")).json()
        assert (listed["object"], listed["models"]) == ("list", [])
        assert [model["id"] for model in listed["data"]] == ["gpt-5", "org/codex-mini"]
        for model in listed["data"]:
            assert set(model) == {"id", "object", "created", "owned_by"}
            found = await here.client.get(f"/v1/models/{model['id']}")
            assert (found.status_code, found.json()) == (200, model)
        lost = await here.client.get("/v1/models/gpt-6")
        assert lost.status_code == 404
        assert lost.json()["error"]["code"] == "model_not_found"
        assert "gpt-5, org/codex-mini" in lost.json()["error"]["message"]


async def test_a_model_that_is_not_advertised_is_found_though_not_listed() -> None:
    backend = ScriptedBackend(models=["gpt-5"])
    backend.unlisted = ("gpt-hidden",)
    async with served(backend) as here:
        assert await listed(here) == ["gpt-5"]
        assert await found(here, "gpt-hidden") == (200, "gpt-hidden")
        assert await found(here, "gpt-none") == (404, "model_not_found")


async def test_models_that_the_operator_names_stand_behind_the_backends_own() -> None:
    async with served(ScriptedBackend(models=["a", "b"]), models=" org/c , b,, a") as here:
        assert await listed(here) == ["a", "b", "org/c"]
        assert await found(here, "org/c") == (200, "org/c")
        lost = await here.client.get("/v1/models/d")
        assert "the models are: a, b, org/c" in lost.json()["error"]["message"]


async def test_a_model_that_the_operator_names_is_found_while_the_backend_is_cold() -> None:
    cold = ScriptedBackend()
    cold.listed = None
    async with served(cold, models="a") as here:
        with trio.fail_after(4):
            assert await found(here, "a") == (200, "a")


# -- what an app-server tells ----------------------------------------------------------------------


class Facts:
    """An app-server's own list."""

    async def models(self) -> list[Any]:
        return [
            {"id": "a", "model": "a-2026", "hidden": False},
            {"id": "b", "model": "b", "hidden": True},
            {"id": "c"},
            {"model": "no-id"},
            {"id": 7},
            "nonsense",
        ]


async def test_both_names_of_a_model_are_found_and_only_the_ids_on_offer_listed() -> None:
    codex = CodexBackend(None, Settings(), "codex", "")  # type: ignore[arg-type]  # nothing is run
    codex.facts = Facts()  # type: ignore[assignment]
    models = await codex.models()
    assert models.listed == ("a", "c")
    assert {*models.unlisted} == {"a-2026", "b", "no-id"}


# -- an API over HTTP ------------------------------------------------------------------------------

JSON = "content-type: application/json\r\n"


async def silence(_: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def falls_silent(stream: trio.SocketStream) -> None:
    await stream.send_all(http(b'{"data": [', headers=JSON))
    await trio.sleep_forever()


async def too_much(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):  # nobody reads so far
        await stream.send_all(http(b" " * 5_000_000, headers=JSON))


NO_LIST: dict[str, Talk] = {
    "a 404": says(http(b"{}", "404 Not Found", JSON)),
    "a 500": says(http(b"oops", "500 Internal Server Error")),
    "a page": says(http(b"<html>Welcome!</html>", headers="content-type: text/html\r\n")),
    "a redirect": says(http(b"", "302 Found", "location: /login\r\n")),
    "nothing": says(http(b"", headers=JSON)),
    "no UTF-8": says(http(b'{"data": "\xff"}', headers=JSON)),
    "too deep": says(http(b"[" * 100_000, headers=JSON)),
    "another shape": says(http(b'{"models": []}', headers=JSON)),
    "an object for a list": says(http(b'{"data": {}}', headers=JSON)),
    "no HTTP": says(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a wrong packing": says(http(b"plain", headers=f"{JSON}content-encoding: gzip\r\n")),
    "too long": too_much,
    "silence": silence,
    "silence in the middle": falls_silent,
}
SILENT = (silence, falls_silent)


@pytest.mark.parametrize("talk", NO_LIST.values(), ids=NO_LIST)
@pytest.mark.parametrize("named", [[], ["a", "b"]], ids=["none named", "two named"])
async def test_an_api_without_a_list_has_the_models_that_the_operator_names(
    talk: Talk, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if talk in SILENT:  # the others answer, however slow the machine is
        monkeypatch.setattr(backends, "LIST_TIMEOUT", 0.2)
    async with backend(talk) as url:
        settings = Settings(backend=url, backend_api_key=KEY, models=",".join(named))
        async with open_backend(settings) as api, served(api, models=settings.models) as here:
            assert await listed(here) == named
            assert await listed(here) == named
            for name in named:
                assert await found(here, name) == (200, name)
            assert await found(here, "x") == (404, "model_not_found")
            (warned,) = [line for line in map(str, _warnings(here)) if "PROXY_MODELS" in line]
            assert KEY not in warned


async def test_an_api_that_cannot_be_reached_has_an_empty_list() -> None:
    async with backend(silence) as url:
        pass  # nobody listens there any more
    async with open_backend(Settings(backend=url)) as api, served(api) as here:
        assert await listed(here) == []


async def test_an_apis_own_list_is_shown_less_what_has_no_name() -> None:
    names = http(b'{"data": [{"id": "x"}, {}, {"id": ""}, 7, {"id": "y"}]}', headers=JSON)
    async with (
        backend(says(names)) as url,
        open_backend(Settings(backend=url)) as api,
        served(api, models="z") as here,
    ):
        assert await listed(here) == ["x", "y", "z"]
        assert _warnings(here) == []


async def test_a_list_that_is_lost_again_is_logged_again() -> None:
    answers = iter(["404 Not Found", "404 Not Found", "200 OK", "404 Not Found"])

    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(http(b'{"data": []}', next(answers), JSON))

    async with (
        backend(talk) as url,
        open_backend(Settings(backend=url)) as api,
        served(api) as here,
    ):
        for logged in (1, 1, 1, 2):
            assert await listed(here) == []
            assert len(_warnings(here)) == logged


def _warnings(here: Served) -> list[Any]:
    return here.lines("the backend lists no models; name them in PROXY_MODELS")
