"""A Chat Completions request, and the Turn it asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Literal

from attrs import evolve, field, frozen

from pipeline.errors import refusal
from pipeline.loose_json import Json, as_json, is_json, is_list
from pipeline.requests.chat.conversation import conversation
from pipeline.requests.chat.messages import Message
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
    """How the model thinks, in the words of the Responses API, which many clients use here too."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None


@frozen
class ResponseFormat(Form):
    """The form of the answer, which a chat request writes with one more level."""


@frozen
class Stop:
    """The sequences that end an answer."""

    sequences: tuple[str, ...] = ()


@frozen
class ChatRequest:
    """A request whose every field is of the right kind.

    `turn` puts the fields together, and refuses those that do not fit each other.
    """

    model: str = Turn().model
    messages: tuple[Message, ...] = ()
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
    """The parameters that were given and have no effect, in the order they came."""

    def __attrs_post_init__(self) -> None:
        if not self.model:
            raise WrongError("is empty; it must be the name of a model", ".model")
        if not 1 <= self.n <= MOST_CHOICES:
            raise WrongError(f"must be from 1 to {MOST_CHOICES}", ".n")

    @classmethod
    def from_json(
        cls, body: object, *, partial: bool = False, without_effect: Collection[str] = ()
    ) -> ChatRequest:
        """Check and structure a decoded body; ProxyError names the field that is wrong.

        A `partial` request needs no model and no messages: enough to replay an answer with.
        Fields that the backend has no use for are named in `without_effect`.
        """
        given = body
        if is_json(body):  # null stands for a parameter that is not given
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
        """Where a tool is asked to be strict: without effect on a backend that has no such wish."""
        nested = {f"tools[{at}].function": tool.function for at, tool in enumerate(self.tools)}
        legacy = {f"functions[{at}]": one for at, one in enumerate(self.functions)}
        declared = legacy if self._legacy else nested
        return tuple(f"{place}.strict" for place, spec in declared.items() if spec and spec.strict)

    def turn(
        self, settings: RequestOptions | None = None, *, output_mode: OutputMode | None = None
    ) -> Turn:
        """One answer's worth of this request; ProxyError where its fields do not fit together."""
        settings = settings or RequestOptions()
        said = conversation(self.messages, system=not settings.ignore_client_system_prompt)
        offered = self._offer()
        effort = self.reasoning_effort or self.reasoning.effort
        form = [AS_JSON] if self.response_format.json_object else []
        return Turn(
            model=self.model,
            instructions="\n\n".join(filter(None, [said.instructions, *form])),
            items=said.items,
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
        """Whether the request speaks of functions, and means to be answered so."""
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

    def _without_effect(self, given: Json, of_no_use: Collection[str]) -> Iterator[str]:
        """The names in `given` that nothing reads, here or in the backend, in their order."""
        read = set(names_of(ChatRequest)).difference(of_no_use)
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
    """Whoever asks for effort asks a model that reasons, and can be shown how.

    Of its own accord Codex asks for `auto` too; other backends keep their reasoning to themselves,
    and those whose models do not reason refuse to be asked.
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
        raise WrongError(f"holds a sequence that has not from 1 to {LONGEST_STOP} characters")
    return Stop(sequences)
