"""The plugin that watches a runner: what it was given, said and returned, before gofer mends it."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

import anyio

from ..blocks import Block, ToolCall, ToolResult
from ..children import Child
from ..errors import GoferError
from ..final import FinalMessage
from ..hooks import hookimpl
from ..runner import Run
from ..subagents import SubagentResult, SubagentSpec
from ..turn import StreamChunk

__all__ = ["Emitted", "Record", "Watcher", "is_ours"]


@dataclass(frozen=True)
class Emitted:
    """A block as the runner gave it to ``run.emit``, and its JSON at that moment."""

    block: Any
    json: str | None


@dataclass
class Record:
    """One child, as it was seen."""

    id: str
    child: Child | None = None
    run: Run | None = None
    blocks: list[Block] = field(default_factory=list)
    """Every block of the child, as the hooks left it."""
    calls: list[ToolCall | ToolResult] = field(default_factory=list)
    """Its calls, also those that a plugin replaced by their results, and results, in order."""
    originals: FinalMessage = field(default_factory=FinalMessage)
    final: FinalMessage = field(default_factory=FinalMessage)
    emitted: list[Emitted] = field(default_factory=list)
    unawaited: dict[int, tuple[str, Coroutine[Any, Any, Block]]] = field(default_factory=dict)
    """Its calls of ``run.emit`` that were not awaited so far, by number, and where they were."""
    forgotten: str | None = None
    """Where ``run.emit`` was called, and never awaited."""
    late: list[str] = field(default_factory=list)
    """What it did after its end."""
    returned: Any = None
    raised: BaseException | None = None
    failed: BaseException | None = None
    """What it raised by itself: no cancellation."""
    taken: bool = False
    """Whether a runner took the run."""
    ended: bool = False
    result: SubagentResult | None = None
    """What the Host made of it."""
    changed: str | None = None
    """How the runner changed the spec it was given."""
    at_each_step: Callable[[], None] = lambda: None
    _turn: str = ""
    _waiting: list[tuple[int, anyio.Event]] = field(default_factory=list)

    async def reached(self, number: int) -> None:
        """Wait for the block of that number, or the end of the run."""
        if not self.ended and len(self.blocks) < number:
            event = anyio.Event()
            self._waiting.append((number, event))
            await event.wait()

    def text(self) -> str:
        """Return all that the child said and gave, as one text to look in."""
        said = "".join(getattr(block, "text", "") for block in self.blocks)
        others = [_json(block) or "" for block in self.blocks]
        for result in (self.result, self.returned):
            if isinstance(result, SubagentResult):
                others += [_json(result) or "", str(result.summary), str(result.error)]
        return "\n".join([said, *others, str(self.raised or "")])

    def says(self, word: str) -> bool:
        """Say whether *word* is in it, in whatever letters: a runner may shout."""
        return word.casefold() in self.text().casefold()

    def saw(self, chunk: StreamChunk) -> None:
        """Take the next block."""
        if self.ended:
            self.late.append(
                f"a {type(chunk.block).__name__} passed the hooks: {chunk.block!r:.100}"
            )
        if chunk.turn.id != self._turn:
            self._turn = chunk.turn.id
            self.final.next_response()
            self.originals.next_response()
        self.final.add(chunk.block)
        self.originals.add(chunk.original)
        self.blocks.append(chunk.block)
        if isinstance(chunk.original, ToolCall):
            self.calls.append(chunk.original)
        if isinstance(chunk.block, ToolResult):
            self.calls.append(chunk.block)
        self.at_each_step()
        self._wake()

    def end(self) -> None:
        """Take note of the end of the run."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        for number, event in self._waiting:
            if self.ended or len(self.blocks) >= number:
                event.set()


class Watcher:
    """Keeps a :class:`Record` of each child."""

    name = "gofer-conformance"

    def __init__(self, at_each_step: Callable[[], None] | None = None) -> None:
        self.records: dict[str, Record] = {}
        self._at_each_step = at_each_step or (lambda: None)

    def of(self, child_id: str) -> Record:
        """Return the record of a child, which may not have begun."""
        if child_id not in self.records:
            self.records[child_id] = Record(child_id, at_each_step=self._at_each_step)
        return self.records[child_id]

    def close(self) -> None:
        """See which calls were forgotten: nobody is left to await them."""
        for record in self.records.values():
            for place, made in record.unawaited.values():
                record.forgotten = record.forgotten or place
                made.close()
            record.unawaited.clear()

    @hookimpl(trylast=True)
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        """Keep the blocks of children."""
        if chunk.turn.subagent_id is not None:
            self.of(chunk.turn.subagent_id).saw(chunk)

    @hookimpl(wrapper=True, tryfirst=True)
    def run_subagent(self, spec: SubagentSpec, run: Run) -> Generator[None, Any, Any]:
        """Stand between the Host and the runner."""
        record = self.of(run.id)
        record.run, record.taken = run, True
        before = spec.model_dump_json()
        emit = run.emit
        numbers = itertools.count()

        def watched(block: Block) -> Coroutine[Any, Any, Block]:
            caller, number = sys._getframe(1), next(numbers)
            place = f"{caller.f_code.co_filename}:{caller.f_lineno}, in {caller.f_code.co_name}"
            made = awaited(number, block)
            record.unawaited[number] = place, made
            return made

        async def awaited(number: int, block: Block) -> Block:
            record.unawaited.pop(number, None)
            if record.ended:
                record.late.append(f"it emitted {block!r:.100}")
            record.emitted.append(Emitted(block, _json(block)))
            return await emit(block)

        run.emit = watched  # type: ignore[method-assign]
        try:
            answer = yield
        except Exception as error:  # of a run that is no async function
            record.raised = record.failed = error
            record.end()
            raise
        if not inspect.isawaitable(answer):
            record.returned = answer
            record.end()
            return answer
        return _watched(answer, record, spec, before)


async def _watched(
    answer: Awaitable[Any], record: Record, spec: SubagentSpec, before: str
) -> SubagentResult:
    record.at_each_step()
    try:
        record.returned = result = await answer
        return result  # type: ignore[no-any-return]
    except BaseException as error:
        record.raised = error
        if not _is_cancellation(error):
            record.failed = error
        raise
    finally:
        after = _json(spec)
        if after != before:
            record.changed = f"{before} became {after}"
        record.at_each_step()
        record.end()


def _json(model: Any) -> str | None:
    try:
        text: str = model.model_dump_json(warnings=False)
    except Exception:
        return None
    return text


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cancellation(inner) for inner in error.exceptions)
    return isinstance(error, anyio.get_cancelled_exc_class())


def is_ours(error: BaseException) -> bool:
    """Say whether *error* is one that gofer's users expect."""
    if isinstance(error, BaseExceptionGroup) and not isinstance(error, GoferError):
        return all(is_ours(inner) or _is_cancellation(inner) for inner in error.exceptions)
    return isinstance(error, GoferError)
