"""The Host: it holds the plugins, the children and what they share."""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import ValidationError

from ._config_sources import directory
from ._discovery import PLUGINS, RUNNERS, PluginInfo
from ._dispatch import pass_chunk
from ._family import Family
from ._limits import DEPTH, DEPTH_LIMIT, inherited_depth
from ._plugins import Plugins
from ._registry import Registry
from ._resources import Resources
from ._sessions import Session, Sessions
from .blocks import ToolCall, ToolResult
from .children import Child
from .config import Config, load_config
from .errors import GoferError, PluginNotSupportedError, PluginValidationError
from .messages import Request, Tools
from .model import Model
from .runner import Runner
from .stream import ErrorMode, Pair, TurnStream
from .subagents import SubagentResult, SubagentSpec
from .turn import StreamChunk, Turn

if TYPE_CHECKING:
    from .processes import Supervisor
    from .worktree import Worktrees

__all__ = ["Host"]

_NOT_OPEN = "the Host is not open: use it inside `async with Host() as host`"


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
        self.cwd = directory(cwd)
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
        self._sessions = Sessions()
        self._turn_numbers = itertools.count()
        self._closing = False
        self._thread = threading.get_ident()
        strict = self._config.strict if self._strict is None else self._strict
        self._plugins = Plugins(self._registry, self._config, self._bind, strict=strict)
        self._stack = AsyncExitStack()
        try:
            # Before the task group is there: what it raises must not arrive inside a group.
            self._plugins.open(self._given, discover=self._discover)
            tasks = await self._stack.enter_async_context(anyio.create_task_group())
        except BaseException:
            self._stack = None
            raise
        self._resources = Resources(tasks)
        self._family = Family(self, self._registry, tasks)
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
                await self._family.close()
                await self._resources.close()
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
            raise GoferError(_NOT_OPEN)

    def _check_opened(self) -> None:
        # What is still needed while the children end.
        if self._stack is None:
            raise GoferError(_NOT_OPEN)

    def _check_here(self) -> None:
        """Check that the Host is open, and that its event loop is ours: another's never answers."""
        self._check_open()
        self._check_thread()

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise GoferError(
                "the Host was opened in another thread, and works in that thread's event loop "
                "alone: come back to it with anyio.from_thread.run, or open a Host here"
            )

    # Plugins and runners

    @property
    def config(self) -> Config:
        """The settings in force.

        :raises GoferError: the Host has not been opened yet.
        """
        if self._config is None:
            raise GoferError(_NOT_OPEN)
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
        self._check_here()
        if errors not in ("raise", "report"):
            raise PluginValidationError("host.stream.errors", f"{errors!r}: 'raise' or 'report'")
        self._bind(model)
        return TurnStream(self._registry, request, model, self._new_turn(session), errors=errors)

    async def tools(self, session: str | None = None) -> Tools:
        """Ask the plugins, by a request that is never sent, which tools they offer the parent."""
        self._check_here()
        pair = Pair(self._registry, self._new_turn(session, probe=True))
        request = await pair.open(Request())
        await pair.close("end_turn")
        return Tools(request.tools)

    async def call_tool(
        self, name: str, arguments: object = None, session: str | None = None
    ) -> ToolResult:
        """Have the plugins execute a tool call of the parent's.

        :raises PluginNotSupportedError: no plugin took it.
        :raises PluginValidationError: name or arguments are nothing that JSON can hold.
        :raises PluginError: a plugin refused the call or failed.
        """
        self._check_here()
        try:
            call = ToolCall(
                id=f"call-{uuid.uuid4().hex}",
                name=name,
                arguments={} if arguments is None else arguments,
            )
        except ValidationError as error:
            raise PluginValidationError(
                "host.call_tool", f"name and arguments must be what JSON can hold: {error}"
            ) from None
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
        return list(self._family.alive.values())

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
        self._check_here()
        return await self._family.spawn(spec, turn)

    async def cancel(self, child_id: str) -> None:
        """Cancel a child and all below it, and wait for its end; an ended one is left alone.

        :raises PluginNotSupportedError: no child ever had this id.
        """
        self._check_here()
        await self._family.cancel(child_id)

    @property
    def worktrees(self) -> Worktrees:
        """What makes the children's worktrees, reports on them, and removes them when asked."""
        self._check_open()
        return self._family.worktrees

    def environment(self, depth: int) -> dict[str, str]:
        """Return the variables that tell a child process its depth and the limit."""
        self._check_opened()
        return {DEPTH: str(depth), DEPTH_LIMIT: str(self.max_depth)}

    # What parts share

    async def resource(
        self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> Any:
        """Enter the context manager that *factory* makes, once for *key*, and share its value.

        It is entered and left in a task of the Host's own, and left when the Host closes.

        :raises GoferError: the Host is closed; else whatever entering raises.
        """
        self._check_opened()
        self._check_thread()
        return await self._resources.get(key, factory)

    async def supervisor(self) -> Supervisor:
        """Return what starts the Host's child processes, so that none outlives it.

        :raises PluginNotSupportedError: the platform has none.
        """
        from .processes import Supervisor

        supervisor: Supervisor = await self.resource(Supervisor, Supervisor)
        return supervisor

    async def release(self, key: Hashable) -> None:
        """Leave the context manager of *key* now: the next need makes a new one."""
        self._check_opened()
        await self._resources.release(key)
