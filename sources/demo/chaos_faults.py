"""The faults of a turn of the fake app-server: each one rewrites the turn's steps."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any, Final, TypeAlias

from pipeline.loose_json import Json, as_json, is_json
from sources.demo.chaos_turn import DELTA, Act, FakeTurn, Pause, Step, Wait, Write, encode

APPROVALS: Final = (
    "item/commandExecution/requestApproval",
    "item/fileChange/requestApproval",
    "item/permissions/requestApproval",
    "applyPatchApproval",
    "execCommandApproval",
    "item/tool/requestUserInput",
    "mcpServer/elicitation/request",
    "currentTime/read",
)
GARBAGE: Final = (
    b"thread 'main' panicked at src/main.rs:1:1",
    b'{"method": "item/agentMessage/delta", "params": {"thr',
    b"{}",
    b"[]",
    b"null",
    b'"a string"',
    b"12345678901234567890",
    b'{"id": null, "result": {}}',
    b'{"id": "1", "result": {}}',
    b"\xff\xfe\x00 no text",
    b"   ",
    b"",
)

Steps: TypeAlias = Iterator[Step]
Fault: TypeAlias = Callable[[Steps, FakeTurn, str], Steps]


def _line(step: Json) -> bytes:
    return encode(step) + b"\n"


def _is_delta(step: Step) -> bool:
    return is_json(step) and step.get("method") == DELTA


def _before_the_second_delta(steps: Steps, *inserted: Step) -> Steps:
    """Insert steps in the middle of an answer."""
    deltas = 0
    for step in steps:
        deltas += _is_delta(step)
        if _is_delta(step) and deltas == 2:
            yield from inserted
        yield step


def _after_the_start(steps: Steps, inserted: Steps) -> Steps:
    for step in steps:
        yield step
        if is_json(step) and step.get("method") == "turn/started":
            yield from inserted


# -- what is said --------------------------------------------------------------------------------


def approve(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """requests every kind of approval, waits for each, and repeats the answer"""

    def asking() -> Steps:
        for method in APPROVALS:
            request = turn.ask(method, itemId="item_1", command="rm -rf /")
            yield request
            yield Wait(request["id"])
            got = turn.answers[request["id"]]
            decision = as_json(got.get("result")) or as_json(got.get("error")).get("code")
            yield turn.delta(f"{method}: {encode(decision).decode()}\n")

    return _after_the_start(steps, asking())


def retrying(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """reports retries without end; =SECONDS between them"""

    def trying() -> Steps:
        error = {"message": "Reconnecting... waiting for network", "codexErrorInfo": "other"}
        while True:
            yield turn.notify("error", error=error, willRetry=True)
            yield Pause(float(value or 0.02))

    return _after_the_start(steps, trying())


def endless(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """sends words without end, at full speed"""

    def talking() -> Steps:
        words = Write((_line(turn.delta("word ")) * 12,))
        while True:
            yield words

    return _after_the_start(steps, talking())


def impatient(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """ends the turn if a call is not answered at once; =SECONDS to wait before"""
    for step in steps:
        if isinstance(step, Wait):
            yield Pause(float(value or 0.0))
            error = {"message": "the tool took too long", "codexErrorInfo": "other"}
            yield turn.end("failed", error)
            return
        yield step


def slow(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """pauses before every delta; =SECONDS"""
    for step in steps:
        if _is_delta(step):
            yield Pause(float(value or 0.05))
        yield step


def huge(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """sends one delta of 10 MB; =BYTES"""
    return _before_the_second_delta(steps, turn.delta("x" * int(value or 10_000_000)))


def overlong(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """writes a line that is too long to hold, with OVERLONG in it; =BYTES, 64 MiB by default"""
    words = "OVERLONG".ljust(int(value or 64 * 1024 * 1024 + 1), ".")
    return _before_the_second_delta(steps, turn.delta(words))


# -- order, repetition, other threads ------------------------------------------------------------


def early(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """answers turn/start after everything else"""
    first = next(steps)
    yield from steps
    yield first


def shuffled(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """sends everything in another order, the end last; =SEED"""
    sent: list[Step] = []
    for step in steps:
        sent.append(step)
        if not is_json(step) or step.get("method") == "turn/completed":
            random.Random(value).shuffle(rest := sent[:-1])  # noqa: S311
            yield from [*rest, step]
            sent.clear()
    yield from sent


def twice(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """sends everything twice"""
    for step in steps:
        yield step
        if is_json(step):
            yield step


def crosstalk(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """mixes in messages of another thread, another turn and no thread, with STRANGER in them"""
    elsewhere = FakeTurn("thread-elsewhere", "turn-elsewhere")
    another = FakeTurn(turn.thread, "turn-before")
    for step in steps:
        yield step
        if _is_delta(step):
            yield elsewhere.delta("STRANGER")
            yield elsewhere.end("completed")
            yield another.delta("STRANGER")
            yield {"method": DELTA, "params": {"delta": "STRANGER", "itemId": "msg_1"}}
            yield {"method": "something/new", "params": {"text": "STRANGER"}}


def late(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """goes on after the end and after an interrupt, with LATE in the messages"""
    yield from steps
    yield from late_frames(turn)


def late_frames(turn: FakeTurn) -> Steps:
    yield turn.delta("LATE")
    call = {"type": "function_call", "call_id": "call_late", "name": "LATE", "arguments": "{}"}
    yield turn.raw(call)
    yield turn.ask("item/tool/call", callId="call_late", tool="LATE", arguments={})
    yield turn.end("completed")


# -- ends of the process -------------------------------------------------------------------------


def die(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """kills itself in the middle of the answer"""
    return _before_the_second_delta(steps, Act(kill_itself))


def eof(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """closes its output in the middle of the answer, and keeps running"""
    return _before_the_second_delta(steps, Act(_close_output), Pause(inf))


def _close_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def ask_and_die(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """requests an approval and is dead before the answer"""
    return _before_the_second_delta(steps, turn.ask(APPROVALS[0]), Act(kill_itself))


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- the output ----------------------------------------------------------------------------------


def stderr(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """floods its stderr in the middle of the answer; =BYTES, 4 MB by default"""
    return _before_the_second_delta(steps, Act(partial(_flood_stderr, int(value or 4_000_000))))


def _flood_stderr(size: int) -> None:
    line = b"ERROR codex_core: " + b"x" * 81 + b"\n"
    for _ in range(size // len(line)):
        os.write(2, line)


def garbage(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """writes invalid lines between the messages"""
    for step in steps:
        yield Write((b"".join(line + b"\n" for line in GARBAGE),))
        yield step


def torn(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """writes every message in several pieces, its end byte by byte"""
    for step in steps:
        if is_json(step):
            line = _line(step)
            middle = len(line) // 2
            yield Write((line[:middle], line[middle:-3], line[-3:-2], line[-2:-1], line[-1:]))
        else:
            yield step


def glued(steps: Steps, turn: FakeTurn, value: str) -> Steps:
    """writes several messages at once"""
    held = b""
    for step in steps:
        if is_json(step):
            held += _line(step)
            continue
        yield Write((held,))
        held = b""
        yield step
    yield Write((held,))


_TABLE: Final = (
    (approve, retrying, endless, impatient, slow, huge, overlong),
    (early, shuffled, twice, crosstalk, late, stderr, die, eof, ask_and_die),
    (garbage, torn, glued),
)
FAULTS: Final[dict[str, Fault]] = {
    fault.__name__.replace("_", "-"): fault for kind in _TABLE for fault in kind
}
"""By name, in the order in which they are applied: output faults come last."""


def with_faults(steps: Steps, turn: FakeTurn, words: Mapping[str, str]) -> Steps:
    """The steps with the named faults applied."""
    for name, fault in FAULTS.items():
        if name in words:
            steps = fault(steps, turn, words[name])
    return steps


def fault_words(text: str) -> dict[str, Any]:
    """`!name` and `!name=value` of a text."""
    found = (word[1:].partition("=") for word in text.split() if word.startswith("!"))
    return {name: value for name, _, value in found}
