"""A chat's messages as instructions and items: calls find their outputs, everything its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pipeline.errors import refusal
from pipeline.loose_json import Json
from pipeline.requests.chat.messages import CalledFunction, Message
from pipeline.requests.shared.conversation import Conversation, UniqueIds, with_all_outputs


def conversation(messages: Sequence[Message], *, system: bool = True) -> Conversation:
    """Put messages in the backend's form; without `system`, those messages are left out.

    ProxyError names an output without its call.
    """
    told = [message.role in ("system", "developer") for message in messages]
    leading = told.index(False) if False in told else 0
    if leading == 0 and messages and all(told) and not system:
        raise refusal(
            "messages",
            "holds nothing but system messages, which this server is set to leave out; send a "
            "user's message",
        )
    instructions = [message.content.text for message in messages[:leading] if system]
    calls = _Calls()
    items: list[Json] = []
    for number, message in enumerate(messages[leading:], start=leading):
        match message.role:
            case "system" | "developer":
                if system and (words := message.content.text):
                    items.append(_message("developer", words))
            case "user":
                items.append(_message("user", message.content.said("input_text")))
            case "assistant":
                items += _answer(message)
                items += calls.made(message, f"messages[{number}]")
            case "tool" | "function":
                items.append(calls.answered(message, f"messages[{number}]"))
    kept = "\n\n".join(words for words in instructions if words)
    return Conversation(kept, tuple(with_all_outputs(items)))


def _message(role: str, content: str | list[Json]) -> Json:
    return {"type": "message", "role": role, "content": content}


def _answer(message: Message) -> Iterator[Json]:
    """What the assistant said, if it said anything: a message of calls has no words of its own."""
    if any(message.content.texts):
        yield _message("assistant", message.content.said("output_text"))
    elif message.refusal:
        yield _message("assistant", message.refusal)


class _Calls:
    """Pairs outputs with calls. Ids leave unique, whatever came: backends pair by id alone."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        """The calls that wait for their outputs: their id here, by the id that the client uses."""
        self._functions: defaultdict[str, list[str]] = defaultdict(list)
        """The calls of legacy functions that wait, by name: they have no id."""
        self._answered: set[str] = set()
        self._unique = UniqueIds()

    def made(self, message: Message, at: str) -> Iterator[Json]:
        own: set[str] = set()
        for number, call in enumerate(message.tool_calls or ()):
            if call.id in own:
                raise refusal(
                    f"{at}.tool_calls[{number}].id",
                    f"is {call.id!r:.100}, which another call of this message has; ids must differ",
                )
            own.add(call.id)
            self._open[call.id] = self._unique.of(call.id)
            yield _call(self._open[call.id], call.function)
        if message.function_call is not None:
            call_id = self._unique.of(f"call_function_{len(self._unique)}")
            self._functions[message.function_call.name].append(call_id)
            yield _call(call_id, message.function_call)

    def answered(self, message: Message, at: str) -> Json:
        call_id = self._tool(message, at) if message.role == "tool" else self._function(message, at)
        content = message.content
        output = content.said("input_text") if content.pictures else content.text
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    def _tool(self, message: Message, at: str) -> str:
        wanted = message.tool_call_id or ""
        found = self._open.pop(wanted, None)
        if found is None:
            problem = (
                "a call that was answered before; send one output for each call"
                if wanted in self._answered
                else "no call of an earlier assistant message; its tool_calls must come first"
            )
            raise refusal(f"{at}.tool_call_id", f"is {wanted!r:.100}, the id of {problem}")
        self._answered.add(wanted)
        return found

    def _function(self, message: Message, at: str) -> str:
        waiting = self._functions[message.name or ""]
        if not waiting:
            raise refusal(
                f"{at}.name",
                f"is {message.name!r:.100}, which no function_call of an earlier assistant "
                "message waits for",
            )
        return waiting.pop()  # an earlier one was given up, or there would be none


def _call(call_id: str, function: CalledFunction) -> Json:
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": function.name,
        "arguments": function.arguments,
    }
