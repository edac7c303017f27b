"""`GET /v1/mcp/tools`: the tools of the MCP servers that the backend runs by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import Response

from pipeline.serve.answers import json_response
from pipeline.serve.models import in_time

if TYPE_CHECKING:
    from pipeline.serve.app import Server


def add_routes(server: Server) -> None:
    @server.get("/v1/mcp/tools")
    async def tools() -> Response:
        listed = await in_time(server.door, "MCP tools", server.door.mcp_tools)
        return json_response({"object": "list", "data": listed})
