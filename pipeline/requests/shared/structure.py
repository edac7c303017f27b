"""Converts a client's JSON to typed objects, strictly, with a message for the first wrong field."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, override

from pipeline.errors import refusal
from pipeline.loose_json import Json

T = TypeVar("T")

OMIT: Final = {"omit": True}
"""The metadata of a field that a body cannot set."""


class WrongError(Exception):
    """What is wrong with a value, to be put behind its name; `at` is a path within the value."""

    def __init__(self, problem: str, at: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = at


def structured(body: object, target: type[T]) -> T:
    """A decoded body as an object; ProxyError names the first wrong field."""
    try:
        return _converter.structure(body, target)
    except (cattrs.BaseValidationError, WrongError) as error:
        path, problem = _first_problem(error)
        raise refusal(path.lstrip(".") or None, problem) from None


# -- messages --------------------------------------------------------------------------------------

_KINDS: Final[dict[type, str]] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def wanted(what: str, value: object) -> WrongError:
    """The error for a value of the wrong type."""
    return WrongError(f"must be {what}, not {_KINDS[type(value)]}")


def one_of(choices: Collection[str], value: object, at: str = "") -> WrongError:
    """The error for a value that is not among the choices."""
    listed = ", ".join(f'"{choice}"' for choice in choices)
    shown = f'"{value:.80}"' if isinstance(value, str) else _KINDS[type(value)]
    return WrongError(f"must be {'one of ' * (len(choices) > 1)}{listed}, not {shown}", at)


def _first_problem(error: Exception) -> tuple[str, str]:
    """Where the first wrong field is, and what is wrong with it."""
    path = ""
    while isinstance(error, cattrs.BaseValidationError):
        error = error.exceptions[0]
        for note in getattr(error, "__notes__", ()):
            if isinstance(note, cattrs.AttributeValidationNote):
                path += f".{note.name}"
    match error:
        case WrongError():
            return path + error.at, error.problem
        case KeyError():
            return path, "is missing"
        case _:
            raise error  # a bug of this server, not the client's


# -- the converter ---------------------------------------------------------------------------------

Hook: TypeAlias = Callable[[Any, Any], Any]


def exactly(kind: type, value: object) -> Any:
    """A value of exactly this JSON type: nothing is converted silently."""
    if type(value) is not kind:
        raise wanted(_KINDS[kind], value)
    return value


def made(value: object, target: Any) -> Any:
    """Convert a value inside a body."""
    return _converter.structure(value, target)


def structures(target: type[T]) -> Callable[[Callable[[Any], T]], Callable[[Any], T]]:
    """Register the decorated function as the converter from any JSON value to a class."""

    def is_target(asked: Any) -> bool:
        return asked is target

    def register(function: Callable[[Any], T]) -> Callable[[Any], T]:
        _converter.register_structure_hook_func(is_target, lambda value, _: function(value))
        return function

    return register


def by_type(value: object, targets: dict[str, Any]) -> Any:
    """Convert an object to one of several classes, chosen by its `type`."""
    fields: Json = exactly(dict, value)
    if "type" not in fields:
        raise WrongError("is missing", ".type")
    kind = fields["type"]
    if not isinstance(kind, str) or kind not in targets:
        raise one_of(targets, kind, ".type")
    return made(fields, targets[kind])


def _generic(origin: Any) -> Callable[[Any], bool]:
    def is_one(asked: Any) -> bool:
        return get_origin(asked) is origin

    return is_one


def _choices(target: Any) -> Hook:
    choices = get_args(target)

    def structure(value: object, _: Any) -> object:
        if not isinstance(value, str) or value not in choices:
            raise one_of(choices, value)
        return value

    return structure


def _objects(target: Any) -> Hook:
    hidden = [field.name for field in attrs.fields(target) if field.metadata.get("omit")]
    overrides: Any = {name: override(omit=True) for name in hidden}
    fields: Hook = make_dict_structure_fn(target, _converter, **overrides)

    def structure(value: object, asked: Any) -> object:
        return fields(exactly(dict, value), asked)

    return structure


def _arrays(target: Any) -> Hook:
    element = get_args(target)[0]

    def structure(value: object, _: Any) -> tuple[Any, ...]:
        values: list[Any] = exactly(list, value)
        out: list[Any] = []
        for index, one in enumerate(values):
            try:
                out.append(made(one, element))
            except (cattrs.BaseValidationError, WrongError) as error:
                # Stop at the first one: cattrs would collect all of them, perhaps a million.
                path, problem = _first_problem(error)
                raise WrongError(problem, f"[{index}]{path}") from None
        return tuple(out)

    return structure


_converter: Final = cattrs.Converter(detailed_validation=True)
for _kind in (str, bool, int):
    _converter.register_structure_hook(_kind, lambda value, kind: exactly(kind, value))
_converter.register_structure_hook_func(_generic(dict), lambda value, _: exactly(dict, value))
_converter.register_structure_hook_factory(attrs.has, _objects)
_converter.register_structure_hook_factory(_generic(Literal), _choices)
_converter.register_structure_hook_factory(_generic(tuple), _arrays)
