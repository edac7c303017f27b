"""The newest real Codex behind WebSockets: TCP and unix sockets, tokens, and pools of them."""

from __future__ import annotations

import gc
import json
import ssl
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, TypeAlias

import pytest
import trio
import trustme
from attrs import evolve

from pipeline.errors import ProxyError
from pipeline.turn import Tool, Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.hermetic import Confinement
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.patience import Patience
from sources.app_server.process.pool import Pool, open_pool
from sources.demo.model import ScriptedModel

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Said: TypeAlias = Callable[..., Turn]
Until: TypeAlias = Callable[[Callable[[], bool]], Awaitable[None]]
Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[int]]

TOOLS = (Tool("localSearch"), Tool("readNote"))
IMPATIENT = Patience(handshake=3.0, first_pause=0.05, longest_pause=0.2)


@pytest.fixture
def version() -> str:
    return "0.166.0"


@pytest.fixture(autouse=True)
def everything_is_closed() -> Iterator[None]:
    """A socket left open is found here, and not in whichever test comes next."""
    yield
    gc.collect()


def free_port() -> int:
    with socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def is_up(listen: str) -> bool:
    """Whether a server listens there."""
    try:
        if listen.startswith("unix://"):
            stream: trio.SocketStream = await trio.open_unix_socket(listen.removeprefix("unix://"))
        else:
            host, _, port = listen.removeprefix("ws://").partition(":")
            stream = await trio.open_tcp_stream(host, int(port))
    except OSError:
        return False
    async with stream:
        return True


