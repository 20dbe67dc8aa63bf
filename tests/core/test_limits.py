"""Places, first come, first served; the depth that a process inherits."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import ConfigError, Host, PluginNotSupportedError, SubagentSpec, _limits
from gofer._limits import Places, inherited_depth

TAG: ContextVar[int] = ContextVar("TAG")


class Crowd:
    """Who wants places: each can be let go, or be cancelled, by its number."""

    def __init__(self, total: int, tasks: anyio.abc.TaskGroup) -> None:
        self.places: Places[int] = Places(total, self._begin)
        self.tasks = tasks
        self.inside: list[int] = []
        self.begun = 0
        self.scopes: dict[int, anyio.CancelScope] = {}
        self.leave: dict[int, anyio.Event] = {}

    def enter(self, number: int, tag: int = 0) -> None:
        self.scopes[number], self.leave[number] = anyio.CancelScope(), anyio.Event()
        TAG.set(tag)
        self.places.ask(number)

    def cancel(self, number: int) -> None:
        if not self.places.withdraw(number):
            self.scopes[number].cancel()

    def _begin(self, number: int) -> None:
        self.begun += 1
        self.tasks.start_soon(self._stay, number)

    async def _stay(self, number: int | None) -> None:
        while number is not None:
            self.inside.append(number)
            try:
                with self.scopes[number]:
                    await self.leave[number].wait()
            finally:
                self.inside.remove(number)
                if self.scopes[number].cancel_called:
                    self.places.free()
            if self.scopes[number].cancel_called:
                return
            number = await self.places.follow()


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "leave", "cancel"]), st.integers(0, 30), st.booleans()
    ),
    max_size=30,
)


async def settled() -> None:
    """Let all run that can, also what asyncio cancels only after it has begun."""
    for _ in range(10):
        await checkpoint()
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=60, deadline=None)
@given(total=st.integers(1, 3), operations=OPERATIONS)
def test_places_go_in_the_order_of_asking(
    backend: str, total: int, operations: list[tuple[str, int, bool]]
) -> None:
    """Against a queue; several operations may fall into one moment."""

    async def main() -> None:
        inside: list[int] = []
        queue: deque[int] = deque()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                crowd = Crowd(total, tasks)
                places = crowd.places
                for number, (operation, choice, settle) in enumerate(operations):
                    if operation == "enter":
                        # Whose variables are others' cannot go on in their task.
                        crowd.enter(number, choice % 2)
                        queue.append(number)
                    elif operation == "leave" and inside:
                        who = inside.pop(choice % len(inside))
                        crowd.leave[who].set()
                    elif operation == "cancel" and (inside or queue):
                        who = [*inside, *queue][choice % (len(inside) + len(queue))]
                        crowd.cancel(who)
                        (inside if who in inside else queue).remove(who)
                    if settle:
                        await settled()
                        while queue and len(inside) < total:
                            inside.append(queue.popleft())
                        assert sorted(crowd.inside) == sorted(inside)
                        assert (places.taken, places.waiting) == (len(inside), len(queue))
                    else:
                        while queue and len(inside) < total:
                            inside.append(queue.popleft())
                await settled()
                assert sorted(crowd.inside) == sorted(inside)
                for who in [*queue, *inside]:
                    crowd.cancel(who)
        assert (places.taken, places.waiting) == (0, 0)

    anyio.run(main, backend=backend)


@pytest.mark.anyio
async def test_nobody_slips_in_before_those_who_wait() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            crowd = Crowd(1, tasks)
            for number in (1, 2):
                crowd.enter(number)
            await wait_all_tasks_blocked()
            crowd.leave[1].set()
            crowd.enter(3)
            await wait_all_tasks_blocked()
            assert (crowd.inside, crowd.places.waiting) == ([2], 1)
            crowd.cancel(3)
            crowd.leave[2].set()
    assert (crowd.places.taken, crowd.places.waiting) == (0, 0)


@pytest.mark.anyio
async def test_who_waits_costs_no_task_and_goes_on_in_the_task_before() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            crowd = Crowd(2, tasks)
            for number in range(50):
                crowd.enter(number)
            assert crowd.begun == 2
            for number in range(50):
                crowd.leave[number].set()
    assert crowd.begun == 2
    assert (crowd.places.taken, crowd.places.waiting) == (0, 0)


@pytest.mark.anyio
async def test_other_context_variables_are_another_task() -> None:
    seen = {}

    class Noticing(Crowd):
        async def _stay(self, number: int | None) -> None:
            assert number is not None
            seen[number] = TAG.get()
            TAG.set(99)  # what one leaves behind is no business of the next one's
            await super()._stay(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            crowd = Noticing(1, tasks)
            for number in range(5):
                crowd.enter(number, number)
                crowd.leave[number].set()
    assert seen == {number: number for number in range(5)}


@pytest.mark.anyio
async def test_others_have_their_turn_between_those_who_never_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_limits, "_TURN", 0.0)
    turns = []

    async def other() -> None:
        while crowd.places.taken:
            turns.append(crowd.places.waiting)
            await checkpoint()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            crowd = Crowd(1, tasks)
            for number in range(20):
                crowd.enter(number)
                crowd.leave[number].set()
            tasks.start_soon(other)
    assert len(set(turns)) > 10


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, None)),
        ({"GOFER_DEPTH": "2"}, (2, None)),
        ({"GOFER_DEPTH": " 2 ", "GOFER_DEPTH_LIMIT": "3"}, (2, 3)),
        ({"GOFER_DEPTH": "", "GOFER_DEPTH_LIMIT": "0"}, (0, 0)),
    ],
)
def test_depth_and_limit_come_from_the_environment(
    environ: dict[str, str], expected: tuple[int, int | None]
) -> None:
    assert inherited_depth(environ) == expected


@pytest.mark.parametrize("text", ["-1", "1.5", "two", "١", "0x1"])
@pytest.mark.parametrize("name", ["GOFER_DEPTH", "GOFER_DEPTH_LIMIT"])
def test_a_depth_that_is_no_whole_number_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        inherited_depth({name: text})
    assert repr(text) in str(caught.value)


@pytest.mark.anyio
@pytest.mark.parametrize(("own", "inherited", "limit"), [(5, "2", 2), (1, "4", 1), (3, None, 3)])
async def test_the_lower_limit_wins(
    own: int, inherited: str | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if inherited is not None:
        monkeypatch.setenv("GOFER_DEPTH_LIMIT", inherited)
    async with Host(config={"max_depth": own}, discover=False) as host:
        assert host.max_depth == limit


@pytest.mark.anyio
async def test_a_host_in_a_child_process_goes_on_from_its_depth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Host(config={"max_depth": 2}, discover=False) as above:
        variables = above.environment(2)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with Host(config={"max_depth": 9}, discover=False) as host:
        assert (host.depth, host.max_depth) == (2, 2)
        with pytest.raises(PluginNotSupportedError, match=r"depth 3 is over .*max_depth"):
            await host.run(SubagentSpec(task="more"))
