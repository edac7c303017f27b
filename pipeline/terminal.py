"""Shows a stream on a terminal, readable for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import msgspec


class Paint:
    """Colours, if the terminal supports them."""

    def __init__(self, out: TextIO) -> None:
        self.on = out.isatty() and not os.environ.get("NO_COLOR")

    def __call__(self, style: str, text: str) -> str:
        codes = {"dim": 2, "bold": 1, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
        return f"\x1b[{codes[style]}m{text}\x1b[0m" if self.on else text


def frames(data: bytes) -> Iterator[tuple[str, Any]]:
    """The events in SSE data: comments, `[DONE]`, and parsed JSON."""
    for whole in data.decode().split("\n\n"):
        frame = whole.partition("\n")[2] if whole.startswith("event: ") else whole
        if frame.startswith(":"):
            yield "comment", frame[1:].strip()
        elif frame == "data: [DONE]":
            yield "done", None
        elif frame.startswith("data: "):
            yield "data", msgspec.json.decode(frame[6:])


class PrettyStream:
    """Shows the client's bytes in a readable form; everything shown is decoded from them."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._paint = Paint(out)
        self._column = 0

    def write(self, data: bytes) -> None:
        for kind, value in frames(data):
            match kind:
                case "data" if "error" in value:
                    self._line("red", f"error: {value['error']['message']}")
                case "data" if "type" in value:
                    self._event(value)
                case "data":
                    self._chunk(value)
                case "comment":
                    self._line("dim", value)
                case _:
                    self._line("dim", "[DONE]")
        self._out.flush()

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if usage := chunk.get("usage"):
            spent = f"{usage['prompt_tokens']} tokens in, {usage['completion_tokens']} out"
            self._line("dim", spent)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            self._text(delta.get("reasoning_content"), "dim")
            self._text(delta.get("content"), None)
            for call in delta.get("tool_calls", ()):
                function = call["function"]
                self._line("cyan", f"▸ {function['name']} {function['arguments']}")
                self._line("dim", f"  {call['id']}")
            if function := delta.get("function_call"):
                self._line("cyan", f"▸ {function['name']} {function['arguments']}")
            if choice["finish_reason"]:
                self._line("green", f"finish_reason: {choice['finish_reason']}")

    def _event(self, event: dict[str, Any]) -> None:
        """An event of the Responses API."""
        match event["type"]:
            case "response.output_text.delta":
                self._text(event["delta"], None)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._text(event["delta"], "dim")
            case "response.output_item.added" | "response.reasoning_summary_part.added":
                self._fresh_line()
            case "response.output_item.done":
                self._item(event["item"])
            case "response.completed" | "response.incomplete":
                self._response(event["response"])
            case "keepalive":
                self._line("dim", "keepalive")
            case _:
                pass

    def _item(self, item: dict[str, Any]) -> None:
        if item["type"] in ("function_call", "custom_tool_call"):
            written = item.get("arguments", item.get("input"))
            name = ".".join(filter(None, (item.get("namespace"), item["name"])))
            self._line("cyan", f"▸ {name} {written}")
            self._line("dim", f"  {item['call_id']}")

    def _response(self, response: dict[str, Any]) -> None:
        if usage := response["usage"]:
            self._line("dim", f"{usage['input_tokens']} tokens in, {usage['output_tokens']} out")
        why = response["incomplete_details"]
        reason = f", {why['reason']}" if why else ""
        self._line("green", f"status: {response['status']}{reason}")

    def _text(self, text: str | None, style: str | None) -> None:
        if text:
            self._out.write(self._paint(style, text) if style else text)
            self._column = len(text.rpartition("\n")[2]) if "\n" in text else self._column + 1

    def _line(self, style: str, text: str) -> None:
        self._fresh_line()
        self._out.write(f"{self._paint(style, text)}\n")

    def _fresh_line(self) -> None:
        if self._column:
            self._out.write("\n")
        self._column = 0
