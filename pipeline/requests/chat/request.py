"""A Chat Completions request, checked and turned into a Turn."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Literal

from attrs import evolve, field, frozen

from pipeline.errors import refusal
from pipeline.loose_json import Json, as_json, is_json, is_list
from pipeline.requests.chat.conversation import conversation
from pipeline.requests.chat.messages import ChatMessage
from pipeline.requests.chat.tools import LegacyChoice, ToolSpec, offer
from pipeline.requests.shared.answer_form import (
    AS_JSON,
    AnyObject,
    Effort,
    Form,
    FreeText,
    Verbosity,
)
from pipeline.requests.shared.ignored import listed, names_of, unread
from pipeline.requests.shared.options import RequestOptions
from pipeline.requests.shared.structure import (
    OMIT,
    WrongError,
    by_type,
    made,
    structured,
    structures,
    wanted,
)
from pipeline.requests.shared.tools import Choice, FunctionSpec, Offer
from pipeline.turn import OutputMode, OutputSchema, Turn

MOST_CHOICES: Final = 8
MOST_STOPS: Final = 4
LONGEST_STOP: Final = 1000
_MUST: Final = ("model", "messages")


@frozen
class StreamOptions:
    include_usage: bool | None = None


@frozen
class Reasoning:
    """Reasoning as the Responses API writes it, which many clients also send here."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None


@frozen
class ResponseFormat(Form):
    """The format of the answer, which a chat request nests one level deeper."""


@frozen
class Stop:
    """The sequences that end an answer."""

    sequences: tuple[str, ...] = ()


