"""What the pages in docs/ and the README say, compared with the program."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from docs.update import generated
from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.bench.plan import REAL
from pipeline.cli.bench import SCENARIOS
from pipeline.errors import Failure
from pipeline.events import Failed, TurnEnd
from pipeline.recipe import Pipeline
from pipeline.serve.access.origins import EXPOSED
from pipeline.serve.observe.exchange import CLIENT_IDS
from pipeline.stage import Stage
from pipeline.turn import OutputMode
from sinks.chat import ChatOptions, ChatSse
from sinks.finish_reason import FinishReason
from sources.problems import KINDS
from tests.serve.scripted import Script, ScriptedBackend, call, served, tools

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
GENERATED = ["docs/costs.md", "docs/settings.md", ".env.example"]


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def part(name: str, text: str) -> str:
    """What a page has between the marks of a generated part."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found is not None, name
    return found[1]


# -- what is generated -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_file_is_what_make_docs_would_write(name: str) -> None:
    assert (ROOT / name).read_text("utf-8") == generated()[ROOT / name], "run `make docs`"


def test_make_docs_rewrites_what_is_generated_and_nothing_else(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(DOCS, docs)
    costs = docs / "costs.md"
    costs.write_text("My own words.\n\n<!-- stages -->\nold\n<!-- /stages -->\n\nAnd more.\n")
    measured = (DOCS / "bench" / "stages.txt").read_text("utf-8")
    written = generated(docs)
    assert written[costs] == (
        f"My own words.\n\n<!-- stages -->\n```\n{measured}```\n<!-- /stages -->\n\nAnd more.\n"
    )
    assert {*written} == {*docs.glob("*.md"), tmp_path / ".env.example"}


def test_the_makefile_runs_the_generator() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^docs: setup .*\n\t\$\(BIN\)/python docs/update.py$", makefile, re.MULTILINE)
    assert re.search(r"^\.PHONY:.* docs( |$)", makefile, re.MULTILINE), "docs is a folder, too"


def test_every_setting_has_a_row() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` `--", part("settings", page("settings.md")), re.MULTILINE)
    names = re.findall(r"^#([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert len(rows) > 40
    assert rows == names


# -- what was measured -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "scenarios"), [("server", SCENARIOS), ("codex", REAL)])
def test_the_costs_are_told_for_every_scenario(name: str, scenarios: Iterable[str]) -> None:
    told = part(name, page("costs.md"))
    for scenario in scenarios:
        assert f"\n{scenario}: S" in told, scenario


def test_the_costs_of_the_stages_are_told() -> None:
    told = part("stages", page("costs.md"))
    assert len(re.findall(r"^ *stage \w+ +CPU an event +\d", told, re.MULTILINE)) > 5


def test_a_new_stage_needs_no_new_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    more = assembly.recipe(Settings()).insert_after("calls", "invented", Stage)

    def pipeline(_: Settings) -> Pipeline:
        return more

    monkeypatch.setattr(assembly, "recipe", pipeline)
    assert "invented" in assembly.recipe(Settings()).names
    test_a_generated_file_is_what_make_docs_would_write("docs/costs.md")
    test_the_costs_of_the_stages_are_told()


# -- links -----------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The names that a page's headings have in links."""
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_relative_link_leads_to_something(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = path.parent / target if target else path
        assert file.exists(), f"{path.name} links to {link}"
        assert file.resolve().is_relative_to(ROOT), f"{path.name} links to {link}"
        assert not anchor or anchor in anchors(file), f"{path.name} links to {link}"


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for path in DOCS.glob("*.md"):
        assert f"](docs/{path.name})" in readme, path.name


# -- what the server shows -------------------------------------------------------------------------


async def test_every_route_is_described() -> None:
    async with served() as here:
        rules = [rule.rule for rule in here.server.url_map.iter_rules()]
    described = page("api.md")
    for rule in rules:
        if not rule.startswith("/static"):
            assert (
                f"`{re.sub(r'<(?:path:)?(?:response_)?(?:name|id)>', '{id}', rule)}`" in described
            )


async def test_every_metric_is_described() -> None:
    async with served() as here:
        exposed = here.server.metrics.exposition().decode()
    names = re.findall(r"^# HELP (\w+)", exposed, re.MULTILINE)
    assert len(names) > 10
    for name in names:
        assert f"`{name}`" in page("operating.md"), name


async def test_every_field_of_the_log_line_is_described() -> None:
    broke = Failed(Failure("the upstream is down", status=502, code="upstream_error"))
    headers = {names[0]: "x" for names in CLIENT_IDS.values()}
    fields: set[str] = set()
    scripts: list[Script] = [[call("a"), broke, TurnEnd("failed")], [broke, TurnEnd("failed")]]
    for script in scripts:
        async with served(ScriptedBackend(script)) as here:
            await here.ask(tools=tools("look"), headers=headers)
            await here.ask(n=-1)
            for line in await here.until_logged(2):
                fields |= {*line}
    assert {"tool_call_ids", "error_after_calls", "error_param", "error_code", "subagent"} <= fields
    for field in fields:
        assert f"`{field}`" in page("operating.md"), field


def test_every_kind_of_backend_problem_is_described() -> None:
    for kind in KINDS:
        assert f"| `{kind}` |" in page("operating.md"), kind


def test_every_finish_reason_is_described() -> None:
    table = page("tool-calls.md").partition("| `finish_reason` |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(get_args(FinishReason))


def test_every_output_mode_is_described() -> None:
    table = page("tool-calls.md").partition("| mode |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)
    assert sorted(rows) == sorted(get_args(OutputMode))


def test_the_comment_that_ends_a_stream_is_the_one_that_is_shown() -> None:
    encoder = ChatSse(ChatOptions("chatcmpl-1", 0, "gpt-5", cut_mode="burst"))
    written = encoder.feed([*(call(letter, n) for n, letter in enumerate("abc")), TurnEnd()])
    (comment,) = re.findall(r"^: .+$", written.decode(), re.MULTILINE)
    assert f"```text\n{comment}\n```" in page("tool-calls.md")


def test_every_header_that_pages_may_read_is_described() -> None:
    pages = page("api.md") + page("tool-calls.md")
    for header in EXPOSED.split(", "):
        assert f"`{header}`" in pages, header
