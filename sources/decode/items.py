"""State that the dialects share: items of the Responses API, usage, and duplicate messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from attrs import Factory, define

from pipeline.events import (
    BackendNotice,
    Event,
    Failed,
    LostCall,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    RetryNotice,
    TextDelta,
    ToolCall,
    ToolOutput,
    TurnEnd,
    Usage,
)
from pipeline.formats.call_shapes import (
    call_arguments,
    call_id,
    call_name,
    has_unreadable_arguments,
)
from pipeline.formats.content import content_text, content_texts
from pipeline.loose_json import Json, as_json, text_of
from sources.decode.failures import codex_failure, incomplete_reason
from sources.problems import Kind, Report, unreported

MIRROR = "the same in another dialect"
ECHO = "an echo of the input"
SILENT = "says nothing to a client"
REPEATED = "an item that came before"
COMPACTION = "said while the conversation was compacted"
EARLIER_USAGE = "the usage of an earlier answer"
BACKENDS_OWN = frozenset(
    {
        "additional_tools",
        "agent_message",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "context_compaction",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "ghost_snapshot",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Items of the Responses API about the backend's own tools and notes."""


class Speech:
    """Which form a message's text came in: deltas, else the finished message, else the raw item.

    Backends send one message up to three times. The forms are ranked; texts are never compared,
    because equal deltas are legitimate: "1", "0", "0", "0" is 1000.
    """

    def __init__(self) -> None:
        self._state: Literal["none", "deltas", "finished"] = "none"

    def begin(self) -> None:
        self._state = "none"

    def delta(self) -> None:
        self._state = "deltas"

    def finished(self) -> bool:
        """A finished message came: whether its text is new."""
        news = self._state != "deltas"
        self._state = "finished"
        return news

    def raw(self) -> bool:
        """The raw item of a message came: whether its text is new. The message is over."""
        news = self._state == "none"
        self._state = "none"
        return news


