"""The command line, run as people run it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from pipeline.assembly import Settings, recipe
from pipeline.cli.main import main
from pipeline.ledger import Ledger
from pipeline.turn import Tool, Turn
from sources.replay import Replay
from tests.support.responses_automaton import check_stream

ROOT = Path(__file__).parent.parent
TRANSCRIPTS = ROOT / "examples" / "transcripts"
TEXT = TRANSCRIPTS / "codex-0.166.0" / "text.jsonl"
CALL = TRANSCRIPTS / "codex-0.166.0" / "call-interrupted.jsonl"
BURST = TRANSCRIPTS / "codex-0.166.0" / "burst-interrupted-after-last.jsonl"
BLOCK = TRANSCRIPTS / "codex-0.166.0" / "use-tool-text.jsonl"
QUOTA = TRANSCRIPTS / "codex-0.166.0" / "error-E429.jsonl"
BROKEN_OFF = TRANSCRIPTS / "codex-0.166.0" / "error-ECUT.jsonl"

REASONED = TRANSCRIPTS / "codex-0.166.0" / "reasoning.jsonl"
LIMITED = TRANSCRIPTS / "codex-0.166.0" / "error-EINC.jsonl"
RECORDED = sorted(TRANSCRIPTS.rglob("*.jsonl"))


@frozen
class Done:
    returncode: int
    stdout: bytes
    stderr: bytes


class Command:
    """`python -m pipeline` without the start of an interpreter."""

    def __init__(self, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[bytes]) -> None:
        self._patch = patch
        self._captured = captured

    def __call__(self, *arguments: object, stdin: bytes = b"") -> Done:
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        out, err = self._captured.readouterr()
        return Done(status, out, err)

    def body(self, *arguments: object) -> dict[str, Any]:
        done = self("replay", "--no-stream", *arguments)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def message(self, *arguments: object) -> dict[str, Any]:
        found: dict[str, Any] = self.body(*arguments)["choices"][0]["message"]
        return found


@pytest.fixture
def pipeline(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Command:
    for variable in [name for name in os.environ if name.startswith(("PROXY_", "CODEX_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(ROOT)
    return Command(monkeypatch, capsysbinary)


def names(found: dict[str, Any]) -> list[str]:
    return [call["function"]["name"] for call in found.get("tool_calls", [])]


# -- replay --------------------------------------------------------------------------------------


def test_replay_pipes_the_bytes_a_client_gets(pipeline: Command) -> None:
    done = pipeline("replay", TEXT)
    assert done.returncode == 0
    assert done.stderr == b""
    frames = done.stdout.decode().removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "Hello, wörld 🌍!"


def test_replay_reads_standard_input(pipeline: Command) -> None:
    piped = pipeline("replay", "--no-stream", "-", stdin=TEXT.read_bytes())
    assert json.loads(piped.stdout)["choices"][0]["message"]["content"] == "Hello, wörld 🌍!"


def test_replay_takes_several_files(pipeline: Command) -> None:
    done = pipeline("replay", TEXT, CALL)
    assert done.stdout.count(b"data: [DONE]") == 2


def test_tools_are_declared_by_name(pipeline: Command) -> None:
    assert names(pipeline.message("--tools", "localSearch", BLOCK)) == ["localSearch"]
    assert names(pipeline.message("--tools", "other", BLOCK)) == []
    assert names(pipeline.message(BLOCK)) == []


def test_tools_come_from_a_request(pipeline: Command, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    function = {"name": "localSearch", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    options = {"include_usage": True}
    request.write_text(json.dumps({"model": "gpt-5", "tools": tools, "stream_options": options}))
    assert names(pipeline.message("--request", request, BLOCK)) == ["localSearch"]
    assert pipeline.body("--request", request, BLOCK)["model"] == "gpt-5"
    assert b'"usage":{"prompt_tokens":120' in pipeline("replay", "--request", request, BLOCK).stdout


def test_include_usage_ends_the_stream_with_the_counts(pipeline: Command) -> None:
    assert b'"usage"' not in pipeline("replay", TEXT).stdout
    assert b'"total_tokens":153' in pipeline("replay", "--include-usage", TEXT).stdout


@pytest.mark.parametrize(
    ("flags", "calls"),
    [
        ([], 3),
        (["--tool-block-max", "2"], 2),
        (["--tool-block-dedup", "true"], 2),
        (["--stop-after-tools-mode", "first"], 1),
    ],
)
def test_every_stage_flag_works_on_the_command_line(
    pipeline: Command, flags: list[str], calls: int
) -> None:
    assert len(names(pipeline.message("--tools", "localSearch,readNote", *flags, BURST))) == calls


def test_the_environment_works_and_a_flag_wins_over_it(
    pipeline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_TOOL_BLOCK_MAX", "1")
    assert len(names(pipeline.message(BURST))) == 1
    assert len(names(pipeline.message("--tool-block-max", "2", BURST))) == 2


def test_the_output_mode_writes_blocks_for_obsidian(pipeline: Command) -> None:
    found = pipeline.message("--tools", "localSearch", "--output-mode", "obsidian-xml", BLOCK)
    assert "<use_tool>\n<name>localSearch</name>" in found["content"]
    assert names(found) == ["localSearch"]


def test_the_unknown_tool_policy_can_fail_the_turn(pipeline: Command) -> None:
    done = pipeline("replay", "--tools", "x", "--unknown-tool-policy", "fail", "--no-stream", BLOCK)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "unknown_tool"


def test_a_failed_turn_shows_its_status_and_exits_1(pipeline: Command) -> None:
    done = pipeline("replay", QUOTA)
    assert done.returncode == 1
    assert done.stderr == b"HTTP 429\n"
    assert json.loads(done.stdout)["error"]["code"] == "insufficient_quota"


def test_a_turn_that_fails_in_the_middle_exits_1_too(pipeline: Command) -> None:
    done = pipeline("replay", BROKEN_OFF)
    assert done.returncode == 1
    assert b'{"error":' in done.stdout
    assert done.stdout.endswith(b"data: [DONE]\n\n")


def test_speed_and_pace_change_nothing_but_the_time(pipeline: Command, tmp_path: Path) -> None:
    lines = [
        {"at": at, "message": {"method": "item/agentMessage/delta", "params": {"delta": text}}}
        for at, text in [(10.0, "a"), (10.05, "b"), (10.1, "c")]
    ]
    end = {"method": "turn/completed", "params": {"turn": {"status": "completed"}}}
    recording = tmp_path / "slow.jsonl"
    records = [*lines, {"at": 10.1, "message": end}]
    recording.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert pipeline.message("--speed", "1", recording) == pipeline.message(recording)
    assert pipeline.message("--pace", "5", recording)["content"] == "abc"


def test_pieces_that_are_not_json_do_not_stop_a_replay(pipeline: Command, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl"
    lines = TEXT.read_bytes().splitlines(keepends=True)
    damaged.write_bytes(
        b"".join([b"\xff\x00 broken\n", *lines[:14], b'{"method": "ite\n', *lines[14:]])
    )
    assert pipeline.message(damaged)["content"] == "Hello, wörld 🌍!"


def test_a_truncated_transcript_fails_properly(pipeline: Command, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(TEXT.read_bytes()[:7000])
    done = pipeline("replay", "--no-stream", cut)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "stream_ended_early"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay", "no-such-file.jsonl"], "no-such-file.jsonl: there is no such file"),
        (["replay", "tests"], "this is a folder"),
        (["replay", "pyproject.toml"], "not one line is a message of codex app-server"),
        (["replay", "--speed", "fast", TEXT], "--speed fast is not possible"),
        (["replay", "--speed", "0", TEXT], "--speed 0 is not possible"),
        (["replay", "--pace", "-1", TEXT], "--pace -1.0 is not possible"),
        (
            ["replay", "--tool-block-max", "two", TEXT],
            "PROXY_TOOL_BLOCK_MAX must be a whole number",
        ),
        (["replay", "--request", "README.md", TEXT], "README.md: is not JSON"),
        (["replay", "--request", "none.json", TEXT], "none.json: cannot be read"),
        (["replay", "--dump-events", "no/such/dir/x", TEXT], "cannot be written"),
        (["explain", "no-such-file.jsonl"], "there is no such file"),
        (["explain", "pyproject.toml"], "not one line is a message"),
        (["stages", "--output-mode", "xml"], "auto, openai-json, obsidian-xml"),
    ],
)
def test_what_cannot_be_used_gets_a_clear_message_and_exit_2(
    pipeline: Command, arguments: list[object], says: str
) -> None:
    done = pipeline(*arguments)
    assert done.returncode == 2
    assert says in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_wrong_request_names_its_field(pipeline: Command, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text('{"tools": [{"function": {"name": 5}}]}')
    done = pipeline("replay", "--request", request, TEXT)
    assert done.returncode == 2
    assert "tools[0].function.name must be a string" in done.stderr.decode()


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m pipeline explain --all {BURST} | head -1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, check=False)  # noqa: S602
    assert done.stderr == b""


def on_a_terminal(*arguments: object) -> str:
    """What a command shows when its output is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pipeline", *map(str, arguments)]
    with subprocess.Popen(command, stdout=theirs, cwd=ROOT) as process:  # noqa: S603
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that its other end was closed
            while data := os.read(ours, 4096):
                shown += data
        process.wait(60)
    os.close(ours)
    return shown.decode()


