"""The parts around a live turn that need no process: pictures, records, options."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from pipeline.assembly import Settings, backend_options, recorder
from pipeline.errors import ProxyError, UsageError
from pipeline.loose_json import Json
from pipeline.turn import Tool, Turn
from sources.app_server.process.facts import BackendFacts
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.pool import open_pool
from sources.app_server.protocol.capabilities import Capabilities, probe
from sources.app_server.protocol.client import AppServerClient, BackendGoneError, Pending
from sources.app_server.protocol.images import check_images
from sources.app_server.protocol.mcp_servers import tools_of
from sources.app_server.protocol.rpc import Answer, RpcError
from sources.app_server.protocol.thread import ThreadPlan
from sources.app_server.turn.interface import Backend
from sources.app_server.turn.record import redacted
from sources.app_server.turn.session import tool_result
from sources.replay import Replay

ASKED: Json = {"type": "message", "role": "user", "content": "What is new?"}
SAID: Json = {"type": "message", "role": "assistant", "content": "Let me look."}
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
OTHER: Json = {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c1", "output": "nothing"}
OTHER_OUTPUT: Json = {"type": "function_call_output", "call_id": "c2", "output": "much"}
TURN = Turn(model="m", instructions="Be brief.", items=(ASKED,), tools=(Tool("f"), Tool("g")))


@pytest.mark.parametrize(
    ("output", "result"),
    [
        ("ok", {"contentItems": [{"type": "inputText", "text": "ok"}], "success": True}),
        (
            {"content": "no", "success": False},
            {"contentItems": [{"type": "inputText", "text": "no"}], "success": False},
        ),
        (
            [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:"}],
            {
                "contentItems": [
                    {"type": "inputText", "text": "a"},
                    {"type": "inputImage", "imageUrl": "data:"},
                ],
                "success": True,
            },
        ),
    ],
)
def test_every_form_of_a_tool_output_is_an_answer(output: object, result: Json) -> None:
    assert tool_result(output) == result


# -- pictures ------------------------------------------------------------------------------------


def picture(url: str) -> tuple[Json, ...]:
    return ({"role": "user", "content": [{"type": "input_image", "image_url": url}]},)


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n rest").decode()


@pytest.mark.parametrize("url", [f"data:image/png;base64,{PNG}", "https://example.org/a.png"])
def test_a_picture_passes(url: str) -> None:
    check_images(picture(url))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("data:image/png;base64,AAAA", "is not a image/png file"),
        ("data:image/png;base64,%%%", "is not valid base64"),
        (f"data:image/tiff;base64,{PNG}", "PNG, JPEG, GIF or WebP"),
        ("file:///etc/passwd", "neither an http(s) URL nor a data URL"),
        ("", "neither an http(s) URL nor a data URL"),
    ],
)
def test_what_is_no_picture_is_refused_with_a_reason(url: str, says: str) -> None:
    with pytest.raises(ProxyError) as raised:
        check_images(({"role": "user", "content": "Look:"}, *picture(url)))
    assert raised.value.failure.status == 400
    assert raised.value.failure.param == "input[1]"
    assert says in raised.value.failure.message


def test_a_tools_output_is_looked_at_too() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    output = {"type": "function_call_output", "call_id": "a", "output": [image]}
    with pytest.raises(ProxyError, match="is not a image/png file"):
        check_images((output,))


@pytest.mark.parametrize("where", ["content", "output"])
def test_codex_gets_no_detail_that_it_would_drop_the_picture_for(where: str) -> None:
    given = [{"type": "input_image", "image_url": "x", "detail": one} for one in ("low", "high")]
    item = {"type": "function_call_output", where: [{"type": "input_text", "text": "a"}, *given]}
    plan = ThreadPlan(Turn(items=(item,)), Capabilities(inject_items=True), "/nowhere")
    ((words, *pictures),) = (one[where] for one in plan.injected())
    assert words == {"type": "input_text", "text": "a"}
    assert [one["detail"] for one in pictures] == ["auto", "high"]


# -- records -------------------------------------------------------------------------------------


def test_keys_and_tokens_are_taken_out_wherever_they_stand() -> None:
    message = {"auth": {"apiKey": "abc"}, "list": ["Bearer abcdefghij", "sk-12345678ab"], "n": 1}
    assert redacted(message) == {
        "auth": {"apiKey": "[redacted]"},
        "list": ["[redacted]", "[redacted]"],
        "n": 1,
    }


async def test_a_recorded_turn_replays(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    record = recorder(Settings(record_dir=str(tmp_path / "turns"), record_redact=True))
    assert record is not None
    delta = {"method": "item/agentMessage/delta", "params": {"delta": "Hi sk-12345678ab"}}
    end = {"method": "turn/completed", "params": {"turn": {"status": "completed"}}}
    for message in (delta, end):
        await trio.sleep(1.5)
        record.write(message, trio.current_time())
    record.close()
    assert record.path.stat().st_mode & 0o777 == 0o600
    events = [event for burst in Replay(record.path).events() for event in burst]
    assert [type(event).__name__ for event in events] == ["TurnStart", "TextDelta", "TurnEnd"]
    assert "sk-12345678ab" not in record.path.read_text()
    lines = [json.loads(line) for line in record.path.read_text().splitlines()]
    assert [line["at"] for line in lines] == [1.5, 3.0]


def test_nothing_is_recorded_unasked() -> None:
    assert recorder(Settings()) is None


# -- options and facts ---------------------------------------------------------------------------


def test_settings_become_options(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    options = backend_options(
        Settings(
            codex_app_server="ws://127.0.0.1:1, unix:///tmp/x",
            codex_token_file=str(secret),
            codex_hold_turns=False,
            codex_recycle_mb=2,
            codex_idle_timeout=7.0,
        )
    )
    assert options.addresses == ("ws://127.0.0.1:1", "unix:///tmp/x")
    assert options.token == "s3cret"  # noqa: S105
    assert options.keep.most == 0
    assert options.patience.most_memory == 2_000_000
    assert options.bounds.idle == 7.0


def test_a_token_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="CODEX_APP_SERVER_TOKEN_FILE=/nowhere cannot be read"):
        backend_options(Settings(codex_token_file="/nowhere"))  # noqa: S106


async def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="CODEX_APP_SERVER must be stdio"):
        async with open_pool(BackendOptions(addresses=("http://x",))):
            pass


async def test_a_codex_without_turns_is_too_old_and_said_to_be() -> None:
    class Old:
        user_agent = "codex/0.30.0"

        async def request(self, method: str, params: Json, **_: bool) -> Json:
            message = "unknown variant, expected one of `initialize`, `newConversation`"
            raise RpcError(method, {"code": -32600, "message": message})

    with pytest.raises(BackendGoneError, match=r"codex/0.30.0.*too old.*install 0.89 or newer"):
        await probe(cast(AppServerClient, Old()))


class FakeClient:
    """Answers from a list and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Json] = []

    async def request(self, method: str, params: Json, *, begun: Callable[[Pending], None]) -> Json:
        self.asked.append({"method": method, **params})
        await trio.lowlevel.checkpoint()
        return {"data": ["c"]} if params.get("cursor") else {"data": ["a", "b"], "nextCursor": "2"}


