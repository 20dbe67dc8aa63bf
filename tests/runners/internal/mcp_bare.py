"""An MCP server of the handshake era on the standard library: it starts in no time."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS = ["add", "where", "hang", "die"]


def call(name: str, arguments: dict[str, Any]) -> str:
    if name == "hang":
        time.sleep(600)
    if name == "die":
        os._exit(3)
    return str(arguments["a"] + arguments["b"]) if name == "add" else str(os.getpid())


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bare", "version": "1"},
        }
    if method == "tools/list":
        # One page for each tool.
        at = int(params.get("cursor") or 0)
        page: dict[str, Any] = {"tools": [{"name": TOOLS[at], "inputSchema": {"type": "object"}}]}
        if at + 1 < len(TOOLS):
            page["nextCursor"] = str(at + 1)
        return page
    if method == "tools/call":
        text = call(params["name"], params["arguments"])
        return {"content": [{"type": "text", "text": text}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    result = answer(message["method"], message.get("params") or {})
    if result is None:
        reply["error"] = {"code": -32601, "message": "no such method"}
    else:
        reply["result"] = result
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