def test_on_a_terminal_a_turn_is_shown_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = on_a_terminal("replay", "--include-usage", "--tools", "localSearch", BLOCK)
    assert "I'll search your vault." in shown
    assert '▸ localSearch {"query":"meeting notes & todos"' in shown
    assert "finish_reason: tool_calls" in shown
    assert "120 tokens in, 33 out" in shown
    assert "data:" not in shown


def test_a_recording_that_tells_no_time_was_made_at_0(pipeline: Command) -> None:
    timeless = ROOT / "examples" / "transcripts" / "codex-0.89.0" / "text.jsonl"
    assert pipeline.body(timeless)["created"] == 0
    response = pipeline.body("--api", "responses", timeless)
    assert (response["created_at"], response["completed_at"]) == (0, 0)


# -- the Responses API -----------------------------------------------------------------------------


def test_replay_speaks_the_responses_api_the_same_every_time(pipeline: Command) -> None:
    done = pipeline("replay", "--api", "responses", "--tools", "localSearch,readNote", BURST)
    assert done.returncode == 0
    response = check_stream(done.stdout)
    assert [item["id"] for item in response["output"]] == ["msg_1", "fc_2", "fc_3", "fc_4"]
    again = pipeline("replay", "--api", "responses", "--tools", "localSearch,readNote", BURST)
    assert again.stdout == done.stdout
    whole = pipeline.body("--api", "responses", "--tools", "localSearch,readNote", BURST)
    assert whole == response


