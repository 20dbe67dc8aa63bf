"""The plugin: it holds the children that wait to be collected."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import NamedTuple

import anyio
from pydantic import BaseModel, Field

from gofer import (
    Child,
    GoferError,
    Host,
    PluginInternalError,
    PluginNotSupportedError,
    PluginValidationError,
    Request,
    StreamChunk,
    SubagentResult,
    SubagentSpec,
    ToolCall,
    ToolResult,
    Turn,
    WorktreeConfig,
    hookimpl,
)

from ._arguments import COLLECT, SPAWN, TOOLS, collect_id, spawn_spec
from ._collected import Collected

__all__ = ["MAX_SPAWN_LOG", "Spawn", "SubagentPlugin"]

MAX_SPAWN_LOG = 4096


class Spawn(NamedTuple):
    """One entry of the spawn log: the parent's session as it named it, and the worktree."""

    session_id: str | None
    worktree_path: str | None


class SubagentPlugin:
    """Turns ``spawn_subagent`` and ``collect_subagent`` calls into children of the Host.

    Every child stays pending, finished or not, until it is collected; at *max_pending* of them a
    spawn is refused and nothing is lost. None: the Host's ``max_pending`` (1024 by default). The
    last results that were collected (256, 64 MiB of text) can be collected again.

    A plugin that is used in a second Host starts anew there, but for ``spawn_count``.

    :raises PluginValidationError: *max_pending* is less than 1.
    """

    name = "delegation"

    class Config(BaseModel):
        """Its settings, in ``[tool.gofer.plugins.delegation]``."""

        max_pending: int | None = Field(default=None, ge=1)

    def __init__(self, max_pending: int | None = None) -> None:
        if max_pending is not None and max_pending < 1:
            raise PluginValidationError(
                "SubagentPlugin.max_pending", f"{max_pending} is too low: at least 1 is needed"
            )
        self._max_pending = max_pending
        self._host: Host | None = None
        self._pending: dict[str, Child] = {}
        self._starting = 0
        self._collected = Collected()
        self._log: deque[Spawn] = deque(maxlen=MAX_SPAWN_LOG)
        self._count = 0

    def bind(self, host: Host) -> None:
        """Take the Host that the children belong to.

        :raises GoferError: it belongs to another one that is open.
        """
        if self._host is not None and self._host is not host and self._host.is_open:
            raise GoferError(
                "this SubagentPlugin belongs to another open Host: give each Host its own"
            )
        self._host = host
        self._pending.clear()
        self._collected.clear()

    # Hooks

    @hookimpl
    def on_request(self, request: Request) -> None:
        """Offer the two tools, where children may be started at all."""
        turn = request.turn
        if turn.observed or turn.depth >= turn.host.max_depth:
            return
        offered = {tool.name for tool in request.tools}
        request.tools.extend(
            tool.model_copy(deep=True) for tool in TOOLS if tool.name not in offered
        )

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> Awaitable[None] | None:
        """Execute calls of the two tools."""
        call = chunk.block
        if type(call) is not ToolCall or chunk.turn.observed:
            return None
        return self._execute(call, chunk)

    async def _execute(self, call: ToolCall, chunk: StreamChunk) -> None:
        if call.name == SPAWN:
            child_id = await self.spawn_subagent(spawn_spec(call.arguments), turn=chunk.turn)
            chunk.block = ToolResult(tool_call_id=call.id, output=child_id)
        elif call.name == COLLECT:
            chunk.block = await self._collect_for(call, chunk.turn)

    async def _collect_for(self, call: ToolCall, turn: Turn) -> ToolResult:
        child_id = collect_id(call.arguments)
        try:
            result = await self._collect(child_id, turn.session)
        except PluginNotSupportedError as error:
            return ToolResult(tool_call_id=call.id, output=str(error), is_error=True)
        if result.exit_ok:
            return ToolResult(tool_call_id=call.id, output=result.summary)
        said = [part for part in (result.summary, result.error or result.stop_reason) if part]
        return ToolResult(tool_call_id=call.id, output="\n\n".join(said), is_error=True)

    # The same for Python

    async def spawn_subagent(self, spec: SubagentSpec, *, turn: Turn | None = None) -> str:
        """Start a child and return its id, without waiting for it.

        :param turn: the turn that asks for it; None: the parent itself.
        :raises PluginValidationError: the task is blank, or the worktree's values are wrong.
        :raises PluginNotSupportedError: there is no such runner, the depth is used up, or the
            worktree cannot be made.
        :raises PluginInternalError: ``max_pending`` children await collection.
        """
        host = self._bound()
        if not spec.task.strip():
            raise PluginValidationError("SubagentSpec.task", "is blank: say what to do")
        # The place is taken before anything is made, so that a refusal leaves nothing behind.
        taken = len(self._pending) + self._starting
        if taken >= self.max_pending:
            raise PluginInternalError(
                f"the registry is full: {taken} children await collection and the limit is "
                f"{self.max_pending}. Collect some with {COLLECT} first, or raise max_pending"
            )
        self._starting += 1
        try:
            child = await host.spawn(spec, turn=turn)
            # Still in the step in which the child began: nobody can ask for it earlier.
            self._pending[child.id] = child
        finally:
            self._starting -= 1
        self._count += 1
        worktree = str(child.worktree.path) if child.worktree is not None else None
        self._log.append(Spawn(spec.session_id, worktree))
        return child.id

    async def collect(self, child_id: str, timeout: float | None = None) -> SubagentResult:
        """Wait for a child's end and return its result.

        A call that is cancelled or times out leaves the child as it was. Several may wait for
        one child; each gets the result.

        :param timeout: seconds to wait; None: until the child ends.
        :raises TimeoutError: it did not end in time.
        :raises PluginNotSupportedError: no such child, or its result was dropped long after it
            was collected.
        """
        if timeout is None:
            return await self._collect(child_id, None)
        with anyio.fail_after(timeout):
            return await self._collect(child_id, None)

    async def cancel(self, child_id: str) -> None:
        """Cancel a child and all below it, and wait for its end; its result stays collectable.

        :raises PluginNotSupportedError: no child ever had this id.
        """
        await self._bound().cancel(child_id)

    def spawns(self) -> list[Spawn]:
        """Return the spawn log: the last 4096, oldest first."""
        return list(self._log)

    def worktree_args(self, config: WorktreeConfig) -> list[str]:
        """Return the arguments that Git gets for a worktree, without running it."""
        from gofer.worktree import worktree_args

        return worktree_args(config)

    @property
    def pending_len(self) -> int:
        """How many children, finished or not, await collection."""
        return len(self._pending)

    @property
    def max_pending(self) -> int:
        """How many there may be."""
        if self._max_pending is None:
            return self._host.config.max_pending if self._host is not None else 1024
        return self._max_pending

    @property
    def spawn_count(self) -> int:
        """How many children were started since this plugin was made."""
        return self._count

    async def _collect(self, child_id: str, session: str | None) -> SubagentResult:
        child = self._pending.get(child_id) or self._collected.get(child_id)
        if child is None or session not in (None, child.parent_session):
            mine = [
                key
                for key, pending in self._pending.items()
                if session in (None, pending.parent_session)
            ]
            raise PluginNotSupportedError(
                f"there is no subagent {child_id!r:.100} to collect; "
                f"waiting to be collected: {_listed(mine)}"
            )
        result = await child.wait()
        if self._pending.pop(child_id, None) is not None:
            self._collected.add(child, result)
        return result

    def _bound(self) -> Host:
        if self._host is None:
            raise GoferError("this SubagentPlugin is in no Host: give it to Host(plugins=[...])")
        return self._host


def _listed(ids: list[str], most: int = 20) -> str:
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more or "none"
