"""How a part declares its settings: variable, default, help text and bounds."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal, NewType, TypeAlias

from attrs import Attribute, field

from pipeline.errors import UsageError
from pipeline.loose_json import printable

Group: TypeAlias = Literal["pipeline", "source", "backend", "server"]
GROUPS: Final[tuple[Group, ...]] = ("pipeline", "source", "backend", "server")
HOUR: Final = 3_600
DAY: Final = 24 * HOUR
LONGEST_SHOWN: Final = 80

Escaped = NewType("Escaped", str)
"""Text in which a line break is written \\n and a tab \\t."""


def flag(  # noqa: PLR0913  # all but the first three are named
    env: str,
    default: Any,
    help: str,  # noqa: A002
    *,
    group: Group = "pipeline",
    stage: str = "",
    secret: bool = False,
    bounds: tuple[float, float] | None = None,
    hint: str = "",
) -> Any:
    """A setting: its variable, its default, what it does, and the group it belongs to.

    A number has bounds, the smallest and the largest value allowed; the hint says why.
    """
    metadata = {
        "env": env,
        "help": help,
        "stage": stage,
        "group": group,
        "secret": secret,
        "bounds": bounds,
        "hint": hint,
    }
    check = None if bounds is None else _check_bounds
    return field(default=default, repr=not secret, validator=check, metadata=metadata)


backend_flag = partial(flag, group="backend")
server_flag = partial(flag, group="server")


def numbers(attribute: Attribute[Any]) -> str:
    """What a numeric setting accepts, in words."""
    least, most = attribute.metadata["bounds"]
    kind = "a whole number" if isinstance(attribute.default, int) else "a number"
    return f"{kind} from {least} to {most}"


def invalid_value(attribute: Attribute[Any], wanted: str, value: object) -> UsageError:
    """The error for a value that a setting cannot have."""
    got = printable(str(value), LONGEST_SHOWN)
    return UsageError(f"{attribute.metadata['env']} must be {wanted} (got {got})")


def _check_bounds(_: object, attribute: Attribute[Any], value: float) -> None:
    least, most = attribute.metadata["bounds"]
    if least <= value <= most:  # which is false for NaN
        return
    shown = str(value).removesuffix(".0")
    if hint := attribute.metadata["hint"]:
        raise UsageError(f"{invalid_value(attribute, f'{least} to {most}', shown)}; {hint}.")
    raise invalid_value(attribute, numbers(attribute), shown)
