from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import frozen
from trio.testing import MockClock

from pipeline.assembly import Settings, recipe
from pipeline.errors import UsageError
from pipeline.events import Burst, Event, TextDelta, TurnEnd
from pipeline.formats import transcripts
from pipeline.formats.transcripts import Record, bounded_lines, read_records
from pipeline.turn import Turn
from sinks.collect import Collect
from sources.replay import Replay

TRANSCRIPTS = Path(__file__).parents[2] / "examples" / "transcripts"
RECORDED = sorted(TRANSCRIPTS.rglob("*.jsonl"))

every_recording = pytest.mark.parametrize(
    "path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}"
)


def records(data: bytes) -> list[Record]:
    return list(read_records(io.BytesIO(data)))


def messages(data: bytes) -> list[Any]:
    return [record.message for record in records(data)]


def delta(text: str) -> dict[str, Any]:
    return {"method": "item/agentMessage/delta", "params": {"delta": text}}


# -- JSON lines ------------------------------------------------------------------------------------


@every_recording
def test_every_line_of_a_real_transcript_is_one_record(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    found = records(path.read_bytes())
    assert [record.message for record in found] == [json.loads(line) for line in lines]
    assert [record.line for record in found] == list(range(1, len(lines) + 1))
    assert {record.problem for record in found} == {None}


def test_the_time_of_a_message_is_when_it_was_emitted() -> None:
    data = b'{"method":"a","emittedAtMs":1794793971560}\n{"method":"b"}\n'
    assert [record.at for record in records(data)] == [1794793971.56, None]


def test_a_recorded_message_is_taken_out_of_its_record() -> None:
    data = b'{"at":1.5,"message":{"method":"a"}}\n{"at":2,"message":{"method":"b"}}\n'
    found = [(record.at, record.message) for record in records(data)]
    assert found == [(1.5, {"method": "a"}), (2.0, {"method": "b"})]


@pytest.mark.parametrize("at", ["soon", None, [1]], ids=repr)
def test_a_record_whose_time_is_no_number_is_an_ordinary_message(at: object) -> None:
    message = {"at": at, "message": {"method": "a"}}
    assert [(r.message, r.at) for r in records(json.dumps(message).encode())] == [(message, None)]


@pytest.mark.parametrize(
    "number",
    ["1" + "0" * 400, "1e999", "-1e999", "NaN", "Infinity"],
    ids=["huge", "too large", "too small", "NaN", "Infinity"],
)
def test_an_impossible_time_does_not_cost_the_message(number: str) -> None:
    emitted = f'{{"method":"a","emittedAtMs":{number}}}\n'
    recorded = f'{{"at":{number},"message":{{"method":"a"}}}}\n'
    found = records((emitted + recorded).encode())
    assert len(found) == 2
    assert all(record.at is None or isfinite(record.at) for record in found)
    assert found[0].message["method"] == "a"


@pytest.mark.parametrize(
    "data",
    [
        b'{"n":1}\n{"n":2}\n',
        b'{"n":1}\n{"n":2}',
        b'{"n":1}\r\n{"n":2}\r\n',
        b'\xef\xbb\xbf{"n":1}\n{"n":2}\n',
        b'\n\n{"n":1}\n \t\n{"n":2}\n\n',
        b'  {"n":1}\n\t{"n":2}  \n',
    ],
    ids=["plain", "no last newline", "CRLF", "BOM", "blank lines", "spaces around"],
)
def test_lines_are_found_however_they_are_broken(data: bytes) -> None:
    assert messages(data) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    "broken",
    [b'{"n":', b'{"n":1}}', b"hello", b'{"n":1}{"n":2}', b"{'n': 1}", b"\x00\xff\xfe", b"[" * 100],
    ids=["cut off", "one brace more", "prose", "two at once", "Python", "binary", "unclosed"],
)
def test_a_broken_line_is_a_problem_and_not_the_end(broken: bytes) -> None:
    before, bad, after = records(b'{"n":1}\n' + broken + b'\n{"n":2}\n')
    assert (before.message, after.message) == ({"n": 1}, {"n": 2})
    assert (bad.line, bad.message, bad.problem) == (2, None, "a line that is not JSON")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'], ids=["arrays", "objects"])
def test_a_line_nested_too_deeply_is_a_problem_and_not_the_end(opening: bytes) -> None:
    bad, after = records(opening * 100_000 + b'\n{"n":2}\n')
    assert bad.problem is not None
    assert after.message == {"n": 2}


def test_a_last_line_that_was_cut_off_is_a_problem() -> None:
    whole, cut = records(b'{"n":1}\n{"method":"item/agentMess')
    assert whole.message == {"n": 1}
    assert cut.problem == "a line that is not JSON"


def test_an_over_long_line_is_a_problem_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "LONGEST_LINE", 20)
    long, after = records(b'{"n":"' + b"x" * 20 + b'"}\n{"n":2}\n')
    assert long.message is None
    assert long.problem is not None
    assert "longer" in long.problem
    assert after.message == {"n": 2}


