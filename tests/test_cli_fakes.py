"""The fakes on the command line: a Codex that can misbehave, and a model without a login."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from sources.replay import Replay

ROOT = Path(__file__).parent.parent
TRANSCRIPTS = ROOT / "examples" / "transcripts" / "codex-0.166.0"
TOOLS = [{"type": "function", "name": name} for name in ("localSearch", "readNote")]


class Typed:
    """A fake Codex that is typed at, message by message."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.heard: list[dict[str, Any]] = []
        self._number = 0

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.heard.append(json.loads(self.process.stdout.readline()))
        return self.heard[-1]

    def begin(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self.write(json.dumps(message).encode())
        return self._number

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The whole answer to a request; what comes before it is heard too."""
        number = self.begin(method, params)
        while True:
            message = self.next()
            if message.get("id") == number and "method" not in message:
                return message

    def open_thread(self) -> str:
        self.ask("initialize", clientInfo={"name": "typist"})
        thread: str = self.ask("thread/start", dynamicTools=TOOLS)["result"]["thread"]["id"]
        return thread

    def start(self, thread: str, words: str) -> str:
        said = [{"type": "text", "text": words}]
        turn: str = self.ask("turn/start", threadId=thread, input=said)["result"]["turn"]["id"]
        return turn

    def until(self, method: str) -> dict[str, Any]:
        while True:
            message = self.next()
            if message.get("method") == method:
                return message


@contextmanager
def typing(*flags: str) -> Generator[Typed]:
    command = [sys.executable, "-m", "pipeline.cli.fake_codex", *flags]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as process:
        yield Typed(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def refusal(answer: dict[str, Any]) -> str:
    assert answer["error"]["code"] == -32600
    message: str = answer["error"]["message"]
    return message


# -- fake-codex ----------------------------------------------------------------------------------


def test_the_fake_refuses_in_codexs_own_words() -> None:
    with typing("app-server", "-c", "features.apps=false") as codex:
        assert refusal(codex.ask("thread/start")) == "Not initialized"
        assert (
            "typist/0.166.0"
            in codex.ask("initialize", clientInfo={"name": "typist"})["result"]["userAgent"]
        )
        assert refusal(codex.ask("initialize")) == "Already initialized"
        unknown = refusal(codex.ask("capabilities/probe"))
        assert unknown.startswith("Invalid request: unknown variant `capabilities/probe`, expected")
        assert "`thread/inject_items`" in unknown
        assert refusal(codex.ask("thread/start", dynamicTools=0)).endswith("expected a sequence")
        assert refusal(codex.ask("thread/start", experimentalRawEvents=0)).endswith("a boolean")
        assert refusal(codex.ask("turn/start", threadId="x", input=[])) == "thread not found: x"
        assert codex.ask("model/list")["result"]["data"]


def test_the_fake_takes_items_and_gives_them_back_as_an_echo() -> None:
    with typing() as codex:
        thread = codex.open_thread()
        wrong = {"type": "message", "role": "user", "content": "plain"}
        assert "items[0]" in refusal(
            codex.ask("thread/inject_items", threadId=thread, items=[wrong])
        )
        right = {**wrong, "content": [{"type": "input_text", "text": "TEXT"}]}
        codex.ask("thread/inject_items", threadId=thread, items=[right])
        assert codex.heard[-2]["params"]["item"] == right
        codex.ask("turn/start", threadId=thread, input=[])
        assert codex.until("item/agentMessage/delta")["params"]["delta"] == "Hello"


def test_the_fake_interrupts_as_codex_does() -> None:
    with typing() as codex:
        thread = codex.open_thread()
        none = "no active turn to interrupt"
        assert refusal(codex.ask("turn/interrupt", threadId=thread, turnId="x")) == none
        turn = codex.start(thread, "ONECALL")
        codex.until("item/tool/call")
        assert "expected active turn id x but found" in refusal(
            codex.ask("turn/interrupt", threadId=thread, turnId="x")
        )
        assert codex.ask("turn/interrupt", threadId=thread, turnId=turn)["result"] == {}
        before = [message.get("method") for message in codex.heard[-4:-1]]
        assert before == ["item/completed", *["rawResponseItem/completed"] * 2]
        assert codex.until("turn/completed")["params"]["turn"]["status"] == "interrupted"
        codex.begin("turn/interrupt", {"threadId": thread, "turnId": turn})
        assert codex.ask("thread/delete", threadId=thread)["result"] == {}  # the other was ignored


def test_the_fake_runs_a_tool_through_its_client_and_goes_on() -> None:
    with typing() as codex:
        codex.start(codex.open_thread(), "ONECALL")
        call = codex.until("item/tool/call")
        assert call["params"]["arguments"] == {"query": "x", "n": 1.0}
        result = {"contentItems": [{"type": "inputText", "text": "rain"}], "success": True}
        codex.write(json.dumps({"id": call["id"], "result": result}).encode())
        codex.until("turn/completed")
        deltas = [m for m in codex.heard if m.get("method") == "item/agentMessage/delta"]
        said = "".join(message["params"]["delta"] for message in deltas)
        assert said == "Let me look.The tool said: rain"


def test_a_line_the_fake_cannot_read_has_no_answer() -> None:
    with typing() as codex:
        codex.write(b'{"id": 9, "method": "initialize", "params": {"x": "\\ud800"}}')
        codex.write(b"nonsense")
        codex.write(
            b'{"id": 8, "method": "initialize", "params": ' + b"[" * 200 + b"]" * 200 + b"}"
        )
        codex.ask("initialize", clientInfo={"name": "typist"})
        assert len(codex.heard) == 1


def test_the_fake_says_as_many_words_as_wanted_fast() -> None:
    with typing("--deltas", "1000") as codex:
        codex.start(codex.open_thread(), "anything")
        codex.until("turn/completed")
        deltas = [m for m in codex.heard if m.get("method") == "item/agentMessage/delta"]
        assert [message["params"]["delta"] for message in deltas] == [f"{n} " for n in range(1000)]


def kinds(path: Path) -> list[str]:
    """The kinds of events of a transcript, in order; how a text was cut does not matter."""
    events = [type(event).__name__ for burst in Replay(path).events() for event in burst]
    return [kind for kind, _ in groupby(events)]


@pytest.mark.parametrize(
    ("words", "transcript"),
    [
        ("TEXT", "text"),
        ("REASON", "reasoning"),
        ("USETOOL", "use-tool-text"),
        ("SENTINEL", "sentinel-text"),
        ("E429", "error-E429"),
        ("CUT", "error-ECUT"),
        ("HALF", "error-EINC"),
        ("RETRY", "retry-after-partial-text"),
    ],
)
def test_a_turn_of_the_fake_reads_as_a_recorded_one(
    tmp_path: Path, words: str, transcript: str
) -> None:
    with typing() as codex:
        codex.start(codex.open_thread(), words)
        codex.until("turn/completed")
        played = tmp_path / "played.jsonl"
        played.write_text("".join(json.dumps(message) + "\n" for message in codex.heard))
    assert kinds(played) == kinds(TRANSCRIPTS / f"{transcript}.jsonl")


# -- fake-model ----------------------------------------------------------------------------------


def test_the_model_serves_on_loopback_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "pipeline", "fake-model"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:  # noqa: S603
        assert process.stdout is not None
        told = b""
        while b"Ctrl-C" not in told:
            told += process.stdout.readline()
        url = told.split()[4].decode().rstrip(";")
        assert f"-c 'model_providers.scripted.base_url=\"{url}\"'".encode() in told
        said = [{"type": "message", "role": "user", "content": "TEXT"}]
        body = json.dumps({"input": said}).encode()
        request = urllib.request.Request(f"{url}/responses", body)  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            assert b"event: response.completed" in answer.read()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(10) == 0
    assert b"served 1 requests" in rest


# -- both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fake-codex", "--hang", "turn/strat"], "--hang must be one of"),
        (["fake-codex", "--always", "toron"], "--always must be one of approve"),
        (["fake-codex", "--busy", "turn/start"], "--busy must be METHOD=N"),
        (["fake-codex", "--log", "no/such/dir/x"], "--log no/such/dir/x: cannot be written"),
        (["fake-model", "--port", "70000"], "--port must be 0 to 65535 (got 70000)"),
    ],
)
def test_what_cannot_be_used_gets_a_clear_message_and_exit_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_a_port_that_is_taken_is_a_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["fake-model", "--port", str(port)]) == 2
    assert f"--port {port} cannot be used: Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "teaches"), [("fake-codex", "!ask-and-die"), ("fake-model", "ONECALL")]
)
def test_help_teaches(command: str, teaches: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert leaving.value.code == 0
    assert teaches in capsys.readouterr().out
