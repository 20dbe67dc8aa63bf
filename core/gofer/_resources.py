"""Things that a Host's parts share and that live as long as the Host."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import TaskGroup

from .errors import GoferError

__all__ = ["Resources"]

log = logging.getLogger("gofer")


class _Held:
    """One resource: a task of its own enters it, holds it, and leaves it."""

    def __init__(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._factory = factory
        self.entered = anyio.Event()
        self.entered_as = math.inf
        self.left = anyio.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        self.traceback: TracebackType | None = None
        self._release = anyio.Event()
        # Where the Host is cancelled, its resources still stay until it closes them in order.
        self._scope = anyio.CancelScope(shield=True)

    async def hold(self, numbers: Iterator[int]) -> None:
        try:
            # The manager may open scopes and task groups of its own: all must lie inside ours.
            with self._scope:
                async with self._factory() as self.value:
                    self.entered_as = next(numbers)
                    self.entered.set()
                    await self._release.wait()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if self.entered.is_set():
                log.warning("closing %r failed: %s", self.value, error, exc_info=error)
            else:
                self.error, self.traceback = error, error.__traceback__
        finally:
            if not self.entered.is_set() and self.error is None:
                self.error = GoferError("the Host was closed while the resource was opened")
            self.entered.set()
            self.left.set()

    async def close(self) -> None:
        self._release.set()
        if not self.entered.is_set():
            self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self.left.wait()


class Resources:
    """The resources of one Host, by key; each is entered once, at the first need."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._held: dict[Hashable, _Held] = {}
        self._numbers = itertools.count()
        self._closed = False

    async def get(
        self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> Any:
        """Return what the manager of *key* gave on entering; *factory* makes it, once.

        What entering raises is raised to all who wait for it, and the next call tries again.
        """
        if self._closed:
            raise GoferError(f"resource {key!r} was asked for after the Host had closed")
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(factory)
            self._tasks.start_soon(self._hold, key, held)
        if not held.entered.is_set():
            await held.entered.wait()
        if held.error is not None:
            # One error for all who waited: each would add its own frames to it.
            raise held.error.with_traceback(held.traceback)
        return held.value

    async def _hold(self, key: Hashable, held: _Held) -> None:
        try:
            await held.hold(self._numbers)
        finally:
            if self._held.get(key) is held:
                del self._held[key]

    async def release(self, key: Hashable) -> None:
        """Leave the manager of *key* now, so that the next call makes a new one."""
        held = self._held.pop(key, None)
        if held is not None:
            await held.close()

    async def close(self) -> None:
        """Leave every manager, the one entered last first: it may need the ones before it."""
        self._closed = True
        while self._held:
            last = max(self._held, key=lambda key: self._held[key].entered_as)
            await self._held.pop(last).close()
