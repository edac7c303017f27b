"""One thread on an app-server, from its opening to its deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from pipeline.loose_json import Json, as_json, as_list, is_json, text_of
from sources.app_server.client import BackendGoneError, BackendSilentError, Pending
from sources.app_server.mailbox import Delivery, Mailbox, TakeAtOnce
from sources.app_server.mcp_servers import named_servers
from sources.app_server.place import Place
from sources.app_server.rpc import OVERLOADED, RpcError, ServerRequest
from sources.app_server.thread import ThreadPlan, thread_id, turn_id

LETTING_GO: Final = 5.0
"""How long the end of a turn may take, behind the client's back."""
LATEST: Final = 600.0
"""How late a thread may be opened and still be deleted."""


class Session:
    """A thread with one turn on it. However it is left, it is let go once.

    To let go is to interrupt the turn if it still runs, exactly once, and to delete the thread.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.thread = ""
        self.ended = False
        """The backend said that the turn is over: there is nothing to interrupt."""
        self.requests: dict[str, ServerRequest] = {}
        """The tool calls that the backend waits for, by call id."""
        self._opening: Pending | None = None
        self._starting: Pending | None = None
        self._interrupting: Pending | None = None
        self._turn = ""
        self._mailbox: Mailbox | None = None
        self._let_go = False
        self._released = False
        place.client.enter()

    @property
    def opened(self) -> bool:
        return bool(self.thread) or self._opening is not None

    @property
    def alive(self) -> bool:
        return self.place.client.gone is None

    async def start(self, plan: ThreadPlan) -> str:
        """Open the thread, give it its history, start the turn; the turn's id."""
        client = self.place.client
        opening = plan.thread_start(await self._hidden_servers())
        opened = await client.request("thread/start", opening, begun=self._opens)
        self.thread = thread_id(opened)
        self._mailbox = client.open_mailbox(self.thread)
        self._opening = None  # what it was answered is long
        if items := plan.injected():
            injected: Json = {"threadId": self.thread, "items": items}
            await client.request("thread/inject_items", injected)
        params = plan.turn_start(self.thread)
        self._turn = turn_id(await client.request("turn/start", params, begun=self._starts))
        self._starting = None
        return self._turn

    async def _hidden_servers(self) -> frozenset[str]:
        """The MCP servers that the thread must do without, as they are named at this moment.

        Their owner may change them at any time, and a name that is no longer there is refused.
        """
        if self.place.hides_mcp and self.place.capabilities.read_config:
            return await named_servers(self.place.client)
        return frozenset()

    def _opens(self, asked: Pending) -> None:
        self._opening = asked

    def _starts(self, asked: Pending) -> None:
        self._starting = asked

    async def next(self, at_once: TakeAtOnce) -> Delivery:
        """What was said next, and not taken at once. Calls that are asked for are noted."""
        assert self._mailbox is not None, "the session has not been started"  # noqa: S101
        delivery = await self._mailbox.take(at_once)
        for letter in delivery.letters:
            if isinstance(letter, ServerRequest):
                self.requests[text_of(letter.params.get("callId"))] = letter
        return delivery

    def skip(self) -> None:
        """Pass over what was said while nobody listened, but for the calls to be run."""
        assert self._mailbox is not None, "the session has not been started"  # noqa: S101
        for letter in self._mailbox.empty():
            if isinstance(letter, ServerRequest):
                self.requests[text_of(letter.params.get("callId"))] = letter
            elif not isinstance(letter, bytes) and letter.method == "turn/completed":
                self.ended = True

    async def answer(self, outputs: dict[str, Any]) -> None:
        """Answer those of the waiting calls whose output is known."""
        for call_id in [call for call in self.requests if call in outputs]:
            request = self.requests.pop(call_id)
            await self.place.client.answer(request, tool_result(outputs[call_id]))

    def interrupt(self) -> None:
        """Ask the backend to stop, without waiting for its answer: it may do so at once."""
        if self._interrupting is None and self._turn and not self.ended and self.alive:
            self.place.client.close_mailbox(self.thread)  # from here on everything is late
            params = {"threadId": self.thread, "turnId": self._turn}
            self._interrupting = self.place.client.begin("turn/interrupt", params)

    def release(self) -> None:
        """Give the place back: nothing more is said here."""
        if not self._released:
            self._released = True
            self.place.client.leave()

    async def let_go(self) -> None:
        """Interrupt and delete, within a bound; what fails is counted, nothing is raised."""
        if self._let_go:
            return
        self._let_go = True
        self.place.client.begin_leaving()
        try:
            await self._end()
        finally:
            self.place.client.end_leaving()
            self.release()

    async def _end(self) -> None:
        client = self.place.client
        try:
            if self._opening is not None:
                self.thread = await self._opened(self._opening)
            if not self.thread:
                return
            client.close_mailbox(self.thread)
            await self._try(self._interrupt, "not interrupted")
            await self._try(self._delete, "not let go")
        except (RpcError, BackendGoneError, BackendSilentError):
            return  # there is no thread
        finally:
            for asked in filter(None, (self._opening, self._starting, self._interrupting)):
                client.forget(asked)

    async def _opened(self, opening: Pending) -> str:
        """The thread's id, however late: one that nobody deletes stays for ever."""
        try:
            return thread_id(await opening.wait(LETTING_GO))
        except BackendSilentError:
            self.release()  # it keeps nobody from leaving
            return thread_id(await opening.wait(LATEST))

    async def _try(self, step: Callable[[], Awaitable[None]], problem: str) -> None:
        try:
            await step()
        except (RpcError, BackendGoneError, BackendSilentError):
            self.place.client.counters[problem] += 1

    async def _interrupt(self) -> None:
        if self._starting is not None and not self.ended:
            self._turn = turn_id(await self._starting.wait(LETTING_GO))
        self.interrupt()
        if self._interrupting is None:
            return
        try:
            await self._interrupting.wait(LETTING_GO)
        except RpcError as error:
            if error.code != OVERLOADED:
                raise
            params = {"threadId": self.thread, "turnId": self._turn}
            await self.place.client.request("turn/interrupt", params, LETTING_GO)

    async def _delete(self) -> None:
        """Ephemeral threads leak in the child; ones kept on disk and then deleted do not."""
        can, client = self.place.capabilities, self.place.client
        params = {"threadId": self.thread}
        if can.delete_thread:
            await client.request("thread/delete", params, LETTING_GO)
        elif can.archive_thread:
            await client.request("thread/archive", params, LETTING_GO)


def tool_result(output: object) -> Json:
    """A client's tool output as the answer to the backend's request to run the tool."""
    success = True
    if is_json(output):  # the older form: {content, success}
        success = output.get("success") is not False
        output = output.get("content")
    if isinstance(output, str):
        return {"contentItems": [{"type": "inputText", "text": output}], "success": success}
    items: list[Json] = []
    for part in map(as_json, as_list(output)):
        if image := text_of(part.get("image_url")):
            items.append({"type": "inputImage", "imageUrl": image})
        else:
            items.append({"type": "inputText", "text": text_of(part.get("text"))})
    return {"contentItems": items, "success": success}
