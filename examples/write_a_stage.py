"""Write a stage in five minutes: this one keeps e-mail addresses from reaching the client."""

import re
from collections.abc import Sequence

from attrs import evolve

from pipeline.assembly import Settings, recipe
from pipeline.events import Event, ReasoningDelta, TextDelta
from pipeline.stage import Stage

ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")


class RedactAddresses(Stage):
    """No address leaves, even if it arrives in pieces: a word is held until it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._held = TextDelta("")

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, ReasoningDelta):  # it may come in the middle of a word
            return (event,)
        if not isinstance(event, TextDelta):
            return [*self.close(), event]
        words, space, word = (self._held.text + event.text).rpartition(" ")
        self._held = evolve(event, text=word)
        return self.swap(event, evolve(event, text=ADDRESS.sub("[address]", words) + space))

    def close(self) -> Sequence[Event]:
        held, self._held = self._held, TextDelta("")
        return self.make(evolve(held, text=ADDRESS.sub("[address]", held.text)))


if __name__ == "__main__":
    pipeline = recipe(Settings()).insert_after("calls", "redact", RedactAddresses)
    words = [TextDelta(text) for text in ("Write to ann@exa", "mple.org or ", "call.")]
    print("".join(e.text for e in pipeline.process(words) if isinstance(e, TextDelta)))
