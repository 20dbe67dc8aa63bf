"""Things that a Host's parts share and that live as long as the Host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
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
        self.left = anyio.Event()
        self.value: Any = None
        self.error: Exception | None = None
        self._release = anyio.Event()
        self._entering = anyio.CancelScope()

    async def hold(self) -> None:
        try:
            with self._entering:
                manager = self._factory()
                self.value = await manager.__aenter__()
            if self._entering.cancelled_caught:
                self.error = GoferError("the Host was closed while the resource was opened")
                return
            self.entered.set()
            # Leaving happens even where the Host itself is cancelled, and has its own limits.
            try:
                await self._release.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await manager.__aexit__(None, None, None)
        except Exception as error:
            if self.entered.is_set():
                log.warning("closing %r failed: %s", self.value, error, exc_info=error)
            else:
                self.error = error
        finally:
            if not self.entered.is_set() and self.error is None:
                self.error = GoferError("the Host was cancelled while the resource was opened")
            self.entered.set()
            self.left.set()

    async def close(self) -> None:
        self._release.set()
        if not self.entered.is_set():
            self._entering.cancel()
        with anyio.CancelScope(shield=True):
            await self.left.wait()


class Resources:
    """The resources of one Host, by key; each is entered once, at the first need."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._held: dict[Hashable, _Held] = {}
        self._closed = False

    async def get(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        """Return what the manager of *key* gave on entering; *factory* makes it, once.

        What entering raises is raised to all who wait for it, and the next call tries again.
        """
        if self._closed:
            raise GoferError(f"resource {key!r} was asked for after the Host had closed")
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(factory)
            self._tasks.start_soon(held.hold)
        await held.entered.wait()
        if held.error is not None:
            if self._held.get(key) is held:
                del self._held[key]
            raise held.error
        return held.value

    async def release(self, key: Hashable) -> None:
        """Leave the manager of *key* now, so that the next call makes a new one."""
        held = self._held.pop(key, None)
        if held is not None:
            await held.close()

    async def close(self) -> None:
        """Leave every manager, the newest first."""
        self._closed = True
        while self._held:
            _, held = self._held.popitem()
            await held.close()
