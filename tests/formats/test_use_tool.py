from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.formats.use_tool import WrittenCall, read_sentinel, read_use_tool, write_use_tool
from pipeline.turn import Tool

law: Final = settings(deadline=None)


def declare(**schemas: dict[str, Any]) -> Tool:
    return Tool("t", {"type": "object", "properties": schemas})


def read_value(written: str, tool: Tool | None = None) -> str:
    """The JSON that one parameter `v` of the tool `t` becomes, to the letter."""
    block = f"<use_tool><name>t</name><v>{written}</v></use_tool>"
    call = read_use_tool(block, lambda _: tool)
    assert call is not None
    assert call.name == "t"
    assert call.arguments.startswith('{"v":')
    return call.arguments.removeprefix('{"v":').removesuffix("}")


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        pytest.param("<use_tool><name>t</name><a>1</a></use_tool>", '{"a":"1"}', id="element"),
        pytest.param("<use_tool>\n<name> t\n</name>\n</use_tool>", "{}", id="name-is-trimmed"),
        pytest.param("<use_tool><a>1</a><name>t</name></use_tool>", '{"a":"1"}', id="name-last"),
        pytest.param('<use_tool name="t"><a>1</a></use_tool>', '{"a":"1"}', id="attribute"),
        pytest.param("<use_tool name='t'><a>1</a></use_tool>", '{"a":"1"}', id="single-quotes"),
        pytest.param('<use_tool\n  name = "t"\n></use_tool>', "{}", id="spread-tag"),
        pytest.param('<use_tool name="t" a="1"><b>2</b></use_tool>', '{"a":"1","b":"2"}', id="mix"),
        pytest.param('<use_tool name="t"/>', "{}", id="self-closing"),
        pytest.param('<use_tool name="t" a=" 1 " />', '{"a":" 1 "}', id="self-closing-with-value"),
        pytest.param(
            '<use_tool><name>t</name><args> {"a": 1.0} </args></use_tool>',
            '{"a": 1.0}',
            id="args",
        ),
        pytest.param("<use_tool><name>t</name><args> </args></use_tool>", "{}", id="empty-args"),
        pytest.param(
            '<use_tool>\n{"name": "t", "arguments": {"a": 1.0}}\n</use_tool>',
            '{"a": 1.0}',
            id="json-body",
        ),
        pytest.param('<use_tool name="t"> {"a": 1.0} </use_tool>', '{"a": 1.0}', id="json-named"),
        pytest.param(
            '<use_tool name="t"><name>Ada</name></use_tool>',
            '{"name":"Ada"}',
            id="parameter-called-name",
        ),
        pytest.param(
            "<use_tool><name>t</name><args>{}</args><b>2</b></use_tool>",
            '{"args":{},"b":"2"}',
            id="args-among-others",
        ),
        pytest.param(
            "<use_tool><name>t</name><a>1</a><b>2</b><a>3</a></use_tool>",
            '{"a":"3","b":"2"}',
            id="last-duplicate-counts",
        ),
        pytest.param(
            "<use_tool><name>t</name><größe>🌍</größe></use_tool>", '{"größe":"🌍"}', id="é"
        ),
    ],
)
def test_every_way_of_writing_a_block_is_read(block: str, arguments: str) -> None:
    assert read_use_tool(block) == WrittenCall("t", arguments)


def test_a_declared_parameter_called_args_is_a_parameter() -> None:
    tool = declare(args={"type": "string"})
    block = "<use_tool><name>t</name><args>{}</args></use_tool>"
    assert read_use_tool(block, lambda _: tool) == WrittenCall("t", '{"args":"{}"}')


