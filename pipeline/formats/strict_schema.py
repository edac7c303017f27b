"""Checks whether a JSON schema is in the subset that OpenAI accepts as strict."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from attrs import frozen

from pipeline.loose_json import Json, as_json, as_list, is_json, is_list

Path: TypeAlias = tuple[str, ...]
Problem: TypeAlias = tuple[str, str]
"""The keyword that is wrong or missing, and a message to put behind its path."""

UNSUPPORTED: Final = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "then", "else"),
        *("dependencies", "dependentRequired", "dependentSchemas"),
        *("patternProperties", "propertyNames", "unevaluatedProperties"),
        *("minProperties", "maxProperties", "prefixItems", "unevaluatedItems"),
        *("contains", "minContains", "maxContains", "uniqueItems"),
    }
)
_INDEX_DIGITS: Final = 6
TYPES: Final = frozenset({"string", "number", "boolean", "integer", "object", "array", "null"})
FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
DEEPEST: Final = 10
"""The most levels of nested objects and arrays, the root included."""
MOST_PROPERTIES: Final = 5_000
MOST_ENUM_VALUES: Final = 1_000
LARGE_ENUM: Final = 250
LONGEST_LARGE_ENUM: Final = 15_000
LONGEST_NAMES: Final = 120_000
"""The most characters that the names and fixed values of a schema may have together."""
MOST_PARTS: Final = 20_000
"""The most subschemas to check: a limit of this server, because the client waits meanwhile."""


@frozen
class Violation:
    """The first part of a schema that is not in the subset, and why."""

    path: Path
    keyword: str
    problem: str

    @property
    def place(self) -> str:
        """The path for messages: `$defs.Step.properties.x`, or `the root`."""
        return ".".join(self.path) or "the root"


def first_violation(schema: Json) -> Violation | None:
    """Why a schema is not in the strict subset; None if it is.

    Each part is visited once, whatever the references between parts.
    """
    return _root_violation(schema) or _Check(schema).first()


def _root_violation(schema: Json) -> Violation | None:
    if "anyOf" in schema:
        return Violation((), "anyOf", "anyOf is not supported at the root")
    if schema.get("type") != "object":
        return Violation((), "type", 'the type must be "object"')
    return None


@frozen
class _Part:
    """A subschema; `level` counts the objects and arrays around it, and itself."""

    path: Path
    node: object
    level: int


class _Check:
    """Visits every subschema once, in document order.

    Parts that only a reference leads to come last and start at level one, because a schema that
    contains itself has no depth.
    """

    def __init__(self, root: Json) -> None:
        self._root = root
        self._todo = deque([_Part((), root, 1)])
        self._seen = set[int]()
        self._properties = 0
        self._enum_values = 0
        self._characters = 0

    def first(self) -> Violation | None:
        while self._todo:
            part = self._todo.pop()
            if not is_json(part.node):
                return Violation(part.path, "type", "a schema must be an object")
            if id(part.node) in self._seen:
                continue
            self._seen.add(id(part.node))
            problem = self._excess(part.node) or self._problem(part.node, part.level)
            if problem is not None:
                return Violation(part.path, *problem)
            within = [*islice(_parts(part.path, part.node, part.level), MOST_PARTS)]
            self._todo.extend(reversed(within))
            if len(self._seen) + len(self._todo) > MOST_PARTS:
                return Violation(
                    part.path, "anyOf", f"there are more than {MOST_PARTS} schemas in all"
                )
        return None

    # -- what is wrong with one of them ----------------------------------------------------------

    def _problem(self, node: Json, level: int) -> Problem | None:
        for keyword in node:
            if keyword in UNSUPPORTED:
                return keyword, f"{keyword} is not supported"
        if "$ref" in node:
            return self._reference_problem(node)
        types = node.get("type")
        declared: list[Any] = types if is_list(types) else [types] * ("type" in node)
        if not all(isinstance(one, str) and one in TYPES for one in declared):
            return "type", f"the type must be one of {', '.join(sorted(TYPES))}"
        if not declared and not as_list(node.get("anyOf")):
            return "type", "the type is missing"
        if level > DEEPEST and ("object" in declared or "array" in declared):
            return "type", f"there are more than {DEEPEST} levels of nesting"
        if "object" in declared or "properties" in node or "additionalProperties" in node:
            problem = _object_problem(node)
            if problem is not None:
                return problem
        return _value_problem(node, declared)

    def _reference_problem(self, node: Json) -> Problem | None:
        if len(node) > 1:
            other = next(keyword for keyword in node if keyword != "$ref")
            return "$ref", f"$ref must be the only keyword, without {other:.80}"
        target = _target(self._root, node["$ref"])
        if target is None:
            return "$ref", "$ref must point to a part of this schema, as in #/$defs/Name"
        self._todo.appendleft(target)
        return None

    def _excess(self, node: Json) -> Problem | None:
        """Which limit this part exceeds, counted together with those before it."""
        properties = as_json(node.get("properties"))
        enum = as_list(node.get("enum"))
        self._properties += len(properties)
        self._enum_values += len(enum)
        if self._properties > MOST_PROPERTIES:
            return "properties", f"there are more than {MOST_PROPERTIES} properties in all"
        if self._enum_values > MOST_ENUM_VALUES:
            return "enum", f"there are more than {MOST_ENUM_VALUES} values of enums in all"
        values = [one for one in (*enum, node.get("const")) if isinstance(one, str)]
        names = [*properties, *as_json(node.get("$defs")), *as_json(node.get("definitions"))]
        characters = sum(map(len, values))
        self._characters += characters + sum(map(len, names))
        if len(enum) > LARGE_ENUM and characters > LONGEST_LARGE_ENUM:
            return "enum", (
                f"an enum of more than {LARGE_ENUM} values must have at most "
                f"{LONGEST_LARGE_ENUM} characters"
            )
        if self._characters > LONGEST_NAMES:
            return "properties", f"names and fixed values have more than {LONGEST_NAMES} characters"
        return None


def _object_problem(node: Json) -> Problem | None:
    if node.get("additionalProperties") is not False:
        return "additionalProperties", "additionalProperties must be false"
    properties = node.get("properties", {})
    if not is_json(properties):
        return "properties", "properties must be an object"
    required = as_list(node.get("required"))
    listed = {name for name in required if isinstance(name, str)}
    for name in properties:
        if name not in listed:
            return "required", f"required must list every property, but {name!r:.80} is missing"
    for name in required:
        if not isinstance(name, str) or name not in properties:
            return "required", f"required lists {name!r:.80}, which is not a property"
    return None


def _value_problem(node: Json, declared: list[Any]) -> Problem | None:
    if "array" in declared and not is_json(node.get("items")):
        return "items", "an array must define its items"
    if "anyOf" in node and not as_list(node["anyOf"]):
        return "anyOf", "anyOf must be an array of schemas"
    if "enum" in node and not as_list(node["enum"]):
        return "enum", "enum must be an array of values"
    given = node.get("format")
    if given is not None and not (isinstance(given, str) and given in FORMATS):
        return "format", f"the format must be one of {', '.join(sorted(FORMATS))}"
    return None


def _parts(path: Path, node: Json, level: int) -> Iterator[_Part]:
    for name, inner in as_json(node.get("properties")).items():
        yield _Part((*path, "properties", name), inner, level + 1)
    if "items" in node:
        yield _Part((*path, "items"), node["items"], level + 1)
    for number, inner in enumerate(as_list(node.get("anyOf"))):
        yield _Part((*path, "anyOf", str(number)), inner, level)
    for keyword in ("$defs", "definitions"):
        for name, inner in as_json(node.get(keyword)).items():
            yield _Part((*path, keyword, name), inner, 1)


def _target(root: Json, reference: object) -> _Part | None:
    """The part of the schema that a reference points to."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        return None
    steps = [step.replace("~1", "/").replace("~0", "~") for step in unquote(reference).split("/")]
    node: object = root
    for step in steps[1:]:
        if is_list(node):
            index = int(step) if step.isdecimal() and len(step) <= _INDEX_DIGITS else len(node)
            node = node[index] if index < len(node) else None
        else:
            node = as_json(node).get(step)
    return _Part(tuple(steps[1:]), node, 1) if is_json(node) else None
