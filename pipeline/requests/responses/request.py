"""A Responses request, checked and turned into a Turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, Self

from attrs import evolve, field, frozen

from pipeline.errors import refusal
from pipeline.loose_json import Json, as_json, is_json
from pipeline.requests.responses import references
from pipeline.requests.responses.echo import echo, shown
from pipeline.requests.responses.history import declared_within, history, latest_effort, placed
from pipeline.requests.responses.input_items import structured_items
from pipeline.requests.responses.items import Input, LeftOut, MoreTools, Trigger, Update
from pipeline.requests.responses.tool_choice import RequestedChoice
from pipeline.requests.responses.tools import Declared, hosted, strict, toolbox
from pipeline.requests.shared.answer_form import (
    AS_JSON,
    Metadata,
    Number,
    ReasoningRequest,
    TextRequest,
    text_without_effect,
)
from pipeline.requests.shared.ignored import listed, names_of, unread
from pipeline.requests.shared.options import RequestOptions
from pipeline.requests.shared.structure import OMIT, WrongError, structured
from pipeline.requests.shared.tools import chosen
from pipeline.turn import OutputMode, Turn

SEALED_REASONING: Final = "reasoning.encrypted_content"
_HONOURED: Final = frozenset({SEALED_REASONING, "message.input_image.image_url"})
"""The supported values of include. URLs of images are shown in any case."""
_ELSEWHERE: Final = {
    "conversation": "previous_response_id, or the whole conversation as input",
    "prompt": "instructions and input",
}
"""Parameters that refer to text stored elsewhere, and what to send instead."""
_BOOKKEEPING: Final = frozenset(
    {
        "client_metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Parameters that do not change the answer; the response repeats those that it has a field for."""