def test_the_tool_is_looked_up_by_the_name_in_the_block() -> None:
    asked: list[str] = []
    assert read_use_tool("<use_tool><name> t </name></use_tool>", asked.append) is not None
    assert asked == ["t"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        pytest.param(" a\n", r'" a\n"', id="nothing-trimmed"),
        pytest.param("", '""', id="empty"),
        pytest.param("a &lt;b&gt; &amp; \\n", r'"a &lt;b&gt; &amp; \\n"', id="nothing-unescaped"),
        pytest.param("a < b > c", '"a < b > c"', id="angle-brackets"),
        pytest.param("<b>x</b>", '"<b>x</b>"', id="markup"),
        pytest.param('say "é🌍"', r'"say \"é🌍\""', id="unicode-and-quotes"),
        pytest.param("5", '"5"', id="a-number-is-a-string"),
        pytest.param("true", '"true"', id="a-boolean-is-a-string"),
        pytest.param("[1.0, 1e3]", "[1.0, 1e3]", id="array-verbatim"),
        pytest.param('\n{"a" : 1.0}\n', '{"a" : 1.0}', id="object-verbatim"),
        pytest.param('["\\u003c"]', '["\\u003c"]', id="escapes-verbatim"),
        pytest.param("[1", '"[1"', id="no-array"),
        pytest.param("[link](x)", '"[link](x)"', id="markdown"),
        pytest.param("{a}", '"{a}"', id="no-object"),
    ],
)
def test_a_value_of_an_unknown_tool_is_taken_as_it_stands(written: str, value: str) -> None:
    assert read_value(written) == value


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "[1]", '"[1]"'),
        ({"type": "string"}, '{"a":1}', '"{\\"a\\":1}"'),
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, " a\n", r'" a\n"'),
        ({"type": ["string", "null"]}, "[1]", '"[1]"'),
        ({"type": ["string", "integer"]}, "5", '"5"'),
        ({"type": "integer"}, " 5 ", "5"),
        ({"type": "integer"}, "-5", "-5"),
        ({"type": "integer"}, "05", '"05"'),
        ({"type": "integer"}, "five", '"five"'),
        ({"type": "integer"}, "true", '"true"'),
        ({"type": "number"}, "1.0", "1.0"),
        ({"type": "boolean"}, "true", "true"),
        ({"type": "boolean"}, "True", '"True"'),
        ({"type": "boolean"}, "1", '"1"'),
        ({"type": ["boolean", "null"]}, "null", "null"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", "7"),
        ({"oneOf": [{"type": "array"}, {"type": "null"}]}, "[1.0]", "[1.0]"),
        ({"type": "array"}, "[1.0]", "[1.0]"),
        ({"type": "array"}, "<item>a</item>\n<item> b </item>", '["a"," b "]'),
        ({"type": "array"}, "<item>a</item> and <item>b</item>", None),
        ({"type": "array"}, '{"a":1}', '"{\\"a\\":1}"'),
        ({"type": "array"}, "a, b", '"a, b"'),
        ({"type": "object"}, '{"a": 1.0}', '{"a": 1.0}'),
        ({"type": "object"}, "[1]", '"[1]"'),
        ({}, "[1]", "[1]"),
    ],
)
def test_the_schema_of_a_tool_decides(
    schema: dict[str, Any], written: str, value: str | None
) -> None:
    expected = json.dumps(written) if value is None else value
    assert read_value(written, declare(v=schema)) == expected


