"""A script in the user message: what the model says, calls and waits for, line by line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen

from pipeline.loose_json import Json

_STEP: Final = re.compile(r"(CALL|SAY|THINK|WAIT|TRICKLE|THEN)(?: (.*))?")
LONGEST_WAIT: Final = 60.0


@frozen
class Step:
    """One line: a verb and its text."""

    verb: str
    words: str


def steps_in(said: str) -> list[Step]:
    """The steps in a message, one per line; none if there is nothing to say or call.

    CALL name {…}   calls a tool            SAY words     says something
    WAIT seconds    is silent for so long   THINK words   reasons
    TRICKLE seconds announces the next call and takes so long to write its arguments
    THEN            ends the response; what follows is said once the tools have answered
    """
    found = [_STEP.fullmatch(line) for line in said.splitlines()]
    steps = [Step(match[1], match[2] or "") for match in found if match is not None]
    return steps if {"CALL", "SAY"} & {step.verb for step in steps} else []


def round_of(steps: Sequence[Step], outputs: int) -> tuple[int, list[Step]]:
    """The response after a number of answered calls: its number and its steps."""
    rounds: list[list[Step]] = [[]]
    for step in steps:
        if step.verb == "THEN":
            rounds.append([])
        else:
            rounds[-1].append(step)
    begun = 0
    for number, due in enumerate(rounds):
        calls = sum(step.verb == "CALL" for step in due)
        if outputs < begun + calls or (outputs == begun and not calls):
            return number, due
        begun += calls
    return len(rounds), []


def pause(seconds: str) -> Json:
    """A pause, as an item of a response."""
    return {"type": "pause", "seconds": min(float(seconds), LONGEST_WAIT)}


def usage(number: int) -> dict[str, Any]:
    """The usage of a response of a script, different for each, so that a mix-up shows."""
    read, written = 1000 + 100 * number, 10 + number
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 64 * number},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": number},
        "total_tokens": read + written,
    }
