"""What parts of a Host share: entered once, held by a task of the Host's, closed in reverse."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from gofer import GoferError, Host

pytestmark = pytest.mark.anyio

Factory = Callable[[], AbstractAsyncContextManager[Any]]


class Log:
    """Resources that note what happens to them."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def make(self, name: str, gate: anyio.Event | None = None) -> Factory:
        @asynccontextmanager
        async def manager() -> AsyncGenerator[str]:
            self.events.append(f"enter {name}")
            try:
                if gate is not None:
                    await gate.wait()
                self.events.append(f"ready {name}")
                yield name
            finally:
                with anyio.CancelScope(shield=True):
                    await checkpoint()
                self.events.append(f"leave {name}")

        return manager

    @property
    def left(self) -> list[str]:
        return [event[6:] for event in self.events if event.startswith("leave")]


async def test_it_is_entered_once_for_all_who_ask_at_the_same_time() -> None:
    log, gate, got = Log(), anyio.Event(), []
    factory = log.make("server", gate)

    async def ask(host: Host) -> None:
        got.append(await host.resource("key", factory))

    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(ask, host)
                await wait_all_tasks_blocked()
                assert got == []
                gate.set()
            assert got == ["server"] * 5
            assert await host.resource("key", factory) == "server"
            assert log.events == ["enter server", "ready server"]
    assert log.left == ["server"]


async def test_each_key_is_another_resource() -> None:
    log = Log()
    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            assert await host.resource(("pool", 1), log.make("one")) == "one"
            assert await host.resource(("pool", 2), log.make("two")) == "two"


async def test_a_cancelled_caller_does_not_end_the_entering_for_the_others() -> None:
    log, gate = Log(), anyio.Event()
    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            async with anyio.create_task_group() as first:
                first.start_soon(host.resource, "key", log.make("server", gate))
                await wait_all_tasks_blocked()
                first.cancel_scope.cancel()
            gate.set()
            assert await host.resource("key", log.make("another")) == "server"
    assert log.left == ["server"]


async def test_what_the_first_caller_ends_does_not_end_the_resource() -> None:
    log = Log()
    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            with anyio.CancelScope() as scope:
                await host.resource("key", log.make("server"))
                scope.cancel()
                await checkpoint()
            assert log.left == []


async def test_a_manager_with_a_task_group_of_its_own_works_in_its_task() -> None:
    stopped = anyio.Event()

    async def serve() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    @asynccontextmanager
    async def server() -> AsyncGenerator[str]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            yield "served"
            tasks.cancel_scope.cancel()

    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            assert await host.resource("key", server) == "served"
            assert not stopped.is_set()
    assert stopped.is_set()


async def test_closing_leaves_in_the_reverse_order_of_entering() -> None:
    log = Log()

    @asynccontextmanager
    async def dependent(host: Host) -> AsyncGenerator[str]:
        async with log.make("outer")() as name:
            # Asked for later than the one that needs it, and still to be left after it.
            await host.resource("inner", log.make("inner"))
            yield name

    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            await host.resource("first", log.make("first"))
            await host.resource("outer", lambda: dependent(host))
            await host.resource("last", log.make("last"))
    assert log.left == ["last", "outer", "inner", "first"]


async def test_a_cancelled_host_leaves_them_in_reverse_too() -> None:
    log = Log()
    with anyio.fail_after(5), anyio.CancelScope() as scope:
        async with Host(discover=False) as host:
            for name in ("a", "b", "c"):
                await host.resource(name, log.make(name))
            scope.cancel()
            await checkpoint()
    assert scope.cancelled_caught
    assert log.left == ["c", "b", "a"]


async def test_a_body_that_raises_leaves_them_all_the_same() -> None:
    log = Log()
    with anyio.fail_after(5), pytest.raises(KeyError):
        async with Host(discover=False) as host:
            await host.resource("a", log.make("a"))
            raise KeyError("of the body")
    assert log.left == ["a"]


