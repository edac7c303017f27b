"""The tools that a Responses request declares, with the names that the backend uses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final, Literal, TypeAlias

from attrs import Factory, field, frozen

from pipeline.errors import refusal
from pipeline.formats.custom_tools import PARAMETERS
from pipeline.loose_json import Json
from pipeline.requests.shared.structure import WrongError, by_type, exactly, made, structures
from pipeline.requests.shared.tools import FunctionSpec, check_name
from pipeline.turn import Tool

LONGEST_JOINED: Final = 64
"""The longest function name that every model accepts."""
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")

# -- as they are sent ------------------------------------------------------------------------------


@frozen
class Format:
    """The format of a custom tool's input, in words for the model; empty for any text."""

    words: str = ""


@frozen
class CustomSpec:
    """A tool that takes free text, as the client declares it."""

    name: str
    description: str | None = None
    format: Format | None = None

    def __attrs_post_init__(self) -> None:
        check_name(self.name)

    def as_tool(self) -> Tool:
        words = self.format.words if self.format else ""
        described = "\n\n".join(filter(None, [self.description, words]))
        return Tool(self.name, PARAMETERS, described, kind="custom")


@frozen
class Hosted:
    """A tool that OpenAI's servers run; it is not available here."""

    type: str


Single: TypeAlias = FunctionSpec | CustomSpec | Hosted


@frozen
class Member:
    """A tool within a namespace. Namespaces cannot be nested."""

    what: Single


@frozen
class Namespace:
    """A named group of tools."""

    name: str
    tools: tuple[Member, ...]
    description: str | None = None

    def __attrs_post_init__(self) -> None:
        check_name(self.name)


@frozen
class Declared:
    """One entry of a list of tools."""

    what: Single | Namespace


@frozen
class _Grammar:
    syntax: Literal["lark", "regex"]
    definition: str


@frozen
class _FreeText:
    """Any text."""


@structures(Format)
def _format(value: object) -> Format:
    match by_type(value, {"text": _FreeText, "grammar": _Grammar}):
        case _Grammar(syntax, definition):
            kind = "Lark grammar" if syntax == "lark" else "regular expression"
            return Format(f"The input must match this {kind} to the letter:\n{definition}")
        case _:
            return Format()


def _single(value: object) -> Single:
    fields: Json = exactly(dict, value)
    if "type" not in fields:
        raise WrongError("is missing", ".type")
    match fields["type"]:
        case "function":
            return made(fields, FunctionSpec)  # type: ignore[no-any-return]
        case "custom":
            return made(fields, CustomSpec)  # type: ignore[no-any-return]
        case _:
            return made(fields, Hosted)  # type: ignore[no-any-return]


@structures(Member)
def _member(value: object) -> Member:
    what = _single(value)
    if what == Hosted("namespace"):
        raise WrongError("is a namespace within a namespace; it must be a tool", ".type")
    return Member(what)


@structures(Declared)
def _declared(value: object) -> Declared:
    fields: Json = exactly(dict, value)
    return Declared(
        made(fields, Namespace) if fields.get("type") == "namespace" else _single(value)
    )


# -- the toolbox -----------------------------------------------------------------------------------

Key: TypeAlias = tuple[str | None, str]
"""The namespace, if any, and the tool's name within it."""


@frozen
class Toolbox:
    """Every tool of a request, by the client's name for it.

    Backend names are unique across namespaces, and the same for the same declarations.
    """

    _tools: Mapping[Key, Tool] = field(factory=dict[Key, Tool])
    _alike: Mapping[str, list[str]] = Factory(
        lambda self: _by_own_name(self._tools), takes_self=True
    )
    """The backend names of the tools with the same own name, in any namespace."""

    @property
    def by_name(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in self._tools.values()}

    def within(self, namespace: str) -> tuple[str, ...]:
        return tuple(tool.name for (space, _), tool in self._tools.items() if space == namespace)

    def name_of(self, name: str, namespace: str | None = None) -> str:
        """The backend's name for a tool; a tool that is not declared gets one all the same.

        Some clients omit the namespace; the name is then enough if only one tool has it.
        """
        found = self._tools.get((namespace, name))
        if found is not None:
            return found.name
        if namespace is not None:
            return joined(namespace, name)
        alike = self._alike.get(name, [])
        return alike[0] if len(alike) == 1 else name


