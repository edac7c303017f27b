"""Ends the answers that still run when the server stops."""

from __future__ import annotations

from typing import Final

from pipeline.chain import Chain
from pipeline.errors import Failure

SHUTTING_DOWN: Final = Failure(
    "the server is shutting down; send the request again in a moment",
    status=503,
    type="server_error",
    code="server_is_overloaded",
    retry_after=5.0,
)


class RunningTurns:
    """The turns that run. When the server stops, each of them fails and says why."""

    def __init__(self) -> None:
        self.ended = False
        self._chains: set[Chain] = set()

    def add(self, chain: Chain) -> None:
        self._chains.add(chain)
        if self.ended:
            chain.fail(SHUTTING_DOWN)

    def discard(self, chain: Chain) -> None:
        self._chains.discard(chain)

    def end(self) -> None:
        """Fail all turns, and each that begins later."""
        self.ended = True
        for chain in list(self._chains):
            chain.fail(SHUTTING_DOWN)