async def test_what_entering_raises_reaches_all_and_the_next_call_tries_again() -> None:
    gate, tries, seen = anyio.Event(), [], []

    @asynccontextmanager
    async def fragile() -> AsyncGenerator[str]:
        tries.append(1)
        await gate.wait()
        if len(tries) == 1:
            raise OSError("port taken")
        yield "up"

    async def ask(host: Host) -> None:
        with pytest.raises(OSError, match="port taken"):
            await host.resource("key", fragile)
        seen.append(1)

    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask, host)
                await wait_all_tasks_blocked()
                gate.set()
            assert (len(seen), len(tries)) == (3, 1)
            assert await host.resource("key", fragile) == "up"


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3)])
async def test_a_factory_that_raises_harms_only_who_asked(error: BaseException) -> None:
    def factory() -> AbstractAsyncContextManager[str]:
        raise error

    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            with pytest.raises(type(error)):
                await host.resource("key", factory)
            assert await host.resource("other", Log().make("fine")) == "fine"


async def test_its_traceback_does_not_grow_with_those_who_waited() -> None:
    lengths: list[int] = []

    @asynccontextmanager
    async def breaks() -> AsyncGenerator[None]:
        await checkpoint()
        raise OSError("broken")
        yield

    async def asks(host: Host) -> None:
        try:
            await host.resource("it", breaks)
        except OSError as error:
            lengths.append(len(traceback.extract_tb(error.__traceback__)))

    async with Host(discover=False) as host, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(asks, host)
    assert len(lengths) == 50
    assert len(set(lengths)) == 1


async def test_closing_ends_an_entering_that_hangs() -> None:
    log, caught = Log(), []

    async def ask(host: Host) -> None:
        try:
            await host.resource("key", log.make("server", anyio.Event()))
        except GoferError as error:
            caught.append(str(error))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async with Host(discover=False) as host:
                tasks.start_soon(ask, host)
                await wait_all_tasks_blocked()
    assert caught == ["the Host was closed while the resource was opened"]
    assert log.events == ["enter server", "leave server"]


async def test_a_failure_of_closing_is_logged_and_the_others_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()

    @asynccontextmanager
    async def stuck() -> AsyncGenerator[str]:
        yield "stuck one"
        raise OSError("will not close")

    with anyio.fail_after(5), caplog.at_level(logging.WARNING, "gofer"):
        async with Host(discover=False) as host:
            await host.resource("a", log.make("a"))
            await host.resource("b", stuck)
    assert log.left == ["a"]
    assert "closing 'stuck one' failed: will not close" in caplog.text


async def test_one_that_breaks_down_by_itself_is_made_anew_at_the_next_need(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crash, gone, made = anyio.Event(), anyio.Event(), []

    async def serve() -> None:
        await crash.wait()
        raise OSError("server died")

    @asynccontextmanager
    async def server() -> AsyncGenerator[int]:
        try:
            async with anyio.create_task_group() as tasks:
                if not made:
                    tasks.start_soon(serve)
                made.append(1)
                yield len(made)
        finally:
            gone.set()

    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            assert await host.resource("key", server) == 1
            crash.set()
            await gone.wait()
            assert await host.resource("key", server) == 2
    assert "closing 1 failed" in caplog.text


async def test_release_leaves_one_now() -> None:
    log = Log()
    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            await host.resource("a", log.make("a"))
            await host.resource("b", log.make("b"))
            await host.release("a")
            assert log.left == ["a"]
            await host.release("a")
            await host.release("never asked for")
            assert await host.resource("a", log.make("a2")) == "a2"
    assert log.left == ["a", "a2", "b"]


async def test_a_closed_host_gives_none() -> None:
    host = Host(discover=False)
    with pytest.raises(GoferError, match="not open"):
        await host.resource("key", Log().make("x"))
    async with host:
        pass
    with pytest.raises(GoferError, match="not open"):
        await host.resource("key", Log().make("x"))


async def test_asking_while_the_host_closes_is_refused_with_a_sentence() -> None:
    refusals = []

    @asynccontextmanager
    async def last_wish(host: Host) -> AsyncGenerator[None]:
        yield
        try:
            await host.resource("other", Log().make("x"))
        except GoferError as error:
            refusals.append(str(error))

    with anyio.fail_after(5):
        async with Host(discover=False) as host:
            await host.resource("key", lambda: last_wish(host))
    assert refusals == ["resource 'other' was asked for after the Host had closed"]
