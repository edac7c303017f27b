"""One Turn as a request of the Responses API: where it goes, its headers and its body."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from attrs import field, frozen

from pipeline.errors import Failure, ProxyError, UsageError
from pipeline.formats.strict_schema import first_violation
from pipeline.loose_json import Json
from pipeline.options import backend_flag as flag
from pipeline.turn import NamedTool, OutputSchema, Tool, Turn
from sources.app_server.turn.place import Bounds


def _endpoint(address: str) -> str:
    """The address that is posted to: `/v1/responses`, or what of it is missing, is added."""
    wanted = "it takes an address such as https://api.openai.com/v1"
    try:
        url = httpx.URL(address.strip())
    except httpx.InvalidURL as error:
        raise UsageError(f"PROXY_BACKEND={address} is not possible ({error}); {wanted}") from None
    if url.userinfo:
        raise UsageError("PROXY_BACKEND holds a password; put it into PROXY_BACKEND_API_KEY")
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"PROXY_BACKEND={address} is not possible; {wanted}")
    path = url.path.rstrip("/") or "/v1"
    return str(url.copy_with(path=path if path.endswith("/responses") else f"{path}/responses"))


def _key(key: str) -> str:
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            "PROXY_BACKEND_API_KEY holds a character that no key has; it takes letters, digits and "
            "signs, without spaces or line breaks"
        )
    return key


@frozen(slots=False)
class ResponsesApiOptions:
    """The Responses API to use instead of an app-server, if any."""

    backend: str = flag(
        "PROXY_BACKEND",
        "",
        "the address of a Responses API to use instead of an app-server, such as "
        "https://host/v1/responses",
    )
    backend_api_key: str = flag("PROXY_BACKEND_API_KEY", "", "the key of that API", secret=True)
    models: str = flag(
        "PROXY_MODELS",
        "",
        "names of models, with commas between, to list at /v1/models besides those that the "
        "backend lists; for a PROXY_BACKEND that lists none",
    )


@frozen
class ResponsesApi:
    """Where a Responses API is and how it is asked. The key shows in no message and no repr."""

    url: str = field(converter=_endpoint)
    api_key: str = field(default="", repr=False, converter=_key)
    bounds: Bounds = Bounds()

    @property
    def place(self) -> str:
        """The address as a person may be told it."""
        url = httpx.URL(self.url)
        return f"{url.scheme}://{url.netloc.decode()}"

    def headers(self) -> dict[str, str]:
        headers = {
            "accept": "text/event-stream",
            "accept-encoding": "identity",  # compressed, events would wait for their block to fill
            "content-type": "application/json",
            "user-agent": "codex-sluice",
        }
        return headers | ({"authorization": f"Bearer {self.api_key}"} if self.api_key else {})

    def without_key(self, text: str) -> str:
        """A text without our key, which some backends repeat when they refuse it.

        Short ones are the words that local backends take for keys, such as `none`.
        """
        return text.replace(self.api_key, "…") if len(self.api_key) >= 8 else text


def request_body(turn: Turn) -> bytes:
    """The JSON that asks for one answer, streamed and not stored."""
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
        body["parallel_tool_calls"] = False  # true is the default, and refused by some models
    if reasoning:
        # What is not stored can only be continued if the client gets it, sealed.
        body |= {"reasoning": reasoning, "include": ["reasoning.encrypted_content"]}
    form = None if turn.output_schema is None else _format(turn.output_schema)
    body |= _given(text=_given(format=form, verbosity=turn.verbosity))
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise ProxyError(
            Failure(
                "the request holds half of a surrogate pair (such as \\ud800), which is no text; "
                "send valid Unicode",
                status=400,
                type="invalid_request_error",
                code="invalid_request_error",
            )
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
    """The choice as the API says it, natively: the tools stay the same, and so does the cache."""
    if isinstance(turn.tool_choice, NamedTool):
        return {"type": "function", "name": turn.tool_choice.name}
    return turn.tool_choice


def _format(wanted: OutputSchema) -> Json:
    """The form of the answer, strict wherever that is possible and the client did not object."""
    return {
        "type": "json_schema",
        "name": wanted.name or "answer",
        **_given(description=wanted.description),
        "schema": wanted.schema,
        "strict": wanted.strict is not False and first_violation(wanted.schema) is None,
    }