@pytest.fixture
def serve(codex: str, overrides: dict[str, str], tmp_path: Path) -> Serve:
    """Runs an app-server that listens somewhere, until it is no longer needed."""

    @asynccontextmanager
    async def serving(listen: str, *more: str) -> AsyncGenerator[int]:
        home, workspace = tmp_path / "home", tmp_path / "workspace"
        home.mkdir(exist_ok=True)
        workspace.mkdir(exist_ok=True)
        confined = Confinement(home=home, workspace=workspace, overrides=overrides)
        process = await trio.lowlevel.open_process(
            [*confined.command(codex, listen=listen), *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=confined.environment(),
            cwd=str(workspace),
        )
        try:
            with trio.fail_after(20):
                while not await is_up(listen):
                    assert process.poll() is None, "it ended at once"
                    await trio.sleep(0.02)
            yield process.pid
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    return serving


async def text_and_burst(backend: Pool, ask: Ask, said: Said) -> None:
    answer = await ask(backend, said("TEXT"))
    assert answer.body["choices"][0]["message"]["content"] == "Hello, wörld 🌍!"
    burst = await ask(backend, said("BURST", tools=TOOLS))
    calls = burst.body["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["call_a", "call_b", "call_c"]


async def test_turns_run_over_a_tcp_socket(serve: Serve, ask: Ask, said: Said) -> None:
    address = f"ws://127.0.0.1:{free_port()}"
    async with serve(address), open_pool(BackendOptions(addresses=(address,))) as backend:
        await text_and_burst(backend, ask, said)


async def test_turns_run_over_a_unix_socket(
    serve: Serve, ask: Ask, said: Said, tmp_path: Path
) -> None:
    address = f"unix://{tmp_path / 'codex.sock'}"
    async with serve(address), open_pool(BackendOptions(addresses=(address,))) as backend:
        await text_and_burst(backend, ask, said)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.usefixtures("home")
async def test_the_mcp_tools_of_a_remote_codex_are_offered_only_if_enabled(
    serve: Serve, ask: Ask, said: Said, model: ScriptedModel, wanted: bool
) -> None:
    address = f"ws://127.0.0.1:{free_port()}"
    options = BackendOptions(addresses=(address,), mcp_servers=wanted, mcp_tools=wanted)
    async with serve(address), open_pool(options) as backend:
        await ask(backend, said("TEXT"))
    assert ("mcp__shouter" in json.dumps(model.requests)) == wanted


async def test_a_connection_is_closed_without_waiting(serve: Serve, ask: Ask, said: Said) -> None:
    address = f"ws://127.0.0.1:{free_port()}"
    async with serve(address):
        async with open_pool(BackendOptions(addresses=(address,))) as backend:
            await ask(backend, said("TEXT"))
            left = trio.current_time()
        assert trio.current_time() - left < 1.0


async def test_a_token_is_accepted_and_a_wrong_one_is_named_as_the_reason(
    serve: Serve, ask: Ask, said: Said, tmp_path: Path
) -> None:
    address = f"ws://127.0.0.1:{free_port()}"
    token = tmp_path / "token"
    token.write_text("let-me-in-0123456789abcdef")
    guarded = ("--ws-auth", "capability-token", "--ws-token-file", str(token))
    async with serve(address, *guarded):
        right = BackendOptions(addresses=(address,), token=token.read_text())
        async with open_pool(right) as backend:
            await text_and_burst(backend, ask, said)
        wrong = BackendOptions(addresses=(address,), token="no", patience=IMPATIENT)  # noqa: S106
        async with open_pool(wrong) as backend:
            with pytest.raises(ProxyError, match=f"{address}.*HTTP 401") as caught:
                await ask(backend, said("TEXT"))
        assert caught.value.failure.status == 503


async def test_a_pool_serves_while_one_of_its_addresses_is_dead(
    serve: Serve, ask: Ask, said: Said
) -> None:
    dead, alive = (f"ws://127.0.0.1:{free_port()}" for _ in range(2))
    options = BackendOptions(addresses=(dead, alive), patience=IMPATIENT)
    async with serve(alive), open_pool(options) as backend:
        for _ in range(3):
            await text_and_burst(backend, ask, said)
        assert [server.ready for server in backend.servers] == [False, True]
        assert dead in backend.why_not


async def test_an_app_server_that_comes_back_is_used_again(
    serve: Serve, ask: Ask, said: Said, until: Until
) -> None:
    address = f"ws://127.0.0.1:{free_port()}"
    options = BackendOptions(addresses=(address,), patience=IMPATIENT)
    async with open_pool(options) as backend:
        async with serve(address):
            await text_and_burst(backend, ask, said)
        await until(lambda: not backend.ready)
        with pytest.raises(ProxyError, match=address) as caught:
            await ask(backend, said("TEXT"))
        assert caught.value.failure.status == 503
        async with serve(address):
            await until(lambda: backend.ready)
            await text_and_burst(backend, ask, said)


# -- TLS -------------------------------------------------------------------------------------------


@asynccontextmanager
async def behind_tls(
    authority: trustme.CA, port: int, name: str = "127.0.0.1"
) -> AsyncGenerator[int]:
    """A port on which TLS is spoken, as a proxy before an app-server speaks it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate: Any = authority.issue_cert(name)  # its types are half unknown
    certificate.configure_cert(context)

    async def copy(source: trio.abc.ReceiveStream, target: trio.abc.SendStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some():
                await target.send_all(data)

    async def relay(client: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError, OSError):
            await client.do_handshake()
            server = await trio.open_tcp_stream("127.0.0.1", port)
            async with client, server, trio.open_nursery() as copies:
                copies.start_soon(copy, client, server)
                await copy(server, client)
                copies.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        serve_it = partial(trio.serve_ssl_over_tcp, relay, 0, context, host="127.0.0.1")
        listeners = await nursery.start(serve_it)
        yield listeners[0].transport_listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_a_server_behind_tls_is_used_if_its_authority_is_trusted(
    serve: Serve, ask: Ask, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    port = free_port()
    async with serve(f"ws://127.0.0.1:{port}"), behind_tls(authority, port) as secure:
        address = f"wss://127.0.0.1:{secure}"
        async with open_pool(BackendOptions(addresses=(address,))) as backend:
            answer = await ask(backend, said("TEXT"))
            assert answer.body["choices"][0]["message"]["content"] == "Hello, wörld 🌍!"
            burst = await ask(backend, said("BURST", tools=TOOLS))
            assert len(burst.body["choices"][0]["message"]["tool_calls"]) == 3


@pytest.mark.parametrize(
    ("trusted", "name", "says"),
    [
        (False, "127.0.0.1", "self-signed certificate|unable to get local issuer"),
        (True, "elsewhere.example", "IP address mismatch"),
    ],
    ids=["nobody knows its authority", "it is somebody else's"],
)
async def test_a_certificate_that_cannot_be_trusted_is_refused_and_named(
    ask: Ask,
    said: Said,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trusted: bool,
    name: str,
    says: str,
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    (authority if trusted else other).cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with behind_tls(authority, free_port(), name) as secure:
        address = f"wss://127.0.0.1:{secure}"
        options = BackendOptions(addresses=(address,), patience=evolve(IMPATIENT, handshake=0.5))
        async with open_pool(options) as backend:
            with pytest.raises(ProxyError, match=says) as raised:
                await ask(backend, said("TEXT"))
    assert raised.value.failure.status == 503
    assert "certificate" in raised.value.failure.message
    assert "SSL_CERT_FILE" in raised.value.failure.message


async def test_a_port_without_tls_is_reported(serve: Serve, ask: Ask, said: Said) -> None:
    port = free_port()
    options = BackendOptions(
        addresses=(f"wss://127.0.0.1:{port}",), patience=evolve(IMPATIENT, handshake=0.5)
    )
    async with serve(f"ws://127.0.0.1:{port}"), open_pool(options) as backend:
        with pytest.raises(ProxyError, match="does not speak TLS"):
            await ask(backend, said("TEXT"))
