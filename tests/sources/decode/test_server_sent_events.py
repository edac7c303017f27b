from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.decode.server_sent_events import EventStream, TooLongError


def events(*chunks: bytes) -> list[tuple[bytes, bytes]]:
    stream = EventStream()
    found = [event for chunk in chunks for event in stream.feed(chunk)]
    return [(event.name, event.data) for event in [*found, *stream.close()]]


def datas(*chunks: bytes) -> list[bytes]:
    return [data for _, data in events(*chunks)]


def one_by_one(stream: bytes) -> Iterable[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


CASES: list[tuple[str, bytes, list[bytes]]] = [
    ("two events", b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    ("no space after the colon", b"data:a\n\n", [b"a"]),
    ("only one space is not data", b"data:  a \n\n", [b" a "]),
    ("several data lines are one", b"data: {\ndata: }\n\n", [b"{\n}"]),
    ("an empty data line is a line", b"data: a\ndata\ndata: b\n\n", [b"a\n\nb"]),
    ("carriage returns", b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    ("both", b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    ("one of each", b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
    ("comments", b": ping\n\n:\ndata: a\n: in between\ndata: b\n\n", [b"a\nb"]),
    ("fields nobody knows", b"id: 7\nretry: 9\nfoo: x\nbar\ndata: a\n\n", [b"a"]),
    ("a field that begins alike", b"database: x\ndata: a\n\n", [b"a"]),
    ("a byte order mark", b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    ("blank lines", b"\n\n\ndata: a\n\n\n\n", [b"a"]),
    ("an event without data", b"event: ping\n\ndata: a\n\n", [b"a"]),
    ("colons in the data", b"data: a: b\n\n", [b"a: b"]),
    ("separators end no line", "data: \u2028\x85\x0c\n\n".encode(), ["\u2028\x85\x0c".encode()]),
    ("no blank line at the end", b"data: a\n\ndata: b\n", [b"a", b"b"]),
    ("no line end at the end", b"data: a\n\ndata: b", [b"a", b"b"]),
    ("nothing", b"", []),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_stream_is_read_as_the_standard_says(stream: bytes, expected: list[bytes]) -> None:
    assert datas(stream) == expected
    assert datas(*one_by_one(stream)) == expected


@given(
    st.lists(
        st.sampled_from([b"data: x", b"data", b":c", b"event: e", b"\r", b"\n", b"\r\n", b""])
    ),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_where_the_bytes_are_split_changes_nothing(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    edges = [0, *sorted(cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    assert events(*chunks) == events(stream) == events(*one_by_one(stream))


def test_an_event_has_its_name_and_the_next_one_has_not() -> None:
    stream = b"event: first\ndata: a\n\ndata: b\n\nevent: lost\n\ndata: c\n\n"
    assert events(stream) == [(b"first", b"a"), (b"", b"b"), (b"", b"c")]


def test_an_event_is_given_out_as_soon_as_it_is_whole() -> None:
    stream = EventStream()
    assert stream.feed(b"data: a\r\n") == []
    assert [event.data for event in stream.feed(b"\r")] == [b"a"]
    assert stream.feed(b"\ndata: b") == []
    assert [event.data for event in stream.close()] == [b"b"]


def test_a_line_over_the_limit_is_refused_however_it_comes() -> None:
    with pytest.raises(TooLongError, match="64 bytes"):
        EventStream(longest=64).feed(b"data: " + b"x" * 100)
    stream = EventStream(longest=64)
    stream.feed(b"data: " + b"x" * 58)
    with pytest.raises(TooLongError, match="64 bytes"):
        stream.feed(b"x")


def test_many_lines_of_one_event_count_together() -> None:
    stream = EventStream(longest=64)
    with pytest.raises(TooLongError):
        stream.feed(b"data: xxxxxxxx\n" * 10)


def test_what_is_not_kept_does_not_count() -> None:
    stream = EventStream(longest=64)
    assert stream.feed(b": a comment to keep the line alive\n" * 100) == []
    found = stream.feed(b"data: xxxxxxxx\n\n" * 100)
    assert len(found) == 100


def test_a_huge_line_in_small_pieces_is_read_in_linear_time() -> None:
    stream = EventStream()
    stream.feed(b"data: ")
    for _ in range(4000):
        stream.feed(b"x" * 1000)
    (event,) = stream.feed(b"\n\n")
    assert len(event.data) == 4_000_000
