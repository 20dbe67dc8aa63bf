"""A child's life: what its runner does with it, from the start of its run to its result."""

from __future__ import annotations

import inspect
import logging
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from ._dispatch import pass_chunk
from ._limits import time_limits, watch
from ._outcome import CANCELLED, checked, failure, partial, settled
from .blocks import BLOCK_TYPES, Block
from .errors import PluginInternalError, PluginNotSupportedError, RunnerError
from .messages import Request, Usage
from .model import Model
from .runner import Run
from .stream import CLOSING_SECONDS, ErrorMode, Pair, TurnStream
from .subagents import SubagentResult, WorktreeReport
from .turn import StreamChunk, Turn

if TYPE_CHECKING:
    from ._family import Family
    from .children import Child

__all__ = ["Life"]

log = logging.getLogger("gofer")

# A runner that only emits lets others run, and itself be cancelled, after so many blocks.
_IN_A_ROW = 64


class Life:
    """What a child has only while it runs: its turn, and what its runner has given so far."""

    __slots__ = ("_answer", "_family", "_made", "_pair", "_timed", "_turn", "child")

    def __init__(self, family: Family, child: Child) -> None:
        self.child = child
        self._family = family
        self._timed = False
        self._made: dict[str, Any] | None = None
        self._answer: SubagentResult | None = None
        self._pair: Pair | None = None
        self._turn: Turn | None = None

    # What its runner does with it

    async def emit(self, block: Block) -> Block:
        """Take a block that the runner observed through the hooks."""
        child = self.child
        self._check_alive()
        if not isinstance(block, BLOCK_TYPES):
            raise RunnerError(
                f"runner {child.runner!r} emitted a {type(block).__name__}, which is no block"
            )
        self._sign()
        turn = self._turn or self.new_turn()
        chunk = StreamChunk(block, turn)
        hooks = self._family.registry.on_stream_chunk
        if hooks:
            await pass_chunk(hooks, chunk)
        if self._pair is not None:
            self._pair.transcript.add(block, chunk.block)
        child.final.add(chunk.block)
        if not child.signs % _IN_A_ROW:
            await checkpoint()
        return chunk.block

    def stream(self, request: Request, model: Model, errors: ErrorMode) -> TurnStream:
        """Make a model request inside this child."""
        child = self.child
        self._check_alive()
        child.final.next_response()
        self._family.host._bind(model)
        self._turn = self.new_turn()
        return TurnStream(
            self._family.registry,
            request,
            model,
            self._turn,
            errors=errors,
            tool_scope=() if child.observed else child.spec.tool_scope,
            on_block=self._saw,
            on_end=self._spent,
        )

    def made(self, given: dict[str, Any]) -> SubagentResult:
        """Return a result of this child's; whether it is still as good is seen at the end."""
        self._check_alive()
        result = SubagentResult(**given)
        self._made = {**vars(result), "permissions_denied": [*result.permissions_denied]}
        return result

    def new_turn(self) -> Turn:
        """Return a new turn of this child's."""
        child, host = self.child, self._family.host
        return Turn(
            id=host._next_turn_id(),
            host=host,
            session=child.session,
            depth=child.depth,
            subagent_id=child.id,
            runner=child.runner,
            agent=child.agent,
            observed=child.observed,
        )

    def _check_alive(self) -> None:
        if self.child.result is not None:
            raise RunnerError(
                f"child {self.child.id} has its result already: what its runner left running "
                "must end with the run"
            )

    def _saw(self, block: Block) -> None:
        self._sign()
        self.child.final.add(block)

    def _sign(self) -> None:
        self.child.signs += 1
        if self._timed:  # asking for the time takes as long as all the rest of it
            self.child.last_sign = anyio.current_time()

    def _spent(self, usage: Usage | None) -> None:
        if usage is not None:
            before = self.child.usage
            self.child.usage = usage if before is None else before + usage

    # From its start to its result

    async def live(self, scope: anyio.CancelScope) -> bool:
        """Run the child to its end; whatever happens, there is a result.

        :param scope: the task's; cancelling the child cancels it.
        :return: whether it left nothing, so that another may go on in its task.
        """
        child = self.child
        result: SubagentResult | None = None
        clean = False
        fatal = True
        try:
            if not child.cancelled:
                child._begun(scope)
                result = await self._execute()
                clean = not scope.cancel_called
            fatal = False
        except BaseException as error:
            result = self._became(error, scope)
            fatal = False
        finally:
            child.ending = True
            result = result or self._answer
            if fatal or not self._has_left():
                # Where all is torn down, a task that is started now may never take a step.
                self._settle(result)
            else:
                clean = False
                # Whatever the runner left its own task in, this one does its work.
                self._family.start(self._clean_up, result)
        return clean

    async def _execute(self) -> SubagentResult:
        child, registry = self.child, self._family.registry
        timeout, idle = time_limits(child.spec, self._family.host.config)
        if timeout is not None or idle is not None:
            self._timed = idle is not None
            child.last_sign = anyio.current_time()
            self._family.start(watch, child, timeout, idle)
        run = Run(self._family.host, self)
        if child.observed:
            self._turn = self.new_turn()
            pair = Pair(registry, self._turn)
            request = await pair.open(Request.of_task(child.spec.task), copied=True)
            asked = [message for message in request.messages if message.role == "user"]
            run.prompt = asked[-1].text if asked else ""
            self._pair = pair
        answer = registry.run_subagent(child.spec, run)
        if answer is None:
            raise PluginNotSupportedError(
                f"no runner took the child: runner {child.runner!r} is known but declined it"
            )
        if type(answer) is not CoroutineType and not inspect.isawaitable(answer):
            raise PluginInternalError(
                f"runner {child.runner!r} returned a {type(answer).__name__} from run_subagent: "
                "an awaitable or None is needed, and async def run(self, spec, run) gives one"
            )
        result = await answer
        if not isinstance(result, SubagentResult):
            raise PluginInternalError(
                f"runner {child.runner!r} gave a {type(result).__name__}: "
                "return run.result(...), a SubagentResult"
            )
        result = checked(result, child.runner, self._made)
        # Kept, for it counts even if the plugins are being told of it when the child is cancelled.
        self._answer = result
        if self._pair is not None:
            await self._pair.close_quietly(result.stop_reason, result.usage)
        return result

    def _has_left(self) -> bool:
        """Whether something of it is to be ended, or to be told of."""
        unfinished = self._pair is not None and self._pair.response is None
        return bool(self.child.children) or unfinished or self.child.worktree is not None

    async def _clean_up(self, result: SubagentResult | None) -> None:
        """End what it left, tell of it, and then give out its result."""
        child, report = self.child, None
        try:
            with anyio.CancelScope(shield=True):
                for below in tuple(child.children.values()):
                    below.end("cancelled")
                for below in tuple(child.children.values()):
                    await below.wait()
                if self._pair is not None and self._pair.response is None:
                    reason = "cancelled" if result is None else result.stop_reason
                    with anyio.move_on_after(CLOSING_SECONDS):
                        await self._pair.close_quietly(reason)
                if child.worktree is not None:
                    report = await self._family.report(child.worktree)
        finally:
            self._settle(result, report)

    # Its result

    def _failed(self, error: BaseException) -> SubagentResult:
        said = failure(error)
        log.info("child %s failed: %s", self.child.id, said, exc_info=error)
        return partial("error", said, self.child.final, self.child.usage)

    def _became(self, error: BaseException, scope: anyio.CancelScope) -> SubagentResult | None:
        """Return what the end by *error* makes of the child, None where it was cancelled.

        What is meant for the whole program is raised, as it is.
        """
        cancelled = anyio.get_cancelled_exc_class()
        if isinstance(error, cancelled):
            # It must not end the siblings.
            why = RunnerError("the run was cancelled from within its runner")
            return None if scope.cancel_called else self._failed(why)
        if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is None:
            rest = error.split(cancelled)[1] if scope.cancel_called else error
            return None if rest is None else self._failed(rest)
        if isinstance(error, Exception | SystemExit):
            return self._failed(error)
        raise error

    def _cancelled_result(self) -> SubagentResult:
        return partial("cancelled", CANCELLED, self.child.final, self.child.usage)

    def _settle(self, result: SubagentResult | None, report: WorktreeReport | None = None) -> None:
        child = self.child
        worktree = child.worktree
        result = settled(
            result or self._cancelled_result(),
            child_id=child.id,
            runner=child.runner,
            worktree_path=str(worktree.path) if worktree else None,
            report=report,
            timed_out=child.timed_out,
        )
        # A runner may keep its Run: what only the run needed must not stay as long as that.
        self._answer = self._made = self._pair = self._turn = None
        child._ended(result)
