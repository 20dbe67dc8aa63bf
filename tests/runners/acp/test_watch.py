"""Waiting for an event beside what a task does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from gofer_runners.acp._watch import Watchers

pytestmark = pytest.mark.anyio


class Noted:
    """An action that notes that it was taken, and may go on until it is ended."""

    def __init__(self, *, goes_on: bool = False) -> None:
        self.taken = anyio.Event()
        self.ended = anyio.Event()
        self._goes_on = goes_on

    async def __call__(self) -> None:
        self.taken.set()
        try:
            if self._goes_on:
                await anyio.sleep_forever()
        finally:
            self.ended.set()


async def watching(body: Callable[[Watchers], Awaitable[None]]) -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await body(Watchers(tasks))
            tasks.cancel_scope.cancel()


async def test_the_action_is_taken_once_when_the_event_is_set() -> None:
    async def body(watchers: Watchers) -> None:
        event, action = anyio.Event(), Noted()
        watcher = watchers.watch(event, action)
        await anyio.wait_all_tasks_blocked()
        assert not action.taken.is_set()
        event.set()
        await action.ended.wait()
        watcher.leave()

    await watching(body)


async def test_an_event_that_is_set_already_counts() -> None:
    async def body(watchers: Watchers) -> None:
        for _ in range(3):
            event, action = anyio.Event(), Noted()
            event.set()
            watcher = watchers.watch(event, action)
            await action.ended.wait()
            watcher.leave()

    await watching(body)


async def test_who_has_left_is_not_told() -> None:
    async def body(watchers: Watchers) -> None:
        event, action = anyio.Event(), Noted()
        watchers.watch(event, action).leave()
        event.set()
        await anyio.wait_all_tasks_blocked()
        watcher = watchers.watch(event, action)
        watcher.leave()
        await anyio.wait_all_tasks_blocked()
        assert not action.taken.is_set()

    await watching(body)


async def test_leaving_ends_the_action() -> None:
    async def body(watchers: Watchers) -> None:
        event, action = anyio.Event(), Noted(goes_on=True)
        watcher = watchers.watch(event, action)
        event.set()
        await action.taken.wait()
        watcher.leave()
        await action.ended.wait()

    await watching(body)


@pytest.mark.parametrize("settled", [True, False])
async def test_what_was_watched_before_is_not_taken_for_what_is_watched_now(settled: bool) -> None:
    async def body(watchers: Watchers) -> None:
        old, before = anyio.Event(), Noted()
        watcher = watchers.watch(old, before)
        await anyio.wait_all_tasks_blocked()
        watcher.leave()
        event, action = anyio.Event(), Noted()
        assert watchers.watch(event, action) is watcher
        if settled:
            await anyio.wait_all_tasks_blocked()
        old.set()
        await anyio.wait_all_tasks_blocked()
        assert not before.taken.is_set()
        assert not action.taken.is_set()
        event.set()
        await action.ended.wait()
        assert not before.taken.is_set()

    await watching(body)


async def test_the_next_watch_is_not_ended_with_an_action_of_the_one_before() -> None:
    async def body(watchers: Watchers) -> None:
        event, action = anyio.Event(), Noted(goes_on=True)
        watcher = watchers.watch(event, action)
        event.set()
        await action.taken.wait()
        watcher.leave()
        event, following = anyio.Event(), Noted(goes_on=True)
        watchers.watch(event, following)
        event.set()
        await following.taken.wait()
        await anyio.wait_all_tasks_blocked()
        assert action.ended.is_set()
        assert not following.ended.is_set()

    await watching(body)


async def test_those_that_watch_at_once_have_a_task_each() -> None:
    async def body(watchers: Watchers) -> None:
        events = [anyio.Event() for _ in range(5)]
        actions = [Noted(goes_on=True) for _ in events]
        held = [watchers.watch(*pair) for pair in zip(events, actions, strict=True)]
        for number in (3, 0, 4):
            events[number].set()
            await actions[number].taken.wait()
        await anyio.wait_all_tasks_blocked()
        assert [action.taken.is_set() for action in actions] == [True, False, False, True, True]
        for watcher in held:
            watcher.leave()
        assert watchers.watch(anyio.Event(), Noted()) in held

    await watching(body)
