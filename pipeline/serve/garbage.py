"""How often Python looks for garbage that counting references does not find."""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 20_000
"""So many new objects make it look: a request makes a few hundred, and leaves hardly any behind.

A look takes milliseconds while thousands of streams are open, in which no chunk moves.
"""


def look_less_often() -> None:
    """What there is by now stays, and need not be looked at again; what comes can wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)
