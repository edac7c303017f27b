"""The request for one Turn to a Responses API: its URL, headers and body."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from attrs import field, frozen

from pipeline.errors import UsageError, rejection
from pipeline.formats.strict_schema import first_violation
from pipeline.loose_json import Json
from pipeline.options import backend_flag as flag
from pipeline.turn import NamedTool, OutputSchema, Tool, Turn
from sources.app_server.turn.place import Bounds


def _endpoint(address: str) -> str:
    """The URL to post to: `/v1/responses`, or the missing part of it, is added."""
    wanted = "PROXY_BACKEND must be a URL such as https://api.openai.com/v1"
    try:
        url = httpx.URL(address.strip())
    except httpx.InvalidURL as error:
        raise UsageError(f"{wanted} (got {address}: {error})") from None
    if url.userinfo:
        raise UsageError("PROXY_BACKEND contains a password; put it into PROXY_BACKEND_API_KEY")
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"{wanted} (got {address})")
    path = url.path.rstrip("/") or "/v1"
    return str(url.copy_with(path=path if path.endswith("/responses") else f"{path}/responses"))


def _key(key: str) -> str:
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            "PROXY_BACKEND_API_KEY has an invalid character; it may have letters, digits and "
            "punctuation, but no spaces or line breaks"
        )
    return key


@frozen(slots=False)
class ResponsesApiOptions:
    """The settings for a Responses API instead of an app-server."""

    backend: str = flag(
        "PROXY_BACKEND",
        "",
        "the URL of a Responses API to use instead of an app-server, such as "
        "https://host/v1/responses",
    )
    backend_api_key: str = flag("PROXY_BACKEND_API_KEY", "", "the key of that API", secret=True)
    models: str = flag(
        "PROXY_MODELS",
        "",
        "names of models, separated by commas, to list at /v1/models in addition to those that the "
        "backend lists; for a PROXY_BACKEND that lists none",
    )


@frozen
class ResponsesApi:
    """A Responses API: its URL, key and timeouts. No message and no repr shows the key."""

    url: str = field(converter=_endpoint)
    api_key: str = field(default="", repr=False, converter=_key)
    bounds: Bounds = Bounds()

    @property
    def place(self) -> str:
        """The URL in a form that messages may show."""
        url = httpx.URL(self.url)
        return f"{url.scheme}://{url.netloc.decode()}"

    def headers(self) -> dict[str, str]:
        headers = {
            "accept": "text/event-stream",
            "accept-encoding": "identity",  # compression would delay events
            "content-type": "application/json",
            "user-agent": "codex-sluice",
        }
        return headers | ({"authorization": f"Bearer {self.api_key}"} if self.api_key else {})

    def without_key(self, text: str) -> str:
        """A text without the key, which some backends repeat when they reject it.

        Short keys are ordinary words, such as `none` for local backends, and are kept.
        """
        return text.replace(self.api_key, "…") if len(self.api_key) >= 8 else text


def request_body(turn: Turn) -> bytes:
    """The JSON body of a request for one answer, streamed and not stored."""
    reasoning = _given(effort=turn.effort, summary=turn.summary)
    body: dict[str, Any] = {
        "model": turn.model,
        "input": list(turn.items),
        "stream": True,
        "store": False,
    }
    body |= _given(instructions=_instructions(turn), prompt_cache_key=turn.prompt_cache_key)
    if turn.tools:
        body["tools"] = [_tool(tool) for tool in turn.tools]
    if turn.tools and turn.tool_choice != "auto":
        body["tool_choice"] = _tool_choice(turn)
    if turn.tools and turn.one_call_only:
        body["parallel_tool_calls"] = False  # true is the default, and some models reject it
    if reasoning:
        # Without storage, only the client can send reasoning back, sealed.
        body |= {"reasoning": reasoning, "include": ["reasoning.encrypted_content"]}
    form = None if turn.output_schema is None else _format(turn.output_schema)
    body |= _given(text=_given(format=form, verbosity=turn.verbosity))
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise rejection(
            "the request holds half of a surrogate pair (such as \\ud800), which is no text; "
            "send valid Unicode"
        ) from None


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _instructions(turn: Turn) -> str:
    return "\n\n".join(part for part in (turn.base_instructions, turn.instructions) if part)


def _tool(tool: Tool) -> Json:
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "name": tool.name,
        **_given(description=tool.description),
        "parameters": parameters,
        **({} if tool.strict is None else {"strict": tool.strict}),
    }


def _tool_choice(turn: Turn) -> Json | str:
    """The API's own tool_choice: the tools stay unchanged, so the upstream's prompt cache works."""
    if isinstance(turn.tool_choice, NamedTool):
        return {"type": "function", "name": turn.tool_choice.name}
    return turn.tool_choice


def _format(wanted: OutputSchema) -> Json:
    """The format of the answer, strict if possible and the client did not set strict to false."""
    return {
        "type": "json_schema",
        "name": wanted.name or "answer",
        **_given(description=wanted.description),
        "schema": wanted.schema,
        "strict": wanted.strict is not False and first_violation(wanted.schema) is None,
    }
