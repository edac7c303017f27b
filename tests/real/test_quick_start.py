"""`serve --demo` as a person meets it: the README's lines pasted, and `smoke` run against it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from pipeline.cli.main import main
from pipeline.cli.smoke_checks import CHECKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
USUAL = "http://127.0.0.1:11435"
LONG = 60


@pytest.fixture(scope="module")
def served() -> Generator[str]:
    """A server as `make run` starts it, but on a free port."""
    command = [sys.executable, "-m", "pipeline", "serve", "--demo", "--port", "0"]
    with subprocess.Popen(  # noqa: S603
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        banner = ""
        for line in process.stdout:
            banner += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"API +(http://\S+)/v1", banner)
        assert found, banner
        try:
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(LONG) == 0


def pasted(language: str, mark: str, url: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (block,) = (block for block in found if mark in block)
    assert USUAL in block
    return str(block.replace(USUAL, url))


def test_make_run_serves_the_demonstration() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^run: setup.*\n\t.* -m pipeline serve --demo$", makefile, re.MULTILINE)


def test_the_readmes_curl_line_streams_an_answer(served: str) -> None:
    line = pasted("sh", "curl -N", served)
    done = subprocess.run(  # noqa: S603
        ["/bin/sh", "-c", line], capture_output=True, text=True, check=True, timeout=LONG
    )
    assert re.findall(r'"content":"(.*?)"', done.stdout) == ["You said:", " Hello!"]
    assert done.stdout.endswith("data: [DONE]\n\n")


def test_the_readmes_program_calls_a_tool_and_gets_its_answer(served: str) -> None:
    program = pasted("python", "from openai", served)
    assert len([line for line in program.splitlines() if line]) <= 10, "ten lines are enough"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=LONG
    )
    called, said = done.stdout.splitlines()
    assert called.startswith('the model calls weather {"city":')
    assert said == "The tool said: 12 °C, rain"


def test_the_curl_line_of_the_banner_is_the_readmes(served: str) -> None:
    from pipeline.assembly.serving import HELLO  # noqa: PLC0415

    assert HELLO % "gpt-5" in pasted("sh", "curl -N", served)


def test_smoke_finds_everything_fine(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", f"{served}/v1/"]) == 0
    told = capsys.readouterr().out
    undecided = {"an error: a wrong key"}
    for name in CHECKS:
        assert f"\n{'n/a  ' if name in undecided else 'ok   '} {name}: " in f"\n{told}"
    fine = len(CHECKS) - len(undecided)
    assert f"\n{fine} of {len(CHECKS)} ok, 0 wrong, {len(undecided)} n/a, with" in told


def test_smoke_says_what_it_cannot_use(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "127.0.0.1:1"]) == 2
    assert main(["smoke", "http://127.0.0.1:1"]) == 2
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["smoke", f"{served}/elsewhere"]) == 2
    assert "lists no models" in capsys.readouterr().err
    assert main(["smoke", f"{served}/elsewhere", "--model", "x"]) == 1
    assert "WRONG chat: text: status 404" in capsys.readouterr().out
