"""A recorded turn as a source: at once, or in the time it took."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import trio

from pipeline.errors import UsageError
from pipeline.events import Burst, Event, ResponseEnds, TurnEnd, TurnStart
from pipeline.formats.recording import CUT, Header, is_header
from pipeline.formats.transcripts import Record, bounded_lines, parse_line, read_records
from pipeline.loose_json import is_json
from pipeline.stage import Incoming
from pipeline.turn import Turn
from sources.decode.turn_decoder import TurnDecoder, Watcher

LINES_PER_BURST: Final = 64
Played = TypeVar("Played")
_HEADER_HEAD: Final = re.compile(rb'\s*\{\s*"recording"')
_WRITTEN_AT: Final = re.compile(rb'"emittedAtMs":\s*(\d{1,15})\b')
_RESPONSE_END: Final = re.compile(
    rb'"(rawResponse/completed|response\.(completed|done|incomplete))"'
)


class Replay:
    """Plays a transcript: with `speed` None as fast as it goes, else so many times as fast.

    Events keep the recording's own stamps however fast they are played, so that every decision
    about time is the recording's. `pace` is the least time between two messages that mean
    something, for recordings that were made faster than anybody can watch.
    """

    real_time = False

    def __init__(
        self,
        path: str | Path,
        *,
        speed: float | None = None,
        pace: float = 0.0,
        watch: Watcher | None = None,
    ) -> None:
        self._path = path
        self._speed = speed
        self._pace = pace
        self._watch = watch
        self._start: list[Event] | None = None
        """The first event, until there is another one to send it with."""
        self.decoder = TurnDecoder()

    @cached_property
    def _opening(self) -> tuple[Header, Sequence[bytes]]:
        return _read_header(self._path)

    @property
    def header(self) -> Header:
        """What the recording says of itself; UsageError if it cannot be read."""
        return self._opening[0]

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        with open_transcript(self._path) as file:
            if self._speed is not None or self._pace:
                yield _InTime(self._timed(file), self._speed or 0.0, self._pace)
            else:
                yield _AtOnce(self._whole(self._bursts(file)))

    def events(self) -> Iterator[Burst]:
        """The decoded bursts, as at full speed."""
        with open_transcript(self._path) as file:
            yield from self._whole(self._bursts(file))

    def _whole(self, played: Iterator[Played]) -> Iterator[Played]:
        """All that is played; at the end, UsageError if nothing of it was a transcript."""
        yield from played
        if not self.decoder.recognized:
            raise foreign(self._path)

    def _records(self, file: BinaryIO) -> Iterator[Record]:
        try:
            header, first = self._opening
            self._start, self.decoder = None, TurnDecoder()
            self.decoder.raw_items = header.raw_items
            if header.continued:
                self.decoder.resume(response_open=header.response_open)
            lines = chain(first, bounded_lines(file))
            yield from (record for record in read_records(lines) if not is_header(record.message))
        except OSError as error:
            raise UsageError(f"{self._path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{self._path}: is no transcript: {error}") from None

    def _bursts(self, file: BinaryIO) -> Iterator[Burst]:
        at = 0.0
        # A pipe is read line by line: never wait to fill a burst.
        size = LINES_PER_BURST if file.seekable() else 1
        records = self._records(file)
        while batch := list(islice(records, size)):
            burst: list[Event] = []
            for record in batch:
                at = at if record.at is None else max(at, record.at)
                burst += self._decode(record, at)
            if burst:
                yield tuple(burst)

    def _timed(self, file: BinaryIO) -> Iterator[tuple[float | None, Burst]]:
        """Each message that means something, and when it was recorded, if that is known."""

        def played() -> Iterator[tuple[float | None, Burst]]:
            at = 0.0
            for record in self._records(file):
                at = at if record.at is None else max(at, record.at)
                yield record.at, tuple(self._decode(record, at))

        return self._whole(played())

    def _decode(self, record: Record, at: float) -> Sequence[Event]:
        if self._start is None:
            self._start = [TurnStart(self.header.response_ends, at=at)]
            if self._watch is not None:
                self._watch(Record(0, None), self._start, [])
        events: Sequence[Event]
        if is_json(record.message) and record.message.get("method") == CUT:
            events = [TurnEnd("tool_calls", at=at)]
            if self._watch is not None:
                self._watch(record, events, [])
        else:
            events = self.decoder.feed_watched(record, at, self._watch)
        if not events or not self._start:
            return events
        start, self._start = self._start, []
        return [*start, *events]


def _read_header(path: str | Path) -> tuple[Header, Sequence[bytes]]:
    """What a recording says of itself, or shows; and its first line, if it cannot be read again."""
    with open_transcript(path) as file:
        try:
            first = next(bounded_lines(file), b"")
            if _HEADER_HEAD.match(first):
                message = parse_line(first)
                if is_header(message):
                    return Header.from_json(message), ()
            if str(path) == "-":
                return Header(), [first]  # what is piped is played as it comes
            return _judged(chain([first], bounded_lines(file))), ()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{path}: is no transcript: {error}") from None


def _judged(lines: Iterable[bytes]) -> Header:
    """What there is to know of a recording without a header, judged by what it contains."""
    calls_wait = totals = False
    began = 0.0
    for line in lines:
        if not began and (written := _WRITTEN_AT.search(line)):
            began = int(written[1]) / 1000
        if _RESPONSE_END.search(line):
            return Header(time=began, response_ends="told")
        calls_wait = calls_wait or b'"item/tool/call"' in line
        totals = totals or b'/tokenUsage/updated"' in line or b'"token_count"' in line
    ends: ResponseEnds = "unknown"
    if totals:
        ends = "untold" if calls_wait else "told"
    return Header(time=began, response_ends=ends)


def open_transcript(path: str | Path) -> AbstractContextManager[BinaryIO]:
    """Open a transcript, `-` being standard input; UsageError says what is wrong with it."""
    if str(path) == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: this is a folder; name a transcript in it") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def foreign(path: str | Path) -> UsageError:
    return UsageError(
        f"{path}: not one line is a message of codex app-server or a Responses event. A transcript "
        'has one JSON message a line, such as {"method": "item/agentMessage/delta", "params": '
        '{"delta": "Hi"}}, or is a stream of server-sent events'
    )


class _AtOnce(Incoming):
    """Bursts that are there."""

    def __init__(self, bursts: Iterator[Burst]) -> None:
        self._bursts = bursts

    def receive_nowait(self) -> Burst:
        for burst in self._bursts:
            return burst
        raise trio.EndOfChannel

    async def receive(self) -> Burst:
        return self.receive_nowait()


class _InTime(Incoming):
    """Messages, each when it is due."""

    def __init__(
        self, played: Iterator[tuple[float | None, Burst]], speed: float, pace: float
    ) -> None:
        self._played = played
        self._speed = speed
        self._pace = pace
        self._due = trio.current_time()
        self._recorded: float | None = None
        self._next: Burst = ()

    async def receive(self) -> Burst:
        while not self._next:
            recorded, self._next = self._read()
            if recorded is not None:
                if self._recorded is not None and self._speed:
                    self._due += max(0.0, recorded - self._recorded) / self._speed
                self._recorded = recorded
        await trio.sleep_until(self._due)
        burst, self._next = self._next, ()
        self._due = max(self._due, trio.current_time()) + self._pace
        return burst

    def _read(self) -> tuple[float | None, Burst]:
        for played in self._played:
            return played
        raise trio.EndOfChannel


class Listed:
    """Bursts of events as a source: for tests and examples."""

    real_time = False

    def __init__(self, *bursts: Iterable[Any]) -> None:
        self._bursts = bursts

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        yield _AtOnce(iter([tuple(burst) for burst in self._bursts if burst]))
