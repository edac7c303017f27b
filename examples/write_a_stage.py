"""Write a stage in five minutes: this one keeps e-mail addresses from reaching the client."""

import re
from collections.abc import Sequence

from attrs import evolve

from pipeline.events import Event, TextDelta
from pipeline.settings import Settings
from pipeline.stage import Stage

ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")


class RedactAddresses(Stage):
    """No address leaves, even if it arrives in pieces: a word is held until it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._held: TextDelta | None = None

    def feed(self, event: Event) -> Sequence[Event]:
        if not isinstance(event, TextDelta):
            return [*self.close(), event]
        text = (self._held.text if self._held else "") + event.text
        ended = max(text.rfind(" "), text.rfind("\n")) + 1
        self._held = evolve(event, text=text[ended:])
        return self.swap(event, evolve(event, text=ADDRESS.sub("[address]", text[:ended])))

    def close(self) -> Sequence[Event]:
        held, self._held = self._held, None
        return self.make(evolve(held, text=ADDRESS.sub("[address]", held.text))) if held else ()


if __name__ == "__main__":
    recipe = Settings().pipeline().insert_after("calls", "redact", RedactAddresses)
    pieces = [TextDelta("Write to ann@exa"), TextDelta("mple.org or "), TextDelta("call.")]
    print("".join(e.text for e in recipe.process(pieces) if isinstance(e, TextDelta)))
