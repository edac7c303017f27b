"""`explain`: event by event, what each stage did and why."""

from __future__ import annotations

import argparse
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import attrs
import trio

from pipeline.cli.flags import (
    add_api,
    add_request,
    add_settings,
    open_dump,
    request_from_flags,
    settings_from,
)
from pipeline.cli.replay import replayed_responses
from pipeline.config import recipe
from pipeline.events import Burst, Event
from pipeline.formats.recording import Header
from pipeline.formats.transcripts import Record
from pipeline.ledger import Ledger, StageLedger, Tally
from pipeline.segment import Segment, Stages, without_ticks
from pipeline.stage import Incoming, Stage
from pipeline.terminal import Paint
from sinks.responses import ResponsesAnswer
from sources.decode.turn_decoder import Watcher
from sources.replay import Replay

HELP = "show, event by event, what each stage did and why"
DESCRIPTION = """\
Show, event by event, what the decoder read, what each stage did with it and why, and at the end
the ledger: every event that came in was passed on, folded into another, or dropped for a reason.
"""

WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="transcripts; - is standard input")
    parser.add_argument(
        "--all", action="store_true", help="also show messages that say nothing to a client"
    )
    add_api(parser)
    add_request(parser)
    add_settings(parser, "pipeline", "source")


def run(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    asked = request_from_flags(options, settings)
    responses = options.api == "responses"
    for path in options.files:
        if len(options.files) > 1:
            print(f"== {path}")
        ledger = Ledger()
        header = Replay(path).header if path != "-" else Header()
        own = asked.or_recorded(header)
        with open_dump(settings) as dump:
            answer = (
                ResponsesAnswer(replayed_responses(settings, own, header)) if responses else None
            )
            story = Explanation(show_all=options.all, then=dump, answer=answer)
            source = Replay(path, watch=story.read)
            story.tell(source.events(), recipe(settings).pure_stages(own.turn, ledger))
        ledger.delivered = story.shown
        print_ledger(ledger, source.decoder.dropped)
    return 0


class Explanation(Incoming):
    """A transcript as something to receive from, one event at a time, that shows what happens."""

    def __init__(
        self,
        *,
        show_all: bool = False,
        then: Watcher | None = None,
        answer: ResponsesAnswer | None = None,
    ) -> None:
        self._then = then
        self._answer = answer
        self.shown = 0
        self._books: dict[str, StageLedger] = {}
        """What each stage's books said when they were last shown."""
        self._show_all = show_all
        self._paint = Paint(sys.stdout)
        self._start = 0.0
        self._bursts: Iterator[object] = iter(())
        self._read: deque[tuple[Record, tuple[Event, ...], list[str]]] = deque()
        self._last: tuple[Record, deque[Event]] = (Record(0, None), deque())
        self._event: tuple[Event, ...] = ()
        """The event that was received last."""

    def read(self, record: Record, events: Iterable[Event], reasons: list[str]) -> None:
        """Note one line of the transcript and what it was decoded to."""
        self._read.append((record, tuple(events), reasons))
        if self._then is not None:
            self._then(record, events, reasons)

    def tell(self, bursts: Iterator[object], stages: Sequence[Stage]) -> None:
        """Run the transcript through the stages, and show what happens."""
        self._bursts = bursts
        self._books = {stage.ledger.name: _copied(stage.ledger) for stage in stages}
        segment = Segment(self, Stages(stages, self._show))
        with suppress(trio.EndOfChannel):
            while True:
                out = without_ticks(segment.receive_nowait())
                self._deliver(out, self._event)
        for _ in bursts:
            pass
        if self._read:
            print(self._paint("dim", f"      {len(self._read)} more lines came late"))

    def receive_nowait(self) -> Burst:
        record, events = self._last
        while not events:
            if not self._read and next(self._bursts, None) is None and not self._read:
                self._event = ()
                raise trio.EndOfChannel
            if self._read:
                record, decoded, reasons = self._read.popleft()
                self._tell_other(record, decoded, reasons)
                events.extend(decoded)
        self._last = record, events
        event = events.popleft()
        self._event = (event,)
        self._start = self._start or event.at
        print(f"{record.line:>4}  +{event.at - self._start:.3f}s  {describe(event)}")
        return self._event

    def _tell_other(self, record: Record, events: Sequence[Event], reasons: list[str]) -> None:
        """Show a line that is no event, if that is wanted."""
        if not events and (self._show_all or record.problem):
            shown = record.problem or _short(str(record.message))
            print(self._paint("dim", f"{record.line:>4}  {shown}"))
            print(self._paint("dim", f"      not an event: {', '.join(reasons)}"))

    def _show(self, stage: Stage, given: Sequence[Event], returned: Sequence[Event]) -> None:
        """Tell what a stage did, unless it passed everything on."""
        books = stage.ledger
        before, self._books[books.name] = self._books[books.name], _copied(books)
        if not given and returned:
            print(f"      {self._paint('cyan', books.name)}: gives back {_list(returned)}")
        elif list(given) != list(returned):
            print(f"      {self._paint('cyan', books.name)}: {_change(before, books, returned)}")
        if stage.done and given:
            print(f"      {self._paint('yellow', books.name)}: done; nothing later matters")

    def _deliver(self, events: Sequence[Event], first: Sequence[Event]) -> None:
        if not events:
            return
        self.shown += len(events)
        changed = "" if list(events) == list(first) else f": {_list(events)}"
        print(f"      {self._paint('green', '→ client')}{changed}")
        if self._answer is not None:
            self._tell_written(self._answer, events)

    def _tell_written(self, answer: ResponsesAnswer, events: Iterable[Event]) -> None:
        """The events of the Responses API that a client reads."""
        if answer.ended:
            return
        told = [written["type"] for event in events for written in answer.feed(event)]
        if answer.error is not None and not answer.started:
            told = [f"HTTP {answer.error.status}"]
        if told:
            names = ", ".join(name.removeprefix("response.") for name in told)
            print(self._paint("dim", f"        {names}"))


def _copied(books: StageLedger) -> StageLedger:
    return attrs.evolve(books, folded=Tally(books.folded), dropped=Tally(books.dropped))


def _change(before: StageLedger, after: StageLedger, out: Iterable[Event]) -> str:
    told = [f"dropped ({reason})" for reason in Counter(after.dropped) - Counter(before.dropped)]
    told += [f"folded ({reason})" for reason in Counter(after.folded) - Counter(before.folded)]
    given = _list(out)
    if given:
        told.append(f"gives {given}")
    return "; ".join(told) or "holds it"


def _list(events: Iterable[Event]) -> str:
    return ", ".join(describe(event) for event in events)


def describe(event: Event) -> str:
    """An event in one line: its kind, and the fields that differ from their defaults."""
    fields = [
        f"{field.name}={getattr(event, field.name)!r}"
        for field in attrs.fields(type(event))
        if field.name not in ("at", "error") and getattr(event, field.name) != field.default
    ]
    if (error := getattr(event, "error", None)) is not None:
        fields.append(f"{error.status} {error.code}: {error.message}")
    return _short(f"{type(event).__name__}({', '.join(fields)})")


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def print_ledger(ledger: Ledger, not_events: Counter[str]) -> None:
    """The books of every stage; what one gave the next one must have taken."""
    taken = [*(books.taken for books in ledger), ledger.delivered]
    for books, next_took in zip(ledger, taken[1:], strict=True):
        if books.given != next_took:
            raise AssertionError(
                f"the stage {books.name} gave {books.given} events, and {next_took} were taken"
            )
    print("\nledger       in  made   out  folded  dropped")
    for books in ledger:
        numbers = f"{books.taken:>5} {books.made:>5} {books.given:>5}"
        print(f"  {books.name:<8}{numbers} {books.folded.total():>7} {books.dropped.total():>8}")
        told = Counter(books.folded) + Counter(books.dropped) + Counter(books.notes)
        for reason, count in told.items():
            print(f"            {count} × {reason}")
    if not_events:
        print("messages that were no events:")
        for reason, count in not_events.most_common():
            print(f"            {count} × {reason}")
