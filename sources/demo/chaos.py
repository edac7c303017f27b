"""A fake `codex app-server` on standard input and output, with fault injection."""

from __future__ import annotations

import os
import select
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import inf
from typing import Any, Final

import msgspec
from attrs import Factory, define, frozen

from pipeline.loose_json import Json, as_json, as_list, is_json, text_of
from sources.app_server.transport.framing import LineFramer
from sources.demo.chaos_faults import fault_words, kill_itself, late_frames, with_faults
from sources.demo.chaos_turn import Act, FakeTurn, Pause, Step, Wait, Write, encode

METHODS: Final = (
    "initialize",
    "thread/start",
    "thread/archive",
    "thread/delete",
    "thread/inject_items",
    "turn/start",
    "turn/interrupt",
    "model/list",
)
FIELDS: Final = {"dynamicTools": (list, "a sequence"), "experimentalRawEvents": (bool, "a boolean")}
MOST_AT_ONCE: Final = 4096
"""What a writable pipe accepts without blocking."""
MOST_WAITING: Final = 64
STUBBORN: Final = 60.0
"""How long a stubborn process stays, in case its parent was killed before."""
TORN_APART: Final = 0.001
DEEPEST: Final = 128
INVALID: Final = -32600
OVERLOADED: Final = -32001


@frozen
class Faults:
    """The faults of methods and of every turn."""

    hang: frozenset[str] = frozenset()
    refuse: frozenset[str] = frozenset()
    wrong_id: frozenset[str] = frozenset()
    die: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    busy: Mapping[str, float] = Factory(dict[str, float])
    delay: Mapping[str, float] = Factory(dict[str, float])
    deaf: Mapping[str, float] = Factory(dict[str, float])
    always: Mapping[str, str] = Factory(dict[str, str])
    deltas: int | None = None
    stubborn: bool = False
    log: str = ""


class Refused(Exception):  # noqa: N818
    """A request is answered with an error of this message."""


class Output:
    """The output queue; one write is never larger than the pipe accepts."""

    def __init__(self) -> None:
        self._queue: deque[bytes | memoryview | Pause | Act] = deque()
        self._not_before = 0.0

    def put(self, message: Json) -> None:
        self._queue.append(encode(message) + b"\n")

    def put_step(self, step: Json | Write | Act) -> None:
        match step:
            case Write(pieces):
                for number, piece in enumerate(filter(None, pieces)):
                    self._queue += [Pause(TORN_APART), piece] if number else [piece]
            case Act():
                self._queue.append(step)
            case _:
                self.put(step)

    @property
    def full(self) -> bool:
        return len(self._queue) >= MOST_WAITING

    def due(self) -> float:
        """When something can be written."""
        return self._not_before if self._queue else inf

    def write(self) -> None:
        match self._queue.popleft():
            case Pause(seconds):
                self._not_before = time.monotonic() + seconds
            case Act(do):
                do()
            case data:
                written = os.write(1, data[:MOST_AT_ONCE])
                if written < len(data):
                    self._queue.appendleft(memoryview(data)[written:])


@define
class Player:
    """Runs steps one after the other, each when it is due."""

    steps: Iterator[Step]
    turn: FakeTurn | None = None
    due: float = 0.0
    waits_for: int | str | None = None


@define
class Thread:
    """A conversation: its items, its tools, and its last turn."""

    items: list[Json]
    tools: list[Json]
    turn: FakeTurn | None = None
    words: Mapping[str, str] = Factory(dict[str, str])


