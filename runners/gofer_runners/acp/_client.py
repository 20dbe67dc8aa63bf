"""What gofer answers an agent that asks: permissions, files, terminals."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from gofer import Run
from gofer.processes import Supervisor

from ._errors import METHOD_NOT_FOUND, Refused
from ._files import Files
from ._permissions import Ask, Permission, answer, decide
from ._settings import AcpAgent
from ._terminals import Terminals

__all__ = ["Client"]

log = logging.getLogger("gofer.acp")

_DENIED = 1024


class Client:
    """The client side of one turn: an async context manager; leaving it ends its terminals.

    ``denied`` lists what was not permitted, the first 1024 of it.
    """

    def __init__(
        self,
        run: Run,
        settings: AcpAgent,
        cwd: Path,
        environment: dict[str, str],
        supervisor: Supervisor,
        ask: Ask | None,
    ) -> None:
        self.denied: list[dict[str, Any]] = []
        self._run = run
        self._settings = settings
        self._ask = ask
        self._tasks: TaskGroup | None = None
        # Most agents may use neither.
        if settings.fs or settings.terminal:
            self._files = Files([cwd, *(cwd / root for root in settings.roots)])
        if settings.terminal:
            self._tasks = anyio.create_task_group()
            self._terminals = Terminals(self._tasks, supervisor, self._files, cwd, environment)

    async def __aenter__(self) -> Client:
        if self._tasks is not None:
            await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        if self._tasks is None:
            return None
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(*error)

    async def serve(self, method: str, params: dict[str, Any]) -> Any:
        """Answer one request.

        :raises Refused: with the error to answer with.
        """
        settings = self._settings
        if method == "session/request_permission":
            return await self._permission(params)
        if method == "elicitation/create":
            return {"action": "decline"}
        if method == "fs/read_text_file" and settings.fs:
            await self._must_be_allowed("read", params)
            line, limit = params.get("line"), params.get("limit")
            return {"content": await self._files.read(_path(params), line, limit)}
        if method == "fs/write_text_file" and settings.fs:
            await self._must_be_allowed("edit", params)
            content = params.get("content")
            if not isinstance(content, str):
                raise Refused("fs/write_text_file: content must be a string")
            await self._files.write(_path(params), content)
            return {}
        if method.startswith("terminal/") and settings.terminal:
            if method == "terminal/create":
                await self._must_be_allowed("execute", params)
            return await self._terminals.serve(method, params)
        raise Refused(f"method not found: {method}", METHOD_NOT_FOUND)

    def cancel(self) -> None:
        """End what runs for the agent: the turn is being cancelled."""
        if self._settings.terminal:
            self._terminals.kill()

    async def _permission(self, params: dict[str, Any]) -> dict[str, Any]:
        call = params.get("toolCall")
        call = call if isinstance(call, dict) else {}
        wanted = await self._decide(call, call.get("kind"), call.get("title"))
        said, allowed = answer(params.get("options"), wanted)
        if not allowed:
            self._deny(call.get("kind"), call.get("title"), call.get("toolCallId"))
        return said

    async def _must_be_allowed(self, kind: str, params: dict[str, Any]) -> None:
        """:raises Refused: the policy does not allow it."""
        title = str(params.get("path") or params.get("command"))
        if not await self._decide(params, kind, title):
            self._deny(kind, title, None)
            raise Refused(f"not permitted here: {kind} {title!r} ({self._settings.permissions})")

    async def _decide(self, call: dict[str, Any], kind: Any, title: Any) -> bool:
        call_id = call.get("toolCallId")
        permission = Permission(
            child=self._run.id,
            agent=self._run.spec.agent or "",
            tool_call_id=call_id if isinstance(call_id, str) else None,
            title=title if isinstance(title, str) else None,
            kind=kind if isinstance(kind, str) else None,
            call=call,
        )
        settings = self._settings
        return await decide(
            permission,
            settings.permissions,
            self._ask,
            settings.ask_timeout,
            settings.ask_default,
        )

    def _deny(self, kind: Any, title: Any, call_id: Any) -> None:
        if len(self.denied) < _DENIED:
            self.denied.append({"tool_call_id": call_id, "kind": kind, "title": title})


def _path(params: dict[str, Any]) -> str:
    path = params.get("path")
    if not isinstance(path, str):
        raise Refused("path must be a string")
    return path
