"""One child: its life from the spawn to the result, its limits, and its cancellation."""

from __future__ import annotations

import inspect
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio

from ._dispatch import pass_chunk
from ._outcome import checked, failure, settled
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
    from ._limits import Place
    from .worktree import Worktree

__all__ = ["Child"]

log = logging.getLogger("gofer")


class Child:
    """A child agent of a Host.

    ``state`` is ``waiting`` (for a free place), ``running`` or ``ended``; ``parent`` is the
    child that spawned it, None for the parent's own.
    """

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
        place: Place,
        worktree: Worktree | None = None,
    ) -> None:
        self.id = child_id
        self.spec = spec
        self.runner = spec.runner or ""
        self.agent = spec.agent
        self.parent = parent
        self.parent_session = session
        self.session = f"{session}/{child_id}"
        self.depth = depth
        self.cwd = cwd
        self.worktree = worktree
        self.state: Literal["waiting", "running", "ended"] = "waiting"
        self.final = FinalMessage()
        self.usage: Usage | None = None
        self.last_sign = 0.0
        self.children: dict[str, Child] = {}
        self.ending = False
        self._family = family
        self._host = family.host
        self._cancel_grace = cancel_grace
        self._observed = observed
        self._place = place
        self._cancel_event: anyio.Event | None = None
        self._cancelled = False
        self._timed_out: str | None = None
        self._scope: anyio.CancelScope | None = None
        self._done: anyio.Event | None = None
        self._result: SubagentResult | None = None
        self._pair: Pair | None = None
        self._turn: Turn | None = None

    def __repr__(self) -> str:
        return f"<Child {self.id} on {self.runner!r}, {self.state}>"

    # What others see of it

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

    @property
    def cancelled(self) -> bool:
        """Whether its end was asked for, of it or of a child above it. It stays so."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask it and all below it to end, and end them after their runners' grace."""
        self._end("cancelled")

    def _end(self, reason: str) -> None:
        for below in tuple(self.children.values()):
            below._end("cancelled")
        if self._cancelled or self.ending:
            return
        self._cancelled = True
        if reason != "cancelled":
            self._timed_out = reason
        if self._cancel_event is not None:
            self._cancel_event.set()
        if self._scope is None:  # it has not begun, and ends as soon as it does
            return
        if self._cancel_grace <= 0 or self.state == "waiting":
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
        self.last_sign = anyio.current_time()
        turn = self._turn or self.new_turn()
        chunk = StreamChunk(block, turn)
        hooks = self._family.registry.on_stream_chunk
        if hooks:
            await pass_chunk(hooks, chunk)
        if self._pair is not None:
            self._pair.transcript.add(block, chunk.block)
        self.final.add(chunk.block)
        return chunk.block

    def stream(self, request: Request, model: Model, errors: ErrorMode) -> TurnStream:
        """Make a model request inside this child."""
        self._check_alive()
        self.final.next_response()
        self._host._bind(model)
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

    def _check_alive(self) -> None:
        if self._result is not None:
            raise RunnerError(
                f"child {self.id} has its result already: what its runner left running "
                "must end with the run"
            )

    def new_turn(self) -> Turn:
        """Return a new turn of this child's."""
        return Turn(
            id=self._host._next_turn_id(),
            host=self._host,
            session=self.session,
            depth=self.depth,
            subagent_id=self.id,
            runner=self.runner,
            agent=self.agent,
            observed=self._observed,
        )

    def _saw(self, block: Block) -> None:
        self.last_sign = anyio.current_time()
        self.final.add(block)

    def _spent(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage

    # Its life: one task of the Host's

    async def live(self) -> None:
        """Run the child to its end; whatever happens, there is a result."""
        result: SubagentResult | None = None
        try:
            # Shielded: the Host ends its children itself, with their grace, whoever cancels it.
            with anyio.CancelScope(shield=True) as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                result = await self._run_in_turn()
        except (Exception, SystemExit) as error:
            result = self._failed(error)
        except BaseExceptionGroup as group:
            if group.subgroup((KeyboardInterrupt, anyio.get_cancelled_exc_class())) is not None:
                raise
            result = self._failed(group)
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # None of our scopes did it, and it must not end the siblings.
            result = self._failed(RunnerError("the run was cancelled from within its runner"))
        finally:
            result = result or self._answer
            try:
                await self._clean_up(result)
            finally:
                self._settle(result or self._cancelled_result())

    async def _run_in_turn(self) -> SubagentResult:
        async with self._place:
            if self._cancelled:
                return self._cancelled_result()
            self.state = "running"
            self.last_sign = anyio.current_time()
            timeout, idle = self._time_limits()
            if timeout is not None or idle is not None:
                self._family.start(self._watch, timeout, idle)
            return await self._execute()

    def _time_limits(self) -> tuple[float | None, float | None]:
        """Return the run's limits, total and idle: its own, else its agent's, else the Host's."""
        config = self._host.config
        agent = config.agents.get(self.agent) if self.agent else None
        # None of them is ever 0.
        total = self.spec.timeout or (agent and agent.timeout) or config.timeout
        idle = self.spec.idle_timeout or (agent and agent.idle_timeout) or config.idle_timeout
        return total, idle

    async def _execute(self) -> SubagentResult:
        run = Run(self._host, self)
        if self._observed:
            self._turn = self.new_turn()
            pair = Pair(self._family.registry, self._turn)
            request = Request(messages=[Message("user", self.spec.task)])
            request = await pair.open(request, copied=True)
            asked = [message for message in request.messages if message.role == "user"]
            run.prompt = asked[-1].text if asked else ""
            self._pair = pair
        answer: Any = self._family.registry.manager.hook.run_subagent(spec=self.spec, run=run)
        if answer is None:
            raise PluginNotSupportedError(
                f"no runner took the child: runner {self.runner!r} is known but declined it"
            )
        if not inspect.isawaitable(answer):
            raise PluginInternalError(
                f"runner {self.runner!r} returned a {type(answer).__name__} from run_subagent: "
                "an awaitable or None is needed"
            )
        result = await answer
        if not isinstance(result, SubagentResult):
            raise PluginInternalError(
                f"runner {self.runner!r} gave a {type(result).__name__}: "
                "return run.result(...), a SubagentResult"
            )
        result = checked(result, self.runner)
        # Kept, for it counts even if the plugins are being told of it when the child is cancelled.
        self._answer = result
        if self._pair is not None:
            await self._pair.close_quietly(result.stop_reason, result.usage)
        return result

    async def _watch(self, timeout: float | None, idle: float | None) -> None:
        started = anyio.current_time()
        while self._result is None:
            ends = started + timeout if timeout is not None else float("inf")
            silent = self.last_sign + idle if idle is not None else float("inf")
            with anyio.move_on_after(min(ends, silent) - anyio.current_time()):
                await self.wait()
                return
            now = anyio.current_time()
            if now >= ends:
                self._end(f"timed out after {timeout:g} s: raise timeout, or ask for less")
                return
            if idle is not None and now >= self.last_sign + idle:
                self._end(f"timed out after {idle:g} s without a sign of life: raise idle_timeout")
                return

    async def _clean_up(self, result: SubagentResult | None) -> None:
        self.ending = True
        for below in tuple(self.children.values()):
            below._end("cancelled")
        unfinished = self._pair is not None and self._pair.response is None
        if not self.children and not unfinished and self.worktree is None:
            return
        with anyio.CancelScope(shield=True):
            for below in tuple(self.children.values()):
                await below.wait()
            if self._pair is not None and unfinished:
                reason = "cancelled" if result is None else result.stop_reason
                with anyio.move_on_after(CLOSING_SECONDS):
                    await self._pair.close_quietly(reason)
            if self.worktree is not None:
                self._report = await self._family.report(self.worktree)

    _answer: SubagentResult | None = None
    _report: WorktreeReport | None = None

    # Its result

    def _failed(self, error: BaseException) -> SubagentResult:
        said = failure(error)
        log.info("child %s failed: %s", self.id, said, exc_info=error)
        return self._partial("error", said)

    def _cancelled_result(self) -> SubagentResult:
        return self._partial("cancelled", "the child was cancelled before it ended")

    def _partial(self, stop_reason: str, error: str) -> SubagentResult:
        return SubagentResult(
            subagent_id=self.id,
            summary=self.final.text,
            fallback=self.final.fallback,
            stop_reason=stop_reason,
            usage=self.usage,
            error=error,
        )

    def _settle(self, result: SubagentResult) -> None:
        self._result = settled(
            result,
            child_id=self.id,
            runner=self.runner,
            worktree_path=str(self.worktree.path) if self.worktree else None,
            report=self._report,
            timed_out=self._timed_out,
        )
        self.state = "ended"
        # What only the run needed must not stay as long as the result does.
        self._answer = self._pair = self._scope = None
        self.final = FinalMessage()
        self._family.ended(self)
        if self._done is not None:
            self._done.set()
