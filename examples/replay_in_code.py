"""Replay a recorded turn in code and print the body a client would get."""

import json
from pathlib import Path

import trio

from pipeline.assembly import Settings, chat_options, recipe
from pipeline.turn import Tool, Turn
from sinks.chat import ChatJson
from sources.replay import Replay

TRANSCRIPT = Path(__file__).parent / "transcripts/codex-0.166.0/call-interrupted.jsonl"


async def main() -> None:
    settings = Settings.from_env()
    turn = Turn(model="gpt-5", tools=(Tool("localSearch"),))
    sink = ChatJson(chat_options(settings, turn))
    answer = await recipe(settings).run(Replay(TRANSCRIPT), sink, turn)
    print(json.dumps(answer.body["choices"][0], indent=2))


if __name__ == "__main__":
    trio.run(main)
