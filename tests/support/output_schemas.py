"""An open and a closed schema, and how a server is asked for an answer that follows one."""

from __future__ import annotations

from typing import Any

import httpx

from pipeline.loose_json import Json
from tests.serve.asking import post
from tests.serve.scripted import Served

OPEN: dict[str, Any] = {
    "type": "object",
    "properties": {"word": {"type": "string"}, "apt": {"type": "boolean"}},
    "required": ["word"],
}
CLOSED: dict[str, Any] = {**OPEN, "required": ["word", "apt"], "additionalProperties": False}


async def ask(here: Served, api: str, form: Json | None = None, **more: Any) -> httpx.Response:
    if api == "chat":
        wish = {"response_format": {"type": "json_schema", "json_schema": form}} if form else {}
        return await here.ask("Which word?", **wish, **more)
    wish = {"text": {"format": {"type": "json_schema", **form}}} if form else {}
    return await post(here, "Which word?", **wish, **more)


def words(answer: httpx.Response) -> str:
    body = answer.json()
    if "choices" in body:
        return str(body["choices"][0]["message"]["content"])
    return str(body["output"][0]["content"][0]["text"])
