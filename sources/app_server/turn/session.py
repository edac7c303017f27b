"""One thread on an app-server, from its opening to its deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from pipeline.events import Burst, ResponseEnd, ToolCall, Usage
from pipeline.loose_json import Json, as_json, as_list, is_json, text_of
from sources.app_server.protocol.client import BackendGoneError, BackendSilentError, Pending
from sources.app_server.protocol.mailbox import Delivery, Mailbox, MailboxClosedError
from sources.app_server.protocol.mcp_servers import named_servers
from sources.app_server.protocol.names import Aliases
from sources.app_server.protocol.rpc import OVERLOADED, Notification, RpcError, ServerRequest
from sources.app_server.protocol.thread import ThreadPlan, thread_id, turn_id
from sources.app_server.turn.place import Place
from sources.decode.turn_decoder import TurnDecoder
from sources.decode.v2 import RAW_ITEM, RESPONSE_END

LETTING_GO: Final = 5.0
"""How long the end of a turn may take, behind the client's back."""
LATEST: Final = 600.0
"""How late a thread may be opened and still be deleted."""


class Session:
    """A thread with one turn on it, and its decoder. However it is left, it is let go once.

    To let go is to interrupt the turn if it still runs, exactly once, and to delete the thread.
    """

    def __init__(self, place: Place, mailbox: Mailbox) -> None:
        self.place = place
        self.mailbox = mailbox
        self.thread = ""
        self.ended = False
        """The backend said that the turn is over: there is nothing to interrupt."""
        self.requests: dict[str, ServerRequest] = {}
        """The tool calls that the backend waits for, by call id."""
        self._outputs: dict[str, Any] = {}
        self.decoder = TurnDecoder()
        self.aliases = Aliases(())
        self._opening: Pending | None = None
        self._starting: Pending | None = None
        self._interrupting: Pending | None = None
        self.turn = ""
        """The id of the turn."""
        self._let_go = False
        self._released = False
        place.client.enter()

    @property
    def opened(self) -> bool:
        return bool(self.thread) or self._opening is not None

    @property
    def alive(self) -> bool:
        return self.place.client.gone is None

    @property
    def interrupted(self) -> bool:
        """Whether the backend was asked to stop: nothing more is heard of the turn."""
        return self._interrupting is not None

    async def start(self, plan: ThreadPlan) -> None:
        """Open the thread, give it its history, start the turn."""
        client = self.place.client
        self.aliases = plan.aliases
        self.decoder = TurnDecoder(
            known_calls=plan.history_calls,
            raw_items=self.place.capabilities.raw_events,
            report=client.problems.report,
        )
        opening = plan.thread_start(await self._hidden_servers())
        opened = await client.request("thread/start", opening, begun=self._opens)
        self.thread = thread_id(opened)
        client.open_mailbox(self.thread, self.mailbox)
        self._opening = None  # what it was answered is long
        if items := plan.injected():
            injected: Json = {"threadId": self.thread, "items": items}
            await client.request("thread/inject_items", injected)
        params = plan.turn_start(self.thread)
        self.turn = turn_id(await client.request("turn/start", params, begun=self._starts))
        self._starting = None

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

    def take_nowait(self) -> Sequence[Delivery]:
        """What has arrived; see Mailbox. Calls that the backend asks for are answered if they can
        be."""
        deliveries = self.mailbox.take_nowait()
        self._note_requests(deliveries)
        with suppress(BackendGoneError):  # the mailbox is closed then, and says so at its end
            self.answer()
        return deliveries

    def late(self) -> Sequence[Delivery]:
        """What arrived between two answers: later calls of the same response, or its end."""
        deliveries: list[Delivery] = []
        with suppress(trio.WouldBlock, MailboxClosedError):
            while True:
                deliveries += self.mailbox.take_nowait()
        self._note_requests(deliveries)
        for letter in (letter for delivery in deliveries for letter in delivery.letters):
            if isinstance(letter, Notification) and letter.method == "turn/completed":
                self.ended = True
        return deliveries

    def _note_requests(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            for letter in delivery.letters:
                if isinstance(letter, ServerRequest):
                    self.requests[text_of(letter.params.get("callId"))] = letter

    @property
    def overflowed(self) -> bool:
        """Whether more arrived between two answers than is kept."""
        return self.mailbox.closed

    def messages_of(self, late: Burst) -> Iterator[Json]:
        """Late calls, and the end of their response, as messages that are read as the same."""
        place: Json = {"threadId": self.thread, "turnId": self.turn}
        usage: Json = {}
        for event in late:
            match event:
                case ToolCall():
                    made = {"call_id": event.call_id, "name": event.name, "id": event.item_id}
                    item = {"type": "function_call", **made, "arguments": event.arguments}
                    yield {"method": RAW_ITEM, "params": {**place, "item": item}}
                case Usage():
                    usage = {
                        "inputTokens": event.input_tokens,
                        "cachedInputTokens": event.cached_tokens,
                        "outputTokens": event.output_tokens,
                        "reasoningOutputTokens": event.reasoning_tokens,
                        "totalTokens": event.total_tokens,
                    }
                case ResponseEnd():
                    yield {"method": RESPONSE_END, "params": {**place, "usage": usage}}
                case _:
                    continue

    def learn(self) -> None:
        """Note for later turns what the backend was seen to tell."""
        waits = self.place.capabilities.dynamic_tools
        self.place.learned.note(self.decoder.response_ends(calls_wait=waits))

    def give(self, outputs: Mapping[str, Any]) -> None:
        """Take the outputs of calls; Codex asks for one after the other, maybe much later."""
        self._outputs |= outputs

    def answer(self) -> None:
        """Answer those of the waiting calls whose output is known."""
        for call_id in [call for call in self.requests if call in self._outputs]:
            request, output = self.requests.pop(call_id), self._outputs.pop(call_id)
            self.place.client.answer(request, tool_result(output))

    def interrupt(self) -> None:
        """Ask the backend to stop, without waiting for its answer: it may do so at once."""
        if self._interrupting is None and self.turn and not self.ended and self.alive:
            self.place.client.close_mailbox(self.thread)  # from here on everything is late
            params = {"threadId": self.thread, "turnId": self.turn}
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
        """The thread's id, however late: one that is not deleted stays for ever."""
        try:
            return thread_id(await opening.wait(LETTING_GO))
        except BackendSilentError:
            self.release()  # it holds up no shutdown
            return thread_id(await opening.wait(LATEST))

    async def _try(self, step: Callable[[], Awaitable[None]], problem: str) -> None:
        try:
            await step()
        except (RpcError, BackendGoneError, BackendSilentError):
            self.place.client.counters[problem] += 1

    async def _interrupt(self) -> None:
        if self._starting is not None and not self.ended:
            self.turn = turn_id(await self._starting.wait(LETTING_GO))
        self.interrupt()
        if self._interrupting is None:
            return
        try:
            await self._interrupting.wait(LETTING_GO)
        except RpcError as error:
            if error.code != OVERLOADED:
                raise
            params = {"threadId": self.thread, "turnId": self.turn}
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
