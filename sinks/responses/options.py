"""How one answer of the Responses API is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any
from uuid import uuid4

from attrs import field, frozen

from pipeline.formats.response_fields import repeated
from pipeline.loose_json import Json
from pipeline.turn import Tool


def unique_id(prefix: str) -> str:
    """An id that was never given before."""
    return f"{prefix}_{uuid4().hex}"


def numbered_ids() -> Callable[[str], str]:
    """Ids that are the same every time, for what is to be compared."""
    numbers = count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def _now() -> int:
    return int(time.time())


@frozen
class ResponsesOptions:
    """How one answer is written."""

    response_id: str = "resp_0"
    created: int = 0
    echo: Json = field(factory=dict[str, Any], converter=repeated)
    """What the response object repeats of the request; what it lacks gets its default."""
    tools: Mapping[str, Tool] = field(factory=dict[str, Tool])
    """The client's tools under the names that calls carry."""
    write_xml: bool = False
    delimiter: str = "\n"
    reasoning: bool = True
    include_encrypted: bool = False
    cut_mode: str = "burst"
    new_id: Callable[[str], str] = unique_id
    now: Callable[[], int] = _now
