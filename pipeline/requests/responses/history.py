"""A Responses request's items as one conversation that any backend understands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from pipeline.errors import refusal
from pipeline.loose_json import Json
from pipeline.requests.responses.items import (
    Answered,
    Called,
    Compaction,
    Item,
    MoreTools,
    Reference,
    Said,
    Thought,
    Update,
    What,
)
from pipeline.requests.responses.tools import Declared, Toolbox
from pipeline.requests.shared.conversation import Conversation, UniqueIds, with_all_outputs


@frozen
class Placed:
    """An item, and where in the request it stands."""

    at: str
    what: What


def placed(items: Sequence[Item], earlier: Sequence[Item] = ()) -> list[Placed]:
    """The items of earlier responses and the input, in order."""
    before = [Placed("previous_response_id", what) for item in earlier for what in item.meant]
    input_items = enumerate(items)
    return before + [
        Placed(f"input[{at}]", what) for at, item in input_items for what in item.meant
    ]


def declared_within(items: Sequence[Placed]) -> dict[str, Sequence[Declared]]:
    """The tools that items declare, by where they stand."""
    return {
        f"{item.at}.tools"
        if item.at.startswith("input")
        else f"{item.at}#{number}": item.what.tools
        for number, item in enumerate(items)
        if isinstance(item.what, MoreTools)
    }


def latest_effort(items: Sequence[Placed]) -> str | None:
    """The effort that was asked for last in the middle of the conversation."""
    updates = [item.what.reasoning for item in items if isinstance(item.what, Update)]
    efforts = [update.effort for update in updates if update is not None and update.effort]
    return efforts[-1] if efforts else None


def history(items: Sequence[Placed], tools: Toolbox, *, system: bool = True) -> Conversation:
    """Put items in the backend's form; without `system`, those messages are left out.

    Leading system messages are instructions, as in a chat. Calls become calls of functions under
    the names that the backend knows. ProxyError names an output without its call, and what should
    have been put in place of something else before.
    """
    spoken = [item for item in items if not isinstance(item.what, MoreTools | Update)]
    told = [_told(item.what) for item in spoken]
    leading = told.index(False) if False in told else 0
    if leading == 0 and spoken and all(told) and not system:
        raise refusal(
            "input",
            "holds nothing but system messages, which this server is set to leave out; send a "
            "user's message",
        )
    instructions = [_words(item.what) for item in spoken[:leading] if system]
    calls = _Calls(tools)
    out: list[Json] = []
    for item in spoken[leading:]:
        match item.what:
            case Said() as message:
                out += _message(message, system=system)
            case Called() as call:
                out.append(calls.made(call))
            case Answered() as answer:
                out.append(calls.answered(answer, item.at))
            case Thought() as thought:
                out += filter(None, [thought.item()])
            case Reference(name):
                raise refusal(f"{item.at}.id", f"is {name!r:.100}, an item that is not known here")
            case Compaction():
                raise refusal(f"{item.at}.encrypted_content", "cannot be opened here")
            case _:
                continue
    kept = "\n\n".join(words for words in instructions if words)
    return Conversation(kept, tuple(with_all_outputs(out)))


def _told(what: What) -> bool:
    return isinstance(what, Said) and what.role in ("system", "developer")


def _words(what: What) -> str:
    return what.content.text if isinstance(what, Said) else ""


def _message(message: Said, *, system: bool) -> Iterator[Json]:
    """A message, if it says anything. Words are always in parts: equal ones are then equal."""
    item = {"type": "message", "role": message.role}
    match message.role:
        case "user":
            yield {**item, "content": message.content.parts("input_text")}
        case "assistant" if any(message.content.texts):
            phase = {"phase": message.phase} if message.phase else {}
            yield {**item, "content": message.content.parts("output_text"), **phase}
        case "system" | "developer" if system and any(message.content.texts):
            # Codex loses items whose role is `system` without a word.
            yield {**item, "role": "developer", "content": message.content.parts("input_text")}
        case _:
            return


class _Calls:
    """Pairs outputs with calls. Ids leave unique, whatever came: backends pair by id alone."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools
        self._open: dict[str, str] = {}
        """The calls that wait for their outputs: their id here, by the id that the client uses."""
        self._answered: set[str] = set()
        self._unique = UniqueIds()

    def made(self, call: Called) -> Json:
        self._open[call.call_id] = self._unique.of(call.call_id)
        return {
            "type": "function_call",
            "call_id": self._open[call.call_id],
            "name": self._tools.name_of(call.name, call.namespace),
            "arguments": call.arguments,
        }

    def answered(self, answer: Answered, at: str) -> Json:
        found = self._open.pop(answer.call_id, None)
        if found is None:
            problem = (
                "a call that was answered before; send one output for each call"
                if answer.call_id in self._answered
                else "no call before it; send the call too, or the previous_response_id of the "
                "response that made it"
            )
            raise refusal(f"{at}.call_id", f"is {answer.call_id!r:.100}, the id of {problem}")
        self._answered.add(answer.call_id)
        output = answer.output.told()
        return {"type": "function_call_output", "call_id": found, "output": output}