@pytest.mark.parametrize(
    "block",
    [
        pytest.param("", id="nothing"),
        pytest.param("text", id="text"),
        pytest.param(" <use_tool><name>t</name></use_tool>", id="not-at-the-start"),
        pytest.param("<use_tools><name>t</name></use_tools>", id="another-tag"),
        pytest.param("<use_tool><name>t</name>", id="unclosed"),
        pytest.param("<use_tool><name>t</name></use_tool> ", id="text-behind"),
        pytest.param("<use_tool></use_tool>", id="empty"),
        pytest.param("<use_tool/>", id="self-closing-without-name"),
        pytest.param('<use_tool name="t"/>x', id="self-closing-with-text-behind"),
        pytest.param("<use_tool name=t></use_tool>", id="unquoted-attribute"),
        pytest.param("<use_tool><a>1</a></use_tool>", id="no-name"),
        pytest.param("<use_tool><name> </name></use_tool>", id="blank-name"),
        pytest.param("<use_tool><name>t</use_tool>", id="unclosed-name"),
        pytest.param("<use_tool><name>t</name><a>1</use_tool>", id="unclosed-element"),
        pytest.param("<use_tool><name>t</name>and<a>1</a></use_tool>", id="text-between"),
        pytest.param("<use_tool><name>t</name><a>1</a>.</use_tool>", id="text-at-the-end"),
        pytest.param("<use_tool><name>t</name><a b='c'>1</a></use_tool>", id="element-attribute"),
        pytest.param("<use_tool><name>t</name><args>{</args></use_tool>", id="args-broken"),
        pytest.param("<use_tool><name>t</name><args>[1]</args></use_tool>", id="args-an-array"),
        pytest.param('<use_tool name="t">{"a":</use_tool>', id="json-broken"),
        pytest.param('<use_tool>{"arguments": {}}</use_tool>', id="json-without-name"),
        pytest.param('<use_tool name="t" a="1">{"b": 2}</use_tool>', id="json-and-attributes"),
    ],
)
def test_a_malformed_block_is_no_call(block: str) -> None:
    assert read_use_tool(block) is None


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        pytest.param('{"name": "t", "arguments": {"a": 1.0}}', '{"a": 1.0}', id="verbatim"),
        pytest.param('\n{"arguments":{"b":1,"b":2},"name":"t"}\n', '{"b":1,"b":2}', id="any-order"),
        pytest.param(r'{"name": "t", "arguments": "{\"a\": 1.0}"}', '{"a": 1.0}', id="a-string"),
        pytest.param('{"name": "t", "args": {}}', "{}", id="args"),
        pytest.param('{"name": "t", "parameters": {"a":1}}', '{"a":1}', id="parameters"),
        pytest.param('{"name": "t", "input": {"a":1}}', '{"a":1}', id="input"),
        pytest.param('{"name": "t"}', "{}", id="none"),
        pytest.param('{"name": "t", "arguments": null}', "{}", id="null"),
        pytest.param('{"name": "t", "arguments": ""}', "{}", id="blank"),
        pytest.param('{"function": "t", "arguments": {"a":1}}', '{"a":1}', id="function-name"),
        pytest.param(
            '{"type":"function","function":{"name":"t","arguments":{"a":1}}}',
            '{"a":1}',
            id="function-object",
        ),
        pytest.param('{"name": "t", "arguments": {"é":"🌍"}}', '{"é":"🌍"}', id="unicode"),
    ],
)
def test_a_sentinel_is_read_to_the_letter(body: str, arguments: str) -> None:
    assert read_sentinel(f"<tool_call>{body}</tool_call>") == WrittenCall("t", arguments)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "t",
        "[]",
        '{"name": "t"',
        '{"name": ""}',
        '{"name": 5}',
        '{"arguments": {}}',
        '{"name": "t", "arguments": [1]}',
        '{"name": "t", "arguments": 5}',
        '{"name": "t", "arguments": true}',
    ],
)
def test_a_malformed_sentinel_is_no_call(body: str) -> None:
    assert read_sentinel(f"<tool_call>{body}</tool_call>") is None


