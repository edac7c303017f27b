"""The tools that a Responses request declares, under the names that the backend knows them by."""

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
"""The longest name of a function that every model takes."""
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")

# -- as they are sent ------------------------------------------------------------------------------


@frozen
class Format:
    """What a tool of free text wants to read, in words for the model; empty if anything goes."""

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
    """A tool that OpenAI's servers run. Nobody runs it here."""

    type: str


Single: TypeAlias = FunctionSpec | CustomSpec | Hosted


@frozen
class Member:
    """A tool within a namespace, which holds no further namespace."""

    what: Single


@frozen
class Namespace:
    """Tools that belong together."""

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


# -- put together ----------------------------------------------------------------------------------

Key: TypeAlias = tuple[str | None, str]
"""A namespace, if there is one, and the name that a tool has within it."""


@frozen
class Toolbox:
    """Every tool of a request, by what the client calls it.

    Their `name`s differ, whatever the namespaces. The same declarations always give the same names.
    """

    _tools: Mapping[Key, Tool] = field(factory=dict[Key, Tool])
    _alike: Mapping[str, list[str]] = Factory(
        lambda self: _by_own_name(self._tools), takes_self=True
    )
    """The names of the tools that have one own name, in whatever namespaces."""

    @property
    def by_name(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in self._tools.values()}

    def within(self, namespace: str) -> tuple[str, ...]:
        return tuple(tool.name for (space, _), tool in self._tools.items() if space == namespace)

    def name_of(self, name: str, namespace: str | None = None) -> str:
        """What the backend knows a tool by; a tool that is not declared gets a name all the same.

        Not every client gives the namespace back. Where only one tool can be meant, it is meant.
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
    """Gather lists of tools, by where they stand; a later list may declare a tool anew.

    ProxyError where one list has a tool twice.
    """
    found: dict[Key, Tool] = {}
    for place, tools in lists.items():
        own: dict[Key, Tool] = {}
        for at, key, tool in _flat(place, tools):
            if key in own:
                raise refusal(at, f"is {key[1]!r}, which another one has; names must differ")
            own[key] = tool
        found |= own
    taken = {name for space, name in found if space is None}
    return Toolbox({key: _named(key, tool, taken) for key, tool in found.items()})


def hosted(place: str, tools: Sequence[Declared]) -> Iterator[str]:
    """The tools that nobody runs here, by where they stand and what they are."""
    return (f"{at}.{tool.type}" for at, tool in _singles(place, tools) if isinstance(tool, Hosted))


def strict(place: str, tools: Sequence[Declared]) -> Iterator[str]:
    """Where a function asks that its calls follow its schema to the letter."""
    for at, tool in _singles(place, tools):
        if isinstance(tool, FunctionSpec) and tool.strict:
            yield f"{at}.strict"


def _singles(place: str, tools: Sequence[Declared]) -> Iterator[tuple[str, Single]]:
    """Every tool, those within namespaces included, by where it stands."""
    for number, declared in enumerate(tools):
        if isinstance(declared.what, Namespace):
            for inner, member in enumerate(declared.what.tools):
                yield f"{place}[{number}].tools[{inner}]", member.what
        else:
            yield f"{place}[{number}]", declared.what


def joined(namespace: str, name: str) -> str:
    """One legal name of the two; one that is too long keeps its beginning, and is still its own."""
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
    while name in taken:  # a mark of its own: counting up would be slow where many are alike
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
    """The tools of a namespace; the first of them tells what all of them are about."""
    about = space.description
    for number, member in enumerate(space.tools):
        if isinstance(member.what, Hosted):
            continue
        tool = member.what.as_tool()
        if about:
            words = "\n\n".join(filter(None, [tool.description, f"About {space.name}: {about}"]))
            tool = Tool(tool.name, tool.parameters, words, tool.strict, tool.kind)
            about = None
        yield f"{at}.tools[{number}].name", (space.name, tool.name), tool
