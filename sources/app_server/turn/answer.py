"""What a turn has said and called so far: what a follow-up must repeat to continue its thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.events import Burst, Event, ResponseEnd, RetryNotice, TextDelta, ToolCall, Usage
from pipeline.stage import Outcome
from pipeline.turn import Turn
from sources.app_server.turn.kept import KeptThread
from sources.app_server.turn.meaning import Call
from sources.app_server.turn.session import Session


class MadeCall(NamedTuple):
    """A call of this turn, and how many pieces of text came before it."""

    call: ToolCall
    text_before: int


class Answer:
    """The text, the calls and the ends of responses that a turn has given out."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._offered = frozenset(tool.name for tool in turn.offered)
        self._text: list[str] = []
        self._text_before_response = 0
        self.calls: list[MadeCall] = []
        self._ends: list[Usage | ResponseEnd] = []
        self.in_response = False
        """Whether the response that made the last call has not been seen to end."""

    def note(self, burst: Burst) -> None:
        for event in burst:
            if isinstance(event, TextDelta):
                self._text.append(event.text)
            elif isinstance(event, RetryNotice):
                del self._text[self._text_before_response :]  # it is said again
            elif isinstance(event, ToolCall):
                self.calls.append(MadeCall(event, len(self._text)))
                self.in_response = True
            elif isinstance(event, Usage | ResponseEnd):
                self._ends.append(event)
                self._text_before_response = len(self._text)
                self.in_response = self.in_response and isinstance(event, Usage)

    def waits(self, session: Session) -> bool:
        """Whether calls were made that Codex waits for, as it was given their tools."""
        if not self.calls or not session.place.capabilities.dynamic_tools:
            return False
        return not self._offered.isdisjoint(made.call.name for made in self.calls)

    def may_be_kept(self, session: Session, *, ends_are_told: bool) -> bool:
        """Whether the thread holds nothing but what its client was given, and waits for outputs.

        Where the backend reports the end of a response, a turn that was left before it was cut in
        the middle.
        """
        cut = self.in_response and ends_are_told
        if session.ended or session.interrupted or cut or not self.waits(session):
            return False
        # A call of a tool that Codex was not given it answers itself, and goes on.
        return self._offered.issuperset(made.call.name for made in self.calls)

    def in_time(
        self, session: Session, outcome: Outcome, *, ends_are_told: bool
    ) -> tuple[Sequence[MadeCall], Burst] | None:
        """The calls that came in time, and what came late; None if the thread cannot be kept.

        A follow-up brings the outputs of the calls that its client knows of, and gets the others.
        """
        if not self.may_be_kept(session, ends_are_told=ends_are_told):
            return None
        in_time, late = list[MadeCall](), list[Event]()
        for made in self.calls:
            if made.call.at < outcome.cut_at or made.call.call_id in outcome.calls:
                in_time.append(made)
            else:
                late.append(made.call)
        if late:
            late += [end for end in self._ends if end.at >= late[0].at]
        if late and ends_are_told:
            return None  # it was cut in the middle
        if not in_time or outcome.calls != tuple(made.call.call_id for made in in_time):
            return None
        return in_time, tuple(late)

    def kept(self, session: Session, in_time: Sequence[MadeCall], late: Burst) -> KeptThread:
        """The thread as it is kept for the outputs of its calls."""
        calls = [(made.call.call_id, made.call.name, made.call.arguments) for made in in_time]
        return KeptThread(
            session=session,
            turn=self._turn,
            text="".join(self._text),
            text_before_calls="".join(self._text[: in_time[-1].text_before]),
            calls=tuple(Call(*call) for call in calls),
            response_open=self.in_response,
            late=late,
        )