def test_lone_surrogates_are_mended_and_the_rest_of_the_message_kept() -> None:
    line = b'{"a":"<\\ud800>","b":"\\ud83c\\udf0d","\\udfff":1}'
    (message,) = messages(line)
    assert message["a"].strip("<>").strip("\ufffd") == ""
    assert message["a"] != "<>"
    assert message["b"] == "🌍"
    assert len(message) == 3
    json.dumps(message, ensure_ascii=False).encode()


def test_bytes_that_are_no_unicode_are_mended() -> None:
    assert messages(b'{"a":"caf\xe9","b":"\xf0\x9f\x8c\x8d"}') == [{"a": "caf\ufffd", "b": "🌍"}]


@pytest.mark.parametrize("line", ["[1,2]", "7", '"text"', "null", "true"])
def test_json_that_is_not_an_object_is_a_message_of_no_dialect(line: str) -> None:
    (record,) = records(line.encode())
    assert (record.message, record.problem, record.at) == (json.loads(line), None, None)


@pytest.mark.parametrize("data", [b"", b"\n\n", b": only a comment\n"])
def test_nothing_is_read_from_nothing(data: bytes) -> None:
    assert records(data) == []


# -- server-sent events ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"n":1}\n\ndata: {"n":2}\n\n',
        b'data:{"n":1}\n\ndata:{"n":2}\n\n',
        b'data: {"n":1}\r\n\r\ndata: {"n":2}\r\n\r\n',
        b'data: {"n":1}\n\ndata: {"n":2}',
        b'data: {"n":\ndata: 1}\n\ndata: {\ndata: "n"\ndata: : 2}\n\n',
        b'event: a\nid: 1\ndata: {"n":1}\nretry: 5\n\n: ping\n\n:\nevent: b\ndata: {"n":2}\n\n',
        b'\xef\xbb\xbfdata: {"n":1}\n\n\n\ndata: {"n":2}\n\n',
    ],
    ids=["plain", "no space", "CRLF", "no end", "several lines", "all fields", "BOM"],
)
def test_server_sent_events_are_messages(data: bytes) -> None:
    assert messages(data) == [{"n": 1}, {"n": 2}]


def test_the_end_of_the_stream_is_a_message_of_its_own() -> None:
    assert messages(b'data: {"n":1}\n\ndata: [DONE]\n\n') == [{"n": 1}, {"type": "[DONE]"}]


def test_a_broken_event_is_a_problem_and_not_the_end() -> None:
    bad, after = records(b'data: {"n":\n\ndata: {"n":2}\n\n')
    assert bad.problem == "a line that is not JSON"
    assert after.message == {"n": 2}


# -- replay ----------------------------------------------------------------------------------------


@frozen
class Heard:
    """What a replay gave, and when each burst came to a reader that takes a moment for it."""

    bursts: list[Burst]
    times: list[float]


async def heard_from(replay: Replay) -> Heard:
    heard = Heard([], [])
    async with replay.open(Turn()) as incoming:
        while True:
            try:
                heard.bursts.append(await incoming.receive())
            except trio.EndOfChannel:
                return heard
            heard.times.append(trio.current_time())
            await trio.lowlevel.checkpoint()