class FakeCodex:
    """Answers requests and plays turns in one loop that never blocks on a single one."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._out = Output()
        self._players: deque[Player] = deque()
        self._threads: dict[str, Thread] = {}
        self._seen: Counter[str] = Counter()
        self._numbers = count()
        self._names = count(1)
        self._quiet: frozenset[str] | None = None
        self._deaf_until = 0.0
        self._log = open(faults.log, "ab", buffering=0) if faults.log else None  # noqa: PTH123, SIM115

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until the input or the output is closed; a stubborn process goes on for a while."""
        self._write_log({"pid": os.getpid()})
        framer, reading, ends = LineFramer(), True, inf
        while reading or (self._faults.stubborn and time.monotonic() < ends):
            self._advance()
            now = time.monotonic()
            hears = reading and now >= self._deaf_until
            writes = self._out.due() <= now
            dues = [self._players_due(), ends]
            dues += [] if hears or not reading else [self._deaf_until]
            dues += [] if writes else [self._out.due()]
            timeout = max(0.0, min(dues) - now)
            readable, writable, _ = select.select(
                [0] if hears else [], [1] if writes else [], [], None if timeout == inf else timeout
            )
            try:
                if writable:
                    self._out.write()
            except BrokenPipeError:
                return
            if readable:
                data = os.read(0, 65_536)
                reading = bool(data)
                ends = inf if reading else time.monotonic() + STUBBORN
                for line in framer.feed(data):
                    self._take(line)

    def _players_due(self) -> float:
        """When the next step is due; a full output queue stops all steps."""
        if self._out.full:
            return inf
        ready = (player.due for player in self._players if player.waits_for is None)
        return min(ready, default=inf)

    def _advance(self) -> None:
        """Let all turns take a step in rotation, so that none starves the others."""
        now = time.monotonic()
        for _ in range(len(self._players)):
            if self._out.full:
                return
            player = self._players.popleft()
            if player.due > now or player.waits_for is not None or self._step(player, now):
                self._players.append(player)

    def _step(self, player: Player, now: float) -> bool:
        """Run the next step; whether there may be another."""
        match next(player.steps, None):
            case None:
                return False
            case Pause(seconds):
                player.due = now + seconds
            case Wait(identity):
                answered = player.turn is not None and identity in player.turn.answers
                player.waits_for = None if answered else identity
            case step if is_json(step) and step.get("method") in (self._quiet or ()):
                pass  # the client opted out of it
            case step:
                self._out.put_step(step)
        return True

    # -- what comes in ---------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        try:
            message = as_json(msgspec.json.decode(line))
            _check_depth(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._write_log({"unreadable": len(line)})
            os.write(2, f"ERROR failed to deserialize a message: {error}\n".encode())
            return  # as Codex does: no answer at all
        self._write_log(message)
        method, number = message.get("method"), message.get("id")
        if method is None and number is not None:
            self._answered(number, message)
        elif number is not None:
            self._asked(text_of(method), number, as_json(message.get("params")))

    def _answered(self, number: int | str, message: Json) -> None:
        for player in self._players:
            if player.turn is not None:
                player.turn.answers[number] = message
            if player.waits_for == number:
                player.waits_for = None

    def _asked(self, method: str, number: int | str, params: Json) -> None:
        wrong = self._faults
        try:
            self._check_fields(params if method == "thread/start" else {})
        except Refused as error:  # before any fault: probes get none
            self._refuse(number, str(error))
            return
        self._seen[method] += 1
        self._deaf_until = time.monotonic() + wrong.deaf.get(method, 0.0)
        if method in wrong.die:
            kill_itself()
        if method in wrong.hang:
            return
        if self._seen[method] <= wrong.busy.get(method, 0.0):
            self._refuse(number, "Server overloaded; retry later.", OVERLOADED)
            return
        if method in wrong.refuse:
            self._refuse(number, f"{method} is refused")
            return
        if method in wrong.wrong_id:
            for stranger in (10**9, -1, f"{number}", None, 1.5):
                self._out.put({"id": stranger, "result": {"thread": {"id": "STRANGER"}}})
        try:
            steps = self._result(method, number, params)
        except Refused as error:
            self._refuse(number, str(error))
            return
        self._play(steps, delay=wrong.delay.get(method, 0.0))

    def _play(self, steps: Iterable[Step], turn: FakeTurn | None = None, delay: float = 0) -> None:
        self._players.append(Player(iter(steps), turn, time.monotonic() + delay))

    def _refuse(self, number: int | str, message: str, code: int = INVALID) -> None:
        self._out.put({"id": number, "error": {"code": code, "message": message}})

    def _write_log(self, message: Json) -> None:
        if self._log is not None:
            self._log.write(encode(message) + b"\n")

    # -- what is answered ------------------------------------------------------------------------

    def _result(self, method: str, number: int | str, params: Json) -> Iterable[Step]:
        """The answer, with the messages before and after it. Refused if there is none."""
        if (self._quiet is None) != (method == "initialize"):
            raise Refused("Not initialized" if self._quiet is None else "Already initialized")
        match method:
            case "initialize":
                quiet = as_json(params.get("capabilities")).get("optOutNotificationMethods")
                self._quiet = frozenset(as_list(quiet))
                name = text_of(as_json(params.get("clientInfo")).get("name"))
                result: Any = {"userAgent": f"{name}/0.166.0 (fake)", "platformOs": "linux"}
            case _ if method not in METHODS or method in self._faults.lacks:
                names = [f"`{name}`" for name in METHODS if name not in self._faults.lacks]
                unknown = f"unknown variant `{method}`, expected one of {', '.join(names)}"
                raise Refused(f"Invalid request: {unknown}")
            case "model/list":
                result = {"data": [{"id": "gpt-5", "model": "gpt-5"}], "nextCursor": None}
            case "thread/start":
                return self._thread_start(number, params)
            case _:
                return self._of_a_thread(method, number, params)
        return [{"id": number, "result": result}]

    def _check_fields(self, params: Json) -> None:
        for field, (kind, wanted) in FIELDS.items():
            value = params.get(field)
            if field in self._faults.lacks or value is None or isinstance(value, kind):
                continue
            raise Refused(f"Invalid request: invalid type: integer `{value}`, expected {wanted}")

    def _name(self) -> str:
        """An id for a thread or a turn, in the format of Codex."""
        return f"{os.getpid():08x}-fake-7000-8000-{next(self._names):012x}"

    def _thread_start(self, number: int | str, params: Json) -> Iterable[Step]:
        name = self._name()
        self._threads[name] = Thread([], list(as_list(params.get("dynamicTools"))))
        thread: Json = {
            "id": name,
            "model": params.get("model"),
            "cwd": params.get("cwd"),
            "turns": [],
        }
        return [
            {"id": number, "result": {"thread": thread, "model": params.get("model")}},
            {"method": "thread/started", "params": {"thread": thread}},
        ]

    def _of_a_thread(self, method: str, number: int | str, params: Json) -> Iterable[Step]:
        name = text_of(params.get("threadId"))
        thread = self._threads.get(name)
        done: Json = {"id": number, "result": {}}
        if thread is None:
            raise Refused(f"thread not found: {name}")
        match method:
            case "thread/inject_items":
                items = [as_json(item) for item in as_list(params.get("items"))]
                _check_items(items)
                thread.items += items
                echo = FakeTurn(name, "auto-compact-0")
                return [*map(echo.raw, items), done]
            case "turn/start":
                return self._turn_start(name, thread, number, params)
            case "turn/interrupt":
                return self._interrupt(thread, number, params)
            case _:  # archived or deleted: a turn that still runs ends with its thread
                del self._threads[name]
                ends = self._stop(thread) if thread.turn and not thread.turn.over else []
                return [*ends, done, {"method": "thread/deleted", "params": {"threadId": name}}]

    def _turn_start(
        self, name: str, thread: Thread, number: int | str, params: Json
    ) -> Iterable[Step]:
        inputs = [as_json(part) for part in as_list(params.get("input"))]
        turn = FakeTurn(
            name, self._name(), thread.items, inputs, thread.tools, numbers=self._numbers
        )
        thread.turn = turn
        thread.words = {**self._faults.always, **fault_words(turn.said)}
        wanted = thread.words.get("deltas") or self._faults.deltas
        answer: Step = {"id": number, "result": {"turn": turn.state("inProgress")}}
        steps = _chained(answer, turn.steps(None if wanted is None else int(wanted)))
        delay = self._faults.delay.get("turn/start", 0.0)
        self._play(with_faults(steps, turn, thread.words), turn, delay)
        return ()

    def _interrupt(self, thread: Thread, number: int | str, params: Json) -> Iterable[Step]:
        turn = thread.turn
        if turn is None or turn.over == "completed":
            raise Refused("no active turn to interrupt")
        if turn.over:
            return ()  # as Codex does: the second interrupt of a turn has no answer
        if turn.turn != params.get("turnId"):
            given = params.get("turnId")
            raise Refused(f"expected active turn id {given} but found {turn.turn}")
        *noise, end = self._stop(thread)
        after = late_frames(turn) if "late" in thread.words else ()
        return [*noise, {"id": number, "result": {}}, end, *after]

    def _stop(self, thread: Thread) -> list[Step]:
        """End a thread's turn; its remaining messages, the end last."""
        turn = thread.turn
        assert turn is not None  # noqa: S101
        self._players = deque(player for player in self._players if player.turn is not turn)
        return [*turn.interrupted(), turn.end("interrupted")]


def _chained(first: Step, rest: Iterator[Step]) -> Iterator[Step]:
    yield first
    yield from rest


def _check_depth(value: object) -> None:
    """Codex cannot read deeper nesting."""
    level = [value]
    for _ in range(DEEPEST):
        objects = [inner for outer in level for inner in as_json(outer).values()]
        level = objects + [inner for outer in level for inner in as_list(outer)]
    if level:
        raise RecursionError("recursion limit exceeded")


def _check_items(items: Sequence[Json]) -> None:
    for place, item in enumerate(items):
        wrong = f"items[{place}] is not a valid response item"
        if not isinstance(item.get("type"), str):
            raise Refused(f"{wrong}: missing field `type`")
        if item["type"] == "message" and not isinstance(item.get("content"), list):
            raise Refused(f"{wrong}: invalid type: expected a sequence")
