"""Places, first come, first served; the depth that a process inherits."""

from __future__ import annotations

from collections import deque

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import ConfigError, Host, PluginNotSupportedError, SubagentSpec
from gofer._limits import Place, Places, inherited_depth


class Crowd:
    """Tasks that want places: each can be let go, or be cancelled, by its number."""

    def __init__(self, places: Places, tasks: anyio.abc.TaskGroup) -> None:
        self.places, self.tasks = places, tasks
        self.inside: list[int] = []
        self.scopes: dict[int, anyio.CancelScope] = {}
        self.leave: dict[int, anyio.Event] = {}
        self.place: dict[int, Place] = {}

    def enter(self, number: int) -> None:
        self.scopes[number], self.leave[number] = anyio.CancelScope(), anyio.Event()
        self.place[number] = self.places.ask()
        self.tasks.start_soon(self._stay, number)

    async def _stay(self, number: int) -> None:
        with self.scopes[number]:
            async with self.place[number]:
                self.inside.append(number)
                try:
                    await self.leave[number].wait()
                finally:
                    self.inside.remove(number)


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
        places = Places(total)
        inside: list[int] = []
        queue: deque[int] = deque()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                crowd = Crowd(places, tasks)
                for number, (operation, choice, settle) in enumerate(operations):
                    if operation == "enter":
                        crowd.enter(number)
                        queue.append(number)
                    elif operation == "leave" and inside:
                        who = inside.pop(choice % len(inside))
                        crowd.leave[who].set()
                    elif operation == "cancel" and (inside or queue):
                        who = [*inside, *queue][choice % (len(inside) + len(queue))]
                        crowd.scopes[who].cancel()
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
                tasks.cancel_scope.cancel()
        assert (places.taken, places.waiting) == (0, 0)

    anyio.run(main, backend=backend)


@pytest.mark.anyio
async def test_who_is_cancelled_with_the_place_in_hand_passes_it_on() -> None:
    places = Places(1)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            crowd = Crowd(places, tasks)
            async with places.ask():
                for number in (1, 2):
                    crowd.enter(number)
                    await wait_all_tasks_blocked()
            # The place is 1's now, which is cancelled before it can run.
            crowd.scopes[1].cancel()
            await wait_all_tasks_blocked()
            assert crowd.inside == [2]
            crowd.leave[2].set()
    assert (places.taken, places.waiting) == (0, 0)


@pytest.mark.anyio
async def test_nobody_slips_in_before_those_who_wait() -> None:
    places, order = Places(1), []

    async def take(name: str, leave: anyio.Event) -> None:
        async with places.ask():
            order.append(name)
            await leave.wait()

    now = anyio.Event()
    now.set()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async with places.ask():
                tasks.start_soon(take, "waited", now)
                await wait_all_tasks_blocked()
            # Free at this moment, but it is the other's turn.
            async with places.ask():
                order.append("came later")
    assert order == ["waited", "came later"]


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