@frozen
class ChatRequest:
    """A request whose fields all have the right type.

    `turn` combines them, and rejects fields that contradict each other.
    """

    model: str = Turn().model
    messages: tuple[ChatMessage, ...] = ()
    stream: bool | None = None
    stream_options: StreamOptions = StreamOptions()
    n: int = 1
    stop: Stop = Stop()
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Choice = Choice()
    functions: tuple[FunctionSpec, ...] = ()
    function_call: LegacyChoice = LegacyChoice()
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat = ResponseFormat()
    reasoning_effort: Effort | None = None
    reasoning: Reasoning = Reasoning()
    verbosity: Verbosity | None = None
    prompt_cache_key: str | None = None
    ignored: tuple[str, ...] = field(default=(), metadata=OMIT)
    """The parameters in the request that have no effect, in order."""

    def __attrs_post_init__(self) -> None:
        if not self.model:
            raise WrongError("is empty; it must be the name of a model", ".model")
        if not 1 <= self.n <= MOST_CHOICES:
            raise WrongError(f"must be from 1 to {MOST_CHOICES}", ".n")

    @classmethod
    def from_json(
        cls, body: object, *, partial: bool = False, without_effect: Collection[str] = ()
    ) -> ChatRequest:
        """Check and structure a decoded body; ProxyError names the wrong field.

        A `partial` request needs no model and no messages, which suffices for a replay.
        `without_effect` names the fields that the backend ignores.
        """
        given = body
        if is_json(body):  # null means that a parameter is not given
            given = {key: value for key, value in body.items() if value is not None or key in _MUST}
        request = structured(given, cls)
        for name in () if partial else _MUST:
            if name not in as_json(given):
                raise refusal(name, "is missing; a request needs a model and messages")
        if not request.messages and not partial:
            raise refusal("messages", "is empty; send at least one message")
        ignored = request._without_effect(as_json(given), without_effect)  # noqa: SLF001
        return evolve(request, ignored=listed(ignored))

    @property
    def strict_tools(self) -> tuple[str, ...]:
        """Where the request sets strict on a tool, which some backends ignore."""
        nested = {f"tools[{at}].function": tool.function for at, tool in enumerate(self.tools)}
        legacy = {f"functions[{at}]": one for at, one in enumerate(self.functions)}
        declared = legacy if self._legacy else nested
        return tuple(f"{place}.strict" for place, spec in declared.items() if spec and spec.strict)

    def turn(
        self, settings: RequestOptions | None = None, *, output_mode: OutputMode | None = None
    ) -> Turn:
        """The turn for one answer; ProxyError if the fields contradict each other."""
        settings = settings or RequestOptions()
        chat = conversation(self.messages, system=not settings.ignore_client_system_prompt)
        offered = self._offer()
        effort = self.reasoning_effort or self.reasoning.effort
        form = [AS_JSON] if self.response_format.json_object else []
        return Turn(
            model=self.model,
            instructions="\n\n".join(filter(None, [chat.instructions, *form])),
            items=chat.items,
            tools=offered.tools,
            tool_choice=offered.choice,
            effort=effort,
            summary=self.reasoning.summary or _summary(effort),
            output_schema=self.response_format.output_schema("response_format.json_schema.schema"),
            base_instructions=settings.base_instructions or None,
            parallel_tool_calls=settings.calls_in_parallel(self.parallel_tool_calls),
            legacy_functions=self._legacy,
            include_usage=bool(self.stream_options.include_usage),
            output_mode=output_mode,
            stream=self.stream,
            stop=self.stop.sequences,
            verbosity=self.verbosity,
            prompt_cache_key=self.prompt_cache_key,
        )

    # -- tools -----------------------------------------------------------------------------------

    @property
    def _legacy(self) -> bool:
        """Whether the request uses the legacy `functions`, and so does its answer."""
        return bool(self.functions) and not any(tool.is_function for tool in self.tools)

    def _offer(self) -> Offer:
        if self._legacy:
            legacy = {f"functions[{at}].name": one for at, one in enumerate(self.functions)}
            return offer(legacy, self.function_call.choice)
        declared = {
            f"tools[{at}].function.name": tool.function
            for at, tool in enumerate(self.tools)
            if tool.is_function and tool.function is not None
        }
        return offer(declared, self.tool_choice)

    def _without_effect(self, given: Json, unused: Collection[str]) -> Iterator[str]:
        """The names in `given` that neither this server nor the backend reads, in order."""
        read = set(names_of(ChatRequest)).difference(unused)
        read -= {"tool_choice"} if self._legacy else {"functions", "function_call"}
        for name, value in given.items():
            match name:
                case "tools":
                    for at, tool in enumerate(self.tools):
                        if not tool.is_function:
                            yield f"tools[{at}].{tool.type}"
                case "stream_options":
                    yield from unread(as_json(value), names_of(StreamOptions), f"{name}.")
                case "reasoning":
                    yield from unread(as_json(value), names_of(Reasoning), f"{name}.")
                case "response_format":
                    schema = as_json(as_json(value).get("json_schema"))
                    yield from unread(schema, names_of(OutputSchema), f"{name}.json_schema.")
                case _:
                    yield from unread({name: value}, read)


def _summary(effort: str | None) -> str | None:
    """The summary to request: `auto` if the request sets an effort, so its model reasons.

    Codex requests `auto` by default; other backends show no reasoning by default, and those whose
    models do not reason reject the parameter.
    """
    return "auto" if effort not in (None, "none") else None


# -- values of several shapes ----------------------------------------------------------------------


@frozen
class _JsonSchema:
    json_schema: OutputSchema


@structures(ResponseFormat)
def _response_format(value: object) -> ResponseFormat:
    forms = {"text": FreeText, "json_object": AnyObject, "json_schema": _JsonSchema}
    match by_type(value, forms):
        case _JsonSchema(schema):
            return ResponseFormat(schema=schema)
        case form:
            return ResponseFormat(json_object=isinstance(form, AnyObject))


@structures(Stop)
def _stop(value: object) -> Stop:
    if isinstance(value, str):
        sequences: tuple[str, ...] = (value,)
    elif is_list(value):
        sequences = made(value, tuple[str, ...])
    else:
        raise wanted(f"a string or an array of up to {MOST_STOPS} strings", value)
    if len(sequences) > MOST_STOPS:
        raise WrongError(f"must have at most {MOST_STOPS} sequences, not {len(sequences)}")
    if not all(0 < len(sequence) <= LONGEST_STOP for sequence in sequences):
        raise WrongError(f"must have sequences of 1 to {LONGEST_STOP} characters")
    return Stop(sequences)
