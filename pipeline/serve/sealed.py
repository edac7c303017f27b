"""Compacted conversations: what is sealed, and what it stands for when it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pipeline.loose_json import Json, as_json, as_list, text_of
from pipeline.store.seal import BrokenSealError, Seal

MOST_KEPT: Final = 20_000
"""So many characters of what the user said last are kept word for word."""
PREFACE: Final = (
    "The conversation before this point was shortened. This is a summary of it; go on from here:"
)


class Sealed:
    """Makes compactions and opens them, for their owner only."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def close(self, summary: str, conversation: Sequence[Json], owner: str) -> str:
        """What a client keeps in place of a conversation."""
        kept = _last_words(conversation)
        return self._seal.close({"summary": summary, "kept": kept}, owner)

    def open_all(self, contents: Iterable[str], owner: str) -> dict[str, tuple[Json, ...]]:
        """The items that each content stands for; one that cannot be opened is left out."""
        opened: dict[str, tuple[Json, ...]] = {}
        for content in contents:
            try:
                value = as_json(self._seal.open(content, owner))
            except BrokenSealError:
                continue
            opened[content] = tuple(_stands_for(value))
        return opened


def _stands_for(value: Json) -> list[Json]:
    words = [text_of(one) for one in as_list(value.get("kept"))]
    summary = f"{PREFACE}\n\n{text_of(value.get('summary'))}"
    return [_said(one) for one in (*words, summary)]


def _said(text: str) -> dict[str, Any]:
    # As the user's words: what tools once returned must not become instructions by being retold.
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


def _words(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(text_of(as_json(part).get("text")) for part in as_list(content))


def _last_words(conversation: Sequence[Json]) -> list[str]:
    """What the user said last, oldest first, as much as is kept."""
    kept: list[str] = []
    room = MOST_KEPT
    for item in reversed(conversation):
        if item.get("role") != "user":
            continue
        words = _words(item.get("content"))
        if words.startswith(PREFACE) or not words:
            continue
        if len(words) > room:
            break
        room -= len(words)
        kept.append(words)
    return kept[::-1]
