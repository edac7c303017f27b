"""Parameters for the answer's format, its length, and reasoning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from attrs import frozen

from pipeline.errors import refusal
from pipeline.formats.strict_schema import first_violation
from pipeline.loose_json import as_json, is_json
from pipeline.requests.shared.ignored import names_of, unread
from pipeline.requests.shared.structure import WrongError, by_type, exactly, structures, wanted
from pipeline.turn import OutputSchema

Verbosity: TypeAlias = Literal["low", "medium", "high"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Codex accepts any word; the model behind it rejects unknown ones."""
AS_JSON: Final = (
    "Answer with exactly one JSON object and nothing else: no words around it, no code fence."
)
MOST_PAIRS: Final = 16
LONGEST_KEY: Final = 64
LONGEST_VALUE: Final = 512


@frozen
class Form:
    """The format of the text: free, any JSON object, or JSON that follows a schema."""

    schema: OutputSchema | None = None
    json_object: bool = False

    def output_schema(self, param: str) -> OutputSchema | None:
        """The requested schema; `param` is its path in the request.

        ProxyError if it is to be strict but is not in the subset that models accept.
        """
        if self.schema is None or not self.schema.strict:
            return self.schema
        if found := first_violation(self.schema.schema):
            raise refusal(
                param,
                f"cannot be strict: at {found.place:.200}, {found.problem}; change the schema, or "
                "send strict: false",
                code="invalid_json_schema",
            )
        return self.schema


@frozen
class TextRequest:
    """The format and the length of the text."""

    format: Form | None = None
    verbosity: Verbosity | None = None

    @property
    def form(self) -> Form:
        return self.format or Form()


@frozen
class ReasoningRequest:
    """How much the model reasons, and how much of it is shown."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The old name of `summary`."""
    context: str | None = None
    """Which earlier reasoning the model sees; here it sees all that the client sends."""


@frozen
class Metadata:
    """The client's own key-value pairs."""

    pairs: Mapping[str, str]


@frozen
class Number:
    """Any number within bounds."""

    value: float


@frozen
class FreeText:
    """Any text."""


@frozen
class AnyObject:
    """Any JSON object."""


@structures(Form)
def _form(value: object) -> Form:
    forms = {"text": FreeText, "json_object": AnyObject, "json_schema": OutputSchema}
    match by_type(value, forms):
        case OutputSchema() as schema:
            return Form(schema=schema)
        case form:
            return Form(json_object=isinstance(form, AnyObject))


@structures(Number)
def _number(value: object) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wanted("a number", value)
    if not 0 <= value <= 2:
        raise WrongError("must be from 0 to 2")
    return Number(float(value))


@structures(Metadata)
def _metadata(value: object) -> Metadata:
    pairs: dict[str, object] = exactly(dict, value)
    if len(pairs) > MOST_PAIRS:
        raise WrongError(f"must have at most {MOST_PAIRS} pairs, not {len(pairs)}")
    kept: dict[str, str] = {}
    for key, one in pairs.items():
        if len(key) > LONGEST_KEY:
            raise WrongError(f"has a key of more than {LONGEST_KEY} characters: {key:.80}…")
        if not isinstance(one, str) or len(one) > LONGEST_VALUE:
            raise WrongError(f"must be a string of at most {LONGEST_VALUE} characters", f".{key}")
        kept[key] = one
    return Metadata(kept)


def text_without_effect(text: object) -> Iterator[str]:
    """The names within `text` that have no effect."""
    request = as_json(text)
    yield from unread(request, names_of(TextRequest), "text.")
    form = as_json(request.get("format"))
    if is_json(form) and form.get("type") == "json_schema":
        yield from unread(form, ("type", *names_of(OutputSchema)), "text.format.")
