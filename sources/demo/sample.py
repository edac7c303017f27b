"""Makes a sample value for a JSON schema, for the scripted model's structured outputs."""

from __future__ import annotations

from math import floor, inf
from typing import Any, Final

from pipeline.loose_json import Json, as_json, as_list, is_json, text_of

FORMATS: Final = {
    "date": "2026-05-17",
    "date-time": "2026-05-17T12:30:00Z",
    "time": "12:30:00Z",
    "email": "somebody@example.org",
    "uuid": "6f1c2b9e-3d47-4a58-9a0b-5c1d2e3f4a5b",
}
DEEPEST: Final = 8
MOST: Final = 500
"""Limits for recursive schemas."""


def sample(schema: Json) -> Any:
    """A value that the schema allows, with every property in it."""
    return _Sampler(schema).value(schema, "value", 0)


class _Sampler:
    """Makes at most `MOST` values, whatever the schema asks for."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._left = MOST

    def value(self, schema: Json, name: str, depth: int) -> Any:
        schema = self._chosen(schema)
        self._left -= 1
        if "const" in schema:
            return schema["const"]
        if enum := as_list(schema.get("enum")):
            return enum[0]
        match _type(schema) if self._left >= 0 and depth <= DEEPEST else "":
            case "object":
                properties = as_json(schema.get("properties")).items()
                return {key: self.value(as_json(part), key, depth + 1) for key, part in properties}
            case "array":
                return self._array(schema, name, depth)
            case "string":
                return FORMATS.get(text_of(schema.get("format")), f"some {name}")
            case "integer":
                return floor(_within(schema, 7))
            case "number":
                return _within(schema, 7.5)
            case "boolean":
                return True
            case _:
                return None

    def _array(self, schema: Json, name: str, depth: int) -> list[Any]:
        wanted = max(1, int(_number(schema, "minItems", 1)))
        length = min(wanted, max(0, self._left)) if depth < DEEPEST else 0
        items = as_json(schema.get("items"))
        return [self.value(items, name, depth + 1) for _ in range(length)]

    def _chosen(self, schema: Json) -> Json:
        """The schema itself, behind references and the first of its alternatives."""
        for _ in range(DEEPEST):
            alternatives = as_list(schema.get("anyOf"))
            reference = text_of(schema.get("$ref"))
            if reference.startswith("#"):
                schema = self._root
                for part in filter(None, reference[1:].split("/")):
                    schema = as_json(schema.get(part))
            elif alternatives:
                schema = as_json(alternatives[0])
            else:
                break
        return schema


def _type(schema: Json) -> str:
    declared = schema.get("type")
    if declared is None and is_json(schema.get("properties")):
        return "object"
    return text_of(declared) or next(map(text_of, as_list(declared)), "")


def _number(schema: Json, key: str, otherwise: float) -> float:
    value = schema.get(key)
    return value if isinstance(value, int | float) else otherwise


def _within(schema: Json, usual: float) -> float:
    """The default number, or the nearest whole step within the bounds."""
    low = _number(schema, "minimum", _number(schema, "exclusiveMinimum", -inf) + 1)
    high = _number(schema, "maximum", _number(schema, "exclusiveMaximum", inf) - 1)
    return min(max(usual, low), high)
