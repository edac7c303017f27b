"""Reads and writes tool calls in text: `<use_tool>` and `<tool_call>` blocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from attrs import evolve, frozen

from pipeline.turn import Tool

FindTool: TypeAlias = Callable[[str], Tool | None]


@frozen
class WrittenCall:
    """A call read from text: its name, and its arguments as one JSON string."""

    name: str
    arguments: str
    call_id: str = ""
    """The id as the model wrote it, valid or not; empty if it wrote none."""


_OPENING: Final = re.compile(
    r"""<use_tool((?:\s+[\w.-]+\s*=\s*(?:"[^"]*"|'[^']*'))*)\s*(/?)>""", re.DOTALL
)
_ATTRIBUTE: Final = re.compile(r"""([\w.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.DOTALL)
_ELEMENT: Final = re.compile(r"\s*<([^\s<>/]+)>")
_QUOTE: Final = re.compile(r'(?<!\\)(?:\\\\)*"')
_ITEM: Final = re.compile(r"\s*<item>(.*?)</item>\s*", re.DOTALL)
_CLOSING: Final = "</use_tool>"
_ARGUMENT_KEYS: Final = ("arguments", "args", "parameters", "input")


# -- reading -------------------------------------------------------------------------------------


def read_use_tool(block: str, find_tool: FindTool = lambda _: None) -> WrittenCall | None:
    """Read one whole `<use_tool>` block; None when it is malformed.

    The name is a `<name>` element or a `name` attribute; the arguments are elements, an `<args>`
    element with JSON, or a JSON body. Values are taken unchanged: nothing is unescaped or
    trimmed, because models write raw text there.
    """
    opening = _OPENING.match(block)
    if opening is None:
        return None
    values = {
        found[1]: found[2] if found[3] is None else found[3]
        for found in _ATTRIBUTE.finditer(opening[1])
    }
    name = values.pop("name", "").strip()
    if opening[2]:
        return _call(name, values, find_tool) if opening.end() == len(block) else None
    if not block.endswith(_CLOSING):
        return None
    body = block[opening.end() : -len(_CLOSING)]
    if body.lstrip().startswith("{") and not values:
        return _read_json_body(name, body.strip())
    elements = _read_elements(body)
    if elements is None:
        return None
    for tag, value in elements:
        if tag == "name" and not name:
            name = value.strip()
        else:  # a tool may also have a parameter called name
            values[tag] = value
    return _call(name, values, find_tool)


def _read_elements(body: str) -> list[tuple[str, str]] | None:
    """Read a sequence of `<tag>value</tag>`; only white space may stand between them."""
    elements: list[tuple[str, str]] = []
    position = 0
    while (element := _ELEMENT.match(body, position)) is not None:
        tag = element[1]
        end = body.find(f"</{tag}>", element.end())
        if end < 0:
            return None
        elements.append((tag, body[element.end() : end]))
        position = end + len(tag) + 3
    return None if body[position:].strip() else elements


def _read_json_body(name: str, body: str) -> WrittenCall | None:
    if not name:
        return read_json_call(body)
    return WrittenCall(name, body) if _is_json(body, "{") else None


def use_tool_goes_on(block: str) -> bool:
    """Whether the closing tag at the end is inside a value that is not closed yet."""
    opening = _OPENING.match(block)
    if opening is None:
        return False
    body = block[opening.end() : -len(_CLOSING)]
    if body.lstrip().startswith("{"):
        return json_goes_on(body)
    position = 0
    while (element := _ELEMENT.match(body, position)) is not None:
        end = body.find(f"</{element[1]}>", element.end())
        if end < 0:
            return True
        position = end + len(element[1]) + 3
    return False


def json_goes_on(text: str) -> bool:
    """Whether the text ends inside a JSON string."""
    return len(_QUOTE.findall(text)) % 2 == 1


def read_sentinel(block: str, _: FindTool = lambda _: None) -> WrittenCall | None:
    """Read one whole `<tool_call>{…}</tool_call>` block; None when it is malformed."""
    return read_json_call(block.removeprefix("<tool_call>").removesuffix("</tool_call>").strip())


def read_json_call(text: str) -> WrittenCall | None:
    """Read `{"name": …, "arguments": …}`, the arguments unchanged.

    Arguments written as a string are that string; written as an object, they are the exact
    source text of the object, so that `1.0` stays `1.0`.
    """
    fields = _fields(text)
    if fields is None:
        return None
    function = fields.get("function")
    call_id = _string(fields.get("call_id") or fields.get("id")) or ""
    if "name" not in fields and function is not None and function.startswith("{"):
        inner = read_json_call(function)
        return inner and evolve(inner, call_id=call_id or inner.call_id)
    name = _string(fields.get("name") or function)
    written = next((fields[key] for key in _ARGUMENT_KEYS if key in fields), "{}")
    arguments = _string(written) if written.startswith('"') else written
    if not name or arguments is None:
        return None
    if arguments.strip() in ("", "null"):
        arguments = "{}"
    elif written.startswith(("[", "t", "f", "-")) or written[0].isdigit():
        return None
    return WrittenCall(name, arguments, call_id)


def _call(name: str, values: dict[str, str], find_tool: FindTool) -> WrittenCall | None:
    if not name:
        return None
    tool = find_tool(name)
    arguments = values.get("args")
    if arguments is not None and len(values) == 1 and not (tool and tool.parameter_types("args")):
        arguments = arguments.strip() or "{}"
        return WrittenCall(name, arguments) if _is_json(arguments, "{") else None
    pairs = (f"{_quote(key)}:{_json_value(tool, key, text)}" for key, text in values.items())
    return WrittenCall(name, "{" + ",".join(pairs) + "}")


def _json_value(tool: Tool | None, key: str, text: str) -> str:
    """A parameter's text as JSON, by the type in the tool's schema, or else by its brackets."""
    types = tool.parameter_types(key) if tool else frozenset[str]()
    stripped = text.strip()
    if types == frozenset({"string"}):
        return _quote(text)
    if stripped.startswith("[") and (not types or "array" in types) and _is_json(stripped, "["):
        return stripped
    if stripped.startswith("{") and (not types or "object" in types) and _is_json(stripped, "{"):
        return stripped
    if "array" in types and (items := _items(text)) is not None:
        return "[" + ",".join(_quote(item) for item in items) + "]"
    if "string" not in types and _is_scalar(stripped, types):
        return stripped
    return _quote(text)


def _items(text: str) -> list[str] | None:
    """The values of `<item>…</item><item>…</item>`; None if the text is anything else."""
    items: list[str] = []
    position = 0
    while (item := _ITEM.match(text, position)) is not None:
        items.append(item[1])
        position = item.end()
    return items if items and position == len(text) else None


def _is_scalar(text: str, types: frozenset[str]) -> bool:
    starts = {"integer": "-0123456789", "number": "-0123456789", "boolean": "tf", "null": "n"}
    allowed = "".join(starts.get(kind, "") for kind in types)
    return text != "" and text[0] in allowed and _is_json(text, text[0])


def _fields(text: str) -> dict[str, str] | None:
    """The members of a JSON object, each as its source text."""
    try:
        raw = msgspec.json.decode(text.encode(), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return {key: bytes(value).decode().strip() for key, value in raw.items()}


def _string(text: str | None) -> str | None:
    if text is None or not text.startswith('"'):
        return None
    return msgspec.json.decode(text, type=str)


def _is_json(text: str, start: str) -> bool:
    try:
        msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return text.startswith(start)


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()


# -- writing -------------------------------------------------------------------------------------


def write_use_tool(name: str, arguments: str) -> str:
    """Write a call as the block that Obsidian Copilot, up to 3.1.5, can read.

    Its parser unescapes nothing and reads `[…]` and `{…}` as JSON, but only if they contain no `<`.
    So strings are written raw, and arrays and objects with angle brackets as \\u escapes:
    these are read back exactly, and so is every string that the parser can express. It trims
    strings, and reads pairs of tags and bracketed text in them as structure, which no escaping
    prevents; the raw text comes closest.
    """
    fields = _fields(arguments)
    if fields is None:
        elements = [f"<args>{arguments}</args>"]
    else:
        elements = [f"<{key}>{_element_text(text)}</{key}>" for key, text in fields.items()]
    return "\n".join(["<use_tool>", f"<name>{name}</name>", *elements, "</use_tool>"])


def _element_text(text: str) -> str:
    if (string := _string(text)) is not None:
        return string
    return text.replace("<", "\\u003c").replace(">", "\\u003e")
