"""A fake `codex app-server` with almost no CPU cost, so that the server is measured."""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final, Literal, Protocol

import msgspec
from attrs import define, field

from pipeline.bench.fast_socket import Socket
from pipeline.bench.request import LoadRequest
from pipeline.loose_json import Json, as_json, as_list, text_of
from sources.app_server.protocol.prompts import item_text
from sources.app_server.transport.framing import LineFramer
from sources.demo.chaos import METHODS
from sources.demo.chaos_turn import FakeTurn, encode

AT_ONCE: Final = 65_536
"""The size of one write to a pipe, and of one read of the server."""
LINES_BETWEEN_LOOKS: Final = 16

Writing = Literal["blocks", "lines"]
"""Whether available lines are written together; Codex writes each line alone."""


class Wire(Protocol):
    """A connection for requests and lines."""

    def fileno(self) -> int: ...

    @property
    def output(self) -> int: ...

    def read(self) -> list[bytes] | None:
        """The available messages; None if the other side is gone."""
        ...

    def framed(self, line: bytes) -> bytes: ...


class Pipes:
    """Standard input and output."""

    output = 1

    def __init__(self) -> None:
        self._framer = LineFramer()

    def fileno(self) -> int:
        return 0

    def read(self) -> list[bytes] | None:
        data = os.read(0, AT_ONCE)
        return self._framer.feed(data) if data else None

    def framed(self, line: bytes) -> bytes:
        return line + b"\n"


@define(eq=False)
class Playing:
    """A running turn."""

    turn: FakeTurn
    request: LoadRequest
    before: bytes
    after: bytes
    said: int = 0
    over: bool = False

    def word(self, *, paced: bool) -> bytes:
        """The next delta: its number, or its time if transit is measured."""
        self.said += 1
        word = time.monotonic_ns() if paced else self.said
        return b"%b%d %b" % (self.before, word, self.after)


