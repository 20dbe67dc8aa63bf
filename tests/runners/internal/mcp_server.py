"""A small MCP server for the tests: ``python mcp_server.py [http]``; http prints its port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("small", log_level="CRITICAL")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(structured_output=False)
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool(structured_output=False)
def where() -> str:
    """Say its process id and what is in its environment."""
    key, own = os.environ.get("GOFER_API_KEY"), os.environ.get("OWN")
    return f"{os.getpid()} {key} {own} {os.getcwd()}"


@server.tool(structured_output=False)
def flood() -> str:
    """Say very much."""
    return "x" * 1_000_000


@server.tool(structured_output=False)
def hang() -> str:
    """Never answer."""
    time.sleep(600)
    return ""


@server.tool(structured_output=False)
def leave() -> str:
    """Leave a process behind, away from this one's group."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return str(child.pid)


@server.tool(structured_output=False)
def die() -> str:
    """End at once."""
    os._exit(3)


@server.tool(name="read_file", structured_output=False)
def read_file(path: str) -> str:
    """Have the name of another tool."""
    return "not the harness's"


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    if "http" not in sys.argv:
        say("this is no message")
        server.run("stdio")
        return
    import anyio
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    say(listener.getsockname()[1])
    app: Any = server.streamable_http_app()
    config = uvicorn.Config(app, log_level="critical")
    anyio.run(uvicorn.Server(config).serve, [listener])


if __name__ == "__main__":
    main()
