"""`GET /v1/mcp/tools`: the tools of the MCP servers that the backend itself runs."""

from __future__ import annotations

from quart import Response

from pipeline.serve.answers import json_response
from pipeline.serve.routes.models import in_time
from pipeline.serve.server import Server


def add_routes(server: Server) -> None:
    @server.get("/v1/mcp/tools")
    async def tools() -> Response:
        listed = await in_time(server.backend, "MCP tools", server.backend.mcp_tools)
        return json_response({"object": "list", "data": listed})
