"""A turn with a tool on the real Codex, with the built-in model behind it: no login, no network."""

import trio
from attrs import evolve

from pipeline.assembly import Settings, chat_options, recipe
from pipeline.cli.logs import warnings_to_stderr
from pipeline.turn import Tool, Turn
from sinks.chat import ChatJson
from sources.app_server.process.pool import BackendOptions, Pool, open_pool
from sources.app_server.turn.source import AppServerSource
from sources.demo.model import ScriptedModel
from sources.demo.provider import scripted_provider


async def ask(backend: Pool, turn: Turn) -> dict[str, object]:
    source, sink = AppServerSource(backend), ChatJson(chat_options(Settings(), turn))
    answer = await recipe(Settings()).run(source, sink, turn)
    return answer.body["choices"][0]["message"]  # type: ignore[no-any-return]


async def main() -> None:
    async with (
        ScriptedModel().serving() as url,
        open_pool(BackendOptions(overrides=scripted_provider(url))) as backend,
    ):
        said = {"type": "message", "role": "user", "content": "What is the weather in Oslo?"}
        turn = Turn(model="gpt-5", items=(said,), tools=(Tool("weather"),))
        print("the model calls:", (await ask(backend, turn))["tool_calls"])
        call = {"type": "function_call", "call_id": "call_demo", "name": "weather"}
        result = {"type": "function_call_output", "call_id": "call_demo", "output": "12 °C, rain"}
        follow_up = evolve(turn, items=(said, call | {"arguments": "{}"}, result))
        print("the model says:", (await ask(backend, follow_up))["content"])


if __name__ == "__main__":
    warnings_to_stderr()
    trio.run(main)
