"""A tiny MCP server over stdio: JSON-RPC, a message a line; it writes down what it is asked.

Run as a program by Codex, so it imports nothing of ours. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from typing import Any

QUERY = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
HARMLESS = {"readOnlyHint": True}
TOOLS: list[dict[str, Any]] = [
    {"name": "shout", "inputSchema": QUERY, "annotations": HARMLESS},
    {"name": "fail", "inputSchema": QUERY, "annotations": HARMLESS},
    {"name": "engrave", "inputSchema": QUERY},
]


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to a request; None where the method is not known."""
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "shouter", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            failed = params["name"] == "fail"
            words = "it failed" if failed else f"{params['arguments']['word'].upper()}!"
            return {"content": [{"type": "text", "text": words}], "isError": failed}
        case "ping":
            return {}
        case _:
            return None


def main() -> None:
    with open(sys.argv[1], "a", encoding="utf-8") as log:  # noqa: PTH123 (a line a call, at once)
        for line in sys.stdin:
            message: dict[str, Any] = json.loads(line)
            method, number = message.get("method", ""), message.get("id")
            log.write(f"{method}\n")
            log.flush()
            if number is None:
                continue  # a notification
            answer: dict[str, Any] = {"jsonrpc": "2.0", "id": number}
            result = result_of(method, message.get("params") or {})
            unknown = {"code": -32601, "message": f"{method} is not known"}
            answer |= {"error": unknown} if result is None else {"result": result}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