@pytest.mark.parametrize("depth", [100, 100_000])
def test_brackets_nested_however_deep_are_read_without_an_exception(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    assert read_value(deep) in (deep, f'"{deep}"')


# -- writing -------------------------------------------------------------------------------------


def test_a_block_is_written_with_raw_strings_and_json_without_angle_brackets() -> None:
    arguments = r'{"a": "x < \"y\" & z\n", "b": ["<i>", 1.0], "c": {"<": 1}, "d": 1.0, "e": true}'
    assert write_use_tool("t", arguments) == (
        "<use_tool>\n<name>t</name>\n"
        '<a>x < "y" & z\n</a>\n'
        r'<b>["\u003ci\u003e", 1.0]</b>'
        "\n"
        r'<c>{"\u003c": 1}</c>'
        "\n<d>1.0</d>\n<e>true</e>\n</use_tool>"
    )


def test_a_call_without_arguments_is_written_as_its_name_alone() -> None:
    assert write_use_tool("t", "{}") == "<use_tool>\n<name>t</name>\n</use_tool>"


@pytest.mark.parametrize("arguments", ["[1]", "not json", '{"a":'])
def test_arguments_that_are_no_object_are_written_as_they_stand(arguments: str) -> None:
    assert f"\n<args>{arguments}</args>\n" in write_use_tool("t", arguments)


def obsidian_reads(text: str) -> list[tuple[str, dict[str, object]]]:
    """The calls in a text as Obsidian Copilot, up to 3.1.5, finds them."""
    calls: list[tuple[str, dict[str, object]]] = []
    for block in re.finditer(r"<use_tool>(.*?)</use_tool>", text, re.DOTALL):
        name = re.search(r"<name>(.*?)</name>", block[1], re.DOTALL)
        if name is None:
            continue
        rest = block[1].replace(name[0], "", 1)
        elements = re.finditer(r"<([^>]+)>(.*?)</\1>", rest, re.DOTALL)
        calls.append((name[1].strip(), {e[1]: obsidian_value(e[2].strip()) for e in elements}))
    return calls


PAIR = re.compile(r"<([^>]+)>(.*?)</\1>", re.DOTALL)
ITEM = re.compile(r"<item>(.*?)</item>", re.DOTALL)


def obsidian_value(text: str) -> object:
    """Its three ways: JSON where no tag is in sight; pairs of tags as a list or an object; text."""
    if re.search(r"<[^>]+>", text) is None:
        if is_bracketed(text):
            try:
                value: object = json.loads(text)
            except ValueError:
                return text
            return value
        return text
    if items := ITEM.findall(text):
        return [obsidian_value(item.strip()) for item in items]
    if pairs := PAIR.findall(text):
        return {key.strip(): obsidian_value(inner.strip()) for key, inner in pairs}
    return text


def is_bracketed(text: str) -> bool:
    return (text[:1], text[-1:]) in (("[", "]"), ("{", "}"))


strings = st.text() | st.sampled_from(
    ["<b>", "</use_tool>", "</a>", "a < b > c", "&lt;&amp;", "\\"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | strings
finite = scalars.filter(lambda value: value not in (float("inf"), float("-inf")))
trees: st.SearchStrategy[object] = st.recursive(
    finite, lambda inner: st.lists(inner) | st.dictionaries(strings, inner), max_leaves=8
)
composites: st.SearchStrategy[object] = st.lists(trees, max_size=4) | st.dictionaries(
    strings, trees, max_size=4
)
words = st.lists(st.sampled_from(["a", " ", "<", ">", "&", "<b>", "</i>", "\n", "<br>", "[", "é"]))
plain: st.SearchStrategy[object] = (
    (st.text() | words.map("".join))
    .map(str.strip)
    .filter(lambda text: not is_bracketed(text) and not PAIR.search(text) and "</" not in text)
)
"""Strings that its parser has a way to read: trimmed, no JSON, no pair of tags."""
identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,9}", fullmatch=True)
keys = identifiers.filter(lambda key: key not in ("name", "args", "use_tool"))


def exact(value: object) -> str:
    """JSON in which `1`, `1.0` and `true` differ, unlike Python's equality."""
    return json.dumps(value, sort_keys=True)


@law
@given(
    st.dictionaries(keys | st.sampled_from(["name", "args"]), plain | composites, max_size=5),
    st.booleans(),
)
def test_obsidian_reads_back_what_was_written(arguments: dict[str, object], ascii_: bool) -> None:
    block = write_use_tool("t", json.dumps(arguments, ensure_ascii=ascii_))
    [(name, read)] = obsidian_reads(f"Let me see. {block} Done.")
    assert name == "t"
    assert exact(read) == exact(arguments)


# A lone `args` element holds all the arguments, so it cannot also be a parameter unless declared.
@law
@given(st.dictionaries(keys, plain | composites, max_size=5), st.booleans())
def test_what_was_written_is_read_back(arguments: dict[str, object], ascii_: bool) -> None:
    block = write_use_tool("t", json.dumps(arguments, ensure_ascii=ascii_))
    call = read_use_tool(block)
    assert call is not None
    assert call.name == "t"
    assert exact(json.loads(call.arguments)) == exact(arguments)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("# A <b>bold</b> heading", {"b": "bold"}),
        ("x <item>y</item> z", ["y"]),
        ("[1,2]", [1, 2]),
        ("  indented\n", "indented"),
        (5, "5"),
    ],
)
def test_what_its_parser_has_no_way_to_read_exactly(value: object, read: object) -> None:
    """Nothing that could be written would be read as these values; the raw text comes nearest."""
    [(_, arguments)] = obsidian_reads(write_use_tool("t", json.dumps({"v": value})))
    assert arguments == {"v": read}


def test_a_parameter_called_name_is_read_back() -> None:
    call = read_use_tool(write_use_tool("t", '{"name":"Ada"}'))
    assert call == WrittenCall("t", '{"name":"Ada"}')