def test_a_responses_request_gives_its_tools_and_is_repeated(
    pipeline: Command, tmp_path: Path
) -> None:
    request = tmp_path / "request.json"
    tools = [{"type": "function", "name": "localSearch"}]
    request.write_text(json.dumps({"model": "gpt-5", "tools": tools, "metadata": {"a": "b"}}))
    body = pipeline.body("--api", "responses", "--request", request, BLOCK)
    assert (body["model"], body["metadata"]) == ("gpt-5", {"a": "b"})
    assert [tool["name"] for tool in body["tools"]] == ["localSearch"]
    assert [item["type"] for item in body["output"]] == ["message", "function_call"]
    request.write_text(json.dumps({"model": "gpt-5", "tools": [{"type": "function"}]}))
    done = pipeline("replay", "--api", "responses", "--request", request, BLOCK)
    assert done.returncode == 2
    assert b"tools[0]" in done.stderr


def test_the_output_mode_of_the_responses_api_is_a_flag(pipeline: Command) -> None:
    flags = ("--tools", "localSearch", "--responses-output-mode", "obsidian-xml")
    message, _ = pipeline.body("--api", "responses", *flags, BLOCK)["output"]
    assert "<use_tool>\n<name>localSearch</name>" in message["content"][0]["text"]
    assert "<use_tool>" not in pipeline.message(*flags, BLOCK)["content"]


def test_a_failed_turn_is_a_failed_response(pipeline: Command) -> None:
    broken = pipeline("replay", "--api", "responses", BROKEN_OFF)
    assert broken.returncode == 1
    assert check_stream(broken.stdout)["status"] == "failed"
    refused = pipeline("replay", "--api", "responses", QUOTA)
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "insufficient_quota"


def test_on_a_terminal_a_response_is_shown_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    flags = ("--api", "responses", "--tools", "localSearch")
    shown = on_a_terminal("replay", *flags, BLOCK, REASONED, BROKEN_OFF, LIMITED)
    assert "I'll search your vault." in shown
    assert '▸ localSearch {"query":"meeting notes & todos"' in shown
    assert "**Thinking** hard\r\n42" in shown
    assert "120 tokens in, 33 out" in shown
    assert "status: completed" in shown
    assert "status: incomplete, max_output_tokens" in shown
    assert "error: stream disconnected" in shown
    assert "data:" not in shown


def test_explain_shows_what_a_client_of_the_responses_api_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "--api", "responses", "--tools", "localSearch", str(CALL)]) == 0
    told = capsys.readouterr().out
    assert "created, in_progress, output_item.added, content_part.added, output_text.delta" in told
    assert "function_call_arguments.delta, function_call_arguments.done, output_item.done" in told
    main(["explain", "--api", "responses", str(QUOTA)])
    assert capsys.readouterr().out.count("HTTP 429") == 1


# -- the other commands --------------------------------------------------------------------------


