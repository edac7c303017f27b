"""The frame: everything that a stage, a source or a sink is written with.

A turn is one request for one answer. Its events come from a source, pass stages, and are encoded by
a sink:

    client ──HTTP──▶ server ──Turn──▶ ┌──────────── one trio nursery per request ────────────┐
                                      │ source ═▶ stage ═▶ stage ═▶ … ═▶ stage ═▶ sink        │
    codex app-server ◀──JSON-RPC───── │                                            └─▶ bytes  │
                                      └──────────────────────────────────────────────────────┘

Everything that runs is something to receive from: an opened source is one, a segment (a run of
stages on top of another) is one, and the end of a channel is one. The writer of the answer asks
the last of them for the next burst of events, feeds it to the sink and writes the bytes. So the
client's pace pulls everything and nothing is pushed.

- `Stage`: pure and synchronous. `feed(event)` returns the events that go on.
- `AsyncStage`: the rarer kind, for a stage that must await; it owns a loop.
- `Pipeline`: a named, editable recipe of stages, and the ways to run it.
- `Source`, `Sink`: where events come from, and what is made of them.
- `events`: the kinds of events. `Turn`: what the client asked for.

`pipeline.assembly` puts the server's own parts together and imports everything; nothing here does.
"""

from pipeline import events
from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import AsyncStage, Incoming, Sink, Source, Stage
from pipeline.tasks import SendingSource
from pipeline.turn import Tool, Turn

__all__ = [
    "AsyncStage",
    "Burst",
    "Event",
    "Failure",
    "Incoming",
    "Ledger",
    "Pipeline",
    "ProxyError",
    "SendingSource",
    "Sink",
    "Source",
    "Stage",
    "Tool",
    "Turn",
    "events",
]
