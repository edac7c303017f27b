"""What holds for every answer: its id, its time, its errors; and a backend that does not reply."""

from __future__ import annotations

import pytest

from pipeline.errors import Failure, ProxyError
from pipeline.serve.routes import models
from tests.serve.scripted import CHAT, ScriptedBackend, Served, served
from tests.serve.wire import request, wire


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/gpt-5", "/v1/mcp/tools", "/healthz", "/metrics"]
)
async def test_head_is_get_without_the_body(path: str, shared: Served) -> None:
    got = await shared.client.get(path)
    headed = await shared.client.head(path)
    assert (headed.status_code, headed.content) == (200, b"")
    assert headed.headers["content-type"] == got.headers["content-type"]


async def test_an_unknown_route_is_a_404_and_a_wrong_method_a_405(shared: Served) -> None:
    lost = await shared.client.get("/v2/models")
    assert lost.status_code == 404
    assert lost.json()["error"] == {
        "message": "there is nothing at GET /v2/models",
        "type": "invalid_request_error",
        "code": "not_found",
        "param": None,
    }
    wrong = await shared.client.get(CHAT)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"OPTIONS", "POST"}
    wrong = await shared.client.post("/v1/models")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}


@pytest.mark.parametrize("wish", ["abc-123", "a" * 128, "req_1.2:3"])
async def test_a_request_keeps_its_id(wish: str, shared: Served) -> None:
    answer = await shared.ask(headers={"x-request-id": wish})
    assert answer.headers["x-request-id"] == wish
    assert (await shared.until_logged())[0]["request_id"] == wish


@pytest.mark.parametrize("wish", ["", "a" * 129, "a b", "a\tb", "é", '{"a":1}'])
async def test_an_id_that_could_do_harm_is_replaced(wish: str, shared: Served) -> None:
    async with wire(shared) as connection:
        await connection.write(request("GET", "/nowhere", f"x-request-id: {wish}"))
        given = (await connection.read()).headers["x-request-id"]
    assert given.startswith("req_")
    assert (await shared.until_logged())[0]["request_id"] == given


@pytest.mark.parametrize("stream", [True, False])
async def test_every_answer_says_where_its_time_went(stream: bool, shared: Served) -> None:
    timing = (await shared.ask(stream=stream)).headers["server-timing"]
    parts = dict(part.split(";dur=") for part in timing.split(", "))
    assert list(parts) == ["proxy", "queue", "backend"]
    assert all(0 <= float(duration) < 2_000 for duration in parts.values())
    assert (await shared.client.get("/nowhere")).headers["server-timing"].startswith("proxy;dur=")


# -- what the backend tells of itself --------------------------------------------------------------


async def test_the_tools_of_mcp_servers_are_listed_as_the_backend_sends_them() -> None:
    backend = ScriptedBackend()
    backend.tools = [{"server": "notes", "name": "find", "description": "", "input_schema": {}}]
    async with served(backend) as here:
        listed = await here.client.get("/v1/mcp/tools")
    assert (listed.status_code, listed.json()) == (200, {"object": "list", "data": backend.tools})


@pytest.mark.parametrize("path", ["/v1/models", "/v1/mcp/tools"])
async def test_a_cold_backend_is_not_waited_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.PATIENCE == 8.0
    monkeypatch.setattr(models, "PATIENCE", 0.02)
    backend = ScriptedBackend()
    backend.listed, backend.why_not = None, "codex is starting"
    async with served(backend) as here:
        answer = await here.client.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "codex is starting" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/mcp/tools"])
async def test_a_failure_of_the_backend_to_list_is_passed_on(path: str) -> None:
    backend = ScriptedBackend()
    backend.listed = ProxyError(Failure("no list", status=502, code="upstream_error"))
    async with served(backend) as here:
        assert (await here.client.get(path)).status_code == 502