def written(path: Path, lines: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def stamps(heard: Heard) -> list[float]:
    return [event.at for burst in heard.bursts for event in burst]


def recorded_at(*times: float) -> list[dict[str, Any]]:
    return [{"at": at, "message": delta(str(at))} for at in times]


@every_recording
async def test_at_full_speed_a_replay_sends_what_it_decodes(path: Path) -> None:
    heard = await heard_from(Replay(path))
    assert heard.bursts == list(Replay(path).events())
    assert isinstance(heard.bursts[-1][-1], TurnEnd)


@every_recording
async def test_a_replay_may_be_opened_again(path: Path) -> None:
    replay = Replay(path)
    first = await heard_from(replay)
    assert (await heard_from(replay)).bursts == first.bursts


def test_at_full_speed_events_keep_the_stamps_of_the_recording(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [*recorded_at(100.0, 100.5), delta("same"), {"at": 0}])
    events = [event for burst in Replay(path).events() for event in burst]
    assert [event.at for event in events] == [100.0, 100.0, 100.5, 100.5]


@pytest.mark.parametrize("speed", [1.0, 2.0, 0.5])
async def test_in_time_a_replay_keeps_the_recorded_gaps(
    speed: float, tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = written(tmp_path / "t.jsonl", recorded_at(100.0, 100.5, 100.5, 103.5))
    began = trio.current_time()
    heard = await heard_from(Replay(path, speed=speed))
    gaps = [(at - began) * speed for at in heard.times]
    assert gaps == pytest.approx([0.0, 0.5, 0.5, 3.5])
    assert stamps(heard) == [100.0, 100.0, 100.5, 100.5, 103.5]


async def test_in_time_a_clock_that_was_set_back_costs_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = written(tmp_path / "t.jsonl", recorded_at(100.0, 40.0, 41.0))
    began = trio.current_time()
    heard = await heard_from(Replay(path, speed=1.0))
    assert [at - began for at in heard.times] == pytest.approx([0.0, 0.0, 1.0])
    assert stamps(heard) == [100.0, 100.0, 100.0, 100.0]


async def test_messages_that_mean_something_keep_their_pace(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    noise = {"method": "thread/status/changed"}
    lines = [delta("a"), *[noise] * 50, delta("b"), {"id": 1, "result": None}, delta("c")]
    path = written(tmp_path / "t.jsonl", lines)
    began = trio.current_time()
    heard = await heard_from(Replay(path, pace=0.25))
    assert [at - began for at in heard.times] == pytest.approx([0.0, 0.25, 0.5])


async def test_a_pace_is_the_least_time_between_messages_replayed_in_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = written(tmp_path / "t.jsonl", recorded_at(100.0, 100.0, 100.1, 105.0))
    heard = await heard_from(Replay(path, speed=1.0, pace=1.0))
    gaps = [later - at for at, later in zip(heard.times, heard.times[1:], strict=False)]
    assert min(gaps) >= 1.0 - 1e-9
    assert gaps[-1] >= 4.9 - 1e-9


@pytest.mark.parametrize(("speed", "pace"), [(None, 0.0), (1.0, 0.0), (10.0, 0.0), (None, 0.4)])
async def test_however_fast_it_is_played_a_turn_reads_the_same(
    speed: float | None, pace: float, autojump_clock: MockClock
) -> None:
    burst = TRANSCRIPTS / "codex-0.166.0" / "burst-interrupted-after-last.jsonl"
    source = Replay(burst, speed=speed, pace=pace)
    events = await recipe(Settings()).run(source, Collect())
    assert [type(event).__name__ for event in events].count("ToolCall") == 3


def test_events_without_blank_lines_between_them_are_read() -> None:
    lines = [b'data: {"type":"a"}\n', b'data: {"type":\n', b'data: "b"}\n', b"data: [DONE]\n"]
    assert [record.message for record in read_records(lines)] == [
        {"type": "a"},
        {"type": "b"},
        {"type": "[DONE]"},
    ]


def test_a_line_that_never_ends_takes_no_more_memory_than_a_long_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcripts, "LONGEST_LINE", 10)
    monkeypatch.setattr(transcripts, "LONGEST_SKIP", 40)
    lines = list(bounded_lines(io.BytesIO(b"short\n" + b"x" * 30 + b"\nafter\n")))
    assert [len(line) for line in lines] == [6, 11, 6]
    with pytest.raises(ValueError, match="never ends"):
        list(bounded_lines(io.BytesIO(b"x" * 100)))


def test_a_watcher_gets_every_message_and_its_events(tmp_path: Path) -> None:
    told: list[tuple[int, int, list[str]]] = []

    def watch(record: Record, events: Iterable[Event], reasons: list[str]) -> None:
        told.append((record.line, len(list(events)), reasons))

    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(delta("a")).encode() + b'\nbroken\n{"method":"new"}\n')
    list(Replay(path, watch=watch).events())
    assert told == [
        (0, 1, []),
        (1, 1, []),
        (2, 0, ["a line that is not JSON"]),
        (3, 0, ["unknown method: new"]),
    ]


def test_lines_that_cannot_be_read_are_counted_and_the_rest_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    line = json.dumps(delta("a")).encode()
    path.write_bytes(b"\n".join([line, b"{", b"[1]", b"\xff", line]))
    replay = Replay(path)
    assert [e.text for burst in replay.events() for e in burst if isinstance(e, TextDelta)] == [
        "a",
        "a",
    ]
    assert replay.decoder.dropped == {"a line that is not JSON": 2, "not an object": 1}


def test_standard_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps(delta("a")).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line)))
    assert [len(burst) for burst in Replay("-").events()] == [2]


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\n", bytes(range(256)) * 64, b"[1,2]\n7\n", b'{"choices":[]}\n', None],
    ids=["empty", "prose", "binary", "JSON of another kind", "objects of another kind", "missing"],
)
async def test_a_file_that_is_no_transcript_is_named_in_the_error(
    content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "some file.bin"
    if content is not None:
        path.write_bytes(content)
    for replay in (Replay(path), Replay(path, speed=1.0)):
        with pytest.raises(UsageError, match=r"some file\.bin: "):
            await heard_from(replay)
    with pytest.raises(UsageError, match=r"some file\.bin: "):
        list(Replay(path).events())


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.jsonl: there is no such file"):
        list(Replay(tmp_path / "nowhere.jsonl").events())


def test_a_folder_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{tmp_path.name}: .*folder"):
        list(Replay(tmp_path).events())
