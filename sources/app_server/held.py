"""Turns that are kept open while the client runs the tools they called."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import trio
from attrs import Factory, define, evolve, frozen

from pipeline.custom_tools import to_text
from pipeline.loose_json import Json, as_json, as_list, text_of
from pipeline.turn import Turn
from sources.app_server.session import Session


@define
class HeldTurn:
    """A turn whose calls were given to the client, and all that tells its follow-up apart."""

    session: Session
    turn: Turn
    turn_id: str
    text: str
    calls: tuple[tuple[str, str, str], ...]
    """The calls in order: id, name, arguments."""
    expiry: trio.CancelScope = Factory(trio.CancelScope)

    @property
    def key(self) -> frozenset[str]:
        return frozenset(call_id for call_id, _, _ in self.calls)


@frozen
class HoldingOptions:
    """How many turns are held at once, and for how long; none at all if `most` is 0."""

    most: int = 64
    seconds: float = 600.0


class HeldTurns:
    """Bounded in number and time: the one unused for longest is let go first.

    A follow-up continues a held turn only if it brings outputs for exactly its calls, and the rest
    of the request is the same: then the backend needs no second prefill and keeps its reasoning.
    """

    def __init__(self, options: HoldingOptions | None = None) -> None:
        self._options = options or HoldingOptions()
        self._held: OrderedDict[frozenset[str], HeldTurn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def enabled(self) -> bool:
        return self._options.most > 0

    async def hold(self, held: HeldTurn) -> None:
        """Keep a turn until its follow-up comes, its time is over, or others need its place."""
        replaced = self._held.pop(held.key, None)
        self._held[held.key] = held
        if replaced is not None:
            await self._release(replaced)
        while len(self._held) > self._options.most:
            _, oldest = self._held.popitem(last=False)
            await self._release(oldest)
        try:
            with held.expiry:
                await trio.sleep(self._options.seconds)
        finally:  # its time is over, or its backend is gone and this task with it
            expired = self._held.get(held.key) is held
            if expired:
                del self._held[held.key]
        if expired:
            await held.session.let_go()

    def take(self, turn: Turn) -> tuple[HeldTurn, dict[str, Any]] | None:
        """The held turn that this one continues, and the outputs it brings, if there is one."""
        outputs = trailing_outputs(turn)
        held = self._held.get(frozenset(outputs)) if outputs else None
        if held is None or not held.session.alive or not continues(turn, held, len(outputs)):
            return None
        del self._held[held.key]
        held.expiry.cancel()
        return held, outputs

    @staticmethod
    async def _release(held: HeldTurn) -> None:
        held.expiry.cancel()
        await held.session.let_go()


def trailing_outputs(turn: Turn) -> dict[str, Any]:
    """The tool outputs that a request ends with, by call id."""
    outputs: dict[str, Any] = {}
    for item in reversed(turn.items):
        if item.get("type") != "function_call_output":
            break
        outputs[text_of(item.get("call_id"))] = item.get("output")
    return outputs


def continues(turn: Turn, held: HeldTurn, outputs: int) -> bool:
    """Whether a request is the held one, what it was answered, and the outputs: nothing else."""
    if _wish(turn) != _wish(held.turn):
        return False
    before, between = len(held.turn.items), len(turn.items) - outputs
    if turn.items[:before] != held.turn.items:
        return False
    said, called = "", list[tuple[str, str, str]]()
    for item in turn.items[before:between]:
        match item.get("type", "message"):
            case "message" if item.get("role") == "assistant":
                said += _text(item)
            case "function_call":
                fields = (item.get("call_id"), item.get("name"), item.get("arguments"))
                called.append((text_of(fields[0]), text_of(fields[1]), text_of(fields[2])))
            case "reasoning":
                continue
            case _:
                return False
    meant = [_meant(turn, *call) for call in called]
    return meant == [_meant(turn, *call) for call in held.calls] and said in ("", held.text)


def _meant(turn: Turn, call_id: str, name: str, arguments: str) -> tuple[str, str, str]:
    """A call as it comes back: of a tool that takes free text, the client repeats that alone."""
    tool = turn.tool(name)
    custom = tool is not None and tool.kind == "custom"
    return call_id, name, to_text(arguments) if custom else arguments


def _wish(turn: Turn) -> Turn:
    """A request less its conversation and the form of its answer."""
    return evolve(turn, items=(), stop=(), stream=None, include_usage=False, output_mode=None)


def _text(item: Json) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(text_of(as_json(part).get("text")) for part in as_list(content))
