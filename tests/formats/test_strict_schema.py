"""Which JSON schemas OpenAI takes as strict, and where the others leave that subset."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.strict_schema import (
    DEEPEST,
    LONGEST_LARGE_ENUM,
    LONGEST_NAMES,
    MOST_ENUM_VALUES,
    MOST_PARTS,
    MOST_PROPERTIES,
    first_violation,
)
from pipeline.loose_json import is_list

TEXT: dict[str, Any] = {"type": "string"}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def nested(levels: int) -> dict[str, Any]:
    """So many objects within each other."""
    schema = closed(leaf=TEXT)
    for _ in range(levels - 1):
        schema = closed(a=schema)
    return schema


STEP = closed(text=TEXT)
INSIDE: dict[str, dict[str, Any]] = {
    "an object": closed(a=TEXT, b={"type": "integer"}),
    "an empty object": {"type": "object", "additionalProperties": False},
    "notes for people": {
        **closed(a={**TEXT, "title": "A", "description": "An a.", "default": "x"}),
        "title": "T",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    },
    "several types": closed(a={"type": ["string", "null"]}, b={**STEP, "type": ["object", "null"]}),
    "unions": closed(a={"anyOf": [STEP, {"type": "null"}]}),
    "arrays": closed(a={"type": "array", "items": STEP, "minItems": 1, "maxItems": 3}),
    "bounds": closed(
        a={**TEXT, "pattern": "^a", "format": "date-time", "minLength": 1},
        b={"type": "number", "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.1},
    ),
    "fixed values": closed(a={**TEXT, "enum": ["x", "y"]}, b={**TEXT, "const": "z"}),
    "definitions": {**closed(a={"$ref": "#/$defs/Step"}), "$defs": {"Step": STEP}},
    "older definitions": {
        **closed(a={"$ref": "#/definitions/Step"}),
        "definitions": {"Step": STEP},
    },
    "a schema that contains itself": closed(a={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "definitions that contain each other": {
        **closed(a={"$ref": "#/$defs/A"}),
        "$defs": {"A": closed(b={"$ref": "#/$defs/B"}), "B": closed(a={"$ref": "#/$defs/A"})},
    },
    "references to elsewhere": closed(
        a=STEP,
        **{"b/c~d e": TEXT, "f": {"anyOf": [TEXT, {"type": "null"}]}},
        g={"$ref": "#/properties/a/properties/text"},
        h={"$ref": "#/properties/b~1c~0d%20e"},
        i={"$ref": "#/properties/f/anyOf/1"},
    ),
    "properties with the names of keywords": closed(
        **dict.fromkeys(("$ref", "allOf", "required", "additionalProperties", "type"), TEXT)
    ),
    "as many levels as there may be": nested(DEEPEST),
    "as many properties as there may be": closed(
        **{f"p{number}": TEXT for number in range(MOST_PROPERTIES)}
    ),
}


@pytest.mark.parametrize("schema", INSIDE.values(), ids=INSIDE)
def test_a_closed_schema_is_in_the_subset(schema: dict[str, Any]) -> None:
    assert first_violation(schema) is None


OPEN: dict[str, Any] = {"type": "object", "properties": {"x": TEXT}, "required": ["x"]}
NO_NAMES: dict[str, Any] = {**OPEN, "additionalProperties": False, "required": []}
REFERENCES: list[Any] = [
    *("#/$defs/Nowhere", "https://a.example/b", "Step", "", "#/properties/a/$ref", None, {}),
    *("#/required/0", "#/required/99999999999", "#/required/²", "#/required/-1"),
]
TYPES: list[Any] = ["text", None, {}, ["string", 1], [[]]]
FORMATS: list[Any] = ["uri", {}, 1]
OUTSIDE: list[tuple[dict[str, Any], str, str]] = [
    # the root
    ({}, "the root", 'the type must be "object"'),
    (TEXT, "the root", 'the type must be "object"'),
    ({**STEP, "type": ["object"]}, "the root", 'the type must be "object"'),
    ({"$ref": "#/$defs/S", "$defs": {"S": STEP}}, "the root", 'the type must be "object"'),
    ({**STEP, "$ref": "#/$defs/S"}, "the root", "$ref must be the only keyword, without type"),
    ({"anyOf": [STEP, STEP]}, "the root", "anyOf is not supported at the root"),
    ({**STEP, "anyOf": [STEP]}, "the root", "anyOf is not supported at the root"),
    # objects that are not closed, wherever they are
    (OPEN, "the root", "additionalProperties must be false"),
    ({**OPEN, "additionalProperties": True}, "the root", "additionalProperties must be false"),
    ({**OPEN, "additionalProperties": TEXT}, "the root", "additionalProperties must be false"),
    ({**OPEN, "additionalProperties": 0}, "the root", "additionalProperties must be false"),
    (closed(a=OPEN), "properties.a", "additionalProperties must be false"),
    (
        closed(a={"type": "object", "additionalProperties": {"type": "integer"}}),
        "properties.a",
        "additionalProperties must be false",
    ),
    (
        closed(a={"type": ["object", "null"], "properties": {}}),
        "properties.a",
        "additionalProperties must be false",
    ),
    (
        closed(a={"type": "array", "items": OPEN}),
        "properties.a.items",
        "additionalProperties must be false",
    ),
    (
        closed(a={"anyOf": [{"type": "null"}, OPEN]}),
        "properties.a.anyOf.1",
        "additionalProperties must be false",
    ),
    ({**STEP, "$defs": {"S": OPEN}}, "$defs.S", "additionalProperties must be false"),
    ({**STEP, "definitions": {"S": OPEN}}, "definitions.S", "additionalProperties must be false"),
    (
        {**STEP, "$defs": {"Step": closed(x=OPEN)}},
        "$defs.Step.properties.x",
        "additionalProperties must be false",
    ),
    (
        {**closed(a={"$ref": "#/components/A"}), "components": {"A": OPEN}},
        "components.A",
        "additionalProperties must be false",
    ),
    # properties that may be left out
    (NO_NAMES, "the root", "required must list every property, but 'x' is missing"),
    (
        {key: value for key, value in NO_NAMES.items() if key != "required"},
        "the root",
        "required must list every property, but 'x' is missing",
    ),
    (
        {**NO_NAMES, "required": "x"},
        "the root",
        "required must list every property, but 'x' is missing",
    ),
    (closed(a=NO_NAMES), "properties.a", "required must list every property, but 'x' is missing"),
    (
        {**STEP, "required": ["text", "y"]},
        "the root",
        "required lists 'y', which is not a property",
    ),
    ({**STEP, "required": ["text", {}]}, "the root", "required lists {}, which is not a property"),
    # keywords
    *[
        (closed(a={**TEXT, keyword: 1}), "properties.a", f"{keyword} is not supported")
        for keyword in [
            *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired"),
            *("dependentSchemas", "patternProperties", "propertyNames", "minProperties"),
            *("unevaluatedProperties", "unevaluatedItems", "contains", "uniqueItems"),
        ]
    ],
    ({**STEP, "allOf": [STEP]}, "the root", "allOf is not supported"),
    (
        {**closed(a={"$ref": "#/$defs/S", "description": "A step."}), "$defs": {"S": STEP}},
        "properties.a",
        "$ref must be the only keyword, without description",
    ),
    # what is no schema, or says too little
    (closed(a={}), "properties.a", "the type is missing"),
    (closed(a={"const": 1}), "properties.a", "the type is missing"),
    (closed(a=True), "properties.a", "a schema must be an object"),
    (closed(a={"anyOf": [None]}), "properties.a.anyOf.0", "a schema must be an object"),
    (closed(a={"anyOf": []}), "properties.a", "the type is missing"),
    (closed(a={**TEXT, "anyOf": {}}), "properties.a", "anyOf must be an array of schemas"),
    (closed(a={"type": "array"}), "properties.a", "an array must define its items"),
    (
        closed(a={"type": "array", "items": [TEXT]}),
        "properties.a",
        "an array must define its items",
    ),
    ({**STEP, "properties": []}, "the root", "properties must be an object"),
    (closed(a={**TEXT, "enum": {}}), "properties.a", "enum must be an array of values"),
    *[
        (closed(a={"$ref": reference}), "properties.a", "$ref must point to a part of this schema")
        for reference in REFERENCES
    ],
    *[
        (closed(a={"type": wrong}), "properties.a", "the type must be one of array, boolean")
        for wrong in TYPES
    ],
    *[
        (closed(a={**TEXT, "format": wrong}), "properties.a", "the format must be one of date")
        for wrong in FORMATS
    ],
    # too much of it
    (nested(DEEPEST + 1), ".".join(["properties.a"] * DEEPEST), "more than 10 levels of nesting"),
    (
        closed(**{f"p{number}": TEXT for number in range(MOST_PROPERTIES + 1)}),
        "the root",
        "more than 5000 properties",
    ),
    (
        closed(a={"type": "integer", "enum": [*range(MOST_ENUM_VALUES + 1)]}),
        "properties.a",
        "more than 1000 values",
    ),
    (
        closed(
            a={**TEXT, "enum": [str(n) + "x" * (LONGEST_LARGE_ENUM // 250) for n in range(251)]}
        ),
        "properties.a",
        "at most 15000 characters",
    ),
    (closed(**{"x" * (LONGEST_NAMES + 1): TEXT}), "the root", "more than 120000 characters"),
    (
        closed(a={**TEXT, "const": "x" * LONGEST_NAMES}),
        "properties.a",
        "more than 120000 characters",
    ),
    (closed(a={"anyOf": [{"type": "null"}] * MOST_PARTS}), "properties.a", "more than 20000"),
]


@pytest.mark.parametrize(
    ("schema", "place", "problem"), OUTSIDE, ids=[str(case[:2])[:90] for case in OUTSIDE]
)
def test_the_first_place_outside_of_the_subset_is_named(
    schema: dict[str, Any], place: str, problem: str
) -> None:
    found = first_violation(schema)
    assert found is not None
    assert found.place == place
    assert problem in found.problem


def test_of_several_wrong_places_the_first_in_the_document_is_named() -> None:
    schema = {**closed(a=closed(b=NO_NAMES), c=OPEN), "$defs": {"D": OPEN}}
    found = first_violation(schema)
    assert found is not None
    assert (found.path, found.keyword) == (("properties", "a", "properties", "b"), "required")


def test_a_large_schema_of_references_to_one_place_is_checked_at_once() -> None:
    union = [{"$ref": f"#/properties/a/anyOf/{number}"} for number in range(MOST_PARTS // 3)]
    assert first_violation(closed(a={"anyOf": [TEXT, *union]})) is None


# -- laws ------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "type", "$ref", "x.y", "é"])
LEAVES = st.sampled_from(
    [TEXT, {"type": "integer"}, {"type": ["number", "null"]}, {**TEXT, "enum": ["x"]}]
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.dictionaries(NAMES, inner, max_size=3).map(lambda found: closed(**found)),
        inner.map(lambda found: {"type": "array", "items": found}),
        st.lists(inner, min_size=1, max_size=3).map(lambda found: {"anyOf": found}),
    )


PARTS = st.recursive(LEAVES, _larger, max_leaves=6)


@st.composite
def closed_schemas(draw: st.DrawFn) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, PARTS, max_size=3))
    definitions = draw(st.dictionaries(st.sampled_from(["D", "E"]), PARTS, max_size=2))
    references = {f"to {name}": {"$ref": f"#/$defs/{name}"} for name in definitions}
    schema = {**closed(**properties, **references), "$defs": definitions}
    # As parsed: a part that stands in two places is two parts.
    found: dict[str, Any] = json.loads(json.dumps(schema))
    return found


def objects(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where the objects of a schema are."""
    here = [path] if node.get("type") == "object" else []
    for keyword in ("properties", "$defs"):
        for name, inner in node.get(keyword, {}).items():
            here += objects(inner, (*path, keyword, name))
    if "items" in node:
        here += objects(node["items"], (*path, "items"))
    for number, inner in enumerate(node.get("anyOf", [])):
        here += objects(inner, (*path, "anyOf", str(number)))
    return here


