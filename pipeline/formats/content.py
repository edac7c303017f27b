"""The text of a message's content or of a tool's output."""

from __future__ import annotations

from pipeline.loose_json import as_json, as_list, is_json, text_of


def content_text(content: object) -> str:
    """All text of a content field, which is a string or an array of parts."""
    if isinstance(content, str):
        return content
    if is_json(content):  # the older form of a failed tool's output: {content, success}
        content = content.get("content")
    return content if isinstance(content, str) else "".join(content_texts(content))


def content_texts(parts: object) -> list[str]:
    """The text of each part; empty for a part without text."""
    return [
        part
        if isinstance(part, str)
        else text_of(as_json(part).get("text")) or text_of(as_json(part).get("refusal"))
        for part in as_list(parts)
    ]
