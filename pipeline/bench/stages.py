"""What the pipeline costs for each event, stage by stage, without a server or a backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import trio
from attrs import define, field

from pipeline import config
from pipeline.bench.results import Results
from pipeline.config import Settings, chat_options
from pipeline.events import Burst, Event
from pipeline.formats.transcripts import read_records
from pipeline.segment import Stages
from pipeline.turn import Tool, Turn
from sinks.chat import ChatSse
from sources.app_server.protocol.mailbox import Delivery, Letter
from sources.app_server.protocol.names import Aliases
from sources.app_server.protocol.rpc import Notification, RpcCore, thread_of
from sources.app_server.turn.reading import TurnReader
from sources.decode.deltas import HEAD, named_thread
from sources.decode.turn_decoder import TurnDecoder
from sources.replay import LINES_PER_BURST, Listed

TURN: Final = Turn(tools=(Tool("localSearch"), Tool("writeToFile")))


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


def measure(
    settings: Settings, deltas: int, rounds: int, results: Results, progress: Callable[[str], None]
) -> None:
    """What an event costs in every part of the pipeline, and whether twice as many cost twice."""
    arms = _arms(settings, transcript(deltas))
    growth = [
        Arm(f"{count:,} deltas", _replayed(settings, transcript(count)))
        for count in (deltas, 2 * deltas)
    ]
    _measure([*arms, *growth], rounds, progress)
    for arm in arms:
        for sample in arm.samples:
            results.add("stages", arm.name, "CPU an event", "µs", sample)
    whole = next(arm for arm in arms if arm.name.startswith("all"))
    for sample in whole.samples:
        results.add("stages", whole.name, "events on one core", "/s", 1e6 / sample)
    few, many = growth
    for a, b in zip(few.samples, many.samples, strict=True):
        load = f"{many.name} against {few.name}"
        results.add("stages", load, "CPU an event", "×", b / a, goal=1.2)


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
    rpc = RpcCore()
    reader = TurnReader(TurnDecoder(), Aliases(()))
    events = 0
    for start in range(0, len(lines), LINES_PER_BURST):
        letters: list[Letter] = []
        for line in lines[start : start + LINES_PER_BURST]:
            if line.startswith(HEAD) and named_thread(line):
                letters.append(line.strip())
            elif isinstance(letter := rpc.read(line), Notification) and thread_of(letter):
                letters.append(letter)
        events += len(reader.read(Delivery(tuple(letters), 0.0)))
    return events


def _arms(settings: Settings, lines: Sequence[bytes]) -> list[Arm]:
    bursts = _decoded(lines)
    events = sum(map(len, bursts))

    def one_stage(position: int) -> Callable[[], int]:
        def work() -> int:
            stage = config.recipe(settings).pure_stages(TURN)[position]
            stages = Stages((stage,))
            for burst in bursts:
                stages.take(burst)
            return events

        return work

    def encode() -> int:
        encoder = ChatSse(chat_options(settings, TURN))
        for burst in bursts:
            encoder.feed(burst)
        return events

    def tasks(*, fuse: bool) -> Callable[[], int]:
        async def write(_: bytes) -> None:
            await trio.lowlevel.checkpoint()

        async def main() -> None:
            sink = ChatSse(chat_options(settings, TURN))
            source, recipe = Listed(*bursts), config.recipe(settings)
            await recipe.run(source, sink, TURN, fuse=fuse, write=write)

        def work() -> int:
            trio.run(main)
            return events

        return work

    return [
        Arm("decode", lambda: sum(map(len, _decoded(lines)))),
        Arm("live, line to event", lambda: _live(lines)),
        *(Arm(f"stage {n}", one_stage(i)) for i, n in enumerate(config.recipe(settings).names)),
        Arm("encode", encode),
        Arm("all, decode to bytes", _replayed(settings, lines)),
        Arm("tasks, one per stage", tasks(fuse=False)),
        Arm("tasks, stages fused", tasks(fuse=True)),
    ]


def _replayed(settings: Settings, lines: Sequence[bytes]) -> Callable[[], int]:
    """Lines to bytes through the whole recipe, without trio."""

    def work() -> int:
        stages = Stages(config.recipe(settings).pure_stages(TURN))
        encoder = ChatSse(chat_options(settings, TURN))
        events = 0
        for burst in _decoded(lines):
            events += len(burst)
            encoder.feed(cast("Burst", stages.take(burst)))
        return events

    return work


def _measure(arms: Sequence[Arm], rounds: int, progress: Callable[[str], None]) -> None:
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}: stages")
        for arm in arms:
            arm.measure()
    progress("")
