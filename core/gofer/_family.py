"""The children of one Host: who may be started, how many run at once, and their end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ._clean import copied, fresh
from ._life import Life
from ._limits import Places
from ._steps import asyncio_task, cancelled_itself, stepped, untouched
from .children import Child
from .errors import (
    GoferError,
    PluginInternalError,
    PluginNotSupportedError,
    PluginValidationError,
)
from .runner import Runner
from .subagents import SubagentSpec, WorktreeReport
from .turn import Turn

if TYPE_CHECKING:
    from ._registry import Registry
    from .host import Host
    from .worktree import Worktree, Worktrees

__all__ = ["Family"]

log = logging.getLogger("gofer")

_SILENCE = 60.0
"""After how many seconds without a sign of life a child is spoken of; then after twice as many."""


class Family:
    """Starts children as tasks of the Host's, and knows those that have not ended."""

    def __init__(self, host: Host, registry: Registry, tasks: TaskGroup) -> None:
        self.host = host
        self.registry = registry
        self.alive: dict[str, Child] = {}
        self._tasks = tasks
        self._spawned = 0
        self._places: dict[tuple[str, int], Places[Child]] = {}
        self._closing = anyio.Event()
        self._watched = False

    @cached_property
    def worktrees(self) -> Worktrees:
        """What makes and removes the children's worktrees; most Hosts never need it."""
        from .worktree import Worktrees

        return Worktrees()

    # Starting

    async def spawn(self, spec: SubagentSpec, turn: Turn | None) -> Child:
        """Start a child; see :meth:`gofer.Host.spawn`."""
        host = self.host
        if not spec.task.strip():
            raise PluginValidationError("SubagentSpec.task", "is blank: say what to do")
        parent = self._parent(turn)
        depth = (parent.depth if parent is not None else host.depth) + 1
        if depth > host.max_depth:
            raise PluginNotSupportedError(
                f"a child at depth {depth} is over the limit: max_depth is {host.max_depth}. "
                "Do the work yourself, or have the user raise max_depth"
            )
        name, runner = self.runner_of(spec)
        if spec.agent and name != self._runner_of_agent(spec.agent):
            log.warning(
                "agent %r is one of runner %r: runner %r, which was named for it, may not know it, "
                "and do the task itself", spec.agent, self._runner_of_agent(spec.agent), name,
            )  # fmt: skip
        if runner is not None:
            runner.check(spec, host)
            if spec.tool_scope and not runner.capabilities.tool_scope:
                log.warning(
                    "runner %r keeps to no tool_scope: the child may use other tools than %s",
                    name, ", ".join(spec.tool_scope),
                )  # fmt: skip
        cwd = self._directory(spec)
        worktree: Worktree | None = None
        if spec.worktree is not None:
            worktree = await self._worktree(spec, cwd, turn)
            cwd = worktree.path
        places = self._places.get((name, depth)) or self._new_places(name, depth)
        child = Child(
            self,
            f"sub-{self._spawned}",
            _own(spec, name),
            session=turn.session if turn is not None else host.default_session,
            parent=parent,
            depth=depth,
            cwd=cwd,
            cancel_grace=runner.cancel_grace if runner is not None else 0.0,
            observed=runner.observed if runner is not None else True,
            places=places,
            worktree=worktree,
        )
        self._spawned += 1
        self.alive[child.id] = child
        if parent is not None:
            parent.children[child.id] = child
        if not self._watched:
            self._watched = True
            self.start(self._tell_of_silence)
        # It stands in the queue from now on, whichever task the event loop starts first.
        places.ask(child)
        return child

    def begin(self, child: Child, placed: bool = True) -> None:
        """Start a task for *child*, and for those who follow it in its place."""
        self._tasks.start_soon(self._live, child, placed, name=f"{child.runner}, from {child.id}")

    def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Start a task that watches over a child; it ends with the child at the latest."""
        self._tasks.start_soon(function, *args)

    async def _live(self, child: Child | None, placed: bool) -> None:
        """Have *child* live, and in its task and its place those that could have had their own."""
        ended, task = False, asyncio_task()
        try:
            # Shielded: the Host ends its children itself, with their grace, whoever cancels it.
            with anyio.CancelScope(shield=True) as scope:
                while child is not None:
                    places, goes_on = child.places, False
                    try:
                        clean, at_once = await stepped(Life(self, child).live(scope))
                        goes_on = placed and clean and at_once and untouched(task)
                    finally:
                        if placed and not goes_on:
                            places.free()
                    child = await places.follow() if goes_on else None
                if cancelled_itself(task):
                    # The task must not end as cancelled: that would end all of the Host's.
                    with suppress(anyio.get_cancelled_exc_class()):
                        await checkpoint()
                ended = True
        except RuntimeError:
            if not ended:
                raise
            log.exception("a runner left a cancel scope open: it must leave each that it enters")

    async def _worktree(self, spec: SubagentSpec, cwd: Path, turn: Turn | None) -> Worktree:
        assert spec.worktree is not None
        worktree = await self.worktrees.make(spec.worktree, cwd)
        try:
            if not self.host.is_open:
                raise GoferError("the Host was closed while the worktree was made")
            self._parent(turn)
        except GoferError:
            # Much may have ended while Git worked; a refused spawn leaves nothing behind.
            with anyio.CancelScope(shield=True):
                await self.worktrees.remove(worktree)
            raise
        return worktree

    def _directory(self, spec: SubagentSpec) -> Path:
        cwd = self.host.cwd if spec.cwd is None else (self.host.cwd / spec.cwd).absolute()
        if not os.path.isdir(cwd):
            raise PluginNotSupportedError(f"the child's cwd {str(cwd)!r} is no directory")
        return cwd

    def _parent(self, turn: Turn | None) -> Child | None:
        if turn is None or turn.subagent_id is None:
            return None
        parent = self.alive.get(turn.subagent_id)
        if parent is None or parent.cancelled or parent.ending:
            cancelled = parent is not None and parent.cancelled
            raise PluginInternalError(
                f"child {turn.subagent_id} has {'been cancelled' if cancelled else 'ended'}: "
                "it starts no children any more"
            )
        return parent

    def runner_of(self, spec: SubagentSpec) -> tuple[str, Runner | None]:
        """Return who would execute *spec*: its name, and itself where it is a Runner.

        :raises PluginNotSupportedError: there is no such runner.
        """
        name = self._runner_name(spec)
        return name, self._runner(name)

    def _runner_name(self, spec: SubagentSpec) -> str:
        if spec.runner:
            return spec.runner
        return self._runner_of_agent(spec.agent) if spec.agent else self.host.config.default_runner

    def _runner_of_agent(self, agent: str) -> str:
        entry = self.host.config.agents.get(agent)
        return entry.runner if entry is not None else "acp"

    def _runner(self, name: str) -> Runner | None:
        try:
            return self.host.runner(name)
        except PluginNotSupportedError:
            # A plugin may take a run by the hook alone, without being a Runner.
            if self.registry.takes_runs:
                return None
            raise

    def _new_places(self, runner: str, depth: int) -> Places[Child]:
        places = Places(self.host.config.concurrency(runner), self.begin)
        self._places[runner, depth] = places
        return places

    # Ending

    async def cancel(self, child_id: str) -> None:
        """Cancel a child and wait for its end; see :meth:`gofer.Host.cancel`."""
        child = self.alive.get(child_id)
        if child is not None:
            child.cancel()
            await child.wait()
        elif not self._had(child_id):
            running = ", ".join(self.alive) or "none"
            raise PluginNotSupportedError(
                f"there is no child {child_id!r:.100}; running: {running}"
            )

    def _had(self, child_id: str) -> bool:
        prefix, _, number = child_id.partition("-")
        most = len(str(self._spawned))
        return (
            prefix == "sub"
            and number.isdecimal()
            and len(number) <= most
            and number == str(int(number))
            and int(number) < self._spawned
        )

    def ended(self, child: Child) -> None:
        """Forget a child that has its result."""
        del self.alive[child.id]
        if child.parent is not None:
            child.parent.children.pop(child.id, None)

    async def report(self, worktree: Worktree) -> WorktreeReport | None:
        """Report on a child's worktree; a report that cannot be made is no failure of the child."""
        try:
            return await self.worktrees.report(worktree)
        except Exception as error:
            log.warning("no report on worktree %s: %s", worktree.path, error)
            return None

    async def close(self) -> None:
        """Cancel every child, and wait until all have ended."""
        children = list(self.alive.values())
        for child in children:
            child.cancel()
        for child in children:
            await child.wait()
        self._closing.set()

    async def _tell_of_silence(self) -> None:
        # Of each: how many signs it had given, since when no more, and of how long it was told.
        seen: dict[Child, tuple[int, float, float]] = {}
        while not self._closing.is_set():
            with anyio.move_on_after(_SILENCE):
                await self._closing.wait()
            now = anyio.current_time()
            before, seen = seen, {}
            for child in self.alive.values():
                if child.state != "running":
                    continue
                signs, since, told = before.get(child, (-1, now, 0.0))
                if child.signs != signs:
                    since, told = now, 0.0
                silent = now - since
                if silent >= max(_SILENCE, 2 * told):
                    told = silent
                    log.info(
                        "child %s on %s has been silent for %.0f s: idle_timeout would end it",
                        child.id, child.runner, silent,
                    )  # fmt: skip
                seen[child] = child.signs, since, told


def _own(spec: SubagentSpec, runner: str) -> SubagentSpec:
    """Return a copy for a child: whoever changes the spec afterwards changes no child's."""
    own = copied(spec, runner=runner)
    # As little is said to have been set as in the spec itself.
    vars(own).update(tool_scope=[*spec.tool_scope], options=fresh(spec.options))
    if spec.worktree is not None:
        vars(own).update(worktree=copied(spec.worktree))
    return own
