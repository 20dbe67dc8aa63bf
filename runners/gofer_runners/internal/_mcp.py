"""Tools of MCP servers, for the harness (the extra ``mcp``)."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gofer import GoferError, Host, RunnerError

from ._commands import own_environment
from ._mcp_pipes import pipes
from ._output import cut
from ._tool import HarnessTool, ToolFailure

__all__ = ["McpServer", "mcp_tools"]

_OUTPUT = 32 * 1024
_NAME = 64


class McpServer(BaseModel):
    """One MCP server: a command that speaks over its pipes, or the URL of one that listens.

    :param env: further variables for the command. :param headers: sent with each request to the
        URL. :param start_timeout: seconds for the start. :param call_timeout: for each call.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    start_timeout: float = Field(default=60.0, gt=0)
    call_timeout: float = Field(default=300.0, gt=0)

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if (self.command is None) is (self.url is None):
            raise ValueError("set either command or url")
        return self


async def mcp_tools(host: Host, servers: Mapping[str, McpServer]) -> list[HarnessTool]:
    """Return the tools of all servers, each as ``mcp__SERVER__TOOL``.

    A server is started once, shared by a Host's runs, and started again where it has ended.

    :raises RunnerError: the extra is missing, or a server does not start; says which.
    """
    tools: list[HarnessTool] = []
    for name, server in servers.items():
        key = ("internal", "mcp", name, server.model_dump_json())
        open_client = partial(_client, host, name, server)
        client = await host.resource(key, open_client)
        try:
            tools += await _offered(client, name, server)
        except Exception:
            # It has ended since, most likely. Another run may have seen that before.
            if await host.resource(key, open_client) is client:
                await host.release(key)
            client = await host.resource(key, open_client)
            try:
                tools += await _offered(client, name, server)
            except Exception as error:
                raise RunnerError(f"MCP server {name!r} lists no tools: {_said(error)}") from error
    return tools


@asynccontextmanager
async def _client(host: Host, name: str, server: McpServer) -> AsyncIterator[Any]:
    try:
        from mcp import Client
    except ImportError:
        raise RunnerError(
            f"MCP server {name!r} is configured, but the MCP SDK is not installed: "
            "pip install 'gofer[mcp]'"
        ) from None
    started = False
    try:
        # Not fail_after: what is entered here stays open longer than the limit is for.
        with anyio.CancelScope(deadline=anyio.current_time() + server.start_timeout) as scope:
            async with Client(_transport(host, name, server)) as client:
                scope.deadline = math.inf
                started = True
                yield client
    except Exception as error:
        if started:
            raise
        raise RunnerError(f"MCP server {name!r} cannot be started: {_said(error)}") from error
    if not started:
        raise RunnerError(
            f"MCP server {name!r} did not answer within {server.start_timeout:g} s: "
            "raise its start_timeout, or start it by hand to see what it wants"
        )


def _transport(host: Host, name: str, server: McpServer) -> AbstractAsyncContextManager[Any]:
    if server.url is not None:
        return _http(server.url, server)
    assert server.command is not None
    environment = {**own_environment(), **server.env}
    command = [server.command, *server.args]
    if sys.platform == "linux":
        # Supervised, so that nothing of it outlives gofer.
        return pipes(host, f"MCP server {name}", command, environment)
    from mcp import StdioServerParameters, stdio_client

    return stdio_client(
        StdioServerParameters(command=command[0], args=command[1:], env=environment, cwd=host.cwd)
    )


@asynccontextmanager
async def _http(url: str, server: McpServer) -> AsyncIterator[Any]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(server.start_timeout, read=server.call_timeout)
    async with httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout) as http:
        async with streamable_http_client(url, http_client=http) as streams:
            yield streams


async def _offered(client: Any, server_name: str, server: McpServer) -> list[HarnessTool]:
    tools: list[HarnessTool] = []
    cursor: str | None = None
    with anyio.fail_after(server.start_timeout):
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += [
                HarnessTool(
                    re.sub(r"[^A-Za-z0-9_-]", "_", f"mcp__{server_name}__{tool.name}")[:_NAME],
                    tool.description or "",
                    partial(_call, client, tool.name, server.call_timeout),
                    reads=bool(tool.annotations and tool.annotations.read_only_hint),
                    input_schema=tool.input_schema,
                )
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if not cursor:
                return tools


async def _call(client: Any, name: str, seconds: float, arguments: dict[str, Any]) -> str:
    from mcp import MCPError

    try:
        result = await client.call_tool(name, arguments, read_timeout_seconds=seconds)
    except MCPError as error:
        raise ToolFailure(f"{name} failed: {error}") from None
    text = cut("\n".join(_text(item) for item in result.content or ()), _OUTPUT)
    if result.is_error:
        raise ToolFailure(text or f"{name} failed and said nothing")
    return text or "(no output)"


def _text(item: Any) -> str:
    if item.type == "text":
        return str(item.text)
    embedded = getattr(getattr(item, "resource", None), "text", None)
    return str(embedded) if embedded else f"[{item.type}]"


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, GoferError) else f"{type(error).__name__}: {error}"
