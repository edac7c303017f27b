"""`codex exec` as a client of the server: a home of its own, one run, and what came of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import define, frozen

from .relay import Exchange, Json, Relay

LONG_ENOUGH: Final = 60.0
KEY_NAME: Final = "EDGE_API_KEY"
FIRST_WORDS: Final = "response.output_text.delta"
FREELY: Final = "--dangerously-bypass-approvals-and-sandbox"
"""Where a test runs, it runs in a temporary folder, and runs nothing but what the test says."""


@frozen
class Ran:
    """What one run of Codex did, told and was told."""

    code: int
    seconds: float
    lines: list[Json]
    stderr: str
    exchanges: list[Exchange]

    @property
    def items(self) -> list[Json]:
        return [line["item"] for line in self.lines if line["type"] == "item.completed"]

    @property
    def said(self) -> list[str]:
        """Every message of the model, in order."""
        return [item["text"] for item in self.items if item["type"] == "agent_message"]

    @property
    def commands(self) -> list[tuple[str, int]]:
        """What each command that it ran wrote, and how it ended, in order."""
        return [
            (item["aggregated_output"], item["exit_code"])
            for item in self.items
            if item["type"] == "command_execution"
        ]

    @property
    def complaints(self) -> list[str]:
        """What it told of as an error."""
        told = [item["message"] for item in self.items if item["type"] == "error"]
        told += [line["message"] for line in self.lines if line["type"] == "error"]
        return [message for message in told if not message.startswith("Model metadata for")]

    @property
    def asked(self) -> list[Json]:
        """Every request for a response, whatever carried it."""
        return [body for told in self.exchanges for body in told.asked if "input" in body]


@define
class CodexClient:
    """One person's Codex: its home is kept from run to run."""

    binary: str
    home: Path
    folder: Path
    relay: Relay
    key: str

    def run(
        self,
        *words: str,
        model: str | None = "gpt-5",
        provider: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Ran:
        """Run `codex exec` with these words, with a provider's and other settings of this run."""
        self._configure(model, provider or {}, settings)
        mark, began = self.relay.mark(), time.monotonic()
        with self._started(*words) as process:
            try:
                output, stderr = process.communicate(timeout=LONG_ENOUGH)
            finally:
                process.kill()  # which does nothing to one that has ended
        return Ran(
            process.returncode,
            time.monotonic() - began,
            [json.loads(line) for line in output.splitlines()],
            stderr,
            self.relay.since(mark),
        )

    def leave(self, *words: str, times: int, provider: Mapping[str, Any] | None = None) -> None:
        """Ask as often at once, and be gone for good when every answer has begun."""
        self._configure("gpt-5", provider or {}, {})
        mark = self.relay.mark()
        with ExitStack() as stack:
            for _ in range(times):
                process = stack.enter_context(self._started(*words))
                stack.callback(process.kill)

            def all_begun() -> bool:
                events = [event for told in self.relay.since(mark) for event in told.events]
                return [event["type"] for event in events].count(FIRST_WORDS) >= times

            self.relay.wait_until(all_begun)

    def _started(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603
            [self.binary, "exec", "--json", "--skip-git-repo-check", FREELY, *words],
            cwd=self.folder,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.home),
                "CODEX_HOME": str(self.home),
                KEY_NAME: self.key,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _configure(
        self, model: str | None, provider: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        ours = {
            "name": "ours",
            "base_url": self.relay.url,
            "wire_api": "responses",
            "env_key": KEY_NAME,
            "request_max_retries": 0,
            "stream_max_retries": 0,
            **provider,
        }
        top = {
            **({} if model is None else {"model": model}),
            "model_provider": "ours",
            "chatgpt_base_url": self.relay.url,  # it asks there, too: nobody else shall hear of it
            **settings,
        }
        tables = {"analytics": {"enabled": False}, "model_providers.ours": ours}
        lines = [*_lines(top)]
        for name, table in tables.items():
            lines += [f"[{name}]", *_lines(table)]
        (self.home / "config.toml").write_text("\n".join(lines))


def _lines(table: Mapping[str, Any]) -> list[str]:
    """Settings as TOML, of which strings, numbers and truth are written as in JSON."""
    return [f"{name} = {json.dumps(value)}" for name, value in table.items()]
