"""What a runner is, and what it is given for one child."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from .blocks import Block
from .hooks import hookimpl
from .messages import Request, Usage
from .model import Model
from .stream import ErrorMode, TurnStream
from .subagents import SessionInfo, SubagentResult, SubagentSpec

if TYPE_CHECKING:
    from ._life import Life
    from .host import Host

__all__ = ["Capabilities", "Run", "Runner"]


@dataclass(frozen=True)
class Capabilities:
    """What a runner declares it can do; the conformance kit holds it to that.

    :param streams: its text comes before its end, a long answer in more than one block.
    :param cancels: it ends by itself within ``cancel_grace`` once ``run.cancel_requested`` is set.
    :param resumes: ``spec.resume`` goes on with a session of its agent's.
    :param cwd: it works in ``run.cwd``.
    :param tool_scope: it keeps to ``spec.tool_scope``.
    :param tools: it executes tools itself: its tool calls are seen, and each has its result.
    """

    streams: bool = False
    cancels: bool = False
    resumes: bool = False
    cwd: bool = False
    tool_scope: bool = False
    tools: bool = False


class Runner(ABC):
    """Executes children: subclass it, name it, and write :meth:`run`.

    ``name`` is what ``spec.runner`` says, and what its entry point is called. ``cancel_grace``
    is how many seconds a cancelled run has to end by itself. ``observed``: the child makes its
    own model requests and executes its own tools, and the runner tells of them with
    ``run.emit``; the host then brackets each run with one ``on_request`` and one
    ``on_response_complete``. A runner that makes its requests with ``run.stream`` says False.
    ``capabilities`` is what it declares it can do.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()
    cancel_grace: float = 0.0
    observed: bool = True

    @abstractmethod
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Do what *spec* asks, and return ``run.result(...)``.

        What it raises becomes a result with ``exit_ok=False`` and the partial text.
        """

    def check(self, spec: SubagentSpec, host: Host) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse what cannot be run here, before an id is given and a worktree made.

        :raises PluginError: why, and what to do.
        """

    @hookimpl
    def run_subagent(self, spec: SubagentSpec, run: Run) -> Awaitable[SubagentResult] | None:
        """Take the runs that name this runner."""
        return self.run(spec, run) if spec.runner == self.name else None


class Run:
    """One child, as its runner sees it.

    ``prompt`` is the task as the plugins' ``on_request`` left it; ``cwd`` is absolute, and the
    worktree where one was asked for.
    """

    def __init__(self, host: Host, life: Life) -> None:
        self._life, self._child = life, life.child
        self.host = host
        self.prompt = life.child.spec.task

    @property
    def id(self) -> str:
        """The child's id, ``sub-<n>``."""
        return self._child.id

    @property
    def spec(self) -> SubagentSpec:
        """What the child is asked to do."""
        return self._child.spec

    @property
    def depth(self) -> int:
        """1 for a child of the parent, 2 for a child of that, and so on."""
        return self._child.depth

    @property
    def session(self) -> str:
        """The child's own session."""
        return self._child.session

    @property
    def cwd(self) -> Path:
        """The directory to work in."""
        return self._child.cwd

    @property
    def cancel_requested(self) -> anyio.Event:
        """Set when the child should end; ``cancel_grace`` seconds later the run is cancelled."""
        return self._child.cancel_requested

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Have *callback* called when ``cancel_requested`` is set, at once if it is already.

        It spares a task that waits for that. The last one given counts; what it raises is logged.
        """
        self._child.on_cancel(callback)

    @property
    def environment(self) -> dict[str, str]:
        """What a child process needs in its environment, so that limits on depth reach it."""
        return self.host.environment(self._child.depth)

    async def emit(self, block: Block) -> Block:
        """Take *block* through the hooks, and return it as they left it.

        :raises PluginError: a plugin refused it; let it end the run.
        """
        return await self._life.emit(block)

    def stream(self, request: Request, model: Model, *, errors: ErrorMode = "raise") -> TurnStream:
        """Make a model request inside this child, through the hooks; see ``Host.stream``."""
        return self._life.stream(request, model, errors)

    def result(
        self,
        summary: str | None = None,
        stop_reason: str = "end_turn",
        *,
        error: str | None = None,
        usage: Usage | None = None,
        permissions_denied: list[Any] | None = None,
        session: SessionInfo | None = None,
    ) -> SubagentResult:
        """Return the child's result; by default with its final message and its summed usage."""
        child = self._child
        given: dict[str, Any] = {
            "subagent_id": child.id,
            "summary": child.final.text if summary is None else summary,
            "worktree_path": None,
            "exit_ok": False,
            "stop_reason": stop_reason,
            "usage": usage or child.usage,
            "error": error,
            "permissions_denied": permissions_denied or [],
            "fallback": child.final.fallback if summary is None else False,
            "session": session,
            "worktree": None,
        }
        return self._life.made(given)
