"""The scripted model's answers: a scenario for each keyword, and a default for other text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from attrs import Factory, frozen

from pipeline.formats.content import content_text
from pipeline.loose_json import Json, as_json, as_list, text_of
from sources.demo.form import refused_schema, wanted_schema
from sources.demo.sample import sample
from sources.demo.steps import Step, pause, round_of, steps_in, usage

USAGE: Final = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 33,
    "output_tokens_details": {"reasoning_tokens": 9},
    "total_tokens": 153,
}
USE_TOOL: Final = (
    "I'll search your vault.\n\n<use_tool>\n<name>localSearch</name>\n"
    "<query>meeting notes & todos</query>\n"
    '<salientTerms>["meeting","todo"]</salientTerms>\n</use_tool>\n\nThen I will summarise.'
)
SENTINEL: Final = (
    'Looking.\n<tool_call>{"type":"tool_call","id":"call_s1","name":"localSearch",'
    '"arguments":"{\\"query\\":\\"x\\"}"}</tool_call>\nAfter.'
)


@frozen
class Says:
    """One upstream response: an HTTP status, or items and an ending."""

    items: tuple[Json, ...] = ()
    status: int = 200
    body: Json = Factory(dict[str, Any])
    ending: str = "completed"
    """`completed`, `cut` (the connection ends), `hang`, or the reason of an incomplete response."""
    piece: int = 5
    """The number of characters in a text delta."""
    first_try: int | None = None
    """The first try of a turn is cut after this many events; later tries are complete."""
    usage: Json = USAGE


def text(words: str, number: int = 1) -> Json:
    return {"type": "message", "id": f"msg_{number}", "text": words}


def call(letter: str, name: str, arguments: str) -> Json:
    call_id = f"call_{letter}"
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def reasoning(summary: str) -> Json:
    return {"type": "reasoning", "id": "rs_1", "text": summary, "encrypted_content": "gAAAA"}


def wait(seconds: float) -> Json:
    return pause(str(seconds))


def _error(status: int, code: str, message: str) -> Says:
    return Says(status=status, body={"error": {"code": code, "message": message, "type": code}})


SCENARIOS: Final[dict[str, Says]] = {
    "TEXT": Says((text("Hello, wörld 🌍!"),)),
    "ONECALL": Says(
        (text("Let me look."), call("a", "localSearch", '{"query": "x",  "n": 1.0}')), piece=7
    ),
    "BURST": Says(
        (
            text("On it."),
            call("a", "localSearch", '{"query":"a"}'),
            call("b", "readNote", '{"path":"b.md"}'),
            call("c", "localSearch", '{"query":"a"}'),
        )
    ),
    "SWALLOWED": Says((call("e", "client_exec_command", '{"cmd":"ls"}'),)),
    "USETOOL": Says((text(USE_TOOL),)),
    "SENTINEL": Says((text(SENTINEL),)),
    "REASON": Says((reasoning("**Thinking** hard"), text("42"))),
    "HALF": Says((text("Half"),), ending="max_output_tokens"),
    "CUT": Says((text("Hello par"),), ending="cut"),
    "RETRY": Says((text("Hello partial no more"),), first_try=4),
    "HANG": Says((text("Wait"),), ending="hang"),
    "SILENT": Says((), ending="hang"),
    "PAUSE": Says((text("Wait for it."), wait(2.0))),
    "SLOWBURST": Says(
        (
            call("a", "localSearch", '{"query":"a"}'),
            wait(2.0),
            call("b", "readNote", '{"path":"b.md"}'),
        )
    ),
    "E401": _error(401, "invalid_api_key", "bad key"),
    "E429": _error(429, "usage_limit_reached", "You've hit your usage limit. Try again later."),
    "E500": _error(500, "server_error", "boom"),
    "E400": _error(400, "invalid_request_error", "the request is wrong"),
}
CALL: Final = re.compile(r"^(\S+) (\{.*\})$")
"""A tool, and the arguments to call it with."""
RECALL: Final = re.compile(r"^RECALL (\S+)$", re.MULTILINE)
"""A line that asks where a word occurs in the model's input."""
OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")


def answer(request: Json) -> Says:
    """The model's answer to a request of the Responses API."""
    if refused := refused_schema(request):
        return Says(status=400, body=refused)
    items: list[Json] = [as_json(item) for item in as_list(request.get("input"))]
    last: Json = items[-1] if items else {}
    asked = [number for number, item in enumerate(items) if item.get("role") == "user"]
    said = content_text(items[asked[-1]].get("content")) if asked else ""
    if steps := steps_in(said):
        outputs = sum(item.get("type") in OUTPUTS for item in items[asked[-1] :])
        number, due = round_of(steps, outputs)
        if due:
            return _scripted(request, due, number)
    if last.get("type") in OUTPUTS:
        return _final(request, f"The tool said: {content_text(last.get('output'))}")
    for keyword, scenario in SCENARIOS.items():
        if keyword in said.split():
            return scenario
    if "LONG" in said.split():
        return Says((text("word " * 2000),))
    if "LOOK" in said.split():
        return Says((text(f"I see {', '.join(_pictures(items)) or 'nothing'}."),))
    if wanted := RECALL.search(said):
        return Says((text(_recalled(wanted[1], items)),))
    tools = offered(request)
    named = next((t for t in tools if text_of(t.get("name")) in said and t.get("name")), None)
    if named is not None:
        return Says((call("demo", text_of(named.get("name")), _arguments(named, said)),))
    return _final(request, f"You said: {said}")


