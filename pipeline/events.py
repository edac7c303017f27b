"""The events of a turn: one frozen class for each kind.

Every event carries `at`, the source's time in seconds. Stages take the time from these stamps
alone, so a recorded turn that is replayed at once leads to the same decisions as the live one.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from attrs import frozen

from pipeline.errors import Failure

Origin: TypeAlias = str
"""How a call was written: `structured`, or as text in the pattern `use_tool` or `sentinel`."""


ResponseEnds: TypeAlias = Literal["told", "untold", "unknown"]
"""Whether a backend reports the end of an upstream response while its calls wait for outputs."""


@frozen
class TurnStart:
    """The first event of a turn: what its backend is known to report."""

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

    `key` is the backend's own id for the item. `arguments` is an increment; `whole`, when the
    backend sends the full string, replaces what was collected. Where one item carries several
    calls, `part` is the call's index in the item's content, and `ordinal` its index among the
    item's calls; -1 means that the backend does not say, so it is the latest one.
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
    """A call is being written and is not complete yet: cutting now would lose it."""

    choice: int = 0
    at: float = 0.0


@frozen
class LostCall:
    """The model made a call that cannot be forwarded: it has no name, or it cannot be read.

    `key` is the backend's own id for the call, which may also be sent in a readable form.
    """

    reason: Literal["nameless", "unreadable", "cut off"]
    key: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class ToolOutput:
    """A tool output that the backend recorded. Never forwarded: clients run their own tools."""

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
    """The backend lost its upstream and starts the answer again from the beginning."""

    message: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class BackendNotice:
    """The backend's own status, such as the start-up of its MCP servers."""

    subject: str
    message: str = ""
    choice: int = 0
    at: float = 0.0


@frozen
class Failed:
    """The turn failed. An event, not an exception, so that a sink can still end properly.

    `calls_truncated` is the same as in `TurnEnd`, for readers that stop here.
    """

    error: Failure
    choice: int = 0
    at: float = 0.0
    calls_truncated: bool = False


@frozen
class TurnEnd:
    """The turn is over; always the last event.

    `reason` is the backend's own word for why, `calls_truncated` means that the model made a call
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


@frozen
class Tick:
    """A deadline has passed: time on its way through a chain. No stage is fed one or makes one."""

    at: float


EVENT_TYPES: Final[frozenset[type]] = frozenset(get_args(Event))

Burst: TypeAlias = tuple[Event, ...]
"""The events that one read of the backend yielded for one turn: what is received and sent."""
