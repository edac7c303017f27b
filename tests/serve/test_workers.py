"""`serve --workers` as people start and stop it: the real command, the real Codex."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from pipeline.cli.main import main
from pipeline.loose_json import Json
from pipeline.workers.supervisor import MEMORY
from sources.demo.model import ScriptedModel
from tests.serve.asking import RESPONSES, wish
from tests.serve.scripted import CHAT, body
from tests.serve.test_command import Started, alive, asking, start, until_gone
from tests.support.fake_listening import fake_codex, pids

SOON = 10.0
TRIES = 200
"""So many connections reach both of two workers, or the kernel spreads nothing."""
TOOL: Json = {"type": "function", "function": {"name": "localSearch", "parameters": {}}}


def workers_of(server: Started) -> list[int]:
    return [pid for pid in server.children() if b"pipeline.workers.worker" in command(pid)]


def app_servers_of(server: Started) -> list[int]:
    words = {pid: command(pid).split(b"\0") for pid in server.children()}
    return [pid for pid, said in words.items() if b"app-server" in said and said[0] != b"/bin/sh"]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def files_of(pid: int) -> list[str]:
    return [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]


def logged(server: Started, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.err.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


async def until(happened: Callable[[], object]) -> None:
    with trio.fail_after(SOON):
        while not happened():  # noqa: ASYNC110  (text that grows, processes that come and go)
            await trio.sleep(0.01)


class Callers:
    """Two clients of one server, each with a connection to a worker of its own."""

    def __init__(self, server: Started, clients: dict[int, httpx.AsyncClient]) -> None:
        self.server = server
        self.one, self.other = (clients[worker] for worker in sorted(clients))


@asynccontextmanager
async def callers(server: Started) -> AsyncGenerator[Callers]:
    found: dict[int, httpx.AsyncClient] = {}
    url = f"http://127.0.0.1:{server.port}"
    for number in range(TRIES):
        client = httpx.AsyncClient(base_url=url, timeout=SOON, verify=False)  # noqa: S501
        name = f"which-{number}"
        await client.get("/v1/models/none", headers={"x-request-id": name})
        worker = await worker_of(server, name)
        if worker in found:
            await client.aclose()
        found.setdefault(worker, client)
        if len(found) == 2:
            break
    try:
        yield Callers(server, found)
    finally:
        for client in found.values():
            await client.aclose()


async def worker_of(server: Started, request_id: str) -> int:
    """The worker that answered a request."""

    def lines() -> list[int]:
        told = logged(server, "request")
        return [line["worker"] for line in told if line["request_id"] == request_id]

    await until(lines)
    return lines()[0]


async def said(client: httpx.AsyncClient, words: str = "Hello!", **more: Any) -> Any:
    answer = await client.post(CHAT, json=body(words, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


@asynccontextmanager
async def two(*flags: str, **env: str) -> AsyncGenerator[Started]:
    usual = {"PROXY_SHUTDOWN_GRACE_S": "0.2", **env}
    async with start("--demo", "--workers", "2", *flags, env=usual) as server:
        yield server


async def stop(server: Started) -> None:
    """Let it end: what runs may finish, and is ended properly if it does not."""
    everybody = server.children()
    hanging = [await asking(server, "HANG") for _ in range(4)]
    for one in hanging:
        await one.read_until(b'"Wait"')
    server.process.send_signal(signal.SIGTERM)
    for one in hanging:
        assert b"server_is_overloaded" in await one.read_until(b"[DONE]\n\n")
        await one.stream.aclose()
    assert await server.wait(SOON) == 0
    await until_gone(everybody)
    assert "Traceback" not in server.err
    assert server.err.count("press Ctrl-C again to stop") == 1


# -- serving ---------------------------------------------------------------------------------------


async def test_two_workers_share_one_app_server_one_store_and_what_they_know() -> None:
    async with two() as server:
        assert "2 processes" in server.out
        assert server.out.count("curl -N") == 1
        assert (len(workers_of(server)), len(app_servers_of(server))) == (2, 1)
        async with callers(server) as both:
            for client in (both.one, both.other):
                assert (await said(client))["content"] == "You said: Hello!"
            kept = (await both.one.post(RESPONSES, json=wish("Hello!"))).json()
            again = await both.other.get(f"{RESPONSES}/{kept['id']}")
            assert again.json() == kept
            await check_background(both)
            await check_follow_up(both)
            health = (await both.one.get("/healthz")).json()
            assert (health["status"], health["workers"]) == ("ok", 2)
            told = (await both.other.get("/metrics")).text
            counted = re.findall(r'proxy_requests_total{mode="json",.*worker="(\d)"}', told)
            assert set(counted) == {"1", "2"}
            assert 'what="initialize"' not in told
            assert (
                'proxy_rpc_messages_total{method="initialize",way="sent",worker="parent"}' in told
            )
        await stop(server)


async def check_background(both: Callers) -> None:
    """A response of one worker is shown and cancelled by the other."""
    begun = (await both.one.post(RESPONSES, json=wish("HANG", background=True))).json()
    path = f"{RESPONSES}/{begun['id']}"
    assert (await both.other.get(path)).json()["status"] in {"queued", "in_progress"}
    cancelled = (await both.other.post(f"{path}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert (await both.one.get(path)).json() == cancelled


async def check_follow_up(both: Callers) -> None:
    """The outputs of a held turn may come to the other worker, which gets the whole history."""
    asked = {"role": "user", "content": "ONECALL"}
    answer = await said(both.one, "ONECALL", tools=[TOOL])
    (call,) = answer["tool_calls"]
    output = {"role": "tool", "tool_call_id": call["id"], "content": "12 °C, rain"}
    more: Json = {"model": "gpt-5", "messages": [asked, answer, output], "tools": [TOOL]}
    followed = (await both.other.post(CHAT, json=more)).json()["choices"][0]["message"]
    assert "12 °C, rain" in followed["content"]


async def test_the_app_server_is_replaced_for_all_and_no_request_fails() -> None:
    async with two(CODEX_RECYCLE_TURNS="5") as server, callers(server) as both:
        (first,) = app_servers_of(server)

        async def keep_asking(client: httpx.AsyncClient) -> None:
            while len(logged(server, "app-server will be recycled")) < 2:
                assert (await said(client))["content"] == "You said: Hello!"

        with trio.fail_after(2 * SOON):
            async with trio.open_nursery() as nursery:
                for client in (both.one, both.other, both.one):
                    nursery.start_soon(keep_asking, client)
        await until_gone([first])
        assert not logged(server, "app-server exited and will be restarted")
        await stop(server)


async def test_workers_on_an_api_have_no_app_server_and_one_store_for_now() -> None:
    async with ScriptedModel().serving() as url:
        flags = ("--backend", f"{url}/responses", "--store", ":memory:", "--workers", "2")
        async with start(*flags, "--store-mb", "1") as server, callers(server) as both:
            assert (len(workers_of(server)), app_servers_of(server)) == (2, [])
            for worker in workers_of(server):
                (store,) = {file for file in files_of(worker) if file.endswith(".sqlite3")}
                assert store.startswith(MEMORY)
            kept = (await both.one.post(RESPONSES, json=wish("Hello!"))).json()
            assert (await both.other.get(f"{RESPONSES}/{kept['id']}")).json() == kept
            server.process.send_signal(signal.SIGTERM)
            assert await server.wait(SOON) == 0
    assert "Traceback" not in server.err


async def test_two_app_servers_are_a_pool_for_both_workers(tmp_path: Path) -> None:
    env = {"CODEX_BIN": fake_codex(tmp_path), "CODEX_APP_SERVER": "stdio,stdio"}
    env |= {"HOME": str(tmp_path), "PROXY_STORE": ":memory:"}
    async with start("--workers", "2", env=env) as server, callers(server) as both:
        assert len(pids(tmp_path)) == 2
        for client in (both.one, both.other):
            assert (await said(client))["content"] == "You said: Hello!"
        everybody = server.children()
        assert set(pids(tmp_path)) < set(everybody)
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait(SOON) == 0
        await until_gone(everybody)
    assert "Traceback" not in server.err


# -- what dies -------------------------------------------------------------------------------------


async def test_a_worker_that_dies_is_started_again_and_what_it_made_has_failed() -> None:
    async with two() as server, callers(server) as both:
        begun = (await both.one.post(RESPONSES, json=wish("HANG", background=True))).json()
        path = f"{RESPONSES}/{begun['id']}"
        assert (await both.other.get(path)).json()["status"] in {"queued", "in_progress"}
        (first,) = (line for line in logged(server, "a worker is ready") if line["worker"] == 1)
        os.kill(first["pid"], signal.SIGKILL)
        await until(lambda: logged(server, "a worker exited and will be restarted"))
        left = (await both.other.get(path)).json()
        assert (left["status"], left["error"]["code"]) == ("failed", "server_error")
        assert (await said(both.other))["content"] == "You said: Hello!"
        await until(lambda: len(logged(server, "a worker is ready")) == 3)
        assert len(workers_of(server)) == 2
        (line,) = logged(server, "a worker exited and will be restarted")
        assert (line["worker"], line["reason"]) == (1, "it exited with status -9")
        async with callers(server) as again:
            assert (await said(again.one))["content"] == "You said: Hello!"
            await check_death_of_the_app_server(again)
        await stop(server)


async def check_death_of_the_app_server(both: Callers) -> None:
    """Its turns fail, without its private address, and it is started again for all."""
    hanging = await asking(both.server, "HANG")
    await hanging.read_until(b'"Wait"')
    (killed,) = app_servers_of(both.server)
    os.kill(killed, signal.SIGKILL)
    rest = await hanging.read_until(b"[DONE]\n\n")
    assert b"server_is_overloaded" in rest
    assert b".sock" not in rest
    await hanging.stream.aclose()
    for client in (both.one, both.other):
        assert (await said(client))["content"] == "You said: Hello!"
    assert app_servers_of(both.server) != [killed]


async def test_a_silent_worker_delays_others_only_briefly_and_loses_nothing() -> None:
    async with two() as server, callers(server) as both:
        begun = (await both.one.post(RESPONSES, json=wish("HANG", background=True))).json()
        path = f"{RESPONSES}/{begun['id']}"
        (first,) = (line for line in logged(server, "a worker is ready") if line["worker"] == 1)
        os.kill(first["pid"], signal.SIGSTOP)
        try:
            with trio.fail_after(SOON):
                shown = await both.other.get(path)
                assert shown.json()["status"] in {"queued", "in_progress"}
                assert (await both.other.get(f"{RESPONSES}/resp_none")).status_code == 404
                assert (await both.other.post(RESPONSES, json=wish("Hello!"))).status_code == 200
            for method, where in (("POST", f"{path}/cancel"), ("DELETE", path)):
                with trio.fail_after(SOON):
                    assert (await both.other.request(method, where)).status_code == 503
        finally:
            os.kill(first["pid"], signal.SIGCONT)
        with trio.fail_after(SOON):
            while (await both.other.delete(path)).status_code == 503:  # noqa: ASYNC110
                await trio.sleep(0.05)
        for client in (both.one, both.other):
            assert (await client.get(path)).status_code == 404
        await stop(server)


async def test_nothing_outlives_a_parent_that_is_killed() -> None:
    async with two() as server:
        everybody = server.children()
        assert sum(map(alive, everybody)) >= 4, "workers, an app-server, and who watches over it"
        server.process.send_signal(signal.SIGKILL)
        await until_gone(everybody)


# -- the end ---------------------------------------------------------------------------------------


async def test_a_second_signal_ends_all_of_it_at_once() -> None:
    async with two(PROXY_SHUTDOWN_GRACE_S="600") as server:
        everybody = server.children()
        hanging = await asking(server, "HANG")
        await hanging.read_until(b'"Wait"')
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: "press Ctrl-C again" in server.err)
        server.process.send_signal(signal.SIGINT)
        assert await server.wait(6) == 0
        await hanging.stream.aclose()
        await until_gone(everybody)
    assert "Traceback" not in server.err


async def test_a_signal_while_the_workers_start_ends_them_too(tmp_path: Path) -> None:
    mute = tmp_path / "codex"
    mute.write_text("#!/bin/sh\nexec sleep 600\n")
    mute.chmod(0o700)
    env = {"CODEX_BIN": str(mute), "HOME": str(tmp_path)}
    async with start("--workers", "2", env=env, banner=False) as server:
        await until(lambda: len(logged(server, "starting app-server")) == 3)
        everybody = server.children()
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait(6) == 0
        await until_gone(everybody)
    assert server.out == ""
    assert "Traceback" not in server.err


# -- what cannot be --------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", "--workers", "2", *arguments]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("pipeline: ")]
    assert (out, len(lines)) == ("", 1)
    assert "Traceback" not in err
    return lines[0]


def test_a_port_in_use_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = refusal(capsys, "--demo", "--port", str(taken.getsockname()[1]))
    assert "cannot be listened on: Address already in use" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--demo", "--dump-events", "/nowhere/at/all"], "CODEX_DUMP_SSE=/nowhere/at/all cannot"),
        (["--demo", "--dump-events", "/nowhere/\udcff"], "CODEX_DUMP_SSE=/nowhere/? cannot"),
        (["--demo", "--store", "/dev/null/store"], "PROXY_STORE=/dev/null/store cannot be used"),
        (["--codex-app-server", "tcp://x"], "CODEX_APP_SERVER must be stdio"),
        (["--codex-bin", "no-such-codex"], "CODEX_BIN=no-such-codex: no such program"),
    ],
)
def test_workers_report_an_unusable_setting_as_one_process_does(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refusal(capsys, "--port", "0", *arguments)


def test_a_temporary_folder_with_too_long_a_name_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    line = refusal(capsys, "--demo", "--port", "0")
    assert "is too long for this system" in line
    assert "set TMPDIR to a shorter folder" in line


def test_without_a_login_it_says_how_to_log_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CODEX_HOME", "OPENAI_API_KEY", "CODEX_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert "codex login" in refusal(capsys, "--port", "0")


@pytest.mark.parametrize("number", ["0", "65"])
def test_too_many_workers_and_none_are_refused(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--workers", number]) == 2
    assert f"PROXY_WORKERS must be 1 to 64 (got {number}); more workers" in capsys.readouterr().err