@define(eq=False)
class Session:
    """One connection: its threads, its turns, and its output queue."""

    wire: Wire
    writing: Writing
    log: Any = None
    _threads: dict[str, list[Json]] = field(factory=dict[str, list[Json]])
    _turns: dict[str, Playing] = field(factory=dict[str, Playing])
    _fast: deque[Playing] = field(factory=deque[Playing])
    _slow: list[tuple[float, int, Playing]] = field(factory=list[tuple[float, int, Playing]])
    _numbers: Iterator[int] = field(factory=lambda: count(1))
    _out: deque[bytes] = field(factory=deque[bytes])

    def fileno(self) -> int:
        return self.wire.fileno()

    # -- writing ---------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self._out or self._fast)

    @property
    def due(self) -> float:
        return self._slow[0][0] if self._slow else inf

    def write(self) -> None:
        """Write what fits; in `lines` mode, some lines one by one."""
        self._speak()
        if not self._out:
            return
        try:
            if self.writing == "lines":
                for _ in range(min(LINES_BETWEEN_LOOKS, len(self._out))):
                    self._write(self._out.popleft())
            else:
                block = b"".join(self._out)
                self._out.clear()
                self._write(block)
        except BlockingIOError:
            return

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self.wire.output, data)
        except BlockingIOError:
            self._out.appendleft(data)
            raise
        if written < len(data):
            self._out.appendleft(data[written:])
            raise BlockingIOError

    def _speak(self) -> None:
        """Queue deltas of all unpaced turns in rotation, until a write is full."""
        size = sum(map(len, self._out))
        while self._fast and size < AT_ONCE:
            playing = self._fast.popleft()
            if playing.over:
                continue
            line = self.wire.framed(playing.word(paced=False))
            size += len(line)
            self._out.append(line)
            if playing.said < playing.request.deltas:
                self._fast.append(playing)
            else:
                self._end(playing)

    def tick(self, now: float) -> None:
        """Queue the due deltas of paced turns."""
        while self._slow and self._slow[0][0] <= now:
            due, _, playing = heappop(self._slow)
            if playing.over:
                continue
            self._out.append(self.wire.framed(playing.word(paced=True)))
            if playing.said < playing.request.deltas:
                heappush(self._slow, (due + playing.request.gap, next(self._numbers), playing))
            else:
                self._end(playing)

    def _send(self, *messages: Json) -> None:
        self._out += [self.wire.framed(encode(message)) for message in messages]

    # -- requests --------------------------------------------------------------------------------

    def take(self, line: bytes) -> None:
        message = as_json(msgspec.json.decode(line))
        number, params = message.get("id"), as_json(message.get("params"))
        if number is None:
            return
        thread = text_of(params.get("threadId"))
        result: Json = {}
        match message.get("method"):
            case "initialize":
                result = {"userAgent": "fast_codex/0.166.0"}
            case "thread/start":
                for name in ("dynamicTools", "experimentalRawEvents"):
                    if isinstance(params.get(name), int) and params[name] is not True:
                        self._refuse(number, "Invalid request: invalid type: expected another")
                        return
                thread = self._name()
                self._threads[thread] = []
                result = {"thread": {"id": thread}, "model": params.get("model")}
            case "thread/inject_items":
                items = [as_json(item) for item in as_list(params.get("items"))]
                self._threads[thread] += items
                self._send(*map(FakeTurn(thread, "auto-compact-0").raw, items))
            case "turn/start":
                self._begin(number, thread)
                return
            case "turn/interrupt":
                self._note("interrupted", thread)
                self._send({"id": number, "result": result})
                self._stop(thread, "interrupted")
                return
            case "thread/delete":
                self._note("deleted", thread)
                self._stop(thread, "interrupted")
                self._threads.pop(thread, None)
                self._turns.pop(thread, None)
            case "model/list":
                result = {"data": []}
            case method:
                known = ", ".join(f"`{name}`" for name in METHODS)
                self._refuse(
                    number,
                    f"Invalid request: unknown variant `{method}`, expected one of {known}",
                )
                return
        self._send({"id": number, "result": result})

    def _refuse(self, number: int | str, message: str) -> None:
        self._send({"id": number, "error": {"code": -32600, "message": message}})

    def _name(self) -> str:
        return f"{os.getpid():08x}-fast-7000-8000-{next(self._numbers):012x}"

    def _begin(self, number: int | str, thread: str) -> None:
        turn = FakeTurn(thread, self._name(), self._threads[thread])
        said = [item for item in self._threads[thread] if item.get("role") == "user"]
        request = LoadRequest.read(item_text(said[-1]) if said else "")
        before, _, after = encode(turn.delta("@")).partition(b"@")
        playing = self._turns[thread] = Playing(turn, request, before, after)
        item = {"type": "agentMessage", "id": "msg_1", "text": ""}
        self._note("started", thread)
        self._send(
            {"id": number, "result": {"turn": turn.state("inProgress")}},
            turn.notify("turn/started", turn=turn.state("inProgress")),
            turn.notify("item/started", item=item),
        )
        if request.gap:
            due = time.monotonic() + request.after
            heappush(self._slow, (due, next(self._numbers), playing))
        else:
            self._fast.append(playing)

    def _end(self, playing: Playing) -> None:
        playing.over = True
        end = playing.turn.response_end()
        self._send(*end, playing.turn.end("completed"))

    def _stop(self, thread: str, how: str) -> None:
        playing = self._turns.get(thread)
        if playing is not None and not playing.over:
            playing.over = True
            self._send(playing.turn.end(how))

    def _note(self, what: str, thread: str) -> None:
        if self.log is not None:
            playing = self._turns.get(thread)
            tag = playing.request.tag if playing is not None else ""
            note = {"what": what, "at": time.monotonic_ns(), "thread": thread, "tag": tag}
            self.log.write(encode(note) + b"\n")


def serve(sessions: list[Session]) -> None:
    """Play turns until all clients are gone."""
    while sessions:
        now = time.monotonic()
        for session in sessions:
            session.tick(now)
        due = min(session.due for session in sessions)
        wanting = [session.wire.output for session in sessions if session.busy]
        readable, writable, _ = select.select(
            sessions, wanting, [], None if due == inf else max(0.0, due - now)
        )
        for session in sessions:
            if session.wire.output in writable:
                session.write()
        for session in readable:
            lines = session.wire.read()
            if lines is None:
                sessions.remove(session)
            for line in lines or ():
                session.take(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; other arguments of Codex are accepted and ignored."""
    parser = argparse.ArgumentParser(prog="fast-codex")
    parser.add_argument("--writing", choices=("blocks", "lines"), default="blocks")
    parser.add_argument("--log", default="", metavar="FILE")
    parser.add_argument("--listen", default="", metavar="unix://PATH")
    parser.add_argument("-c", action="append", metavar="KEY=VALUE", help="ignored")
    parser.add_argument("command", nargs="*")
    options, _ = parser.parse_known_args(arguments)
    if options.command == ["debug", "models"]:
        print('{"models": []}')
        return 0
    log = open(options.log, "ab", buffering=0) if options.log else None  # noqa: PTH123, SIM115
    if not options.listen:
        os.set_blocking(1, False)
        serve([Session(Pipes(), options.writing, log)])
        return 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(options.listen.removeprefix("unix://"))
        listener.listen()
        while True:  # one client after the other, until it is terminated
            accepted, _ = listener.accept()
            serve([Session(Socket(accepted), options.writing, log)])


if __name__ == "__main__":
    sys.exit(main())
