"""Stands between clients and the server, passes every byte on, and tells what was said."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import h11
import trio
from attrs import Factory, define, frozen
from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage
from wsproto.extensions import Extension, PerMessageDeflate

from tests.support.responses_automaton import ResponsesAutomaton, check_events, check_stream

Json: TypeAlias = dict[str, Any]

LONG_ENOUGH: Final = 30.0
AT_ONCE: Final = 65_536
LARGEST_HEAD: Final = 65_536
SWITCHED: Final = 101


@define
class Wire:
    """The bytes of one connection, both ways."""

    sent: bytearray = Factory(bytearray)
    received: bytearray = Factory(bytearray)


@frozen
class Exchange:
    """One request and all that it was answered with, or one WebSocket and its messages."""

    method: str
    path: str
    asked: list[Json]
    """The body, where it is JSON; of a WebSocket, every message."""
    status: int
    streamed: bool = False
    body: bytes = b""
    whole: bool = True
    """Whether the client stayed to the end."""
    frames: list[Json] = Factory(list[Json])
    headers: dict[str, str] = Factory(dict[str, str])
    """Those of the request, under names in lower case."""

    @property
    def events(self) -> list[Json]:
        """What a stream said, whatever carried it."""
        if not self.streamed:
            return self.frames
        lines = self.body.rpartition(b"\n\n")[0].decode().split("\n")
        data = [line[6:] for line in lines if line.startswith("data: ")]
        return [json.loads(line) for line in data if line != "[DONE]"]

    @property
    def streams(self) -> list[list[Json]]:
        """The events, one list for each response; a refusal on a socket belongs to none."""
        found: list[list[Json]] = []
        for event in self.events:
            if "status" in event:
                continue
            if not found or event["sequence_number"] == 0:
                found.append([])
            found[-1].append(event)
        return found

    @property
    def refusals(self) -> list[Json]:
        """What a socket was told in place of a stream."""
        return [event for event in self.frames if "status" in event]

    def check(self) -> None:
        """Let the automaton read what was streamed on the Responses API."""
        if not self.path.startswith("/v1/responses"):
            return
        for refusal in self.refusals:
            assert {*refusal} == {"type", "status", "error"}
            assert {*refusal["error"]} == {"type", "code", "message", "param"}
        if self.streamed and self.whole:
            check_stream(self.body)
            return
        *told, last = self.streams or [[]]
        for events in told:
            check_events(events)
        automaton = ResponsesAutomaton()
        for event in last:  # it may be one that the client left
            automaton.feed(event)


class Relay:
    """Passes bytes on, as they come, and the end of them; remembers them by connection."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        assert target.hostname is not None
        assert target.port is not None
        self._target = (target.hostname, target.port)
        self._path = target.path
        self._wires: list[Wire] = []
        self._started = threading.Event()
        self._heard = threading.Condition()
        self._stop: Callable[[], None] = lambda: None
        self.url = ""

    def mark(self) -> int:
        """So many connections there were."""
        return len(self._wires)

    def since(self, mark: int = 0) -> list[Exchange]:
        """Every exchange on the connections that were opened since then, in order."""
        return [told for wire in self._wires[mark:] for told in exchanges(wire)]

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait for something that shows in what was said."""
        with self._heard:
            assert self._heard.wait_for(happened, LONG_ENOUGH)

    @contextmanager
    def running(self) -> Generator[Relay]:
        """In a thread of its own, since some clients block the one that the tests run in."""
        thread = threading.Thread(target=trio.run, args=(self._main,))
        thread.start()
        try:
            assert self._started.wait(LONG_ENOUGH)
            yield self
        finally:
            self._stop()
            thread.join(LONG_ENOUGH)

    async def _main(self) -> None:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listeners[0].socket.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}{self._path}"
            self._stop = lambda: token.run_sync_soon(nursery.cancel_scope.cancel)
            nursery.start_soon(trio.serve_listeners, self._connected, listeners)
            self._started.set()

    async def _connected(self, client: trio.SocketStream) -> None:
        wire = Wire()
        self._wires.append(wire)
        server = await trio.open_tcp_stream(*self._target)
        async with client, server, trio.open_nursery() as nursery:

            async def passes_on(
                source: trio.SocketStream, target: trio.SocketStream, kept: bytearray
            ) -> None:
                try:
                    while data := await source.receive_some(AT_ONCE):
                        with self._heard:
                            kept.extend(data)
                            self._heard.notify_all()
                        await target.send_all(data)
                    await target.send_eof()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    nursery.cancel_scope.cancel()  # one side is gone: so is the other

            nursery.start_soon(passes_on, client, server, wire.sent)
            nursery.start_soon(passes_on, server, client, wire.received)


# -- reading it ------------------------------------------------------------------------------------


def exchanges(wire: Wire) -> Iterator[Exchange]:
    """Read one connection as HTTP, both sides of it, as far as it went."""
    asked = h11.Connection(h11.SERVER, LARGEST_HEAD)
    told = h11.Connection(h11.CLIENT, LARGEST_HEAD)
    for side, data in ((asked, wire.sent), (told, wire.received)):
        if data:  # nothing would mean that it was closed
            side.receive_data(bytes(data))
    while isinstance(request := asked.next_event(), h11.Request):
        told.send(request)
        body, complete = _body(asked)
        if body:
            told.send(h11.Data(data=body))
        if complete:  # a server may refuse a request before it has read all of it
            told.send(h11.EndOfMessage())
        response = told.next_event()
        if not isinstance(response, h11.Response | h11.InformationalResponse):
            return
        method, path = request.method.decode(), request.target.decode()
        headers = {name.decode(): value.decode("latin1") for name, value in request.headers}
        if response.status_code == SWITCHED:
            sent, received = asked.trailing_data[0], told.trailing_data[0]
            agreed = _extensions(request, response)
            yield Exchange(
                method,
                path,
                _messages(ConnectionType.SERVER, sent, agreed()),
                SWITCHED,
                frames=_messages(ConnectionType.CLIENT, received, agreed()),
                headers=headers,
            )
            return
        kind = dict(response.headers).get(b"content-type", b"")
        streamed = kind.startswith(b"text/event-stream")
        asked_for = [json.loads(body)] if body and complete else []
        answer, whole = _body(told)
        status = response.status_code
        yield Exchange(method, path, asked_for, status, streamed, answer, whole, headers=headers)
        if told.their_state is not h11.DONE or told.our_state is not h11.DONE:
            return
        asked.send(h11.Response(status_code=204, headers=[]))
        asked.send(h11.EndOfMessage())
        if asked.our_state is not h11.DONE:
            return
        asked.start_next_cycle()
        told.start_next_cycle()


def _body(side: h11.Connection) -> tuple[bytes, bool]:
    """The rest of a message, or what there is of it, and whether that is all."""
    body = b""
    while isinstance(event := side.next_event(), h11.Data):
        body += event.data
    return body, isinstance(event, h11.EndOfMessage)


def _extensions(
    request: h11.Request, response: h11.InformationalResponse | h11.Response
) -> Callable[[], list[Extension]]:
    """What both sides agreed on, for one direction after the other."""
    offer, answer = (
        dict(side.headers).get(b"sec-websocket-extensions", b"").decode()
        for side in (request, response)
    )

    def agreed() -> list[Extension]:
        if not answer:
            return []
        deflate = PerMessageDeflate()
        deflate.accept(offer)
        return [deflate]

    return agreed


def _messages(side: ConnectionType, data: bytes, extensions: list[Extension]) -> list[Json]:
    connection = Connection(side, extensions)
    connection.receive_data(data)
    messages: list[Json] = []
    text = ""
    for event in connection.events():
        if isinstance(event, TextMessage):
            text += event.data
            if event.message_finished:
                messages.append(json.loads(text))
                text = ""
    return messages
