"""Prompt text for what a backend has no parameter for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pipeline.formats.content import content_text
from pipeline.loose_json import Json, as_json, as_list, is_list, text_of
from pipeline.turn import OutputSchema, Tool

_RULES: Final = """\
You can call tools that the user's client runs. To call one, write one block, alone on its own
lines and not in a code fence:
<tool_call>{"name": "TOOL", "arguments": {…}}</tool_call>
The arguments must follow the tool's schema. Write one block for each call, several if they do not
depend on each other, and then stop: the results come in the next message. Never make up a result.
The tools:"""
FORM_RULE: Final = (
    "Your final answer must be one JSON value that is valid against this JSON schema, and nothing "
    "else: no words around it, no code fence. The JSON schema:"
)


def tool_prompt(tools: Sequence[Tool]) -> str:
    """The rules and schemas of the tools, for a backend without tool definitions.

    The same tools always give the same text, so that the upstream's prompt cache works.
    """
    lines = [_RULES]
    for tool in tools:
        schema = {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        }
        lines.append(msgspec.json.encode(schema, order="sorted").decode())
    return "\n".join(lines)


def choice_prompt(tool: str | None) -> str:
    """The rule that a tool must be called, for a backend that has no parameter for it."""
    which = f"the tool `{tool}`" if tool is not None else "one of your tools, or several of them,"
    return f"You must call {which} now. An answer without such a call is of no use."


def form_prompt(form: OutputSchema, *, enforced: bool) -> str:
    """The description of the answer's format, and the schema if it is not enforced.

    The schema is written unchanged. Models fill in properties in its order, and the same request
    gives the same text, so that the upstream's prompt cache works.
    """
    about = [f"What your final answer is: {form.description}"] if form.description else []
    rule = [] if enforced else [FORM_RULE, msgspec.json.encode(form.schema).decode()]
    return "\n".join([*about, *rule])


def flattened(items: Sequence[Json]) -> str:
    """A conversation as text, for a backend without history.

    Values are written as JSON strings, so no text can imitate another item: the text can be parsed
    back unambiguously. Reasoning is left out, because it is sealed.
    """
    *earlier, last = [item for item in items if item.get("type") != "reasoning"] or [{}]
    if not earlier and last.get("role") == "user":
        words = item_text(last)
        return _line(last) if words.startswith("[") else words
    lines = [_line(item) for item in earlier]
    if last.get("role") == "user":
        return "\n".join([*lines, "", item_text(last)])
    return "\n".join([*lines, _line(last)])


def item_text(item: Json) -> str:
    """The text of a message item."""
    return content_text(item.get("content"))


def item_images(item: Json) -> list[str]:
    """The URLs of the images in a message or a tool output."""
    parts = map(as_json, (*as_list(item.get("content")), *as_list(item.get("output"))))
    return [text_of(part.get("image_url")) for part in parts if part.get("type") == "input_image"]


def _line(item: Json) -> str:
    match item.get("type", "message"):
        case "function_call":
            call_id, name = _quoted(item.get("call_id")), _quoted(item.get("name"))
            arguments = _quoted(item.get("arguments"))
            return f"[function_call id={call_id} name={name} arguments={arguments}]"
        case "function_call_output":
            output = item.get("output")
            output = _quoted(content_text(output) if is_list(output) else output)
            return f"[function_call_output call_id={_quoted(item.get('call_id'))} output={output}]"
        case "message":
            return f"[message role={_quoted(item.get('role'))} text={_quoted(item_text(item))}]"
        case other:
            return f"[{other}]"


def _quoted(value: object) -> str:
    return msgspec.json.encode(value if value is not None else "").decode()
