"""Ids for calls: the model's own where it is usable, else one derived from the turn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_USABLE: Final = re.compile(r"[!-~]{1,64}")
"""What clients accept as an id: printable ASCII without spaces."""
_DIGEST_BYTES: Final = 12


class CallIds:
    """No id is given twice, nor one that the conversation already has.

    An id that is made depends on the seed, the choice and how many were made before it in that
    choice, so a turn that is replayed gets the same ones.
    """

    def __init__(self, seed: str = "", used: Iterable[str] = ()) -> None:
        self._seed = seed
        self._used = set(used)
        self._made: Counter[int] = Counter()

    def use(self, call_id: str) -> None:
        """Note an id that the backend gave."""
        self._used.add(call_id)

    def accept(self, wished: str) -> bool:
        """Take an id that the model wrote, if it is usable and not taken."""
        if _USABLE.fullmatch(wished) is None or wished in self._used:
            return False
        self._used.add(wished)
        return True

    def make(self, choice: int = 0) -> str:
        """An id for the next call of a choice."""
        while True:
            place = self._made[choice]
            self._made[choice] += 1
            text = f"{choice}.{place}.{self._seed}".encode("utf-8", "surrogatepass")
            made = f"call_{blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()}"
            if made not in self._used:
                self._used.add(made)
                return made