def _by_own_name(tools: Mapping[Key, Tool]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for (_, own), tool in tools.items():
        names.setdefault(own, []).append(tool.name)
    return names


def toolbox(lists: Mapping[str, Sequence[Declared]]) -> Toolbox:
    """Merge lists of tools, keyed by their path; a later list may redeclare a tool.

    ProxyError if one list has a tool twice.
    """
    found: dict[Key, Tool] = {}
    for place, tools in lists.items():
        own: dict[Key, Tool] = {}
        for at, key, tool in _flat(place, tools):
            if key in own:
                raise refusal(at, f"is {key[1]!r}, which another tool has; names must differ")
            own[key] = tool
        found |= own
    taken = {name for space, name in found if space is None}
    return Toolbox({key: _named(key, tool, taken) for key, tool in found.items()})


def hosted(place: str, tools: Sequence[Declared]) -> Iterator[str]:
    """The hosted tools, by path and type."""
    return (f"{at}.{tool.type}" for at, tool in _singles(place, tools) if isinstance(tool, Hosted))


def strict(place: str, tools: Sequence[Declared]) -> Iterator[str]:
    """The functions that set strict, by path."""
    for at, tool in _singles(place, tools):
        if isinstance(tool, FunctionSpec) and tool.strict:
            yield f"{at}.strict"


def _singles(place: str, tools: Sequence[Declared]) -> Iterator[tuple[str, Single]]:
    """Every tool with its path, those within namespaces included."""
    for number, declared in enumerate(tools):
        if isinstance(declared.what, Namespace):
            for inner, member in enumerate(declared.what.tools):
                yield f"{place}[{number}].tools[{inner}]", member.what
        else:
            yield f"{place}[{number}]", declared.what


def joined(namespace: str, name: str) -> str:
    """A valid name made of the two; one that is too long is cut and gets a hash."""
    link = "" if namespace.endswith("__") else "__"
    whole = _OTHER.sub("_", f"{namespace}{link}{name}")
    if len(whole) <= LONGEST_JOINED:
        return whole
    return _marked(whole, f"{namespace}\0{name}")


def _marked(name: str, mark: str) -> str:
    digest = hashlib.sha256(mark.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: LONGEST_JOINED - 9]}_{digest}"


def _named(key: Key, tool: Tool, taken: set[str]) -> Tool:
    space, own = key
    if space is None:
        return tool
    name = plain = joined(space, own)
    tries = count(1)
    while name in taken:  # a hash, because counting up is slow where many names are alike
        name = _marked(plain, f"{space}\0{own}\0{next(tries)}")
    taken.add(name)
    return Tool(
        name,
        tool.parameters,
        tool.description,
        tool.strict,
        tool.kind,
        namespace=space,
        own_name=own,
    )


def _flat(place: str, tools: Sequence[Declared]) -> Iterator[tuple[str, Key, Tool]]:
    for number, declared in enumerate(tools):
        match declared.what:
            case FunctionSpec() | CustomSpec() as spec:
                yield f"{place}[{number}].name", (None, spec.name), spec.as_tool()
            case Namespace() as space:
                yield from _members(f"{place}[{number}]", space)
            case _:
                continue


def _members(at: str, space: Namespace) -> Iterator[tuple[str, Key, Tool]]:
    """The tools of a namespace; the first one carries the namespace's description."""
    about = space.description
    for number, member in enumerate(space.tools):
        if isinstance(member.what, Hosted):
            continue
        tool = member.what.as_tool()
        if about:
            text = "\n\n".join(filter(None, [tool.description, f"About {space.name}: {about}"]))
            tool = Tool(tool.name, tool.parameters, text, tool.strict, tool.kind)
            about = None
        yield f"{at}.tools[{number}].name", (space.name, tool.name), tool
