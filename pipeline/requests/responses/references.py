"""Items that stand for others: references to stored items, and sealed compactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve

from pipeline.errors import refusal
from pipeline.loose_json import Json
from pipeline.requests.responses.input_items import structured_items
from pipeline.requests.responses.items import Compaction, Input, Reference

COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})


def references(given: Input) -> tuple[str, ...]:
    """The ids of the items that an input refers to."""
    return tuple(item.what.id for item in given.items if isinstance(item.what, Reference))


def resolved(given: Input, found: Mapping[str, Json]) -> Input:
    """The input with references replaced by the items; ProxyError if one is not found."""
    items = list(given.items)
    for number, item in enumerate(items):
        if isinstance(item.what, Reference):
            if item.what.id not in found:
                raise refusal(
                    f"input[{number}].id",
                    f"is {item.what.id!r:.100}, an item that is not stored here; send the "
                    "item itself",
                )
            (items[number],) = structured_items([found[item.what.id]])
    return Input(tuple(items))


def compactions(given: Input) -> tuple[str, ...]:
    """The sealed contents of the compactions in an input."""
    sealed = (item.what for item in given.items if isinstance(item.what, Compaction))
    return tuple(one.encrypted_content for one in sealed)


def opened(given: Input, found: Mapping[str, Sequence[Json]]) -> Input:
    """The input with compactions replaced by what they stand for, by sealed content.

    ProxyError if one is not found.
    """
    items = list(given.items)
    for number, item in enumerate(items):
        if isinstance(item.what, Compaction):
            if item.what.encrypted_content not in found:
                raise refusal(
                    f"input[{number}].encrypted_content",
                    "cannot be decrypted: it was sealed elsewhere, for another caller, or altered",
                )
            within = structured_items(found[item.what.encrypted_content])
            items[number] = evolve(item, opened=tuple(one.what for one in within))
    return Input(tuple(items))


# -- in a stored conversation ----------------------------------------------------------------------


def sealed_in(items: Sequence[Json]) -> tuple[str, ...]:
    """The sealed contents of the compactions among stored items."""
    return tuple(item["encrypted_content"] for item in items if item.get("type") in COMPACTIONS)


def with_opened(items: Sequence[Json], found: Mapping[str, Sequence[Json]]) -> Iterator[Json]:
    """Stored items with compactions replaced by what they stand for, where found."""
    for item in items:
        if item.get("type") in COMPACTIONS and item["encrypted_content"] in found:
            yield from found[item["encrypted_content"]]
        else:
            yield item
