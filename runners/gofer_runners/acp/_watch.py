"""Waiting for an event beside what a task does: for every turn, and at next to no cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

__all__ = ["Watcher", "Watchers"]

Action = Callable[[], Awaitable[None]]
Watched = tuple[anyio.Event, Action]


class Watchers:
    """Tasks of *tasks* that wait, each for one event; who has been left waits for the next.

    To start a task for each wait, and to cancel it, would cost a short turn a quarter of its time.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._free: list[Watcher] = []

    def watch(self, event: anyio.Event, action: Action) -> Watcher:
        """Take *action* when *event* is set, until the watcher's ``leave`` is called."""
        if self._free:
            watcher = self._free.pop()
        else:
            watcher = Watcher(self._free)
            self._tasks.start_soon(watcher.live)
        watcher.turn_to((event, action))
        return watcher


class Watcher:
    """Waits for one event after another, in tasks of its own."""

    def __init__(self, free: list[Watcher]) -> None:
        self._free = free
        self._watched: Watched | None = None
        self._awaited: Watched | None = None
        self._turned = anyio.Event()
        self._scope = anyio.CancelScope()
        self._acts = False

    def turn_to(self, watched: Watched) -> None:
        """Wait for another event."""
        self._watched = watched
        self._turned.set()

    def leave(self) -> None:
        """Watch no more; an action that is being taken ends."""
        self._watched = None
        self._free.append(self)
        if self._acts:
            self._turned.set()
        # Else it may wait on for what means nothing any more: to cancel that can wait too, until
        # the next turn has asked its agent.

    async def live(self) -> None:
        """Wait, until this is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wait)
            while True:
                await self._turned.wait()
                self._turned = anyio.Event()
                if self._awaited is not self._watched:
                    self._scope.cancel()

    async def _wait(self) -> None:
        while True:
            with anyio.CancelScope() as self._scope:
                watched = self._awaited = self._watched
                if watched is not None:
                    event, action = watched
                    await event.wait()
                    if self._watched is watched:
                        self._acts = True
                        await action()
                await anyio.sleep_forever()
            self._acts = False
