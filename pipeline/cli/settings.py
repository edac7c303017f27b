"""`settings`: lists all settings with their current values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

import attrs

from pipeline.cli.flags import flag_of, setting_fields, shown
from pipeline.config import Settings, choices
from pipeline.options import GROUPS, Group

HELP = "list every setting: its variable, flag, possible values and current value"
DESCRIPTION = """\
List every setting: its variable, flag, possible values and current value. Secrets are not shown.

  python -m pipeline settings --format env > .env      a file to fill in"""
TITLES: Final[dict[Group, str]] = {
    "pipeline": "how a turn becomes an answer",
    "source": "learning about backends",
    "backend": "where turns run",
    "server": "the HTTP endpoint",
}
WIDTH: Final = 96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("text", "env", "markdown"),
        default="text",
        help="as text, as a file of variables with their defaults, or as docs/settings.md",
    )


def run(options: argparse.Namespace) -> int:
    print({"text": as_text, "env": as_env, "markdown": as_markdown}[options.format]())
    return 0


def as_text() -> str:
    settings = Settings.from_env()
    lines: list[str] = []
    for group in GROUPS:
        lines += ["", TITLES[group].upper()]
        for field in setting_fields(group):
            value = getattr(settings, field.name)
            now = "(set)" if field.metadata["secret"] and value else shown(value)
            lines += [f"  {field.metadata['env']}={now}", f"      {field.metadata['help']}"]
            lines.append(f"      {flag_of(field)}: {choices(field)}")
    return "\n".join(lines[1:])


def as_env() -> str:
    """A file of variables with their defaults, all commented out."""
    lines = [
        "# Every setting with its default. Remove the # from a line to change it, and load the",
        "# file with `set -a; . ./.env; set +a` before `python -m pipeline serve`.",
    ]
    for group in GROUPS:
        lines += ["", f"# -- {TITLES[group]} ".ljust(WIDTH, "-")]
        for field in setting_fields(group):
            lines += ["", *_wrapped(f"{field.metadata['help']} ({choices(field)})")]
            lines.append(f"#{field.metadata['env']}={_quoted(shown(field.default))}")
    return "\n".join(lines)


def as_markdown() -> str:
    """A table for each group, under a heading."""
    parts: list[str] = []
    for group in GROUPS:
        rows = ["| variable, flag | default | values | meaning |", "|---|---|---|---|"]
        rows += map(_row, setting_fields(group))
        title = TITLES[group]
        parts += [f"## {title[0].upper()}{title[1:]}", "\n".join(rows)]
    return "\n\n".join(parts)


def _row(field: attrs.Attribute[Any]) -> str:
    default = f"`{shown(field.default)}`" if field.default != "" else ""
    help_text = field.metadata["help"].replace("<", "\\<")
    takes = choices(field).replace("|", "\\|")
    return f"| `{field.metadata['env']}` `{flag_of(field)}` | {default} | {takes} | {help_text} |"


def _wrapped(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + len(word) >= WIDTH:
            yield line
            line = "#"
        line += f" {word}"
    yield line


def _quoted(value: str) -> str:
    """The value, quoted for a shell."""
    return f"'{value}'" if set(value) - set("abcdefghijklmnopqrstuvwxyz0123456789.:/-") else value
