"""What may go on in the task of another: only what cannot tell the difference."""

from __future__ import annotations

import math
import sys
from collections.abc import Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

if TYPE_CHECKING:
    import asyncio

__all__ = ["asyncio_task", "cancelled_itself", "same", "stepped", "untouched"]

T = TypeVar("T")
_MISSING = object()


@coroutine
def stepped(steps: Coroutine[Any, Any, T]) -> Generator[Any, Any, tuple[T, bool]]:
    """Await *steps*; return the value, and whether that took one step: no other task ran meanwhile.

    Who has given others their turn may have left them something that is for its task: a timer
    that cancels it, an entry under it.
    """
    try:
        wanted = steps.send(None)
    except StopIteration as end:
        return end.value, True
    while True:  # what ``await`` does
        error: BaseException | None = None
        given: Any = None
        try:
            given = yield wanted
        except BaseException as raised:
            error = raised
        try:
            if error is not None:
                wanted = steps.throw(error)
            elif given is not None:
                wanted = steps.send(given)
            else:  # always so on asyncio, and from now on without us
                return (yield from steps.__await__()), False
        except StopIteration as end:
            return end.value, False
        finally:
            error = None  # it holds this frame


def same(one: Context, other: Context) -> bool:
    """Whether both have the same variables with the same values."""
    return len(one) == len(other) and all(other.get(var, _MISSING) is one[var] for var in one)


def asyncio_task() -> asyncio.Task[Any] | None:
    """Return the task that runs; None on trio."""
    loaded = sys.modules.get("asyncio")  # on trio it may never be
    if loaded is None or anyio.get_cancelled_exc_class() is not loaded.CancelledError:
        return None
    task: asyncio.Task[Any] | None = loaded.current_task()
    return task


def cancelled_itself(task: asyncio.Task[Any] | None) -> bool:
    """Whether a task of asyncio's was cancelled, by no scope, and has not made it undone.

    What it awaits next may be cancelled for that, and what counts cancellations is misled.
    """
    return task is not None and (task.cancelling() > 0 or getattr(task, "_must_cancel", False))


def untouched(task: asyncio.Task[Any] | None) -> bool:
    """Whether nobody left a cancellation in this task, which is in a shielded scope."""
    if task is not None:
        return not cancelled_itself(task)  # a scope that is left open makes anyio end all
    return anyio.current_effective_deadline() == math.inf
