"""Everything an operator can choose, in groups; a field's metadata names its variable."""

from __future__ import annotations

from typing import Any, Final, Literal, NewType, TypeAlias

from attrs import field

Group: TypeAlias = Literal["pipeline", "source", "backend", "server"]
GROUPS: Final[tuple[Group, ...]] = ("pipeline", "source", "backend", "server")

Escaped = NewType("Escaped", str)
"""Text in which a variable may write a line break as \\n and a tab as \\t."""


def flag(  # noqa: PLR0913  # all but the first three are named
    env: str,
    default: Any,
    help: str,  # noqa: A002
    *,
    group: Group,
    stage: str = "",
    secret: bool = False,
) -> Any:
    """A setting: its variable, its default, what it does, and the part it belongs to."""
    metadata = {"env": env, "help": help, "stage": stage, "group": group, "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)
