"""The private names of hypercorn, quart-trio and h11: all listed, and still where they are listed.

Not beside the tests of the server: where a name is gone, those cannot even be imported.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pipeline.serve import http

FOLDER = Path(http.__file__).parent
PUBLIC = {"hypercorn.config.Config"}
LIBRARY = re.compile(r"hypercorn\.|quart_trio\.|quart\.|h11\._")
ENTRY = re.compile(r"^- `([\w.]+)(?:\(([^)]*)\))?`:\s+(.+?)(?=^- |^$|\Z)", re.MULTILINE | re.DOTALL)
OBJECTS = {
    "self._http": "hypercorn.protocol.h11.H11Protocol",
    "http": "hypercorn.protocol.h11.H11Protocol",
    "reader": "h11._readers.ChunkedReader",
    "self._context": "hypercorn.trio.worker_context.WorkerContext",
}
"""Objects of the libraries that are used without a subclass's `self`."""


def listed() -> dict[str, tuple[str, str]]:
    """The parameters and the reason of every name in the docstring."""
    entries: list[tuple[str, ...]] = ENTRY.findall(http.__doc__ or "")
    return {name: (_line(parameters), _line(why)) for name, parameters, why in entries}


def _line(text: str) -> str:
    return " ".join(text.split())


def found(name: str) -> Any:
    """What a dotted name stands for; LookupError if it is nothing any more."""
    module, *rest = name.split(".")
    here: Any = import_module(module)
    for part in rest:
        try:
            here = getattr(here, part)
        except AttributeError:
            try:
                here = import_module(f"{module}.{part}")
            except ImportError:
                if not inspect.isclass(here) or not _assigns(here, part):
                    raise LookupError(name) from None
                return None
        module = f"{module}.{part}"
    return here


def _assigns(owner: type, attribute: str) -> bool:
    """Whether a class gives its objects an attribute."""
    sources = [inspect.getsource(one) for one in owner.__mro__ if one is not object]
    return any(re.search(rf"self\.{attribute}(: .+)? = ", source) for source in sources)


def parameters_of(thing: Any) -> str:
    names = [
        f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name
        for one in inspect.signature(thing).parameters.values()
    ]
    return ", ".join(name for name in names if name != "self")


def problem(name: str, parameters: str, why: str) -> str:
    """What an upgrade broke, in one sentence; empty if nothing."""
    library = name.partition(".")[0].replace("_", "-")
    needed = f"which pipeline/serve/http needs ({why})"
    try:
        thing = found(name)
    except (LookupError, ImportError):
        return f"{library} {version(library)} moved {name}, {needed}"
    if parameters and parameters != (now := parameters_of(thing)):
        return f"{library} {version(library)} changed {name}({parameters}) to ({now}), {needed}"
    return ""


@pytest.mark.parametrize("name", listed())
def test_a_name_is_where_it_is_listed(name: str) -> None:
    if broken := problem(name, *listed()[name]):
        pytest.fail(broken, pytrace=False)


def test_a_name_that_moved_is_reported_in_one_sentence() -> None:
    moved = problem("hypercorn.protocol.h11.H11Protocol._gone", "event", "it greets")
    assert re.fullmatch(
        r"hypercorn [\d.]+ moved hypercorn\.protocol\.h11\.H11Protocol\._gone, "
        r"which pipeline/serve/http needs \(it greets\)",
        moved,
    )
    changed = problem("quart_trio.asgi.TrioASGIHTTPConnection.__call__", "send", "it greets")
    assert re.match(
        r"quart-trio [\d.]+ changed \S+\.__call__\(send\) to \(receive, send\), ", changed
    )
    assert "moved" in problem("hypercorn.trio.gone.TaskGroup", "", "")


# -- what the code uses ----------------------------------------------------------------------------


def used() -> set[str]:
    """The names of the libraries in the code of the folder."""
    return {name for path in FOLDER.glob("*.py") for name in _used_in(ast.parse(path.read_text()))}


def _used_in(tree: ast.Module) -> Iterator[str]:
    imported = dict(_imported(tree))
    yield from (name for name in imported.values() if name not in PUBLIC)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in map(ast.unparse, node.bases):
                owner = imported.get(base, base)
                if owner.startswith("h11."):  # documented, but for its private names
                    yield from (name for name in _inherited(node, owner) if "._" in name)
                elif base in imported and owner not in PUBLIC:
                    yield from _inherited(node, owner)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in OBJECTS:
            owner = OBJECTS[ast.unparse(node.value)]
            yield from [f"{owner}.{node.attr}"] if _has(found(owner), node.attr) else []


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each imported name of a library, as the code calls it and in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and LIBRARY.match(f"{node.module}"):
            yield from ((alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and "import_module" in ast.unparse(node.value):
            module = ast.unparse(node.value).split("'")[1]
            yield node.attr, f"{module}.{node.attr}"


def _inherited(node: ast.ClassDef, base: str) -> Iterator[str]:
    """The base class's own attributes that a class overrides or uses."""
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()):
                pass
            case ast.Attribute(value=value, attr=name) if ast.unparse(value) in {"self", "super()"}:
                pass
            case _:
                continue
        if _has(found(base), name):
            yield f"{base}.{name}"


def _has(owner: type, attribute: str) -> bool:
    return hasattr(owner, attribute) or _assigns(owner, attribute)


def test_the_list_is_what_the_code_uses() -> None:
    assert used() == set(listed())