@frozen
class ResponsesRequest:
    """A request whose fields all have the right type.

    `turn` combines them, and rejects fields that contradict each other. Items that stand for
    others must be replaced first: `references` with `resolved`, `compactions` with `opened`.
    """

    model: str = Turn().model
    input: Input = Input()
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool = True
    background: bool = False
    metadata: Metadata = Metadata({})
    include: tuple[str, ...] = ()
    tools: tuple[Declared, ...] = ()
    tool_choice: RequestedChoice = RequestedChoice()
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextRequest = TextRequest()
    reasoning: ReasoningRequest = ReasoningRequest()
    truncation: Literal["auto", "disabled"] = "disabled"
    temperature: Number | None = None
    top_p: Number | None = None
    top_logprobs: int | None = None
    max_output_tokens: int | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    given: Json = field(factory=dict[str, Any], metadata=OMIT)
    """The body without its nulls."""
    ignored: tuple[str, ...] = field(default=(), metadata=OMIT)
    """The parameters in the request that have no effect, in order."""

    def __attrs_post_init__(self) -> None:
        if not self.model:
            raise WrongError("is empty; it must be the name of a model", ".model")
        if self.previous_response_id == "":
            raise WrongError("is empty; it must be the id of a response", ".previous_response_id")
        if self.max_tool_calls is not None and self.max_tool_calls < 1:
            raise WrongError("must be at least 1", ".max_tool_calls")
        if self.background and not self.store:
            raise WrongError(
                "is true, but store is false; a background response must be stored to be "
                "found again",
                ".background",
            )
        for number, item in enumerate(self.input.items[:-1]):
            if isinstance(item.what, Trigger):
                raise WrongError(
                    "is a compaction_trigger; it must be the last item", f".input[{number}]"
                )

    @classmethod
    def from_json(cls, body: object, *, partial: bool = False) -> Self:
        """Check and structure a decoded body; ProxyError names the wrong field.

        A `partial` request needs no model and no input, which suffices for a replay.
        """
        given = body
        if is_json(body):  # null means that a parameter is not given
            given = {name: one for name, one in body.items() if one is not None or name == "model"}
        request = structured(given, cls)
        given = as_json(given)
        for name, instead in _ELSEWHERE.items():
            if name in given:
                raise refusal(name, f"refers to data that is not stored here; send {instead}")
        if not partial:
            _check_enough(given)
        request = evolve(request, given=given)
        return evolve(request, ignored=listed(request._without_effect()))  # noqa: SLF001

    @property
    def strict_tools(self) -> tuple[str, ...]:
        """Where the request sets strict on a tool, which some backends ignore."""
        within = {
            f"input[{number}].tools": item.what.tools
            for number, item in enumerate(self.input.items)
            if isinstance(item.what, MoreTools)
        }
        lists = {"tools": self.tools, **within}
        return tuple(name for place, tools in lists.items() for name in strict(place, tools))

    # -- items that stand for others -------------------------------------------------------------

    @property
    def references(self) -> tuple[str, ...]:
        """The ids of the items that the input refers to."""
        return references.references(self.input)

    def resolved(self, found: Mapping[str, Json]) -> Self:
        """The request with references replaced by the items; ProxyError if one is not found."""
        return evolve(self, input=references.resolved(self.input, found))

    @property
    def compactions(self) -> tuple[str, ...]:
        """The sealed contents of the compactions in the input."""
        return references.compactions(self.input)

    def opened(self, found: Mapping[str, Sequence[Json]]) -> Self:
        """The request with compactions replaced by what they stand for, by sealed content.

        ProxyError if one is not found.
        """
        return evolve(self, input=references.opened(self.input, found))

    @property
    def wants_compaction(self) -> bool:
        """Whether the conversation is to be shortened and not answered."""
        return bool(self.input.items) and isinstance(self.input.items[-1].what, Trigger)

    # -- the turn --------------------------------------------------------------------------------

    def items(
        self, earlier: Sequence[Json] = (), settings: RequestOptions | None = None
    ) -> tuple[Json, ...]:
        """The conversation in the backend's form, earlier responses included."""
        return self.turn(settings, earlier=earlier).items

    def turn(
        self,
        settings: RequestOptions | None = None,
        *,
        earlier: Sequence[Json] = (),
        output_mode: OutputMode | None = None,
    ) -> Turn:
        """The requested turn; ProxyError if the fields contradict each other.

        `earlier` is the conversation that `previous_response_id` stands for, as clients see it.
        """
        settings = settings or RequestOptions()
        items = placed(self.input.items, structured_items(earlier))
        tools = toolbox({**declared_within(items), "tools": self.tools})
        offered = chosen(tools.by_name, self.tool_choice.among(tools))
        system = not settings.ignore_client_system_prompt
        said = history(items, tools, system=system)
        if not said.items and (items or self.previous_response_id):
            raise refusal("input", "has no message; send at least one")
        own = [self.instructions or ""] if system else []
        form = [AS_JSON] if self.text.form.json_object else []
        return Turn(
            model=self.model,
            instructions="\n\n".join(filter(None, [*own, said.instructions, *form])),
            items=said.items,
            tools=offered.tools,
            tool_choice=offered.choice,
            effort=latest_effort(items) or self.reasoning.effort,
            summary=self.reasoning.summary or self.reasoning.generate_summary,
            output_schema=self.text.form.output_schema("text.format.schema"),
            base_instructions=settings.base_instructions or None,
            parallel_tool_calls=settings.calls_in_parallel(self.parallel_tool_calls),
            output_mode=output_mode,
            stream=self.stream,
            max_tool_calls=self.max_tool_calls,
            verbosity=self.text.verbosity,
            prompt_cache_key=self.prompt_cache_key,
        )

    @property
    def wants_sealed_reasoning(self) -> bool:
        """Whether the client requested reasoning in a form that it can send back."""
        return SEALED_REASONING in self.include

    def echo(self) -> dict[str, Any]:
        """The request's fields as the response repeats them."""
        return echo(self.given)

    def input_items(self) -> list[Json]:
        """The input as it is stored and shown: every item has an id, which stays the same."""
        return [*self._shown]

    @cached_property
    def _shown(self) -> tuple[Json, ...]:
        items = self.input.items
        return tuple(shown(item.given) for item in items if not isinstance(item.what, Trigger))

    def _without_effect(self) -> Iterator[str]:
        """The given names that have no effect, in order."""
        no_effect = {"temperature", "top_p", "top_logprobs", "max_output_tokens", "truncation"}
        read = ({*names_of(ResponsesRequest)} | _BOOKKEEPING) - no_effect - {"service_tier"}
        for name, value in self.given.items():
            match name:
                case "tools":
                    yield from hosted(name, self.tools)
                case "input":
                    yield from self._items_without_effect()
                case "tool_choice" if self.tool_choice.hosted:
                    yield name
                case "include":
                    yield from (f"{name}.{one}" for one in self.include if one not in _HONOURED)
                case "text":
                    yield from text_without_effect(value)
                case "reasoning":
                    yield from unread(as_json(value), names_of(ReasoningRequest), f"{name}.")
                case "stream_options":
                    yield from unread(as_json(value), (), f"{name}.")
                case _:
                    yield from unread({name: value}, read)

    def _items_without_effect(self) -> Iterator[str]:
        for number, item in enumerate(self.input.items):
            match item.what:
                case MoreTools(tools):
                    yield from hosted(f"input[{number}].tools", tools)
                case LeftOut(kind):
                    yield f"input[{number}].{kind}"
                case Update(text=text) if text:
                    yield f"input[{number}].text"
                case _:
                    continue


def _check_enough(given: Json) -> None:
    if "model" not in given:
        raise refusal("model", "is missing; a request needs a model and input")
    if "previous_response_id" in given:
        return
    if "input" not in given:
        raise refusal("input", "is missing; a request needs a model and input")
    if given["input"] == []:
        raise refusal("input", "is empty; send at least one item")


@frozen
class CompactRequest(ResponsesRequest):
    """A request to shorten a conversation; it has the same fields."""

    @property
    def wants_compaction(self) -> bool:
        return True
