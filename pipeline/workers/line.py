"""The line between the parent and a worker: each may ask, each answers, each notes its end."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, TypeAlias

import structlog
import trio
from attrs import Factory, define

from pipeline.loose_json import Json, as_json, text_of

Answer: TypeAlias = Callable[[str, Json], Awaitable[object]]
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class LineCutError(Exception):
    """The other side is gone."""


@define
class _Pending:
    done: trio.Event = Factory(trio.Event)
    answer: Any = None
    cut: bool = False


class Line:
    """JSON, one message a line. Every question is answered by a task of its own, in any order.

    Settings and file names may not be UTF-8: Python's own JSON takes what became of them.
    """

    def __init__(self, stream: trio.SocketStream, answer: Answer) -> None:
        self._stream = stream
        self._answer = answer
        self._numbers = count(1)
        self._pending: dict[int, _Pending] = {}
        self._outgoing: deque[bytes] = deque()
        self._posted = trio.Event()
        self._is_cut = False
        self.heard = 0
        """How many messages have come."""

    async def run(self) -> None:
        """Until the other side is gone; then whoever waits for an answer is told."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read(nursery)
                nursery.cancel_scope.cancel()
        finally:
            self._is_cut = True
            for pending in self._pending.values():
                pending.cut = True
                pending.done.set()
            await trio.aclose_forcefully(self._stream)

    async def ask(self, what: str, /, **given: Any) -> Any:
        """What the other side answers. LineCutError when it is gone."""
        if self._is_cut:
            raise LineCutError
        number = next(self._numbers)
        pending = self._pending[number] = _Pending()
        self._post({"id": number, "what": what, "given": given})
        try:
            await pending.done.wait()
        finally:
            del self._pending[number]
        if pending.cut:
            raise LineCutError
        return pending.answer

    def tell(self, what: str, /, **given: Any) -> None:
        """Say something to which there is no answer."""
        self._post({"what": what, "given": given})

    def _post(self, message: Json) -> None:
        """Leave a message to the writer: who is cancelled leaves no half line behind."""
        if not self._is_cut:
            self._outgoing.append(json.dumps(message).encode() + b"\n")
            self._posted.set()

    async def _write(self) -> None:
        try:
            while True:
                if not self._outgoing:
                    self._posted = trio.Event()
                    await self._posted.wait()
                data = b"".join(self._outgoing)
                self._outgoing.clear()
                await self._stream.send_all(data)
        except trio.BrokenResourceError:
            return  # the reader hears of it as well

    async def _read(self, nursery: trio.Nursery) -> None:
        rest = b""
        try:
            async for data in self._stream:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(nursery, as_json(json.loads(line)))
        except trio.BrokenResourceError:
            return

    def _take(self, nursery: trio.Nursery, message: Json) -> None:
        self.heard += 1
        if "what" in message:
            nursery.start_soon(self._reply, message)
            return
        pending = self._pending.get(message["id"])
        if pending is not None:  # whoever asked may have left
            pending.answer = message["answer"]
            pending.done.set()

    async def _reply(self, message: Json) -> None:
        what = text_of(message["what"])
        answer: object = None
        try:
            answer = await self._answer(what, as_json(message["given"]))
        except Exception:  # noqa: BLE001  # a bug in one answer must not cut the line
            _log.exception("a question between processes could not be answered", what=what)
        if "id" in message:
            self._post({"id": message["id"], "answer": answer})
