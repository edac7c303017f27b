"""`stages`: the recipe in order."""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap

from pipeline.cli.flags import add_settings, flag_of, setting_fields, settings_from, shown
from pipeline.config import recipe
from pipeline.terminal import Paint

HELP = "list the stages in order, what each is for, and its settings"
DESCRIPTION = """\
List the stages between the backend and the client, in order, with their current settings.
`Pipeline.replace`, `insert_after` and `without` take these names in code."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    paint = Paint(sys.stdout)
    for number, (name, factory) in enumerate(recipe(settings), 1):
        stage = factory()
        purpose = (inspect.getdoc(inspect.getmodule(stage)) or "").splitlines()[0]
        print(f"{number}. {paint('bold', name)}  {paint('dim', type(stage).__name__)}")
        print(textwrap.indent(textwrap.fill(purpose, 92), "   "))
        for field in setting_fields():
            if field.metadata["stage"] == name:
                setting = field.metadata["env"] + "=" + shown(getattr(settings, field.name))
                print(f"     {paint('cyan', setting)}", end="  ")
                print(paint("dim", f"{flag_of(field)}: {field.metadata['help']}"))
    return 0
