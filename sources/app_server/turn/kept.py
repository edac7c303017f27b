"""Threads that are kept for the next request of their conversation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

import trio
from attrs import Factory, define, field, frozen

from pipeline.events import Burst
from pipeline.options import DAY
from pipeline.options import backend_flag as flag
from pipeline.turn import Turn
from sources.app_server.turn.meaning import Call, answered, digest, digests, without_outputs
from sources.app_server.turn.session import Session


@define
class KeptThread:
    """A thread, whose it is, what was said on it, and the calls whose outputs it waits for."""

    session: Session
    turn: Turn
    """The request that was answered last; its owner is the thread's."""
    text: str
    """All that the model said in that answer."""
    calls: tuple[Call, ...]
    text_before_calls: str = ""
    """The same without the narration behind its last call, which a client may not be given."""
    response_open: bool = False
    """Whether the response that made the calls was not seen to end."""
    late: Burst = ()
    """Calls that came when their answer had ended: the next one begins with them."""
    expiry: trio.CancelScope = Factory(trio.CancelScope)
    digests: frozenset[bytes] = field(init=False)
    """The conversation in each form in which the client may repeat it: it may leave out what was
    said beside the calls, or was not given all of it."""

    def __attrs_post_init__(self) -> None:
        texts = {self.text, self.text_before_calls, ""}
        endings = [answered(text, self.calls) for text in texts]
        self.digests = digests(self.turn, self.turn.items, endings)

    def waits_for(self, outputs: Collection[str]) -> bool:
        """Whether these are the calls whose outputs it waits for, no more and no fewer."""
        return set(outputs) == {call.call_id for call in self.calls}


@frozen(slots=False)
class HoldOptions:
    """Whether turns are held for their follow-ups, how many, and for how long."""

    codex_hold_turns: bool = flag(
        "CODEX_HOLD_TURNS",
        True,
        "keep a turn open while the client runs its tools, and continue it with their outputs",
    )
    codex_hold_turns_max: int = flag(
        "CODEX_HOLD_TURNS_MAX",
        64,
        "how many turns are held at once; 0 means none",
        bounds=(0, 10_000),
    )
    codex_hold_turns_time: float = flag(
        "CODEX_HOLD_TURNS_S",
        600.0,
        "how long a turn is held",
        bounds=(1, DAY),
    )


@frozen
class KeepOptions:
    """How many threads are kept at once, and for how long; none at all if `most` is 0."""

    most: int = 64
    seconds: float = 600.0


class KeptThreads:
    """Bounded in number and time: the one unused for longest is let go first.

    A request continues a thread only if its owner asks, if it repeats by meaning exactly what was
    said there, and if it brings the outputs of exactly the calls that wait for them: then the
    backend needs no second prefill, and the model reads its own words.
    """

    def __init__(self, options: KeepOptions | None = None) -> None:
        self._options = options or KeepOptions()
        self._kept: OrderedDict[int, KeptThread] = OrderedDict()
        """In the order they came, by identity."""
        self._by_digest: dict[bytes, KeptThread] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def enabled(self) -> bool:
        return self._options.most > 0

    def keep(self, kept: KeptThread) -> None:
        """Keep a thread until its follow-up comes, its time is over, or others need its place."""
        for replaced in filter(None, map(self._by_digest.get, kept.digests)):
            self._release(replaced)
        self._kept[id(kept)] = kept
        self._by_digest |= dict.fromkeys(kept.digests, kept)
        while len(self._kept) > self._options.most:
            self._release(next(iter(self._kept.values())))
        kept.session.place.nursery.start_soon(self._expire, kept)

    async def _expire(self, kept: KeptThread) -> None:
        try:
            with kept.expiry:
                await trio.sleep(self._options.seconds)
        finally:  # its time is over, or its backend is gone and this task with it
            expired = id(kept) in self._kept
            if expired:
                self._forget(kept)
        if expired:
            await kept.session.let_go()

    def take(self, turn: Turn) -> tuple[KeptThread, dict[str, Any]] | None:
        """The thread that a request continues, and the outputs it brings, if there is one."""
        if not self._kept:
            return None
        before, outputs = without_outputs(turn.items)
        kept = self._by_digest.get(digest(turn, before)) if outputs else None
        if kept is None or not kept.session.alive or not kept.waits_for(outputs):
            return None
        self._forget(kept)
        kept.expiry.cancel()
        return kept, outputs

    def _release(self, kept: KeptThread) -> None:
        self._forget(kept)
        kept.expiry.cancel()
        kept.session.place.nursery.start_soon(kept.session.let_go)

    def _forget(self, kept: KeptThread) -> None:
        del self._kept[id(kept)]
        for known in kept.digests:
            del self._by_digest[known]
