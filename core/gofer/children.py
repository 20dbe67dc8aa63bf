"""One child: its life from the spawn to the result, its limits, and its cancellation."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

import anyio
from anyio.lowlevel import checkpoint

from ._dispatch import pass_chunk
from ._limits import time_limits, watch
from ._outcome import checked, failure, partial, settled
from .blocks import BLOCK_TYPES, Block
from .errors import PluginInternalError, PluginNotSupportedError, RunnerError
from .final import FinalMessage
from .messages import Message, Request, Usage
from .model import Model
from .runner import Run
from .stream import CLOSING_SECONDS, ErrorMode, Pair, TurnStream
from .subagents import SubagentResult, SubagentSpec, WorktreeReport
from .turn import StreamChunk, Turn

if TYPE_CHECKING:
    from ._family import Family
    from ._limits import Places
    from .worktree import Worktree

__all__ = ["Child"]

log = logging.getLogger("gofer")

# A runner that only emits lets others run, and itself be cancelled, after so many blocks.
_IN_A_ROW = 64


class Child:
    """A child agent of a Host.

    ``state`` is ``waiting`` (for a free place), ``running`` or ``ended``; ``parent`` is the
    child that spawned it, None for the parent's own.
    """

    # Thousands may await collection: what only a run needs comes with the run and goes with it.
    __slots__ = (
        "_answer",
        "_cancel_event",
        "_cancel_grace",
        "_cancelled",
        "_done",
        "_family",
        "_final",
        "_made",
        "_observed",
        "_on_cancel",
        "_pair",
        "_result",
        "_scope",
        "_timed",
        "_timed_out",
        "_turn",
        "children",
        "cwd",
        "depth",
        "ending",
        "id",
        "last_sign",
        "parent",
        "parent_session",
        "places",
        "signs",
        "spec",
        "state",
        "usage",
        "worktree",
    )

    def __init__(
        self,
        family: Family,
        child_id: str,
        spec: SubagentSpec,
        *,
        session: str,
        parent: Child | None,
        depth: int,
        cwd: Path,
        cancel_grace: float,
        observed: bool,
        places: Places[Child],
        worktree: Worktree | None = None,
    ) -> None:
        self.id = child_id
        self.spec = spec
        self.parent = parent
        self.parent_session = session
        self.depth = depth
        self.cwd = cwd
        self.worktree = worktree
        self.state: Literal["waiting", "running", "ended"] = "waiting"
        self.usage: Usage | None = None
        self.signs = 0
        self.last_sign = 0.0
        self.children: dict[str, Child] = {}
        self.ending = False
        self._family = family
        self._cancel_grace = cancel_grace
        self._observed = observed
        self.places = places
        self._cancel_event: anyio.Event | None = None
        self._on_cancel: Callable[[], None] | None = None
        self._cancelled = False
        self._timed = False
        self._timed_out: str | None = None
        self._scope: anyio.CancelScope | None = None
        self._done: anyio.Event | None = None
        self._result: SubagentResult | None = None
        self._final: FinalMessage | None = None
        self._made: dict[str, Any] | None = None
        self._answer: SubagentResult | None = None
        self._pair: Pair | None = None
        self._turn: Turn | None = None

    def __repr__(self) -> str:
        return f"<Child {self.id} on {self.runner!r}, {self.state}>"

    # What others see of it

    @property
    def runner(self) -> str:
        """The name of its runner."""
        return self.spec.runner or ""

    @property
    def agent(self) -> str | None:
        """The name of its agent, where one was asked for."""
        return self.spec.agent

    @property
    def session(self) -> str:
        """The conversation that it is itself."""
        return f"{self.parent_session}/{self.id}"

    @property
    def final(self) -> FinalMessage:
        """The final message so far; its result has it once there is one."""
        if self._final is None:
            self._final = FinalMessage()
        return self._final

    @property
    def result(self) -> SubagentResult | None:
        """Its result; None until it ended."""
        return self._result

    async def wait(self) -> SubagentResult:
        """Wait for the child's end; a caller that is cancelled leaves the child as it was."""
        if self._result is None:
            if self._done is None:
                self._done = anyio.Event()
            await self._done.wait()
        assert self._result is not None
        return self._result

    @property
    def cancel_requested(self) -> anyio.Event:
        """Set when the child should end."""
        if self._cancel_event is None:
            self._cancel_event = anyio.Event()
            if self._cancelled:
                self._cancel_event.set()
        return self._cancel_event

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Have *callback* called when the child should end, at once if it should already."""
        self._on_cancel = callback
        if self._cancelled:
            self._tell_of_cancel(callback)

    def _tell_of_cancel(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except (Exception, SystemExit):  # it must not keep the others from being ended
            log.exception("%s: the on_cancel of runner %r failed", self.id, self.runner)

    @property
    def cancelled(self) -> bool:
        """Whether its end was asked for, of it or of a child above it. It stays so."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask it and all below it to end, and end them after their runners' grace."""
        self.end("cancelled")

    def end(self, reason: str) -> None:
        """Ask it to end: it was cancelled, or a limit in time ended it, and *reason* says which."""
        for below in tuple(self.children.values()):
            below.end("cancelled")
        if self._cancelled or self.ending:
            return
        self._cancelled = True
        if reason != "cancelled":
            self._timed_out = reason
        if self._cancel_event is not None:
            self._cancel_event.set()
        if self._on_cancel is not None:
            self._tell_of_cancel(self._on_cancel)
        if self.places.withdraw(self):
            self._family.begin(self, False)
        elif self._scope is None:  # it has not begun, and ends as soon as it does
            return
        elif self._cancel_grace <= 0:
            self._scope.cancel()
        else:
            self._family.start(self._cancel_after_grace)

    async def _cancel_after_grace(self) -> None:
        with anyio.move_on_after(self._cancel_grace):
            await self.wait()
        if self._scope is not None:
            self._scope.cancel()

    # What its runner does with it

    async def emit(self, block: Block) -> Block:
        """Take a block that the runner observed through the hooks."""
        self._check_alive()
        if not isinstance(block, BLOCK_TYPES):
            raise RunnerError(
                f"runner {self.runner!r} emitted a {type(block).__name__}, which is no block"
            )
        self._sign()
        turn = self._turn or self.new_turn()
        chunk = StreamChunk(block, turn)
        hooks = self._family.registry.on_stream_chunk
        if hooks:
            await pass_chunk(hooks, chunk)
        if self._pair is not None:
            self._pair.transcript.add(block, chunk.block)
        self.final.add(chunk.block)
        if not self.signs % _IN_A_ROW:
            await checkpoint()
        return chunk.block

    def stream(self, request: Request, model: Model, errors: ErrorMode) -> TurnStream:
        """Make a model request inside this child."""
        self._check_alive()
        self.final.next_response()
        self._family.host._bind(model)
        self._turn = self.new_turn()
        return TurnStream(
            self._family.registry,
            request,
            model,
            self._turn,
            errors=errors,
            tool_scope=() if self._observed else self.spec.tool_scope,
            on_block=self._saw,
            on_end=self._spent,
        )

    def made(self, given: dict[str, Any]) -> SubagentResult:
        """Return a result of this child's; whether it is still as good is seen at the end."""
        result = SubagentResult(**given)
        self._made = {**vars(result), "permissions_denied": [*result.permissions_denied]}
        return result

    def _check_alive(self) -> None:
        if self._result is not None:
            raise RunnerError(
                f"child {self.id} has its result already: what its runner left running "
                "must end with the run"
            )

    def new_turn(self) -> Turn:
        """Return a new turn of this child's."""
        return Turn(
            id=self._family.host._next_turn_id(),
            host=self._family.host,
            session=self.session,
            depth=self.depth,
            subagent_id=self.id,
            runner=self.runner,
            agent=self.agent,
            observed=self._observed,
        )

    def _saw(self, block: Block) -> None:
        self._sign()
        self.final.add(block)

    def _sign(self) -> None:
        self.signs += 1
        if self._timed:  # asking for the time takes as long as all the rest of it
            self.last_sign = anyio.current_time()

    def _spent(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage

    # Its life

    async def live(self, scope: anyio.CancelScope) -> bool:
        """Run the child to its end; whatever happens, there is a result.

        :param scope: the task's; cancelling the child cancels it.
        :return: whether it left nothing, so that another may go on in its task.
        """
        result: SubagentResult | None = None
        clean = False
        try:
            if not self._cancelled:
                self._scope = scope
                result = await self._execute()
                clean = not scope.cancel_called
        except (Exception, SystemExit) as error:
            result = self._failed(error)
        except BaseExceptionGroup as group:
            result = self._failed_with(group, scope)
        except anyio.get_cancelled_exc_class():
            if not scope.cancel_called:
                # It must not end the siblings.
                result = self._failed(RunnerError("the run was cancelled from within its runner"))
        finally:
            self.ending = True
            result = result or self._answer
            if self._has_left():
                clean = False
                # Whatever the runner left its own task in, this one does its work.
                self._family.start(self._clean_up, result)
            else:
                self._settle(result)
        return clean

    def _failed_with(
        self, group: BaseExceptionGroup[BaseException], scope: anyio.CancelScope
    ) -> SubagentResult | None:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise group
        cancelled = anyio.get_cancelled_exc_class()
        rest = group.split(cancelled)[1] if scope.cancel_called else group
        return None if rest is None else self._failed(rest)

    def _has_left(self) -> bool:
        """Whether something of it is to be ended, or to be told of."""
        unfinished = self._pair is not None and self._pair.response is None
        return bool(self.children) or unfinished or self.worktree is not None

    async def _execute(self) -> SubagentResult:
        self.state = "running"
        timeout, idle = time_limits(self.spec, self._family.host.config)
        if timeout is not None or idle is not None:
            self._timed = idle is not None
            self.last_sign = anyio.current_time()
            self._family.start(watch, self, timeout, idle)
        run = Run(self._family.host, self)
        if self._observed:
            self._turn = self.new_turn()
            pair = Pair(self._family.registry, self._turn)
            request = Request(messages=[Message("user", self.spec.task)])
            request = await pair.open(request, copied=True)
            asked = [message for message in request.messages if message.role == "user"]
            run.prompt = asked[-1].text if asked else ""
            self._pair = pair
        answer = self._family.registry.run_subagent(self.spec, run)
        if answer is None:
            raise PluginNotSupportedError(
                f"no runner took the child: runner {self.runner!r} is known but declined it"
            )
        if type(answer) is not CoroutineType and not inspect.isawaitable(answer):
            raise PluginInternalError(
                f"runner {self.runner!r} returned a {type(answer).__name__} from run_subagent: "
                "an awaitable or None is needed, and async def run(self, spec, run) gives one"
            )
        result = await answer
        if not isinstance(result, SubagentResult):
            raise PluginInternalError(
                f"runner {self.runner!r} gave a {type(result).__name__}: "
                "return run.result(...), a SubagentResult"
            )
        result = checked(result, self.runner, self._made)
        # Kept, for it counts even if the plugins are being told of it when the child is cancelled.
        self._answer = result
        if self._pair is not None:
            await self._pair.close_quietly(result.stop_reason, result.usage)
        return result

    async def _clean_up(self, result: SubagentResult | None) -> None:
        """End what it left, tell of it, and then give out its result."""
        report = None
        try:
            with anyio.CancelScope(shield=True):
                for below in tuple(self.children.values()):
                    below.end("cancelled")
                for below in tuple(self.children.values()):
                    await below.wait()
                if self._pair is not None and self._pair.response is None:
                    reason = "cancelled" if result is None else result.stop_reason
                    with anyio.move_on_after(CLOSING_SECONDS):
                        await self._pair.close_quietly(reason)
                if self.worktree is not None:
                    report = await self._family.report(self.worktree)
        finally:
            self._settle(result, report)

    # Its result

    def _failed(self, error: BaseException) -> SubagentResult:
        said = failure(error)
        log.info("child %s failed: %s", self.id, said, exc_info=error)
        return partial("error", said, self.final, self.usage)

    def _cancelled_result(self) -> SubagentResult:
        why = "the child was cancelled before it ended"
        return partial("cancelled", why, self.final, self.usage)

    def _settle(self, result: SubagentResult | None, report: WorktreeReport | None = None) -> None:
        self._result = settled(
            result or self._cancelled_result(),
            child_id=self.id,
            runner=self.runner,
            worktree_path=str(self.worktree.path) if self.worktree else None,
            report=report,
            timed_out=self._timed_out,
        )
        self.state = "ended"
        # What only the run needed must not stay as long as the result does.
        self._answer = self._made = self._pair = self._scope = self._turn = self._final = None
        self._family.ended(self)
        if self._done is not None:
            self._done.set()
