"""A recorded turn is shown with the same bytes every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.main import main
from pipeline.formats.recording import HEADER, Header
from pipeline.turn import NamedTool, OutputSchema, Tool, Turn

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = sorted((ROOT / "examples" / "transcripts").rglob("*.jsonl"))
BLOCKS = ROOT / "examples" / "transcripts" / "codex-0.166.0" / "use-tool-text.jsonl"
TIMES: Final = {"created_at", "completed_at"}
TOOLS = ("--tools", "localSearch,readNote,writeToFile")


def run(*arguments: str, hash_seed: int) -> bytes:
    """What a process of its own writes, strings hashed in an order of its own."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pipeline", *arguments, *TOOLS, *map(str, TRANSCRIPTS)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        check=False,  # some of the turns failed
        timeout=60,
    )
    assert b"Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    "command",
    [("replay",), ("replay", "--no-stream"), ("explain",)],
    ids=" ".join,
)
def test_every_bundled_transcript_is_shown_with_the_same_bytes_again(
    command: tuple[str, ...], api: str
) -> None:
    first, second = (run(*command, "--api", api, hash_seed=seed) for seed in (1, 2))
    assert first == second
    assert len(first) > 10_000


def recording(path: Path, header: Header | None) -> str:
    """The same turn again, with a header in front of it."""
    head = b"" if header is None else msgspec.json.encode({HEADER: header.to_json()}) + b"\n"
    path.write_bytes(head + BLOCKS.read_bytes())
    return str(path)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("header", "chat_id", "response_id"),
    [
        (None, "chatcmpl-1", "resp_1"),
        (Header(request_id="req_a", time=1_700_000_000.5), "chatcmpl-req_a", "resp_req_a"),
        (Header(time=1.0, turn=Turn(seed="chatcmpl-x#2")), "chatcmpl-x", "resp_1"),
        (Header(time=1.0, turn=Turn(seed="resp_x", request_id="r")), "chatcmpl-r", "resp_x"),
    ],
)
def test_ids_and_times_are_those_of_the_recording(
    stream: bool,
    header: Header | None,
    chat_id: str,
    response_id: str,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    path = recording(tmp_path / "turn.jsonl", header)
    mode = [] if stream else ["--no-stream"]
    for api, own_id, times in (("chat", chat_id, {"created"}), ("responses", response_id, TIMES)):
        main(["replay", *mode, "--api", api, path])
        answer = last(capsysbinary.readouterr().out, stream=stream)
        assert answer["id"] == own_id
        began = json.loads(BLOCKS.read_bytes().splitlines()[1])["emittedAtMs"] // 1000
        assert {answer[name] for name in times} == {began if header is None else int(header.time)}


def last(data: bytes, *, stream: bool) -> dict[str, Any]:
    """The body, or what the last object of the stream tells."""
    lines = data.decode().splitlines()
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    body = json.loads(found[-1] if stream else data)
    answer: dict[str, Any] = body.get("response", body)
    return answer


def calls_of(capsysbinary: pytest.CaptureFixture[bytes], *arguments: str) -> list[Any]:
    main(["replay", "--no-stream", *arguments])
    message = json.loads(capsysbinary.readouterr().out)["choices"][0]["message"]
    calls: list[Any] = message.get("tool_calls", [])
    return calls


def test_another_recording_has_other_call_ids(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    found: list[object] = []
    for request_id in ("req_a", "req_b", "req_a"):
        path = recording(tmp_path / "turn.jsonl", Header(request_id=request_id))
        found.append([call["id"] for call in calls_of(capsysbinary, *TOOLS, path)])
    assert found[0] == found[2] != found[1]


def test_a_recording_brings_its_own_request_unless_another_is_named(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    turn = Turn(tools=(Tool("localSearch"),))
    path = recording(tmp_path / "turn.jsonl", Header(turn=turn))
    assert [call["function"]["name"] for call in calls_of(capsysbinary, path)] == ["localSearch"]
    assert calls_of(capsysbinary, "--tools", "readNote", path) == []
    assert calls_of(capsysbinary, str(BLOCKS)) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"recording": {"version": 2}}', "version 2, and this program reads 1"),
        (b'{"recording": {}}', "version None, and this program reads 1"),
        (
            b'{"recording": {"version": 1, "response_ends": "maybe"}}',
            "expected Literal @ $.response_ends",
        ),
        (b'{"recording": {"version": 1, "request": {"model": []}}}', "@ $.turn.model"),
        (b'{"recording": {"version": 1, "request": {"tool_choice": "x"}}}', "@ $.turn.tool_choice"),
        (b'{"recording": {"version": 1, "time": "now"}}', "@ $.time"),
    ],
)
def test_a_header_that_cannot_be_read_is_an_error_that_says_why(
    line: bytes, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "turn.jsonl"
    path.write_bytes(line + b"\n" + BLOCKS.read_bytes())
    assert main(["replay", str(path)]) == 2
    assert f"{path}: is no transcript: " in (said := capsys.readouterr().err)
    assert problem in said


TURNS = st.builds(
    Turn,
    model=st.text(max_size=5),
    items=st.lists(st.dictionaries(st.text(max_size=3), st.integers()), max_size=2).map(tuple),
    tools=st.lists(st.builds(Tool, st.text(max_size=4), strict=st.none() | st.booleans())).map(
        tuple
    ),
    tool_choice=st.sampled_from(["auto", "none", "required", NamedTool("f")]),
    output_schema=st.none() | st.builds(OutputSchema, st.just({"type": "object"})),
    stop=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    stream=st.none() | st.booleans(),
    output_mode=st.sampled_from([None, "auto", "obsidian-xml"]),
)


@given(
    st.builds(
        Header,
        time=st.floats(0, 1e10),
        request_id=st.text(max_size=5),
        response_ends=st.sampled_from(["told", "untold", "unknown"]),
        continued=st.booleans(),
        turn=st.none() | TURNS,
    )
)
def test_a_header_is_read_as_it_was_written(header: Header) -> None:
    line = msgspec.json.decode(msgspec.json.encode({HEADER: header.to_json()}))
    assert Header.from_json(line) == header


def test_a_header_does_not_tell_whose_turn_it_was() -> None:
    header = Header(turn=Turn(owner="ann"))
    assert "ann" not in str(header.to_json())
