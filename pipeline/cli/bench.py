"""`bench`: what the pipeline costs per event, stage by stage."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import trio
from attrs import define, field

from pipeline.cli.flags import add_settings, settings_from
from pipeline.errors import UsageError
from pipeline.events import Burst, Event
from pipeline.lane import Lane
from pipeline.recipes import chat_options
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.transcript import read_records
from pipeline.turn import Tool, Turn
from sinks.chat_sse import ChatSse, ChatSseEncoder
from sources.app_server.names import Aliases
from sources.app_server.rpc import Notification, RpcCore, thread_of
from sources.app_server.thread import to_client
from sources.decode.turn_decoder import TurnDecoder
from sources.replay import LINES_PER_BURST, Listed

HELP = "measure what the pipeline costs per event, stage by stage"
DESCRIPTION = """\
Measure the CPU that one event costs on its way from the backend's line to the client's bytes: in
the decoder, in each stage, in the encoder, and in all of it as tasks linked by channels. Arms are
interleaved and medians shown, because machines are noisy. It also checks that twice the deltas cost
twice as much."""

TURN: Final = Turn(tools=(Tool("localSearch"), Tool("writeToFile")))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deltas", type=int, default=20_000, help="text deltas a turn (20000)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of every arm (9)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    add_settings(parser)


@define
class Arm:
    """One way to spend CPU on a turn, and what each round of it cost per event."""

    name: str
    work: Callable[[], int]
    samples: list[float] = field(factory=list[float])

    def measure(self) -> None:
        before = time.process_time()
        events = self.work()
        self.samples.append((time.process_time() - before) / events * 1e6)

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        if len(self.samples) < 2:
            return self.median, self.median
        low, _, high = quantiles(self.samples, n=4)
        return low, high


def run(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    lines = transcript(options.deltas)
    arms = _arms(settings, lines)
    growth = [
        Arm(f"{count:,} deltas", _replayed(settings, transcript(count)))
        for count in (options.deltas, 2 * options.deltas)
    ]
    _measure([*arms, *growth], options.rounds)
    _report(arms, growth)
    if options.json:
        figures = {arm.name: {"median_us": arm.median, "iqr_us": arm.spread} for arm in arms}
        try:
            Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{options.json}: cannot be written: {error.strerror}") from None
    return 0


def transcript(deltas: int) -> list[bytes]:
    """A turn as Codex 0.166 writes it: so many small deltas, some with a `<` that is no tag."""
    ids = '"threadId":"01a1e20e-a884-7c20-94c7-672655bd4396","turnId":"01a1e20e-a896-7180-b874"'
    words = ("Hello ", "wörld ", "a < b, ", "and so ", "on.\\n", "<b>no</b> ")

    def line(number: int) -> bytes:
        return (
            f'{{"method":"item/agentMessage/delta","params":{{{ids},"itemId":"msg_1",'
            f'"delta":"{words[number % len(words)]}"}},"emittedAtMs":{1794793973000 + number}}}\n'
        ).encode()

    end = f'{{"method":"turn/completed","params":{{{ids},"turn":{{"status":"completed"}}}}}}\n'
    return [*map(line, range(deltas)), end.encode()]


def _decoded(lines: Sequence[bytes]) -> list[Burst]:
    decoder = TurnDecoder()
    bursts: list[Burst] = []
    burst: list[Event] = []
    for number, record in enumerate(read_records(lines), 1):
        burst += decoder.feed(record.message, record.at or 0.0)
        if number % LINES_PER_BURST == 0:
            bursts.append(tuple(burst))
            burst = []
    return [*bursts, tuple(burst)]


def _live(lines: Sequence[bytes]) -> int:
    """Lines of a live app-server to events: JSON-RPC, names, decoding; what a turn adds itself."""
    rpc, aliases, decoder = RpcCore(), Aliases(()), TurnDecoder()
    events = 0
    for start in range(0, len(lines), LINES_PER_BURST):
        for letter in rpc.incoming(lines[start : start + LINES_PER_BURST]):
            if isinstance(letter, Notification) and thread_of(letter):
                events += len(decoder.feed(to_client(letter.message, aliases), 0.0))
    return events


def _arms(settings: Settings, lines: Sequence[bytes]) -> list[Arm]:
    bursts = _decoded(lines)
    events = sum(map(len, bursts))

    def one_stage(position: int) -> Callable[[], int]:
        def work() -> int:
            stage = settings.pipeline().open(TURN)[position]
            lane = Lane((stage,) if isinstance(stage, Stage) else ())
            for burst in bursts:
                lane.take(burst)
            return events

        return work

    def encode() -> int:
        encoder = ChatSseEncoder(chat_options(settings, TURN))
        for burst in bursts:
            encoder.encode(burst)
        return events

    def tasks(*, fuse: bool) -> Callable[[], int]:
        async def write(_: bytes) -> None:
            await trio.lowlevel.checkpoint()

        async def main() -> None:
            sink = ChatSse(chat_options(settings, TURN), write)
            await settings.pipeline().run(Listed(*bursts), sink, TURN, fuse=fuse)

        def work() -> int:
            trio.run(main)
            return events

        return work

    return [
        Arm("decode", lambda: sum(map(len, _decoded(lines)))),
        Arm("live, line to event", lambda: _live(lines)),
        *(Arm(f"stage {n}", one_stage(i)) for i, n in enumerate(settings.pipeline().names)),
        Arm("encode", encode),
        Arm("all, decode to bytes", _replayed(settings, lines)),
        Arm("tasks, one per stage", tasks(fuse=False)),
        Arm("tasks, stages fused", tasks(fuse=True)),
    ]


def _replayed(settings: Settings, lines: Sequence[bytes]) -> Callable[[], int]:
    """Lines to bytes through the whole recipe, without trio."""

    def work() -> int:
        stages = settings.pipeline().open(TURN)
        lane = Lane(stage for stage in stages if isinstance(stage, Stage))
        encoder = ChatSseEncoder(chat_options(settings, TURN))
        events = 0
        for burst in _decoded(lines):
            events += len(burst)
            encoder.encode(lane.take(burst))
        return events

    return work


def _measure(arms: Sequence[Arm], rounds: int) -> None:
    for number in range(max(1, rounds)):
        if sys.stderr.isatty():
            print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr)
        for arm in arms:
            arm.measure()
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)


def _report(arms: Sequence[Arm], growth: Sequence[Arm]) -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores * 0.75:
        print(f"the machine is busy (load {load:.1f} on {cores} cores): trust ratios only")
    print(f"{'':<24}{'µs per event':>14}{'middle half':>20}")
    for arm in arms:
        low, high = arm.spread
        print(f"{arm.name:<24}{arm.median:>14.2f}{f'{low:.2f} – {high:.2f}':>20}")
    whole = next(arm for arm in arms if arm.name.startswith("all"))
    print(f"\n{1e6 / whole.median:,.0f} events a second through the full recipe on one core")
    small, large = growth
    print(f"{large.name} cost {2 * large.median / small.median:.2f} times what {small.name} cost")
