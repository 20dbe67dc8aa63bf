"""The MCP servers that an agent is given, as the protocol spells them."""

from __future__ import annotations

from typing import Any

from gofer import ConfigError

__all__ = ["servers"]

_REMOTE = ("http", "sse")


def servers(
    agent: str, configured: list[dict[str, Any]], offered: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the servers for ``session/new``.

    A server has a ``name``, and either a ``command`` with ``args`` and ``env``, or a ``url`` with
    ``type`` (``http`` or ``sse``) and ``headers``; ``env`` and ``headers`` may be tables.

    :param offered: which kinds the agent can take.
    :raises ConfigError: a server is none of these, or the agent cannot take it.
    """
    return [_server(f"mcp_servers of agent {agent!r}", server, offered) for server in configured]


def _server(where: str, server: dict[str, Any], offered: dict[str, Any]) -> dict[str, Any]:
    name = server.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: each server needs a name; {server!r} has none")
    if "url" in server:
        kind = server.get("type", "http")
        if kind not in _REMOTE:
            raise ConfigError(f"{where}: {name!r} has type {kind!r}; it may be http or sse")
        if not offered.get(kind):
            raise ConfigError(f"{where}: the agent takes no {kind} servers, as {name!r} is one")
        headers = _pairs(server.get("headers", {}), f"{where}: headers of {name!r}")
        return {"type": kind, "name": name, "url": str(server["url"]), "headers": headers}
    command, args = server.get("command"), server.get("args", [])
    if not isinstance(command, str) or not isinstance(args, list):
        raise ConfigError(f"{where}: {name!r} needs a command with a list of args, or a url")
    env = _pairs(server.get("env", {}), f"{where}: env of {name!r}")
    return {"name": name, "command": command, "args": list(map(str, args)), "env": env}


def _pairs(value: Any, where: str) -> list[dict[str, str]]:
    if isinstance(value, dict):
        return [{"name": str(key), "value": str(item)} for key, item in value.items()]
    if isinstance(value, list) and all(
        isinstance(item, dict) and {"name", "value"} <= item.keys() for item in value
    ):
        return [{"name": str(item["name"]), "value": str(item["value"])} for item in value]
    raise ConfigError(f"{where}: a table of texts is needed, not {value!r}")
