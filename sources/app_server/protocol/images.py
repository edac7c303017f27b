"""Checks images before Codex does, which silently replaces unreadable ones with a note."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.errors import Failure, ProxyError
from pipeline.formats.images import image_problem
from pipeline.loose_json import Json, as_json, as_list, text_of


def check_images(items: Iterable[Json]) -> None:
    """Raise ProxyError for the first invalid image in messages and tool outputs."""
    for number, item in enumerate(items):
        parts = (*as_list(item.get("content")), *as_list(item.get("output")))
        for part in map(as_json, parts):
            if part.get("type") == "input_image":
                problem = image_problem(text_of(part.get("image_url")))
                if problem:
                    raise ProxyError(
                        Failure(
                            f"the image of message {number} {problem}",
                            status=400,
                            type="invalid_request_error",
                            code="invalid_image",
                            param=f"input[{number}]",
                        )
                    )
