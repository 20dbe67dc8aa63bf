"""What children that follow each other in one place know of each other: nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import Host, Run, Runner, SubagentResult, SubagentSpec, Text, _limits

pytestmark = pytest.mark.anyio

NAME: ContextVar[str] = ContextVar("NAME", default="nobody")


class Acting(Runner):
    """Does with each child what the test says."""

    name = "acting"
    observed = False

    def __init__(self, act: Callable[[Run], Awaitable[SubagentResult]]) -> None:
        self.act = act

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        return await self.act(run)


def opened(act: Callable[[Run], Awaitable[SubagentResult]], **config: Any) -> Host:
    config = {"default_runner": "acting", "max_concurrent": 1, **config}
    return Host([Acting(act)], config, discover=False)


async def results(host: Host, *specs: SubagentSpec) -> list[SubagentResult]:
    """Spawn all of them, then wait for each."""
    children = [await host.spawn(spec) for spec in specs]
    return [await child.wait() for child in children]


async def test_a_child_has_the_context_variables_of_who_spawned_it() -> None:
    async def act(run: Run) -> SubagentResult:
        mine = NAME.get()
        NAME.set("the child's own")
        await checkpoint()
        return run.result(mine)

    async with opened(act) as host:
        with anyio.fail_after(5):
            children = []
            for name in "abcd":
                token = NAME.set(name)
                children.append(await host.spawn(SubagentSpec(task="x")))
                NAME.reset(token)
            assert [(await child.wait()).summary for child in children] == list("abcd")
            # Also where all of them have the same: what the one before set is not theirs.
            said = await results(host, *[SubagentSpec(task="x")] * 3)
            assert [result.summary for result in said] == ["nobody"] * 3


async def test_children_that_wait_have_no_task_and_follow_in_one() -> None:
    tasks = set()

    async def act(run: Run) -> SubagentResult:
        tasks.add(anyio.get_current_task().id)
        return run.result("done")

    async with opened(act) as host:
        with anyio.fail_after(5):
            children = [await host.spawn(SubagentSpec(task="x")) for _ in range(20)]
            before = len(anyio.get_running_tasks())
            more = [await host.spawn(SubagentSpec(task="x")) for _ in range(20)]
            assert len(anyio.get_running_tasks()) == before
            for child in [*children, *more]:
                assert (await child.wait()).exit_ok
    assert len(tasks) == 1


async def test_a_failure_and_a_cancellation_end_the_task_with_the_child() -> None:
    begun = anyio.Event()

    async def act(run: Run) -> SubagentResult:
        if run.spec.task == "fail":
            raise ValueError("on its own account")
        if run.spec.task == "hang":
            begun.set()
            await anyio.sleep_forever()
        await checkpoint()
        return run.result("done")

    async with opened(act) as host:
        with anyio.fail_after(5):
            kinds = ["fail", "say", "hang", "say"]
            children = [await host.spawn(SubagentSpec(task=kind)) for kind in kinds]
            await begun.wait()
            await host.cancel(children[2].id)
            ended = [(await child.wait()).stop_reason for child in children]
    assert ended == ["error", "end_turn", "cancelled", "end_turn"]


async def test_errors_beside_a_cancellation_are_told_and_end_nothing_else() -> None:
    begun = anyio.Event()

    async def act(run: Run) -> SubagentResult:
        if run.spec.task == "say":
            return run.result("done")
        try:
            begun.set()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as cancelled:
            errors = [cancelled, *([ValueError("as well")] if run.spec.task == "both" else ())]
            raise BaseExceptionGroup("several", errors) from None
        raise AssertionError

    async with opened(act) as host:
        with anyio.fail_after(5):
            for kind, expected in (("both", "error"), ("alone", "cancelled")):
                begun = anyio.Event()
                child = await host.spawn(SubagentSpec(task=kind))
                sibling = await host.spawn(SubagentSpec(task="say"))
                await begun.wait()
                await host.cancel(child.id)
                result = await child.wait()
                assert result.stop_reason == expected
                assert ("as well" in str(result.error)) is (kind == "both")
                assert (await sibling.wait()).exit_ok


async def _cancels_itself(run: Run) -> None:
    _task().cancel()


async def _cancels_itself_and_goes_on(run: Run) -> None:
    _task().cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def _takes_it_back(run: Run) -> None:
    _task().cancel()
    _task().uncancel()


async def _is_cancelled_after_others(run: Run) -> None:
    await checkpoint()
    loop, task = asyncio.get_running_loop(), _task()
    loop.call_soon(loop.call_soon, loop.call_soon, task.cancel)


async def _leaves_children(run: Run) -> None:
    await run.host.spawn(SubagentSpec(task="hangs"), turn=run._life.new_turn())
    _task().cancel()


async def _leaves_children_to_a_later_cancel(run: Run) -> None:
    await run.host.spawn(SubagentSpec(task="hangs"), turn=run._life.new_turn())
    asyncio.get_running_loop().call_soon(_task().cancel)


async def _raises_a_cancellation(run: Run) -> None:
    raise asyncio.CancelledError


async def _raises_some(run: Run) -> None:
    raise BaseExceptionGroup("several", [asyncio.CancelledError(), ValueError("as well")])


async def _leaves_a_scope(run: Run) -> None:
    run.host.left.append(anyio.CancelScope().__enter__())  # type: ignore[attr-defined]


async def _leaves_a_cancelled_scope(run: Run) -> None:
    await _leaves_a_scope(run)
    run.host.left[-1].cancel()  # type: ignore[attr-defined]


async def _leaves_a_deadline(run: Run) -> None:
    run.host.left.append(anyio.move_on_after(0).__enter__())  # type: ignore[attr-defined]
    with anyio.CancelScope(shield=True):
        await checkpoint()


async def _leaves_a_generator(run: Run) -> None:
    async def inside() -> AsyncIterator[None]:
        with anyio.CancelScope():
            yield

    generator = inside()
    run.host.left.append(generator)  # type: ignore[attr-defined]
    await anext(generator)


async def _leaves_variables(run: Run) -> None:
    NAME.set("the child's own")


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


ON_ASYNCIO = [
    _cancels_itself,
    _cancels_itself_and_goes_on,
    _takes_it_back,
    _is_cancelled_after_others,
    _leaves_children,
    _leaves_children_to_a_later_cancel,
    _raises_a_cancellation,
    _raises_some,
]
ON_TRIO = [
    _leaves_a_scope,
    _leaves_a_cancelled_scope,
    _leaves_a_deadline,
    _leaves_a_generator,
]


@pytest.mark.parametrize("turn", [0.0, 1e9])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("anyio_backend", "leave"),
    [
        *(("asyncio", leave) for leave in [*ON_ASYNCIO, _leaves_variables]),
        # On asyncio anyio itself takes a scope that is left open for the end of all.
        *(("trio", leave) for leave in [*ON_TRIO, _leaves_variables]),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_nothing_that_a_runner_leaves_in_its_task_reaches_another_child(
    leave: Callable[[Run], Awaitable[None]],
    place: int,
    turn: float,
    anyio_backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_limits, "_TURN", turn)

    async def act(run: Run) -> SubagentResult:
        if run.spec.task == "leaves":
            await leave(run)
        elif run.spec.task == "hangs":
            await anyio.sleep_forever()
        else:
            assert NAME.get() == "nobody"
            assert anyio.current_effective_deadline() == math.inf
            if anyio_backend == "asyncio":
                assert _task().cancelling() == 0
            if run.spec.task == "waits":
                for _ in range(5):
                    await checkpoint()
        return run.result("done")

    # Those who follow: at once, and after others had their turn.
    kinds = [*["at once"] * place, "leaves", "waits", "at once", "leaves", "at once", "waits"]
    async with opened(act, max_depth=2) as host:
        host.left = []  # type: ignore[attr-defined]
        with anyio.fail_after(5):
            said = await results(host, *(SubagentSpec(task=kind) for kind in kinds))
    others = [result for result, kind in zip(said, kinds, strict=True) if kind != "leaves"]
    assert [result.error for result in others] == [None] * len(others)
    failed = leave in (_raises_a_cancellation, _raises_some)
    left = [result.exit_ok for result, kind in zip(said, kinds, strict=True) if kind == "leaves"]
    assert left == [not failed] * 2


async def test_who_gave_others_their_turn_has_a_task_of_its_own() -> None:
    tasks: set[str | None] = set()

    async def act(run: Run) -> SubagentResult:
        tasks.add(anyio.get_current_task().name)
        for _ in range(3):
            await checkpoint()
        return run.result("done")

    async with opened(act) as host:
        with anyio.fail_after(5):
            await results(host, *[SubagentSpec(task="x")] * 5)
    assert tasks == {f"acting, from sub-{number}" for number in range(5)}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "task": st.just("x"),
    "name": st.text(max_size=3),
    "agent": st.none() | st.just("a"),
    "runner": st.none() | st.just("acting"),
    "tool_scope": st.lists(st.text(max_size=3), max_size=3),
    "resume": st.none() | st.just("s"),
    "timeout": st.none() | st.just(50.0),
    "options": st.dictionaries(st.text(max_size=3), JSON, max_size=3),
}


def spoil(value: Any) -> None:
    """Change all that can be changed in a JSON value."""
    if isinstance(value, list | dict):
        for item in [*(value.values() if isinstance(value, dict) else value)]:
            spoil(item)
        value.clear()
        if isinstance(value, list):
            value.append("spoilt")
        else:
            value["spoilt"] = True


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=60, deadline=None)
@given(
    values=st.fixed_dictionaries(
        {"task": FIELDS["task"]}, optional={k: v for k, v in FIELDS.items() if k != "task"}
    )
)
def test_a_child_has_a_spec_of_its_own(backend: str, values: dict[str, Any]) -> None:
    """No change of the caller's reaches it, and none of the runner's comes back.

    It claims no more to have been set than was set, but for the runner, which is known now.
    """

    async def act(run: Run) -> SubagentResult:
        seen.append(run.spec.model_copy(deep=True))
        spoil(run.spec.options)
        spoil(run.spec.tool_scope)
        return run.result("done")

    seen: list[SubagentSpec] = []

    async def main() -> None:
        async with opened(act, agents={"a": {"runner": "acting"}}) as host:
            with anyio.fail_after(5):
                kept = SubagentSpec(**values)
                assert (await host.run(kept)).exit_ok
                assert kept == SubagentSpec(**values)
                spoilt = SubagentSpec(**values)
                child = await host.spawn(spoilt)
                spoil(spoilt.options)
                spoil(spoilt.tool_scope)
                spoilt.task = spoilt.runner = "another"
                await child.wait()
        expected = SubagentSpec(**{**values, "runner": "acting"})
        assert seen == [expected, expected]
        assert [spec.model_fields_set for spec in seen] == [expected.model_fields_set] * 2

    anyio.run(main, backend=backend)


async def test_a_result_that_is_changed_after_it_was_made_is_checked() -> None:
    async def act(run: Run) -> SubagentResult:
        result = run.result("said", permissions_denied=["one"])
        match run.spec.task:
            case "text":
                result.summary = "\ud800"
            case "type":
                result.summary = 5  # type: ignore[assignment]
            case "list":
                result.permissions_denied.append("two")
            case "two":
                run.result("another")
        kept.append(result)
        return result

    kept: list[SubagentResult] = []
    kinds = ("none", "text", "type", "list", "two")
    async with opened(act) as host:
        with anyio.fail_after(5):
            specs = [SubagentSpec(task=kind) for kind in kinds]
            none, text, wrong, longer, two = await results(host, *specs)
            kept[0].summary = "changed later"
            kept[0].permissions_denied.clear()
    assert (none.summary, none.permissions_denied) == ("said", ["one"])
    assert text.summary == "�"
    assert "SubagentResult that is none" in str(wrong.error)
    assert longer.permissions_denied == ["one", "two"]
    assert two.summary == "said"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_runner_is_called_when_its_child_should_end(
    late: bool, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, at once if it asks too late, and what it raises keeps nothing from its end."""
    calls: list[bool] = []
    started = anyio.Event()

    async def act(run: Run) -> SubagentResult:
        def called() -> None:
            calls.append(run.cancel_requested.is_set())
            if fails:
                raise RuntimeError("no use")

        if not late:
            run.on_cancel(called)
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            if late:
                run.on_cancel(called)
        raise AssertionError("nobody cancelled it")

    with anyio.fail_after(5):
        async with opened(act) as host:
            child = await host.spawn(SubagentSpec(task="x"))
            await started.wait()
            child.cancel()
            child.cancel()
            result = await child.wait()
    assert calls == [True]
    assert result.stop_reason == "cancelled"
    assert ("no use" in caplog.text) is fails


async def test_a_runner_that_only_emits_can_be_cancelled_and_lets_others_run() -> None:
    async def act(run: Run) -> SubagentResult:
        while True:
            await run.emit(Text(text="more "))

    with anyio.fail_after(5):
        async with opened(act) as host:
            child = await host.spawn(SubagentSpec(task="x"))
            while not child.signs:
                await checkpoint()
            child.cancel()
            result = await child.wait()
    assert result.stop_reason == "cancelled"
    assert result.summary.startswith("more more")