def at(schema: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        schema = schema[int(step) if is_list(schema) else step]
    return schema


@given(closed_schemas())
def test_any_closed_schema_is_in_the_subset(schema: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    assert first_violation(schema) is None
    assert schema == before


@given(closed_schemas(), st.data())
def test_one_object_that_is_not_closed_is_found(
    schema: dict[str, Any], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(objects(schema)))
    del at(schema, path)["additionalProperties"]
    found = first_violation(schema)
    assert found is not None
    assert (found.path, found.keyword) == (path, "additionalProperties")


@given(closed_schemas(), st.data())
def test_one_property_that_may_be_left_out_is_found(
    schema: dict[str, Any], data: st.DataObject
) -> None:
    with_properties = [path for path in objects(schema) if at(schema, path)["required"]]
    if not with_properties:
        return
    path = data.draw(st.sampled_from(with_properties))
    name = data.draw(st.sampled_from(at(schema, path)["required"]))
    at(schema, path)["required"].remove(name)
    found = first_violation(schema)
    assert found is not None
    assert (found.path, found.keyword) == (path, "required")
    assert repr(name) in found.problem


KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "required", "additionalProperties", "items", "anyOf", "$ref"),
        *("$defs", "definitions", "enum", "const", "format", "a", "oneOf"),
    ]
)
VALUES = st.sampled_from(["object", "array", "string", "#", "#/$defs/a", "#/anyOf/0", "", "date"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=25,
)


@given(st.dictionaries(KEYWORDS, ANYTHING))
def test_whatever_is_sent_as_a_schema_is_judged(schema: dict[str, Any]) -> None:
    first_violation({**schema, "type": "object"})
    found = first_violation(schema)
    assert found is None or (found.place and found.problem)
