"""After the backend starts an answer again, lets the client read it once."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define, evolve

from pipeline.errors import Failure
from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    RetryNotice,
    TextDelta,
    ToolCall,
    TurnEnd,
)
from pipeline.stage import Stage

AGAIN = "said before the retry"


class _Spoken:
    """What one response said so far in one channel, and how much of it a retry has repeated."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._expected = ""
        self._at = 0
        self._items: list[str] = []
        self._known_as: dict[str, str] = {}

    @property
    def behind(self) -> bool:
        """Whether the second answer has yet to catch up with the first."""
        return self._at < len(self._expected)

    def restart(self) -> None:
        self._expected = "".join(self._parts)
        self._at = 0
        self._known_as = {}

    def item(self, item_id: str) -> str:
        """The id that the first attempt had for an item: the second gives it another one."""
        if item_id not in self._known_as:
            place = len(self._known_as)
            if place == len(self._items):
                self._items.append(item_id)
            self._known_as[item_id] = self._items[place]
        return self._known_as[item_id]

    def say_all(self, deltas: Sequence[TextDelta]) -> bool:
        """Take note of text that is all new; False, and nothing noted, where some may not be."""
        if self.behind:
            return False
        for item_id in dict.fromkeys([delta.item_id for delta in deltas]):
            self.item(item_id)
        self._parts += [delta.text for delta in deltas]
        return True

    def say(self, text: str) -> str | None:
        """The part of the text that is new; None when it departs from what was said."""
        if not self.behind:
            self._parts.append(text)
            return text
        known = self._expected[self._at : self._at + len(text)]
        if not text.startswith(known):
            return None
        self._at += len(known)
        if new := text[len(known) :]:
            self._parts.append(new)
        return new


@define
class _Said:
    """Everything one upstream response has said: a retry may say it again."""

    text: _Spoken = Factory(_Spoken)
    reasoning: _Spoken = Factory(_Spoken)
    calls: list[tuple[str, str]] = Factory(list[tuple[str, str]])
    repeated_calls: int = 0
    sealed: bool = False
    retried: bool = False

    def restart(self) -> None:
        self.text.restart()
        self.reasoning.restart()
        self.repeated_calls = 0
        self.retried = True

    @property
    def behind(self) -> bool:
        """Whether the second answer has yet to catch up with the first."""
        return self.text.behind or (self.retried and self.repeated_calls < len(self.calls))


class ReconcileRetries(Stage):
    """The client reads each word of a response once, however often the backend begins it again.

    A second answer that departs from what was already sent fails the turn: two answers are never
    mixed. Reasoning that departs is left out; it was shown once and is not the answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said = _Said()

    def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        new = not self._said.retried and self._said.text.say_all(text)
        return text if new else None

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case TextDelta():
                said = self._say(self._said.text, event)
                return self._departed(event) if said is None else said
            case ReasoningDelta():
                said = self._say(self._said.reasoning, event)
                return self.drop(event, "another reasoning") if said is None else said
            case ToolCall():
                return self._call(event)
            case ReasoningItem() if self._said.retried and self._said.sealed:
                return self.fold(event, AGAIN)
            case ReasoningItem():
                self._said.sealed = True
                return (event,)
            case RetryNotice():
                self._said.restart()
                return self.fold(event, "the answer starts again")
            case ResponseEnd() | TurnEnd() if self._said.behind:
                return self._departed(event)
            case ResponseEnd() | Failed():
                self._said = _Said()
                return (event,)
            case _:
                return (event,)

    def _say(self, spoken: _Spoken, event: TextDelta | ReasoningDelta) -> Sequence[Event] | None:
        """The event, or what is new of it; None when it departs from what was said."""
        item_id = spoken.item(event.item_id)
        new = spoken.say(event.text)
        if new is None:
            return None
        if new == event.text and item_id == event.item_id:
            return (event,)
        if not new:
            return self.fold(event, AGAIN)
        return self.swap(event, evolve(event, text=new, item_id=item_id))

    def _call(self, event: ToolCall) -> Sequence[Event]:
        said = self._said
        call = (event.name, event.arguments)
        if not said.retried or said.repeated_calls == len(said.calls):
            said.calls.append(call)
            said.repeated_calls = len(said.calls)
            return self._departed(event) if said.behind else (event,)
        if call != said.calls[said.repeated_calls]:
            return self._departed(event)
        said.repeated_calls += 1
        return self.fold(event, AGAIN)

    def _departed(self, event: Event) -> Sequence[Event]:
        self.done = True
        failure = Failure(
            "the backend lost its connection and began its answer again, and the second answer "
            "differs from what was already sent; send the request again",
            status=502,
            type="server_error",
            code="answer_changed_on_retry",
        )
        self.drop(event, "departs from the first answer")
        return self.make(
            Failed(failure, event.choice, event.at),
            TurnEnd("failed", choice=event.choice, at=event.at),
        )