def test_explain_shows_what_each_stage_did_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--tools", "localSearch", str(BLOCK)]) == 0
    told = capsys.readouterr().out
    assert 'TextDelta(text="I\'ll "' in told
    assert "calls: folded (may be part of a call)" in told
    assert "cut: folded (a call is on its way)" in told
    assert "ToolCall(call_id='call_" in told
    assert "cut: done; nothing later matters" in told
    assert "narration after the last call" in told
    _, _, ledger = told.partition("\nledger       in  made   out  folded  dropped\n")
    rows = [line.split() for line in ledger.splitlines() if re.match(r"  \w", line)]
    assert [name for name, *_ in rows] == list(recipe(Settings()).names)
    books = {name: [int(number) for number in numbers] for name, *numbers in rows}
    for name, (taken, made, given, folded, dropped) in books.items():
        assert taken + made == given + folded + dropped, name
    assert books["cut"] == [40, 1, 10, 25, 6]
    assert "\n            6 × narration after the last call\n" in ledger


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_ledger_of_explain_is_that_of_process(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of --help, where the books of two neighbours once differed, is among these."""
    tools = ("localSearch", "writeToFile")
    main(["explain", "--tools", ",".join(tools), str(path)])
    _, _, told = capsys.readouterr().out.partition(
        "\nledger       in  made   out  folded  dropped\n"
    )
    rows = [line.split() for line in told.splitlines() if re.match(r"  \w", line)]
    ledger = Ledger()
    events = (event for burst in Replay(path).events() for event in burst)
    recipe(Settings()).process(events, Turn(tools=tuple(map(Tool, tools))), ledger=ledger)
    assert rows == [
        [b.name, *map(str, (b.taken, b.made, b.given, b.folded.total(), b.dropped.total()))]
        for b in ledger
    ]


def test_explain_shows_broken_lines_and_with_all_every_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(b"{broken\n" + TEXT.read_bytes())
    main(["explain", str(damaged)])
    told = capsys.readouterr().out
    assert "not an event: a line that is not JSON" in told
    assert "thread/started" not in told
    main(["explain", "--all", str(damaged)])
    assert "thread/started" in capsys.readouterr().out


def test_stages_lists_the_recipe_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stages", "--tool-block-max", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    numbered = [line.split()[1] for line in lines if line[0].isdigit()]
    assert numbered == ["noise", "retries", "calls", "stop", "cut", "dedup", "cap", "guard"]
    assert any("PROXY_TOOL_BLOCK_MAX=4" in line for line in lines)


def test_a_dump_holds_every_message_and_only_its_owner_reads_it(
    pipeline: Command, tmp_path: Path
) -> None:
    dump = tmp_path / "seen.jsonl"
    pipeline("replay", "--dump-events", dump, CALL)
    lines = [json.loads(line) for line in dump.read_text().splitlines()]
    assert len(lines) >= 20
    calls = [event for line in lines for event in line["events"] if event["event"] == "ToolCall"]
    assert calls[0]["arguments"] == '{"query": "x",  "n": 1.0}'
    assert any(line["dropped"] == ["says nothing to a client"] for line in lines)
    assert dump.stat().st_mode & 0o777 == 0o600


def test_a_dump_switched_on_without_a_name_has_its_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CODEX_DUMP_SSE", "true")
    main(["stages"])
    assert not (tmp_path / "backend-events.jsonl").exists()
    main(["replay", str(TEXT)])
    assert (tmp_path / "backend-events.jsonl").exists()
    capsys.readouterr()


@pytest.mark.parametrize("command", ["replay", "explain", "stages", "bench"])
def test_help_teaches(pipeline: Command, command: str) -> None:
    done = pipeline(command, "--help")
    assert done.returncode == 0
    assert b"PROXY_TOOL_BLOCK_MAX" in done.stdout
    assert len(done.stdout) > 500


def test_the_top_help_has_something_to_try(pipeline: Command) -> None:
    done = pipeline("--help")
    assert done.returncode == 0
    assert b"Try:" in done.stdout


def test_a_file_that_is_not_there_gets_one_line_and_no_more(pipeline: Command) -> None:
    done = pipeline("replay", "no-such-file.jsonl")
    assert done.stderr == b"pipeline: no-such-file.jsonl: there is no such file\n"
    assert done.stdout == b""


def test_a_call_of_an_undeclared_tool_is_remarked_on(pipeline: Command) -> None:
    done = pipeline("replay", "--tools", "x", "--unknown-tool-policy", "call", BLOCK)
    assert done.stderr.startswith(b"calls: forwarded a call of localSearch")
