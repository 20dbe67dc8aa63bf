"""Tools of MCP servers, for the harness (the extra ``mcp``)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gofer import Host, RunnerError

from ._output import cut
from ._tool import HarnessTool, ToolFailure

__all__ = ["McpServer", "mcp_tools"]

_OUTPUT = 32 * 1024


class McpServer(BaseModel):
    """One MCP server: a command that speaks over its pipes, or the URL of one that listens.

    :param env: further variables for the command. :param headers: sent with each request to the
        URL. :param start_timeout: seconds for the start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    start_timeout: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if (self.command is None) is (self.url is None):
            raise ValueError("set either command or url")
        return self


async def mcp_tools(host: Host, servers: Mapping[str, McpServer]) -> list[HarnessTool]:
    """Return the tools of all servers; each server is started once and shared by a Host's runs.

    :raises RunnerError: the extra is missing, or a server does not start; says which.
    """
    tools: list[HarnessTool] = []
    for name, server in servers.items():
        key = ("internal", "mcp", name, server.model_dump_json())
        session = await host.resource(key, partial(_session, name, server))
        tools += await _offered(session)
    return tools


@asynccontextmanager
async def _session(name: str, server: McpServer) -> AsyncIterator[Any]:
    try:
        from mcp import ClientSession
    except ImportError:
        raise RunnerError(
            f"MCP server {name!r} is configured, but the MCP SDK is not installed: "
            "pip install 'gofer[mcp]'"
        ) from None
    try:
        async with _streams(server) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                with anyio.fail_after(server.start_timeout):
                    await session.initialize()
                yield session
    except TimeoutError:
        raise RunnerError(
            f"MCP server {name!r} did not answer within {server.start_timeout:g} s: "
            "raise its start_timeout, or start it by hand to see what it wants"
        ) from None
    except OSError as error:
        raise RunnerError(f"MCP server {name!r} cannot be started: {error}") from None


def _streams(server: McpServer) -> AbstractAsyncContextManager[Any]:
    if server.command is not None:
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        environment = {**os.environ, **server.env}
        return stdio_client(
            StdioServerParameters(command=server.command, args=list(server.args), env=environment)
        )
    from mcp.client.streamable_http import streamablehttp_client

    assert server.url is not None
    return streamablehttp_client(server.url, headers=dict(server.headers))


async def _offered(session: Any) -> list[HarnessTool]:
    tools: list[HarnessTool] = []
    cursor: str | None = None
    while True:
        page = await session.list_tools(cursor)
        tools += [
            HarnessTool(
                tool.name,
                tool.description or "",
                partial(_call, session, tool.name),
                reads=bool(tool.annotations and tool.annotations.readOnlyHint),
                input_schema=tool.inputSchema,
            )
            for tool in page.tools
        ]
        cursor = page.nextCursor
        if not cursor:
            return tools


async def _call(session: Any, name: str, arguments: dict[str, Any]) -> str:
    result = await session.call_tool(name, arguments)
    parts = [
        item.text if item.type == "text" else f"[{item.type}]" for item in result.content or ()
    ]
    text = cut("\n".join(parts), _OUTPUT)
    if result.isError:
        raise ToolFailure(text or f"{name} failed and said nothing")
    return text or "(no output)"
