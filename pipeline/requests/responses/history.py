"""Converts a Responses request's items to a conversation that every backend accepts."""

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
from pipeline.requests.shared.conversation import (
    CallIds,
    Conversation,
    leading_system,
    with_all_outputs,
)


@frozen
class Placed:
    """An item with its path in the request."""

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
    """The tools that items declare, by their path in the request."""
    return {
        f"{item.at}.tools"
        if item.at.startswith("input")
        else f"{item.at}#{number}": item.what.tools
        for number, item in enumerate(items)
        if isinstance(item.what, MoreTools)
    }


def latest_effort(items: Sequence[Placed]) -> str | None:
    """The last reasoning effort that an item of the conversation sets."""
    updates = [item.what.reasoning for item in items if isinstance(item.what, Update)]
    efforts = [update.effort for update in updates if update is not None and update.effort]
    return efforts[-1] if efforts else None


def history(items: Sequence[Placed], tools: Toolbox, *, system: bool = True) -> Conversation:
    """Convert items to the backend's form; without `system`, system messages are left out.

    Leading system messages become instructions, as in a chat. Calls become function calls under
    the backend's names. ProxyError for an output without its call, and for a reference or
    compaction that was not resolved before.
    """
    spoken = [item for item in items if not isinstance(item.what, MoreTools | Update)]
    is_system = [_is_system(item.what) for item in spoken]
    leading = leading_system(is_system, "input", system=system)
    instructions = [_text(item.what) for item in spoken[:leading] if system]
    ids = CallIds()
    out: list[Json] = []
    for item in spoken[leading:]:
        match item.what:
            case Said() as message:
                out += _message(message, system=system)
            case Called() as call:
                out.append(_call(call, ids, tools))
            case Answered() as answer:
                out.append(_output(answer, ids, item.at))
            case Thought() as thought:
                out += filter(None, [thought.item()])
            case Reference(name):
                raise refusal(f"{item.at}.id", f"is {name!r:.100}, an item that is not stored here")
            case Compaction():
                raise refusal(f"{item.at}.encrypted_content", "cannot be decrypted here")
            case _:
                continue
    text = "\n\n".join(filter(None, instructions))
    return Conversation(text, tuple(with_all_outputs(out)))


def _is_system(what: What) -> bool:
    return isinstance(what, Said) and what.role in ("system", "developer")


def _text(what: What) -> str:
    return what.content.text if isinstance(what, Said) else ""


def _message(message: Said, *, system: bool) -> Iterator[Json]:
    """A message, unless it is empty. Always in parts, so that equal messages compare equal."""
    item = {"type": "message", "role": message.role}
    match message.role:
        case "user":
            yield {**item, "content": message.content.parts("input_text")}
        case "assistant" if any(message.content.texts):
            phase = {"phase": message.phase} if message.phase else {}
            yield {**item, "content": message.content.parts("output_text"), **phase}
        case "system" | "developer" if system and any(message.content.texts):
            # Codex silently drops items of the role `system`.
            yield {**item, "role": "developer", "content": message.content.parts("input_text")}
        case _:
            return


def _call(call: Called, ids: CallIds, tools: Toolbox) -> Json:
    return {
        "type": "function_call",
        "call_id": ids.call(call.call_id),
        "name": tools.name_of(call.name, call.namespace),
        "arguments": call.arguments,
    }


def _output(answer: Answered, ids: CallIds, at: str) -> Json:
    unknown = (
        "no call before it; send the call too, or the previous_response_id of the response that "
        "made it"
    )
    call_id = ids.output(answer.call_id, f"{at}.call_id", unknown=unknown)
    output = answer.output.as_item()
    return {"type": "function_call_output", "call_id": call_id, "output": output}
