"""A chat's messages as instructions and items, with outputs paired with their calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pipeline.errors import refusal
from pipeline.loose_json import Json
from pipeline.requests.chat.messages import CalledFunction, ChatMessage
from pipeline.requests.shared.conversation import (
    CallIds,
    Conversation,
    leading_system,
    with_all_outputs,
)


def conversation(messages: Sequence[ChatMessage], *, system: bool = True) -> Conversation:
    """Convert messages to the backend's form; without `system`, system messages are left out.

    An output without its call is a ProxyError.
    """
    is_system = [message.role in ("system", "developer") for message in messages]
    leading = leading_system(is_system, "messages", system=system)
    instructions = [message.content.text for message in messages[:leading] if system]
    calls = _Calls()
    items: list[Json] = []
    for number, message in enumerate(messages[leading:], start=leading):
        match message.role:
            case "system" | "developer":
                if system and (text := message.content.text):
                    items.append(_message("developer", text))
            case "user":
                items.append(_message("user", message.content.as_item("input_text")))
            case "assistant":
                items += _answer(message)
                items += calls.made(message, f"messages[{number}]")
            case "tool" | "function":
                items.append(calls.answered(message, f"messages[{number}]"))
    text = "\n\n".join(filter(None, instructions))
    return Conversation(text, tuple(with_all_outputs(items)))


def _message(role: str, content: str | list[Json]) -> Json:
    return {"type": "message", "role": role, "content": content}


def _answer(message: ChatMessage) -> Iterator[Json]:
    """The assistant's message, if it has text: a message of calls alone has none."""
    if any(message.content.texts):
        yield _message("assistant", message.content.as_item("output_text"))
    elif message.refusal:
        yield _message("assistant", message.refusal)


class _Calls:
    """The calls of a chat, those of legacy functions included."""

    def __init__(self) -> None:
        self._ids = CallIds()
        self._functions: defaultdict[str, list[str]] = defaultdict(list)
        """Calls of legacy functions without an output yet, by name, because they have no id."""

    def made(self, message: ChatMessage, at: str) -> Iterator[Json]:
        own: set[str] = set()
        for number, call in enumerate(message.tool_calls or ()):
            if call.id in own:
                raise refusal(
                    f"{at}.tool_calls[{number}].id",
                    f"is {call.id!r:.100}, which another call of this message has; ids must differ",
                )
            own.add(call.id)
            yield _call(self._ids.call(call.id), call.function)
        if message.function_call is not None:
            call_id = self._ids.unique(f"call_function_{len(self._ids)}")
            self._functions[message.function_call.name].append(call_id)
            yield _call(call_id, message.function_call)

    def answered(self, message: ChatMessage, at: str) -> Json:
        call_id = self._tool(message, at) if message.role == "tool" else self._function(message, at)
        content = message.content
        output = content.as_item("input_text") if content.images else content.text
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    def _tool(self, message: ChatMessage, at: str) -> str:
        return self._ids.output(
            message.tool_call_id or "",
            f"{at}.tool_call_id",
            unknown="no call of an earlier assistant message; its tool_calls must come first",
        )

    def _function(self, message: ChatMessage, at: str) -> str:
        waiting = self._functions[message.name or ""]
        if not waiting:
            raise refusal(
                f"{at}.name",
                f"is {message.name!r:.100}, which no function_call of an earlier assistant "
                "message waits for",
            )
        return waiting.pop()  # the latest: earlier ones were abandoned


def _call(call_id: str, function: CalledFunction) -> Json:
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": function.name,
        "arguments": function.arguments,
    }
