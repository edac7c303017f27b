"""The vocabulary: one frozen class for each kind of thing that happens in a turn.

Every event carries `at`, the source's time in seconds. Stages reason about time from these stamps
alone, so a recorded turn replayed in an instant takes the same decisions as the live one.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from attrs import frozen

from pipeline.errors import Failure

Origin: TypeAlias = str
"""How a call was made: `structured`, or as text in the named pattern, `use_tool` or `sentinel`."""


ResponseEnds: TypeAlias = Literal["told", "untold", "unknown"]
"""Whether a backend tells when an upstream response has ended while its calls wait for outputs."""


@frozen
class TurnStart:
    """The first event of a turn: what its backend is known to tell."""

    response_ends: ResponseEnds = "unknown"
    choice: int = 0
    at: float = 0.0


@frozen
class TextDelta:
    """A piece of the answer's text."""

    text: str
    item_id: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class ReasoningDelta:
    """A piece of the model's reasoning, as a summary or as the reasoning itself."""

    text: str
    kind: Literal["summary", "text"] = "summary"
    part: int = 0
    item_id: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class ReasoningItem:
    """A finished reasoning item with its sealed content, which only the backend can open."""

    item_id: str
    summary: tuple[str, ...] = ()
    encrypted_content: str | None = None
    choice: int = 0
    at: float = 0.0


@frozen
class ToolCall:
    """One whole call. `arguments` is the model's own string, never parsed and written again."""

    call_id: str
    name: str
    arguments: str
    index: int = 0
    origin: Origin = "structured"
    item_id: str = ""
    namespace: str | None = None
    choice: int = 0
    at: float = 0.0


@frozen
class ToolCallFragment:
    """A piece of a call from a backend that streams arguments, in whatever order it comes.

    `key` is the backend's own handle for the item. `arguments` is an increment; `whole`, when the
    backend gives the full string, replaces what was gathered. Where one item carries several
    calls, `part` is the call's place in the item's content, and `ordinal` its place among the
    item's calls; -1 means that the backend does not say, so it is the one being written.
    """

    key: str
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    whole: str | None = None
    done: bool = False
    ordinal: int = -1
    part: int = -1
    choice: int = 0
    at: float = 0.0


@frozen
class CallProgress:
    """A call is being written and not yet whole: cutting now would lose it."""

    choice: int = 0
    at: float = 0.0


@frozen
class LostCall:
    """The model made a call that cannot be forwarded: it has no name, or it cannot be read.

    `key` is the backend's own handle for the call, which may also tell of it in a readable form.
    """

    reason: Literal["nameless", "unreadable", "cut off"]
    key: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class ToolOutput:
    """What the backend recorded as a tool's output. Clients run the tools, so none may see it."""

    call_id: str
    output: str
    choice: int = 0
    at: float = 0.0


@frozen
class Usage:
    """The exact token counts of one upstream response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    choice: int = 0
    at: float = 0.0


@frozen
class ResponseEnd:
    """One upstream response is complete: no later call can belong to its burst."""

    response_id: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class RetryNotice:
    """The backend lost its upstream and starts the answer again, from the first word."""

    message: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class BackendNotice:
    """The backend talks about itself, such as the start-up of its MCP servers."""

    subject: str
    message: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class Failed:
    """The turn failed. An event and not an exception, so that a sink can still end properly.

    `calls_truncated` is that of the turn's end, for those who read no further.
    """

    error: Failure
    choice: int = 0
    at: float = 0.0
    calls_truncated: bool = False


@frozen
class TurnEnd:
    """The turn is over; always the last event.

    `reason` is the backend's own word for why, `calls_truncated` tells that the model made a call
    which was not forwarded, `call_incomplete` that its last call was cut off in the middle.
    """

    reason: str = "stop"
    calls_truncated: bool = False
    call_incomplete: bool = False
    choice: int = 0
    at: float = 0.0


Event: TypeAlias = (
    TurnStart
    | TextDelta
    | ReasoningDelta
    | ReasoningItem
    | ToolCall
    | ToolCallFragment
    | CallProgress
    | LostCall
    | ToolOutput
    | Usage
    | ResponseEnd
    | RetryNotice
    | BackendNotice
    | Failed
    | TurnEnd
)

EVENT_TYPES: Final[frozenset[type]] = frozenset(get_args(Event))

Burst: TypeAlias = tuple[Event, ...]
"""What one read of the backend yielded for one turn: the unit that travels through channels."""
