"""One connection to an app-server, shared by many turns."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import trio
from attrs import Factory, define

from pipeline.loose_json import Json, as_json
from sources.app_server.protocol.mailbox import Letter, Mailbox
from sources.app_server.protocol.rpc import (
    OVERLOADED,
    Answer,
    RpcCore,
    RpcError,
    ServerRequest,
    thread_of,
)
from sources.app_server.transport.transport import Transport, TransportClosedError
from sources.decode.deltas import HEAD, named_thread
from sources.decode.turn_decoder import is_known
from sources.decode.v2 import TEXT_DELTA
from sources.problems import Problems

REQUEST_TIMEOUT: Final = 30.0
GOT_TEXT: Final = f"got {TEXT_DELTA}"
MOST_OUTGOING: Final = 256 * 1024 * 1024
"""What may wait to be sent; a backend that reads so little is as good as gone."""
MOST_LEAVING: Final = 8
CALMING: Final = 2.0
"""How long a new turn waits at most while a backend cleans up after old ones."""
DECLINED: Final[dict[str, Json]] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/permissions/requestApproval": {"permissions": {}, "scope": "turn"},
    "applyPatchApproval": {"decision": "denied"},
    "execCommandApproval": {"decision": "denied"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline"},
}
"""What the backend may ask and is never given: it must not act, only talk."""


class BackendGoneError(Exception):
    """The connection ended; a new one may work."""


class BackendSilentError(Exception):
    """A request was not answered in time."""


@define
class Pending:
    """A request under way. Its answer may be waited for more than once."""

    method: str
    expects_refusal: bool = False
    """An error is what the caller wants to hear."""
    _done: trio.Event = Factory(trio.Event)
    _result: Any = None
    _error: Exception | None = None

    def resolve(self, answer: Answer) -> None:
        if answer.error is not None:
            self._error = RpcError(self.method, answer.error)
        self._result = answer.result
        self._done.set()

    def fail(self, error: Exception) -> None:
        if not self._done.is_set():
            self._error = error
            self._done.set()

    async def wait(self, timeout: float = REQUEST_TIMEOUT) -> Json:  # noqa: ASYNC109
        """The result. Raises RpcError, BackendGoneError or BackendSilentError."""
        with trio.move_on_after(timeout):
            await self._done.wait()
        if not self._done.is_set():
            raise BackendSilentError(f"{self.method} was not answered within {timeout:g} s")
        if self._error is not None:
            raise self._error
        return as_json(self._result)


class AppServerClient:
    """Correlates answers, deals messages out to the turns' mailboxes, declines what it is asked.

    A message for no open thread is dropped and counted. The reader never waits for a turn.
    """

    def __init__(self, transport: Transport, problems: Problems | None = None) -> None:
        """`problems` and their counters, where given, outlive the connection."""
        self._transport = transport
        self.problems = Problems() if problems is None else problems
        """Receives what the backend wrote and could not be used."""
        self._rpc = RpcCore(self.problems.counters, self.problems.report)
        self._pending: dict[int, Pending] = {}
        self._mailboxes: dict[str, Mailbox] = {}
        self._named: dict[bytes, Mailbox] = {}
        """The same, by the names of their threads on the wire."""
        self._gone: str | None = None
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._posted = trio.Event()
        self._end_event = trio.Event()
        self._idle = trio.Event()
        self._turns = 0
        self._leaving = 0
        self._calm = trio.Event()
        self.user_agent = ""
        self.last_words = ""
        """What the backend said before it was gone; for its operator, not for clients."""
        self.on_request: Callable[[ServerRequest], None] = lambda _: None
        """Called with every question of the backend that was declined."""

    @property
    def counters(self) -> Counter[str]:
        return self._rpc.counters

    @property
    def gone(self) -> str | None:
        """Why the connection ended, if it did."""
        return self._gone

    @property
    def load(self) -> int:
        """How many turns use this connection, those that are only starting included."""
        return self._turns

    # -- running ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read until the connection ends; then everything that waits fails."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._end("the connection was closed")

    async def _read(self) -> None:
        try:
            while True:
                self._dispatch(await self._transport.receive())
        except TransportClosedError as error:
            self._end(str(error), error.last_words)
        except BackendGoneError as error:
            self._end(str(error))

    async def _write(self) -> None:
        try:
            while True:
                while self._outgoing:
                    message = self._outgoing.popleft()
                    await self._transport.send(message)
                    self._outgoing_bytes -= len(message)
                self._posted = trio.Event()
                await self._posted.wait()
        except TransportClosedError as error:
            self._end(str(error), error.last_words)

    async def until_gone(self) -> None:
        await self._end_event.wait()

    def _end(self, reason: str, last_words: str = "") -> None:
        if self._gone is not None:
            return
        self._gone = reason
        self.last_words = last_words
        self._end_event.set()
        for pending in self._pending.values():
            pending.fail(BackendGoneError(reason))
        for mailbox in self._mailboxes.values():
            mailbox.close(reason)
        self._pending.clear()

    def _dispatch(self, lines: list[bytes]) -> None:
        """Sort what one read has brought: each turn gets its share at once."""
        at = trio.current_time()
        deliveries: dict[Mailbox, list[Letter]] = {}
        deltas = 0
        for line in lines:
            if line.startswith(HEAD):
                mailbox = self._named.get(named_thread(line))
                if mailbox is not None:
                    deltas += 1
                    deliveries.setdefault(mailbox, []).append(line)
                    continue
            self._take(line, deliveries)
        if deltas:
            self.counters[GOT_TEXT] += deltas
        for mailbox, letters in deliveries.items():
            mailbox.put(letters, at)

    def _take(self, line: bytes, deliveries: dict[Mailbox, list[Letter]]) -> None:
        incoming = self._rpc.read(line)
        if incoming is None:
            return
        if isinstance(incoming, Answer):
            self._answered(incoming)
            return
        self._rpc.count(f"got {incoming.method:.60}")
        mailbox = self._mailboxes.get(thread_of(incoming))
        if mailbox is not None:
            deliveries.setdefault(mailbox, []).append(incoming)
        else:
            self.counters["for no open thread"] += 1
            if not is_known(incoming.method):
                self.problems.report("unknown_event", incoming.method)
        if isinstance(incoming, ServerRequest):
            self._asked(incoming, known=mailbox is not None)

    def _answered(self, answer: Answer) -> None:
        pending = self._pending.pop(answer.id, None)
        if pending is None:
            self.counters["an answer to nothing"] += 1
            return
        if answer.error is not None:
            code = answer.error.get("code")
            shown = f"{code!s:.20}" if isinstance(code, int) else "none"
            self._rpc.count(f"error {pending.method} {shown}")
            if not pending.expects_refusal:
                self.problems.refused(pending.method, shown)
        pending.resolve(answer)

    def _asked(self, request: ServerRequest, *, known: bool) -> None:
        """Answer a question, or its turn hangs. Tool calls are the turn's to answer."""
        if request.method == "item/tool/call" and known:
            return
        self.on_request(request)
        declined = DECLINED.get(request.method)
        if declined is not None:
            self._post(self._rpc.result(request, declined))
        else:
            self._post(self._rpc.refusal(request, f"{request.method} is not offered here"))

    # -- asking ----------------------------------------------------------------------------------

    async def handshake(
        self,
        client_name: str,
        version: str,
        quiet: tuple[str, ...] = (),
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
    ) -> None:
        """Introduce ourselves; nothing else is answered before."""
        result = await self.request(
            "initialize",
            {
                "clientInfo": {"name": client_name, "title": client_name, "version": version},
                "capabilities": {
                    "experimentalApi": True,
                    "optOutNotificationMethods": list(quiet),
                },
            },
            timeout=timeout,
        )
        self.user_agent = str(result.get("userAgent", ""))
        self._post(self._rpc.notification("initialized"))

    async def request(
        self,
        method: str,
        params: Json,
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
        *,
        begun: Callable[[Pending], None] | None = None,
        expects_refusal: bool = False,
    ) -> Json:
        """Ask, and wait for the answer. An overloaded backend is asked again, a little later.

        `begun` is called with every attempt: a caller that is cancelled can still wait for its
        answer, and has it forgotten in the end. With `expects_refusal` no error is logged.
        """
        for pause in (0.05, 0.2, 0.8, None):
            pending = self.begin(method, params, expects_refusal=expects_refusal)
            if begun is not None:
                begun(pending)
            try:
                return await pending.wait(timeout)
            except BackendSilentError:
                if begun is None:
                    self.forget(pending)
                raise
            except RpcError as error:
                if error.code != OVERLOADED or pause is None:
                    raise
                await trio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
        raise AssertionError("unreachable: the last attempt returns or raises")

    def begin(self, method: str, params: Json, *, expects_refusal: bool = False) -> Pending:
        """Ask without waiting for the answer."""
        number, message = self._rpc.request(method, params)
        if self._gone is not None:
            raise BackendGoneError(self._gone)
        pending = self._pending[number] = Pending(method, expects_refusal)
        self._post(message)
        return pending

    def forget(self, pending: Pending) -> None:
        """Stop waiting: a backend that never answers must not fill the memory."""
        for number in [n for n, asked in self._pending.items() if asked is pending]:
            del self._pending[number]

    def answer(self, request: ServerRequest, result: Json) -> None:
        """Answer a tool call that the backend waits for."""
        self._post(self._rpc.result(request, result))

    def _post(self, message: bytes) -> None:
        """Leave a message to the writer: a turn that is cancelled leaves no half line behind."""
        if self._gone is not None:
            raise BackendGoneError(self._gone)
        if not self._outgoing_bytes and self._transport.send_now(message):
            return
        self._outgoing.append(message)
        self._outgoing_bytes += len(message)
        if self._outgoing_bytes > MOST_OUTGOING:
            self._end("the backend does not read what it is sent")
        self._posted.set()

    # -- listening -------------------------------------------------------------------------------

    def open_mailbox(self, thread: str, mailbox: Mailbox) -> None:
        """Deliver the messages of a thread from now on."""
        self._mailboxes[thread] = self._named[thread.encode()] = mailbox
        if self._gone is not None:
            mailbox.close(self._gone)

    def close_mailbox(self, thread: str) -> None:
        self._mailboxes.pop(thread, None)
        self._named.pop(thread.encode(), None)

    def enter(self) -> None:
        """A turn begins to use this connection."""
        self._turns += 1

    def leave(self) -> None:
        """A turn has no more use for it."""
        self._turns -= 1
        if not self._turns:
            self._idle.set()

    def begin_leaving(self) -> None:
        """A thread is being let go of, behind its client's back."""
        self._leaving += 1

    def end_leaving(self) -> None:
        self._leaving -= 1
        if self._leaving <= MOST_LEAVING:
            self._calm.set()

    async def until_calm(self) -> None:
        """Until few threads are being let go of, or a moment has passed.

        Codex deletes threads more slowly than it can start them: seen with 0.166.0 at 19 turns a
        second, four at once, where 800 turns left it 600 MB larger.
        """
        if self._leaving <= MOST_LEAVING:
            return
        with trio.move_on_after(CALMING):
            while self._leaving > MOST_LEAVING and self._gone is None:
                if self._calm.is_set():  # others may wait for the same
                    self._calm = trio.Event()
                await self._calm.wait()

    async def until_idle(self) -> None:
        """Until no turn uses this connection."""
        while self._turns:
            self._idle = trio.Event()
            await self._idle.wait()