class FakeBackend:
    def __init__(self) -> None:
        self.client = FakeClient()

    async def lease(self) -> FakeBackend:
        return self


async def test_a_fact_is_asked_for_once_in_its_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backend = FakeBackend()
    facts = BackendFacts(cast(Backend, backend), time_to_live=10.0)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(facts.models)
    assert await facts.models() == ["a", "b", "c"]
    assert len(backend.client.asked) == 2
    await trio.sleep(11)
    assert await facts.mcp_servers() == ["a", "b", "c"]
    await facts.models()
    assert len(backend.client.asked) == 6


class SlowClient:
    """Answers when the test says so, whatever it is asked."""

    def __init__(self) -> None:
        self.gone: str | None = None
        self.asked: list[Pending] = []
        self.forgotten: list[Pending] = []

    async def request(self, method: str, params: Json, *, begun: Callable[[Pending], None]) -> Json:
        self.asked.append(Pending(method))
        begun(self.asked[-1])
        return await self.asked[-1].wait()

    def forget(self, pending: Pending) -> None:
        self.forgotten.append(pending)


class SlowBackend:
    def __init__(self) -> None:
        self.client = SlowClient()

    async def lease(self) -> SlowBackend:
        return self


async def test_who_comes_back_for_a_slow_answer_gets_the_one_that_was_under_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Else MCP servers that need longer to start than a client waits would never be listed."""
    backend = SlowBackend()
    facts = BackendFacts(cast(Backend, backend))
    with trio.move_on_after(8):
        await facts.mcp_servers()
    (asked,) = backend.client.asked
    asked.resolve(Answer(1, {"data": ["a"]}))
    assert await facts.mcp_servers() == ["a"]
    assert backend.client.asked == backend.client.forgotten == [asked]


@pytest.mark.parametrize("reason", ["it is old", "the backend is gone", "it was never answered"])
async def test_an_answer_left_under_way_is_not_taken_up_when(
    reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    backend = SlowBackend()
    facts = BackendFacts(cast(Backend, backend), time_to_live=60.0)
    with trio.move_on_after(8):
        await facts.mcp_servers()
    if reason == "it is old":
        await trio.sleep(60)
    elif reason == "the backend is gone":
        backend.client.gone = "it left"
    else:
        with pytest.raises(ProxyError, match="not answered"):
            await facts.mcp_servers()
    with trio.move_on_after(1):
        await facts.mcp_servers()
    assert len(backend.client.asked) == 2


# -- MCP servers ---------------------------------------------------------------------------------


def test_tools_are_listed_with_all_that_is_known_of_them_and_always_in_the_same_order() -> None:
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    whole = {
        "name": "write",
        "title": "Write it",
        "description": "Writes.",
        "inputSchema": schema,
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": False},
        "icons": None,
    }
    servers: list[Any] = [
        {"name": "b", "tools": {"write": whole, "bare": {"outputSchema": None}}},
        {"name": "a", "tools": {"z": {"name": "z", "inputSchema": schema}}},
        {"name": "off", "tools": {}},
        "nonsense",
    ]
    assert tools_of(servers) == [
        {"server": "a", "name": "z", "description": "", "input_schema": schema},
        {"server": "b", "name": "bare", "description": "", "input_schema": {}},
        {
            "server": "b",
            "name": "write",
            "title": "Write it",
            "description": "Writes.",
            "input_schema": schema,
            "output_schema": {"type": "object"},
            "annotations": {"readOnlyHint": False},
        },
    ]


def test_a_thread_does_without_the_servers_that_are_hidden_and_keeps_its_verbosity() -> None:
    plan = ThreadPlan(Turn(verbosity="low"), Capabilities(), "/nowhere")
    assert plan.thread_start()["config"] == {"model_verbosity": "low"}
    assert plan.thread_start({"b", "a.x"})["config"] == {
        "model_verbosity": "low",
        "mcp_servers": {"a.x": {"enabled": False}, "b": {"enabled": False}},
    }


def test_tools_of_servers_that_do_not_run_cannot_be_offered() -> None:
    with pytest.raises(UsageError, match=r"PROXY_EXPOSE_MCP_TOOLS.*needs CODEX_MCP_SERVERS=true"):
        backend_options(Settings(expose_mcp_tools=True))
    options = backend_options(Settings(expose_mcp_tools=True, codex_mcp_servers=True))
    assert (options.mcp_servers, options.mcp_tools) == (True, True)
