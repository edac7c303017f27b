"""Compacted conversations: seals a summary, and opens it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pipeline.formats.content import content_text
from pipeline.loose_json import Json, as_json, as_list, text_of
from pipeline.serve.memory.seal import BrokenSealError, Seal

MOST_KEPT: Final = 20_000
"""The most characters of the last user messages that are kept verbatim."""
PREFACE: Final = (
    "The conversation before this point was shortened. This is a summary of it; go on from here:"
)


class Sealed:
    """Seals compactions and opens them, for their owner only."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def close(self, summary: str, conversation: Sequence[Json], owner: str) -> str:
        """The sealed text that replaces a conversation."""
        kept = _last_user_messages(conversation)
        return self._seal.close({"summary": summary, "kept": kept}, owner)

    def open_all(self, contents: Iterable[str], owner: str) -> dict[str, tuple[Json, ...]]:
        """The items that each sealed text stands for; those that cannot be opened are left out."""
        opened: dict[str, tuple[Json, ...]] = {}
        for content in contents:
            try:
                value = as_json(self._seal.open(content, owner))
            except BrokenSealError:
                continue
            opened[content] = tuple(_stands_for(value))
        return opened


def _stands_for(value: Json) -> list[Json]:
    kept = [text_of(one) for one in as_list(value.get("kept"))]
    summary = f"{PREFACE}\n\n{text_of(value.get('summary'))}"
    return [_user_message(text) for text in (*kept, summary)]


def _user_message(text: str) -> dict[str, Any]:
    # As user messages: the summary may repeat tool outputs, which must not become instructions.
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


def _last_user_messages(conversation: Sequence[Json]) -> list[str]:
    """The texts of the last user messages that fit, oldest first."""
    kept: list[str] = []
    room = MOST_KEPT
    for item in reversed(conversation):
        if item.get("role") != "user":
            continue
        text = content_text(item.get("content"))
        if text.startswith(PREFACE) or not text:
            continue
        if len(text) > room:
            break
        room -= len(text)
        kept.append(text)
    return kept[::-1]
