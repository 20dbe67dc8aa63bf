"""What goes on in the task of another: the steps of a coroutine, taken as ``await`` takes them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer._steps import same, stepped

STEPS = st.lists(
    st.sampled_from(
        ["checkpoint", "event", "timeout", "cancel", "catch", "thread", "raise", "stop"]
    ),
    max_size=6,
)


async def walk(steps: list[str], scope: anyio.CancelScope, log: list[object]) -> str:
    for step in steps:
        log.append(step)
        match step:
            case "checkpoint":
                await checkpoint()
            case "event":
                event = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(checkpoint)
                    event.set()
                    await event.wait()
            case "timeout":
                with anyio.move_on_after(0):
                    await anyio.sleep_forever()
            case "cancel":
                scope.cancel()
                await checkpoint()
            case "catch":
                with anyio.CancelScope() as own:
                    own.cancel()
                    try:
                        await anyio.sleep_forever()
                    finally:
                        log.append("cleaned up")
            case "thread":
                log.append(await anyio.to_thread.run_sync(lambda: "from a thread"))
            case "raise":
                raise ValueError("here")
            case "stop":
                raise StopAsyncIteration
    return "done"


async def plainly(steps: Coroutine[Any, Any, str]) -> str:
    return await steps


async def by_steps(steps: Coroutine[Any, Any, str]) -> str:
    value, _ = await stepped(steps)
    return value


async def outcome(
    awaited: Callable[[Coroutine[Any, Any, str]], Coroutine[Any, Any, str]], steps: list[str]
) -> tuple[list[object], object]:
    log: list[object] = []
    ended: object = None
    with anyio.fail_after(5), anyio.CancelScope() as scope:
        try:
            ended = await awaited(walk(steps, scope, log))
        except Exception as error:
            ended = repr(error)
    return log, (ended, scope.cancelled_caught)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=80, deadline=None)
@given(steps=STEPS)
def test_it_awaits_as_await_does(backend: str, steps: list[str]) -> None:
    async def main() -> None:
        assert await outcome(by_steps, steps) == await outcome(plainly, steps)

    anyio.run(main, backend=backend)


@pytest.mark.anyio
@pytest.mark.parametrize(("steps", "alone"), [([], True), (["checkpoint"], False)])
async def test_it_says_whether_others_had_a_turn(steps: list[str], alone: bool) -> None:
    with anyio.CancelScope() as scope:
        assert await stepped(walk(steps, scope, [])) == ("done", alone)


@pytest.mark.anyio
async def test_an_error_leaves_no_garbage() -> None:
    async def cancelled() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await checkpoint()
            except BaseException as error:
                raise Marker from error

    class Marker(Exception):
        pass

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(Marker) as caught:
            await stepped(cancelled())
        del caught
        assert not [each for each in gc.get_objects() if type(each) is Marker]
    finally:
        gc.enable()


ONE: ContextVar[object] = ContextVar("ONE")
OTHER: ContextVar[object] = ContextVar("OTHER")
VALUES = st.dictionaries(st.sampled_from([ONE, OTHER]), st.sampled_from([None, 1, "x"]))


@given(values=VALUES, others=VALUES)
def test_the_same_variables_with_the_same_values(
    values: dict[ContextVar[object], object], others: dict[ContextVar[object], object]
) -> None:
    def context(given: dict[ContextVar[object], object]) -> Context:
        made = Context()
        for variable, value in given.items():
            made.run(variable.set, value)
        return made

    assert same(context(values), context(others)) is (values == others)