def offered(request: Json) -> list[Json]:
    """The tools of a request, at its top level or, for newer models, in an item."""
    groups = list(as_list(request.get("tools")))
    for item in map(as_json, as_list(request.get("input"))):
        if item.get("type") == "additional_tools":
            groups += as_list(item.get("tools"))
    tools = [as_json(group) for group in groups]
    return [as_json(t) for tool in tools for t in as_list(tool.get("tools")) or (tool,)]


def _scripted(request: Json, steps: list[Step], number: int) -> Says:
    """A response of a script; a backend may know the tools by names with a prefix."""
    names = [text_of(tool.get("name")) for tool in offered(request)]
    made = sum(as_json(item).get("type") == "function_call" for item in request["input"])
    items: list[Json] = []
    for place, step in enumerate(steps):
        wanted = CALL.match(step.words)
        match step.verb:
            case "SAY":
                items.append(text(step.words.replace("\\n", "\n"), place))
            case "THINK":
                items.append(reasoning(step.words))
            case "CALL" if wanted is not None:
                made += 1
                name = wanted[1]
                known = next((n for n in names if n == name or n.endswith(f"_{name}")), None)
                if known is None:
                    there = ", ".join(names) or "none"
                    return Says((text(f"There is no tool {name}, but {there}."),))
                slowly = steps[place - 1] if place and steps[place - 1].verb == "TRICKLE" else None
                one = call(str(made), known, wanted[2])
                items.append({**one, "seconds": float(slowly.words)} if slowly else one)
            case "WAIT":
                items.append(pause(step.words))
            case _:
                continue
    return Says(tuple(items), usage=usage(number))


def _pictures(items: list[Json]) -> Iterator[str]:
    """The type of each image in the conversation."""
    for item in items:
        for part in map(as_json, as_list(item.get("content"))):
            if part.get("type") == "input_image":
                yield text_of(part.get("image_url")).partition(";")[0]


def _recalled(word: str, items: list[Json]) -> str:
    """Every earlier line with the word, with its role."""
    lines = [
        f"{text_of(item.get('role'))}: {line}"
        for item in items[:-1]
        for line in content_text(item.get("content")).splitlines()
        if word in line
    ]
    return "\n".join(lines) or f"Nobody said {word}."


def _final(request: Json, words: str) -> Says:
    """A final answer: this text, or a sample for the request's schema."""
    schema = wanted_schema(request)
    if schema is not None:
        words = msgspec.json.encode(sample(schema)).decode()
    return Says((text(words),), piece=9)


def _arguments(tool: Json, said: str) -> str:
    """Arguments with a text for every required property."""
    parameters = as_json(tool.get("parameters"))
    required = [text_of(name) for name in as_list(parameters.get("required"))]
    pairs = ",".join(f'"{name}":"{said[:20]}"' for name in required if '"' not in said)
    return f"{{{pairs}}}"


def events(says: Says, *, first: bool = True) -> Iterator[Json]:
    """The response's events, up to its ending, or as far as the first try goes."""
    return islice(_events(says), says.first_try if first else None)


def _events(says: Says) -> Iterator[Json]:
    yield {"type": "response.created", "response": {"id": "resp_1"}}
    index = 0
    for item in says.items:
        if item["type"] == "pause":
            yield item
        else:
            yield from _item(item, index, says.piece)
            index += 1
    match says.ending:
        case "cut" | "hang":
            return
        case "completed":
            response: dict[str, Any] = {"id": "resp_1", "usage": says.usage, "output": []}
            yield {"type": "response.completed", "response": response}
        case reason:
            details = {"reason": reason}
            response = {"id": "resp_1", "usage": says.usage, "incomplete_details": details}
            yield {"type": "response.incomplete", "response": response}


def _call(item: Json, at: Json) -> Iterator[Json]:
    """A whole call, or one whose arguments are written slowly after its start."""
    seconds = item.get("seconds", 0.0)
    item = {key: value for key, value in item.items() if key != "seconds"}
    yield {"type": "response.output_item.added", "item": {**item, "arguments": ""}, **at}
    if seconds:
        words, at = text_of(item["arguments"]), {**at, "item_id": item["id"]}
        for letter in words:
            yield pause(str(seconds / len(words)))
            yield {"type": "response.function_call_arguments.delta", "delta": letter, **at}
        yield {"type": "response.function_call_arguments.done", "arguments": words, **at}
    yield {"type": "response.output_item.done", "item": item, **at}


def _item(item: Json, index: int, piece: int) -> Iterator[Json]:
    at: dict[str, Any] = {"output_index": index}
    if item["type"] == "function_call":
        yield from _call(item, at)
        return
    words = text_of(item["text"])
    empty: dict[str, Any]
    at["item_id"] = item["id"]
    if item["type"] == "reasoning":
        empty = {"type": "reasoning", "id": item["id"], "summary": []}
        yield {"type": "response.output_item.added", "item": empty, **at}
        yield {"type": "response.reasoning_summary_part.added", "summary_index": 0, **at}
        kind, place = "response.reasoning_summary_text.delta", {"summary_index": 0}
        done = {
            **empty,
            "summary": [{"type": "summary_text", "text": words}],
            "encrypted_content": item["encrypted_content"],
        }
    else:
        empty = {"type": "message", "id": item["id"], "role": "assistant", "content": []}
        yield {"type": "response.output_item.added", "item": empty, **at}
        kind, place = "response.output_text.delta", {"content_index": 0}
        done = {**empty, "content": [{"type": "output_text", "text": words}]}
    for start in range(0, len(words), piece):
        yield {"type": kind, "delta": words[start : start + piece], **place, **at}
    yield {"type": "response.output_item.done", "item": done, **at}
