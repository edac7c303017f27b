"""Swap a stage of the pipeline for your own: here, calls of one tool are forwarded once."""

from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from pipeline.assembly import Settings, recipe
from pipeline.events import Event, ToolCall
from pipeline.stage import Stage
from pipeline.turn import Tool, Turn
from sources.replay import Replay

TRANSCRIPT = Path(__file__).parent / "transcripts/codex-0.166.0/burst-interrupted-after-last.jsonl"


class OncePerTool(Stage):
    """No tool is called twice in a turn; the calls that leave are numbered anew."""

    def __init__(self) -> None:
        super().__init__()
        self._called: list[str] = []

    def feed(self, event: Event) -> Sequence[Event]:
        if not isinstance(event, ToolCall):
            return (event,)
        if event.name in self._called:
            return self.drop(event, "this tool was called already")
        self._called.append(event.name)
        return self.swap(event, evolve(event, index=len(self._called) - 1))


if __name__ == "__main__":
    pipeline = recipe(Settings.from_env()).replace("dedup", OncePerTool)
    turn = Turn(tools=(Tool("localSearch"), Tool("readNote")))
    events = [event for burst in Replay(TRANSCRIPT).events() for event in burst]
    for event in pipeline.process(events, turn):
        print(event)