@define
class TurnState:
    """A decoder's state of its turn, for all dialects."""

    choice: int = 0
    known_calls: frozenset[str] = frozenset()
    report: Report = unreported
    dropped: Counter[str] = Factory(Counter[str])
    text: Speech = Factory(Speech)
    reasoning: Speech = Factory(Speech)
    raw_items: bool = False
    refused: bool = False
    ended: bool = False
    _failed: bool = False
    _requested: set[str] = Factory(set[str])
    _over: dict[str, int] = Factory(dict[str, int])
    _tells_begins: bool = False
    ends_by: Literal["", "responses", "totals"] = ""
    """How the ends of responses were recognized; running totals come late while calls wait."""
    missed_end: bool = False
    """Whether a response turned out to have ended without a report."""
    _usage_total: int | None = None
    _owes_usage: bool = False
    _outputs_taken: bool = False
    started: bool = False
    """The turn has started: no echo of its history comes any more."""
    compacting: bool = False
    """Codex shortens the conversation; text during that is not part of the answer."""

    def drop(self, reason: str) -> Sequence[Event]:
        """Drop a message, and count the reason."""
        if reason not in self.dropped and len(self.dropped) >= 100:
            reason = "other"  # bounded, because the backend chooses the reasons
        self.dropped[reason] += 1
        return ()

    def problem(self, kind: Kind, name: str, reason: str) -> Sequence[Event]:
        """Drop a message that could not be used, and report it."""
        self.report(kind, name)
        return self.drop(reason)

    def lost_call(
        self,
        reason: Literal["nameless", "unreadable"],
        item: Json,
        at: float,
        key: str = "",
    ) -> Sequence[Event]:
        """Report a call that cannot be forwarded."""
        kind: Kind = "nameless_call" if reason == "nameless" else "unreadable_call"
        self.report(kind, text_of(item.get("type")) or "function_call")
        return (LostCall(reason, key or call_id(item), self.choice, at),)

    # -- repeated items --------------------------------------------------------------------------

    def item_begins(self, item_id: object) -> None:
        """An item with this id is new, whatever had the same id before."""
        self._tells_begins = True
        self._over.pop(text_of(item_id), None)

    def repeated(self, item_id: str, *, raw: bool = False) -> bool:
        """A finished item came: whether it came before. The raw form is an item's last one."""
        form = 2 if raw else 1
        before = self._over.get(item_id, 0)
        if item_id:
            self._over[item_id] = max(form, before)
        return before >= form

    # -- text ------------------------------------------------------------------------------------

    def say(self, text: object, item_id: object, at: float) -> Sequence[Event]:
        if not isinstance(text, str):
            return self.problem("unreadable_item", "text", "text that is not a string")
        self.text.delta()
        self.speaks()
        if not text:
            return self.drop("an empty delta")
        return (TextDelta(text, text_of(item_id), self.choice, at),)

    def say_finished(self, text: str, item_id: str, at: float) -> Sequence[Event]:
        if self.text.finished() and text:
            return (TextDelta(text, item_id, self.choice, at),)
        return self.drop(MIRROR)

    def think(
        self, text: object, kind: Literal["summary", "text"], part: object, item: object, at: float
    ) -> Sequence[Event]:
        if not isinstance(text, str):
            reason = "reasoning that is not a string"
            return self.problem("unreadable_item", "reasoning", reason)
        self.reasoning.delta()
        self.speaks()
        number = part if isinstance(part, int) else 0
        return (ReasoningDelta(text, kind, number, text_of(item), self.choice, at),)

    # -- items -----------------------------------------------------------------------------------

    def raw_item(self, item: Json, at: float) -> Sequence[Event]:
        """A finished Responses item: the only form in which calls are verbatim and in order."""
        self.raw_items = True
        kind, item_id = item.get("type"), text_of(item.get("id"))
        if kind in ("message", "reasoning") and self.repeated(item_id, raw=True):
            return self.drop(REPEATED)
        match kind:
            case "message" if item.get("role") == "assistant":
                text = content_text(item.get("content"))
                if self.text.raw() and text:
                    return (TextDelta(text, item_id, self.choice, at),)
                return self.drop(MIRROR)
            case "message":
                return self.drop(ECHO)
            case "function_call":
                return self.call(item, at)
            case "function_call_output":
                self._outputs_taken = True
                output = content_text(item.get("output"))
                return (ToolOutput(text_of(item.get("call_id")), output, self.choice, at),)
            case "reasoning":
                return self.reasoning_item(item, at)
            case _:
                return self.other_item(item)

    def other_item(self, item: Json) -> Sequence[Event]:
        """An item that becomes no event: one of the backend's own tools, or a problem."""
        kind = text_of(item.get("type"))
        reason = f"an item of type {kind:.40}" if kind else "an item without a type"
        if kind in BACKENDS_OWN:
            return self.drop(reason)
        return self.problem("unreadable_item", kind, reason)

    def call(self, item: Json, at: float) -> Sequence[Event]:
        identity = text_of(item.get("call_id")) or text_of(item.get("id"))
        if identity in self.known_calls and not self.started:
            return self.drop(ECHO)
        name = call_name(item)
        if not name or not identity:
            return self.lost_call("nameless", item, at)
        if has_unreadable_arguments(item):
            return self.lost_call("unreadable", item, at)
        namespace = item.get("namespace")
        self.speaks()
        return (
            ToolCall(
                call_id=identity,
                name=name,
                arguments=call_arguments(item) or "{}",
                item_id=text_of(item.get("id")),
                namespace=namespace if isinstance(namespace, str) else None,
                choice=self.choice,
                at=at,
            ),
        )

    def requested_call(self, params: Json, at: float) -> Sequence[Event]:
        """A call from a request to run it: parsed and unordered, so only used without raw items."""
        if self.raw_items:
            return self.drop(MIRROR)
        identity = params.get("callId", params.get("call_id", params.get("id")))
        if text_of(identity) in self._requested:
            return self.drop(MIRROR)
        self._requested.add(text_of(identity))
        call = {
            "call_id": identity,
            "name": params.get("tool"),
            "arguments": params.get("arguments"),
        }
        return self.call(call, at)

    def reasoning_item(self, item: Json, at: float) -> Sequence[Event]:
        summary = tuple(content_texts(item.get("summary")))
        item_id = text_of(item.get("id"))
        sealed = item.get("encrypted_content")
        deltas = [
            ReasoningDelta(text, "summary", part, item_id, self.choice, at)
            for part, text in enumerate(summary if self.reasoning.raw() else ())
        ]
        encrypted = sealed if isinstance(sealed, str) else None
        return [*deltas, ReasoningItem(item_id, summary, encrypted, self.choice, at)]

    def notice(self, subject: str, message: object, at: float) -> Sequence[Event]:
        return (BackendNotice(subject, text_of(message), self.choice, at),)

    # -- usage and ends --------------------------------------------------------------------------

    def response_end(self, usage: Json, response_id: object, at: float) -> Sequence[Event]:
        """The backend reported that an upstream response is over."""
        if not self._tells_begins:
            self._over.clear()  # some upstreams use the same ids in every response
        if self.ends_by == "totals":
            return self.drop(MIRROR)
        self.ends_by = "responses"
        end = ResponseEnd(text_of(response_id), self.choice, at)
        return [*self._usage(usage, at), end]

    def usage_total(self, last: Json, total: Json, at: float) -> Sequence[Event]:
        """A running total. If ends of responses are not reported, a new total means an end."""
        if self.ends_by == "responses":
            return self.drop(MIRROR)
        spent = _count(total, "totalTokens", "total_tokens")
        if not _count(last, "inputTokens", "input_tokens") or spent == self._usage_total:
            return self.drop(MIRROR)
        self._usage_total = spent
        if self._owes_usage:
            self._owes_usage = False
            self.missed_end = not self.ends_by
            self.drop(EARLIER_USAGE)
            return (ResponseEnd("", self.choice, at),)
        self.ends_by = "totals"
        return [*self._usage(last, at), ResponseEnd("", self.choice, at)]

    def resume(self) -> None:
        """The client sent outputs of calls; a new answer begins.

        Only then does Codex send the total of the response with the calls. It belongs to the
        previous answer, not to this one. It comes right after the outputs, if at all.
        """
        self._owes_usage, self._outputs_taken = True, False

    def speaks(self) -> None:
        """The model sends something; after outputs, it is a new response."""
        if self._outputs_taken:
            self._owes_usage = False

    def _usage(self, usage: Json, at: float) -> list[Event]:
        if not usage:
            return []
        details_in = as_json(usage.get("input_tokens_details"))
        details_out = as_json(usage.get("output_tokens_details"))
        tokens_in = _count(usage, "inputTokens", "input_tokens")
        tokens_out = _count(usage, "outputTokens", "output_tokens")
        return [
            Usage(
                input_tokens=tokens_in,
                output_tokens=tokens_out,
                total_tokens=_count(usage, "totalTokens", "total_tokens") or tokens_in + tokens_out,
                cached_tokens=_count(usage, "cachedInputTokens", "cached_input_tokens")
                or _count(details_in, "cached_tokens"),
                reasoning_tokens=_count(usage, "reasoningOutputTokens", "reasoning_output_tokens")
                or _count(details_out, "reasoning_tokens"),
                choice=self.choice,
                at=at,
            )
        ]

    def usage_only(self, usage: Json, at: float) -> Sequence[Event]:
        return self._usage(usage, at)

    def codex_error(self, error: Json, *, will_retry: bool, at: float) -> Sequence[Event]:
        message = text_of(error.get("message"))
        if will_retry:
            self._over.clear()
            self.text.begin()
            self.reasoning.begin()
            return (RetryNotice(message, self.choice, at),)
        if reason := incomplete_reason(message):
            return self.end(reason, at)
        return self.fail(lambda: Failed(codex_failure(error), self.choice, at))

    def fail(self, failed: Callable[[], Failed]) -> Sequence[Event]:
        """A failure, once: the backend sends it as an error and again as the turn's status."""
        if self._failed:
            return self.drop(MIRROR)
        self._failed = True
        return (failed(),)

    def end(self, reason: str, at: float) -> Sequence[Event]:
        self.ended = True
        if reason == "completed" and not self.ends_by:
            self.report("missing_response_end", "turn")
        return (TurnEnd(reason, choice=self.choice, at=at),)


def _count(usage: Json, *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and value >= 0:
            return value
    return 0
