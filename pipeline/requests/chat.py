"""A Chat Completions request as a Turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import cattrs
from attrs import field, frozen
from cattrs.cols import is_mapping, is_sequence, list_structure_factory
from cattrs.gen import make_dict_structure_fn
from cattrs.v import format_exception

from pipeline.errors import Failure, ProxyError
from pipeline.turn import Tool, Turn


@frozen
class FunctionSpec:
    """A function as the client declares it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def as_tool(self) -> Tool:
        return Tool(self.name, self.parameters or {}, self.description or "")


@frozen
class ToolSpec:
    """A tool of any type; only functions can be called through a chat."""

    type: str = "function"
    function: FunctionSpec | None = None


@frozen
class StreamOptions:
    include_usage: bool | None = None


@frozen
class ChatRequest:
    """The parts of a request that decide how its answer is read and written."""

    model: str = "codex"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ToolSpec] | None = None
    functions: list[FunctionSpec] | None = None
    tool_choice: Any = None
    function_call: Any = None
    parallel_tool_calls: bool | None = None
    messages: list[Any] = field(factory=list[Any])

    @classmethod
    def from_json(cls, body: object) -> ChatRequest:
        """Check and structure a decoded body; ProxyError names the field that is wrong."""
        try:
            return _converter.structure(body, cls)
        except (cattrs.BaseValidationError, TypeError) as error:
            message, path = _first_problem(error)
            raise ProxyError(
                Failure(
                    message,
                    status=400,
                    type="invalid_request_error",
                    code="invalid_request_error",
                    param=path or None,
                )
            ) from None

    def turn(self) -> Turn:
        declared = [spec.function.as_tool() for spec in self.tools or () if spec.function]
        legacy = bool(self.functions) and not declared
        if legacy:
            declared = [function.as_tool() for function in self.functions or ()]
        if self.tool_choice == "none" or (legacy and self.function_call == "none"):
            declared = []
        return Turn(
            model=self.model,
            tools=tuple(declared),
            parallel_tool_calls=self.parallel_tool_calls is not False,
            legacy_functions=legacy,
            stream=self.stream,
            include_usage=bool(self.stream_options and self.stream_options.include_usage),
        )


_WORDS: Final[dict[type, str]] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def _exactly(kind: type, then: Callable[[Any, Any], Any] = lambda value, _: value) -> Any:
    """Let one JSON type through: numbers are not strings and nothing is converted silently."""

    def structure(value: object, target: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"must be {_WORDS[kind]}, not {_WORDS[type(value)]}")
        return then(value, target)

    return structure


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=True)
    for kind in (str, bool, int):
        converter.register_structure_hook(kind, _exactly(kind))
    converter.register_structure_hook_func(is_mapping, _exactly(dict))

    @converter.register_structure_hook_factory(attrs.has)
    def _objects(target: type[Any]) -> Any:
        fields: Callable[[Any, Any], Any] = make_dict_structure_fn(target, converter)
        return _exactly(dict, fields)

    @converter.register_structure_hook_factory(is_sequence)
    def _arrays(target: type[Any]) -> Any:
        return _exactly(list, list_structure_factory(target, converter))

    return converter


_converter: Final = _make_converter()


def _first_problem(error: BaseException) -> tuple[str, str]:
    """The first wrong field of a request, in words and as a path."""
    if not isinstance(error, cattrs.BaseValidationError):
        return f"the request body {error}", ""
    line = cattrs.transform_error(error, path="", format_exception=_in_words)[0]
    problem, _, path = line.rpartition(" @ ")
    path = path.lstrip(".")
    return f"{path} {problem}", path


def _in_words(error: BaseException, kind: type | None) -> str:
    match error:
        case KeyError():
            return "is missing"
        case TypeError():
            return str(error)
        case _:
            return format_exception(error, kind)
