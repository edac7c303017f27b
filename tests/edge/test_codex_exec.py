"""Codex itself as a client of the server, which has another Codex on the scripted model behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline.serve.observe.exchange import client_ids

from .codex_client import CodexClient, Ran
from .conftest import FEW, KEY
from .relay import Relay

NEWEST: Final = "0.166.0"
WITH_ENDPOINT: Final = "0.154.0"
"""The last of those that can be told to ask the endpoint for a compaction."""
HELLO: Final = "Hello, wörld 🌍!"
SOON: Final = 10.0
"""A failure that is told at once; Codex itself would wait for five minutes."""
PICTURE: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
PATCH: Final = "*** Begin Patch\n*** Add File: made.txt\n+plums\n*** End Patch\n"
SCRIPT: Final = "const ran = await tools.exec_command({cmd: 'echo plums'}); text(ran.output);"
SOCKET: Final[dict[str, Any]] = {"supports_websockets": True}
REMOTE: Final[dict[str, Any]] = {"name": "OpenAI"}
"""Codex compacts the conversations of other providers by itself."""
SMALL: Final[dict[str, Any]] = {"model_auto_compact_token_limit": 100}
"""Less than what any answer of the scripted model counts."""

Open = Callable[..., CodexClient]


@pytest.fixture
def codex_at(binary_of: Callable[[str], str], tmp_path: Path) -> Open:
    """A Codex that was never started before, as a client of a server."""

    def opened(relay: Relay, version: str = NEWEST, key: str = KEY) -> CodexClient:
        home, folder = tmp_path / "home", tmp_path / "folder"
        home.mkdir()
        folder.mkdir()
        return CodexClient(binary_of(version), home, folder, relay, key)

    return opened


@pytest.fixture
def codex(codex_at: Open, relay: Relay) -> CodexClient:
    return codex_at(relay)


def call(tool: str, **arguments: str) -> str:
    """A line that makes the scripted model call a tool."""
    return f"CALL {tool} {json.dumps(arguments)}"


def echo(words: str) -> str:
    return call("exec_command", cmd=f"echo {words}")


def kinds(body: dict[str, Any]) -> list[str]:
    """The items that a request brings, without those that Codex itself begins every one with."""
    found = [item["type"] for item in body["input"]]
    return [kind for kind in found if kind not in ("message", "additional_tools")]


def check(ran: Ran) -> Ran:
    assert (ran.code, ran.complaints) == (0, []), ran.stderr
    return ran


def over_a_socket(ran: Ran) -> bool:
    return any(told.status == 101 for told in ran.exchanges)


def thread_of(ran: Ran) -> str:
    """The thread that Codex itself says it works on."""
    (began,) = [line for line in ran.lines if line["type"] == "thread.started"]
    return str(began["thread_id"])


# -- one turn --------------------------------------------------------------------------------------


def test_codex_is_answered_with_the_words_and_their_count(codex: CodexClient) -> None:
    ran = check(codex.run("TEXT"))
    assert ran.said == [HELLO]
    assert ran.lines[-1]["usage"] == {
        "input_tokens": 120,
        "cached_input_tokens": 64,
        "cache_write_input_tokens": 0,
        "output_tokens": 33,
        "reasoning_output_tokens": 9,
    }


@pytest.mark.parametrize("provider", [{}, SOCKET], ids=["http", "websocket"])
def test_codex_says_which_session_and_conversation_a_request_belongs_to(
    codex: CodexClient, provider: dict[str, Any]
) -> None:
    ran = check(codex.run("TEXT", provider=provider))
    own = {"session_id": thread_of(ran), "conversation_id": thread_of(ran)}
    (told,) = [told for told in ran.exchanges if told.path == "/v1/responses"]
    assert client_ids(told.headers.get) == own
    for body in ran.asked:
        assert client_ids(body["client_metadata"].get) == own


def test_codex_runs_the_called_command_and_sends_its_output(
    codex: CodexClient,
) -> None:
    ran = check(codex.run(echo("plums")))
    assert ran.commands == [("plums\n", 0)]
    (said,) = ran.said
    assert said.startswith("The tool said: ")
    assert said.endswith("\nplums\n")


def test_two_calls_of_one_answer_are_both_run_and_both_answered(codex: CodexClient) -> None:
    ran = check(codex.run(f"{echo('plums')}\n{echo('pears')}"))
    assert sorted(ran.commands) == [("pears\n", 0), ("plums\n", 0)]
    first, second = ran.asked
    assert kinds(first) == []
    assert kinds(second) == [*["function_call"] * 2, *["function_call_output"] * 2]
    (said,) = ran.said
    assert said.endswith("\npears\n")


def test_the_default_model_runs_its_script_though_its_tools_come_in_an_item(
    codex: CodexClient,
) -> None:
    ran = check(codex.run(call("exec", input=SCRIPT), model=None))
    assert ran.commands == [("plums\n", 0)]
    first, second = ran.asked
    assert "tools" not in first
    assert first["input"][0]["type"] == "additional_tools"
    assert kinds(second) == ["custom_tool_call", "custom_tool_call_output"]
    (said,) = ran.said
    assert said.endswith("plums\n")


def test_a_patch_is_applied_as_the_free_text_that_the_model_wrote(codex: CodexClient) -> None:
    ran = check(codex.run(call("apply_patch", input=PATCH), model="gpt-5.5"))
    assert (codex.folder / "made.txt").read_text() == "plums\n"
    (made,) = (item for item in ran.asked[-1]["input"] if item["type"] == "custom_tool_call")
    assert (made["name"], made["input"]) == ("apply_patch", PATCH)


def test_a_picture_reaches_the_model(codex: CodexClient) -> None:
    picture = codex.folder / "pixel.png"
    picture.write_bytes(base64.b64decode(PICTURE))
    ran = check(codex.run("--image", str(picture), "--", "Please LOOK"))
    assert ran.said == ["I see data:image/png."]


def test_an_answer_has_the_form_that_was_asked_for(codex: CodexClient) -> None:
    form = codex.folder / "form.json"
    properties = {"title": {"type": "string"}, "hours": {"type": "number"}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    form.write_text(json.dumps(schema))
    ran = check(codex.run("--output-schema", str(form), "When do we meet?"))
    (said,) = ran.said
    assert json.loads(said) == {"title": "some title", "hours": 7.5}


# -- more than one turn ----------------------------------------------------------------------------


def test_a_resumed_session_still_knows_what_both_sides_said(codex: CodexClient) -> None:
    check(codex.run("I like plums"))
    ran = check(codex.run("resume", "--last", "RECALL plums"))
    assert ran.said == ["user: I like plums\nassistant: You said: I like plums"]


@pytest.mark.parametrize("provider", [{}, SOCKET], ids=["http", "websocket"])
def test_a_compacted_session_goes_on_from_its_summary(
    codex: CodexClient, provider: dict[str, Any]
) -> None:
    check(codex.run("I like plums", provider=REMOTE))
    ran = check(
        codex.run("resume", "--last", "RECALL said:", provider={**REMOTE, **provider}, **SMALL)
    )
    assert over_a_socket(ran) == bool(provider)
    compacting, going_on = (body for body in ran.asked if body.get("generate") is not False)
    assert compacting["input"][-1] == {"type": "compaction_trigger"}
    assert kinds(going_on) == ["compaction"]
    compacted, answered = (told for told in _answers(ran) if told["output"])
    assert [item["type"] for item in compacted["output"]] == ["compaction"]
    assert [item["type"] for item in answered["output"]] == ["message"]
    assert compacted["usage"]["total_tokens"] == 153
    check_recalled(ran)


def test_a_session_compacted_by_the_endpoint_goes_on_from_its_summary(
    codex_at: Open, relay: Relay
) -> None:
    codex = codex_at(relay, WITH_ENDPOINT)
    old: dict[str, Any] = {"features.remote_compaction_v2": False}
    check(codex.run("I like plums", provider=REMOTE, **old))
    ran = check(codex.run("resume", "--last", "RECALL said:", provider=REMOTE, **SMALL, **old))
    paths = [told.path for told in ran.exchanges if told.method == "POST"]
    assert paths == ["/v1/responses/compact", "/v1/responses"]
    assert "compaction" in kinds(ran.asked[-1])
    check_recalled(ran)


def test_a_turn_that_is_compacted_in_the_middle_comes_to_its_end(codex: CodexClient) -> None:
    ran = check(codex.run(echo("plums"), provider=REMOTE, **SMALL))
    assert ran.commands[0] == ("plums\n", 0)
    assert [kinds(body)[-1:] for body in ran.asked] == [
        [],
        ["compaction_trigger"],
        ["compaction"],
    ]
    assert ran.said


def _answers(ran: Ran) -> list[dict[str, Any]]:
    """The responses that were told to their end."""
    events = [event for told in ran.exchanges for event in told.events]
    return [event["response"] for event in events if event["type"] == "response.completed"]


def check_recalled(ran: Ran) -> None:
    """The model was sent what it had said as a summary, and not what it had said before that."""
    (said,) = ran.said
    assert "You said: I like plums" not in said
    assert "You said: " in said


# -- silence, failure ------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", [{}, SOCKET], ids=["http", "websocket"])
def test_silence_is_broken_often_enough_for_codex_to_wait_on(
    codex: CodexClient, provider: dict[str, Any]
) -> None:
    ran = check(codex.run("PAUSE", provider={**provider, "stream_idle_timeout_ms": 1200}))
    assert over_a_socket(ran) == bool(provider)
    assert ran.said == ["Wait for it."]
    kinds = [event["type"] for told in ran.exchanges for event in told.events]
    assert kinds.count("keepalive") > 1


@pytest.mark.parametrize("provider", [{}, SOCKET], ids=["http", "websocket"])
def test_an_answer_that_breaks_off_fails_the_run_at_once(
    codex: CodexClient, provider: dict[str, Any]
) -> None:
    ran = codex.run("CUT", provider=provider)
    assert over_a_socket(ran) == bool(provider)
    assert ran.code == 1
    assert ran.seconds < SOON
    assert ran.lines[-1]["type"] == "turn.failed"


@pytest.mark.parametrize("provider", [{}, SOCKET], ids=["http", "websocket"])
@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [("E429", 429, "Quota exceeded"), ("E400", 400, "the request is wrong")],
)
def test_a_rejection_is_shown_with_its_reason(
    codex: CodexClient, provider: dict[str, Any], words: str, status: int, complaint: str
) -> None:
    ran = codex.run(words, provider=provider)
    told = ran.exchanges[-1]
    refused = [refusal["status"] for refusal in told.refusals] if provider else [told.status]
    assert refused == [status]
    assert ran.code == 1
    assert ran.seconds < SOON
    assert complaint in ran.complaints[-1]


def test_a_wrong_key_fails_the_run_at_once(codex_at: Open, relay: Relay) -> None:
    ran = codex_at(relay, key="sk-nobodys").run("TEXT")
    assert ran.code == 1
    assert ran.seconds < SOON
    assert "401" in ran.complaints[-1]


@pytest.mark.parametrize("provider", [{}, SOCKET], ids=["http", "websocket"])
def test_as_many_as_there_is_room_for_leave_it_to_one_who_stays(
    codex: CodexClient, provider: dict[str, Any]
) -> None:
    codex.leave("HANG", times=int(FEW), provider=provider)
    ran = check(codex.run("TEXT", provider=provider))
    assert over_a_socket(ran) == bool(provider)
    assert ran.said == [HELLO]
    assert ran.seconds < SOON


# -- over a WebSocket ------------------------------------------------------------------------------


def test_one_socket_carries_every_request_of_a_run(codex: CodexClient) -> None:
    ran = check(codex.run(f"{echo('plums')}\n{echo('pears')}", provider=SOCKET))
    assert sorted(ran.commands) == [("pears\n", 0), ("plums\n", 0)]
    (socket,) = (told for told in ran.exchanges if told.path == "/v1/responses")
    assert (socket.method, socket.status) == ("GET", 101)
    warm, first, second = socket.asked
    assert warm["generate"] is False
    assert kinds(second) == ["function_call_output"] * 2
    warmed, answered, _ = _answers(ran)
    assert warmed["output"] == []
    assert first["previous_response_id"] == warmed["id"]
    assert second["previous_response_id"] == answered["id"]


def test_the_default_model_needs_its_tools_only_once_on_a_socket(codex: CodexClient) -> None:
    ran = check(codex.run(call("exec", input=SCRIPT), model=None, provider=SOCKET))
    assert ran.commands == [("plums\n", 0)]
    _, first, second = ran.asked
    assert first["input"][0]["type"] == "additional_tools"
    assert [item["type"] for item in second["input"]] == ["custom_tool_call_output"]
    (said,) = ran.said
    assert said.endswith("plums\n")


def test_codex_falls_back_quietly_where_the_socket_is_switched_off(
    codex_at: Open, without_sockets: Relay
) -> None:
    ran = check(codex_at(without_sockets).run("TEXT", provider=SOCKET))
    assert ran.said == [HELLO]
    told = [(t.method, t.status) for t in ran.exchanges if t.path == "/v1/responses"]
    assert told == [("GET", 426), ("POST", 200)]
