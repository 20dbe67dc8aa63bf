"""The Host: it holds the plugins, the children and what they share."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from ._discovery import PLUGINS, RUNNERS, PluginInfo
from ._dispatch import pass_chunk
from ._limits import DEPTH, DEPTH_LIMIT, Places, inherited_depth
from ._plugins import Plugins
from ._registry import Registry
from ._resources import Resources
from ._sessions import Session, Sessions
from .blocks import ToolCall, ToolResult
from .children import Child
from .config import Config, load_config
from .errors import (
    GoferError,
    PluginInternalError,
    PluginNotSupportedError,
    PluginValidationError,
)
from .messages import Request, Tools
from .model import Model
from .runner import Runner
from .stream import ErrorMode, Pair, TurnStream
from .subagents import SubagentResult, SubagentSpec, WorktreeReport
from .turn import StreamChunk, Turn
from .worktree import Worktree, Worktrees

if TYPE_CHECKING:
    from .processes import Supervisor

__all__ = ["Host"]

log = logging.getLogger("gofer")

_SILENCE = 60.0


class Host:
    """Opens plugins and runners, runs children, and closes everything it opened.

    :param plugins: objects, classes or modules, runners included; each replaces a discovered one
        of its name.
    :param config: settings that go before every other source.
    :param discover: whether to look for installed plugins and runners.
    :param strict: whether a broken plugin is an error; None: as configured.
    :param cwd: the directory of children that name none, and where configuration is looked for.
    :raises ConfigError: on entering, where a setting is wrong.
    :raises PluginError: on entering, where a given plugin is none, or in strict mode any.
    """

    def __init__(
        self,
        plugins: Sequence[object] = (),
        config: Config | Mapping[str, Any] | None = None,
        *,
        discover: bool = True,
        strict: bool | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self._given = list(plugins)
        self._overrides = config
        self._discover = discover
        self._strict = strict
        self.cwd = Path(cwd or Path.cwd()).absolute()
        self._stack: AsyncExitStack | None = None
        self._config: Config | None = None

    # Opening and closing

    async def __aenter__(self) -> Host:
        if self._stack is not None:
            raise GoferError("this Host is open already: make another one")
        self._config = load_config(self.cwd, self._overrides)
        self.depth, inherited = inherited_depth()
        own = self._config.max_depth
        self.max_depth = own if inherited is None else min(own, inherited)
        self.default_session = f"session-{uuid.uuid4().hex[:12]}"
        self._registry = Registry()
        self._children: dict[str, Child] = {}
        self._spawned = 0
        self._gates: dict[tuple[str, int], Places] = {}
        self._sessions = Sessions()
        self._worktrees = Worktrees()
        self._turn_numbers = itertools.count()
        self._closing = False
        self._silence: anyio.Event | None = None
        strict = self._config.strict if self._strict is None else self._strict
        self._plugins = Plugins(self._registry, self._config, self._bind, strict=strict)
        self._stack = AsyncExitStack()
        try:
            # Before the task group is there: what it raises must not arrive inside a group.
            self._plugins.open(self._given, discover=self._discover)
            self._tasks: TaskGroup = await self._stack.enter_async_context(
                anyio.create_task_group()
            )
        except BaseException:
            self._stack = None
            raise
        self._resources = Resources(self._tasks)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        stack, self._closing = self._stack, True
        assert stack is not None
        try:
            with anyio.CancelScope(shield=True):
                children = list(self._children.values())
                for child in children:
                    child.cancel()
                for child in children:
                    await child.wait()
                await self._resources.close()
                if self._silence is not None:
                    self._silence.set()
        finally:
            self._stack = None
            try:
                suppress = await stack.__aexit__(kind, error, traceback)
            except BaseExceptionGroup as group:
                # The body's own error goes on as it is, not inside a group of the task group's.
                # Who is cancelled raised nothing himself; more than one is no single error.
                own = error is not None and not isinstance(error, anyio.get_cancelled_exc_class())
                if not own or len(group.exceptions) > 1:
                    raise
                suppress = False
        return suppress

    @property
    def is_open(self) -> bool:
        """Whether the Host can be used now."""
        return self._stack is not None and not self._closing

    def _check_open(self) -> None:
        if not self.is_open:
            raise GoferError("the Host is not open: use it inside `async with Host() as host`")

    # Plugins and runners

    @property
    def config(self) -> Config:
        """The settings in force.

        :raises GoferError: the Host has not been opened yet.
        """
        if self._config is None:
            raise GoferError("the Host is not open: use it inside `async with Host() as host`")
        return self._config

    @property
    def plugins(self) -> list[PluginInfo]:
        """Every plugin and runner: name, group, distribution, version, status, error, remedy."""
        self._check_open()
        return self._plugins.infos

    def plugin(self, name: str) -> Any:
        """Return the plugin object of that name.

        :raises PluginNotSupportedError: there is none, or it is broken.
        """
        self._check_open()
        return self._plugins.get(PLUGINS, name)

    def runner(self, name: str) -> Runner:
        """Return the runner of that name, loaded now if it was not yet.

        :raises PluginNotSupportedError: there is none, or it is broken; lists those there are.
        """
        self._check_open()
        runner: Runner = self._plugins.get(RUNNERS, name)
        return runner

    def model(self, runner: str) -> Model:
        """Return the model that a runner offers to others, as its attribute ``model``.

        :raises PluginNotSupportedError: there is no such runner, or it offers none.
        """
        model = getattr(self.runner(runner), "model", None)
        if not isinstance(model, Model):
            raise PluginNotSupportedError(f"runner {runner!r} offers no model of its own")
        return model

    def _bind(self, part: object) -> None:
        bind = getattr(part, "bind", None)
        if callable(bind):
            bind(self)

    # Turns

    def stream(
        self,
        request: Request,
        model: Model,
        session: str | None = None,
        errors: ErrorMode = "raise",
    ) -> TurnStream:
        """Make one turn of the parent: a request to *model*, through the hooks.

        :param session: the conversation it belongs to; None: the Host's own.
        :param errors: ``raise``: an error of a plugin ends the stream with it; ``report``: the
            error of one that was to execute a tool call becomes that call's result.
        """
        self._check_open()
        if errors not in ("raise", "report"):
            raise PluginValidationError("host.stream.errors", f"{errors!r}: 'raise' or 'report'")
        self._bind(model)
        return TurnStream(self._registry, request, model, self._new_turn(session), errors=errors)

    async def tools(self, session: str | None = None) -> Tools:
        """Ask the plugins, by a request that is never sent, which tools they offer the parent."""
        self._check_open()
        pair = Pair(self._registry, self._new_turn(session, probe=True))
        request = await pair.open(Request())
        await pair.close("end_turn")
        return Tools(request.tools)

    async def call_tool(
        self, name: str, arguments: object = None, session: str | None = None
    ) -> ToolResult:
        """Have the plugins execute a tool call of the parent's.

        :raises PluginNotSupportedError: no plugin took it.
        :raises PluginError: a plugin refused the call or failed.
        """
        self._check_open()
        call = ToolCall(
            id=f"call-{uuid.uuid4().hex}",
            name=name,
            arguments={} if arguments is None else arguments,
        )
        chunk = StreamChunk(call, self._new_turn(session))
        await pass_chunk(self._registry.on_stream_chunk, chunk)
        if isinstance(chunk.block, ToolResult):
            return chunk.block
        known = ", ".join(tool.name for tool in await self.tools(session)) or "none"
        raise PluginNotSupportedError(f"no plugin has a tool {name!r}; the tools are: {known}")

    def session(self, name: str | None = None) -> Session:
        """Return what is kept of a conversation: the 1024 used last are remembered."""
        self._check_open()
        return self._sessions[name or self.default_session]

    def _new_turn(self, session: str | None, *, probe: bool = False) -> Turn:
        return Turn(
            id=self._next_turn_id(),
            host=self,
            session=session or self.default_session,
            depth=self.depth,
            probe=probe,
        )

    def _next_turn_id(self) -> str:
        return f"turn-{next(self._turn_numbers)}"

    # Children

    @property
    def children(self) -> list[Child]:
        """The children that wait or run now, in the order of their ids."""
        self._check_open()
        return list(self._children.values())

    async def run(self, spec: SubagentSpec, *, turn: Turn | None = None) -> SubagentResult:
        """Run one child to its end; cancelling the call cancels the child, and waits for that.

        :param turn: the turn that asks for it; None: the parent itself.
        :raises PluginError: see :meth:`spawn`.
        """
        child = await self.spawn(spec, turn=turn)
        try:
            return await child.wait()
        except BaseException:
            child.cancel()
            with anyio.CancelScope(shield=True):
                await child.wait()
            raise

    async def spawn(self, spec: SubagentSpec, *, turn: Turn | None = None) -> Child:
        """Start one child, and return it while it runs; a refused one leaves nothing behind.

        :param turn: the turn that asks for it; None: the parent itself.
        :raises PluginValidationError: the task is blank, or the worktree's path or branch is wrong.
        :raises PluginNotSupportedError: there is no such runner, the depth is used up, or the
            worktree cannot be made.
        :raises PluginInternalError: it was asked for by a child that is cancelled.
        """
        self._check_open()
        if not spec.task.strip():
            raise PluginValidationError("SubagentSpec.task", "is blank: say what to do")
        parent = self._parent(turn)
        depth = (parent.depth if parent is not None else self.depth) + 1
        if depth > self.max_depth:
            raise PluginNotSupportedError(
                f"a child at depth {depth} is over the limit: max_depth is {self.max_depth}. "
                "Do the work yourself, or have the user raise max_depth"
            )
        name = self._runner_name(spec)
        runner = self._runner_for(name)
        cwd = self.cwd if spec.cwd is None else (self.cwd / spec.cwd).absolute()
        if not cwd.is_dir():
            raise PluginNotSupportedError(f"the child's cwd {str(cwd)!r} is no directory")
        worktree: Worktree | None = None
        if spec.worktree is not None:
            worktree = await self._worktrees.make(spec.worktree, cwd)
            cwd = worktree.path
            try:
                self._check_open()
                self._parent(turn)
            except GoferError:
                # Much may have ended while Git worked; a refused spawn leaves nothing behind.
                await self._worktrees.remove(worktree)
                raise
        child = Child(
            self,
            f"sub-{self._spawned}",
            spec.model_copy(update={"runner": name}),
            session=turn.session if turn is not None else self.default_session,
            parent=parent,
            depth=depth,
            cwd=cwd,
            cancel_grace=runner.cancel_grace if runner is not None else 0.0,
            observed=runner.observed if runner is not None else True,
            # It stands in the queue from now on, whichever task the event loop starts first.
            place=self._places(name, depth).ask(),
            worktree=worktree,
        )
        self._spawned += 1
        self._children[child.id] = child
        if parent is not None:
            parent.children[child.id] = child
        self._watch_silence()
        self._tasks.start_soon(child.live, name=child.id)
        return child

    async def cancel(self, child_id: str) -> None:
        """Cancel a child and all below it, and wait for its end; an ended one is left alone.

        :raises PluginNotSupportedError: no child ever had this id.
        """
        self._check_open()
        child = self._children.get(child_id)
        if child is not None:
            child.cancel()
            await child.wait()
            return
        number = child_id.removeprefix("sub-")
        known = number.isdecimal() and len(number) < 20 and child_id == f"sub-{int(number)}"
        if not known or int(number) >= self._spawned:
            running = ", ".join(self._children) or "none"
            raise PluginNotSupportedError(f"there is no child {child_id!r}; running: {running}")

    def environment(self, depth: int) -> dict[str, str]:
        """Return the variables that tell a child process its depth and the limit."""
        return {DEPTH: str(depth), DEPTH_LIMIT: str(self.max_depth)}

    def _parent(self, turn: Turn | None) -> Child | None:
        if turn is None or turn.subagent_id is None:
            return None
        parent = self._children.get(turn.subagent_id)
        if parent is None or parent.cancelled or parent.ending:
            cancelled = parent is not None and parent.cancelled
            raise PluginInternalError(
                f"child {turn.subagent_id} has {'been cancelled' if cancelled else 'ended'}: "
                "it starts no children any more"
            )
        return parent

    def _runner_name(self, spec: SubagentSpec) -> str:
        if spec.runner:
            return spec.runner
        if spec.agent:
            entry = self.config.agents.get(spec.agent)
            return entry.runner if entry is not None else "acp"
        return self.config.default_runner

    def _runner_for(self, name: str) -> Runner | None:
        try:
            return self.runner(name)
        except PluginNotSupportedError:
            # A plugin may take a run by the hook alone, without being a Runner.
            hooks = self._registry.manager.hook.run_subagent.get_hookimpls()
            if any(not isinstance(hook.plugin, Runner) and not hook.wrapper for hook in hooks):
                return None
            raise

    def _places(self, runner: str, depth: int) -> Places:
        places = self._gates.get((runner, depth))
        if places is None:
            limits = self.config.max_concurrent
            total = limits.get(runner, limits.get("*", 64))
            places = self._gates[runner, depth] = Places(total)
        return places

    def _ended(self, child: Child) -> None:
        del self._children[child.id]
        if child.parent is not None:
            child.parent.children.pop(child.id, None)

    async def _report(self, worktree: Worktree) -> WorktreeReport | None:
        try:
            return await self._worktrees.report(worktree)
        except Exception as error:
            log.warning("no report on worktree %s: %s", worktree.path, error)
            return None

    def _watch_silence(self) -> None:
        if self._silence is None:
            self._silence = anyio.Event()
            self._tasks.start_soon(self._tell_of_silence, self._silence)

    async def _tell_of_silence(self, closing: anyio.Event) -> None:
        told: dict[str, float] = {}
        while not closing.is_set():
            with anyio.move_on_after(_SILENCE):
                await closing.wait()
            now = anyio.current_time()
            told = {key: sign for key, sign in told.items() if key in self._children}
            for child in self._children.values():
                silent = now - child.last_sign
                last = told.get(child.id, 0.0)
                if silent < last:
                    last = 0.0
                if child.state == "running" and silent >= max(_SILENCE, 2 * last):
                    told[child.id] = silent
                    log.info(
                        "child %s on %s has been silent for %.0f s: idle_timeout would end it",
                        child.id, child.runner, silent,
                    )  # fmt: skip

    # What parts share

    async def resource(
        self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> Any:
        """Enter the context manager that *factory* makes, once for *key*, and share its value.

        It is entered and left in a task of the Host's own, and left when the Host closes.

        :raises GoferError: the Host is closed; else whatever entering raises.
        """
        if self._stack is None:
            raise GoferError("the Host is not open: use it inside `async with Host() as host`")
        return await self._resources.get(key, factory)

    async def supervisor(self) -> Supervisor:
        """Return what starts the Host's child processes, so that none outlives it.

        :raises PluginNotSupportedError: the platform has none.
        """
        from .processes import Supervisor

        supervisor: Supervisor = await self.resource("gofer.processes", Supervisor)
        return supervisor

    async def release(self, key: Hashable) -> None:
        """Leave the context manager of *key* now: the next need makes a new one."""
        await self._resources.release(key)

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        self._tasks.start_soon(function, *args)
