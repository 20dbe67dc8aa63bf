"""The Host and its children: their lives, limits and ends, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import psutil
import pytest
import sniffio
import trio
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from pydantic import ValidationError

import gofer
from gofer import (
    Capabilities,
    Child,
    Finish,
    GoferError,
    Host,
    Message,
    ModelError,
    PluginError,
    PluginInternalError,
    PluginNotSupportedError,
    PluginValidationError,
    Request,
    Response,
    Run,
    Runner,
    RunnerError,
    StreamChunk,
    SubagentResult,
    SubagentSpec,
    Text,
    ToolCall,
    ToolResult,
    Turn,
    Update,
    Usage,
    WorktreeConfig,
    hookimpl,
)

pytestmark = pytest.mark.anyio

Act = Callable[[Run], Awaitable[Any]]


class Actor(Runner):
    """Does what the act named by the task says."""

    name = "actor"

    def __init__(self, **acts: Act) -> None:
        self.acts = acts

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        result: SubagentResult = await self.acts[run.spec.task](run)
        return result


class Harness(Actor):
    """One that makes its own model requests through the hooks."""

    observed = False


class Turns:
    """Notes which turn and which request began each child, and how its response ended."""

    def __init__(self) -> None:
        self.turns: dict[str | None, Turn] = {}
        self.pairs: list[tuple[str, Turn]] = []
        self.responses: list[Response] = []

    @hookimpl
    def on_request(self, request: Request) -> None:
        self.turns[request.turn.subagent_id] = request.turn
        self.pairs.append(("request", request.turn))

    @hookimpl
    def on_response_complete(self, response: Response) -> None:
        self.pairs.append(("response", response.turn))
        self.responses.append(response)


class Scripted:
    def __init__(self, *items: Any) -> None:
        self.items = items

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        for item in self.items:
            await checkpoint()
            yield item


async def say(run: Run, text: str = "done") -> SubagentResult:
    await run.emit(Text(text=text))
    return run.result()


async def hang(run: Run) -> SubagentResult:
    await run.emit(Text(text="so far"))
    await anyio.sleep_forever()
    raise AssertionError


def opened(*plugins: object, **config: Any) -> Host:
    return Host(list(plugins), {"default_runner": "actor", **config}, discover=False)


def task(what: str, /, **more: Any) -> SubagentSpec:
    return SubagentSpec(task=what, **more)


async def started(child: Child) -> None:
    """Wait until the child does what it does."""
    while child.state == "waiting" or not child.final.text:
        await checkpoint()


async def in_order(host: Host, *specs: SubagentSpec) -> list[Child]:
    """Spawn each when the one before has begun, or stands in the queue."""
    children = []
    for spec in specs:
        children.append(await host.spawn(spec))
        await wait_all_tasks_blocked()
    return children


def running_tasks() -> int:
    if sniffio.current_async_library() == "asyncio":
        return len(asyncio.all_tasks())
    root = trio.lowlevel.current_root_task()
    assert root is not None
    count, left = 0, [root]
    while left:
        now = left.pop()
        count += 1
        left += [inner for nursery in now.child_nurseries for inner in nursery.child_tasks]
    return count


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Hold that no task, thread, descriptor or process stays."""
    process = psutil.Process()

    def state() -> tuple[object, ...]:
        return (
            running_tasks(),
            # Not those in which trio itself waits, when it is a guest of the test runner.
            {t for t in threading.enumerate() if not t.name.startswith("Trio thread")},
            process.num_fds(),
            [child.pid for child in process.children()],
        )

    before = state()
    yield
    assert state() == before


# Opening and closing


async def test_a_host_is_opened_once_at_a_time() -> None:
    host = opened(Actor(say=say))
    async with host:
        assert host.is_open
        with pytest.raises(GoferError, match="open already: make another one"):
            async with host:
                pytest.fail("it must not open twice")
        assert (await host.run(task("say"))).exit_ok
    assert not host.is_open
    async with host:
        assert (await host.run(task("say"))).subagent_id == "sub-0"


USES: dict[str, Callable[[Host], Any]] = {
    "run": lambda host: host.run(task("say")),
    "spawn": lambda host: host.spawn(task("say")),
    "cancel": lambda host: host.cancel("sub-0"),
    "tools": lambda host: host.tools(),
    "call_tool": lambda host: host.call_tool("x"),
    "stream": lambda host: host.stream(Request(), Scripted(Finish())),
    "children": lambda host: host.children,
    "plugins": lambda host: host.plugins,
    "plugin": lambda host: host.plugin("x"),
    "runner": lambda host: host.runner("actor"),
    "session": lambda host: host.session(),
}


@pytest.mark.parametrize("use", USES)
async def test_a_host_that_is_not_open_says_so(use: str) -> None:
    host = opened(Actor(say=say))
    for _ in range(2):
        with pytest.raises(GoferError, match=r"not open: use it inside `async with Host\(\)"):
            answer = USES[use](host)
            if hasattr(answer, "__await__"):
                await answer
        async with host:
            pass


async def test_the_bodys_error_arrives_as_it_is_and_ends_the_children() -> None:
    boom = KeyError("of the body")
    with nothing_left():
        with anyio.fail_after(5), pytest.raises(KeyError) as caught:
            async with opened(Actor(hang=hang)) as host:
                child = await host.spawn(task("hang"))
                await started(child)
                raise boom
        assert caught.value is boom
        result = await child.wait()
        assert (result.stop_reason, result.summary) == ("cancelled", "so far")


async def test_a_group_that_the_body_raises_stays_what_it_is() -> None:
    group = ExceptionGroup("mine", [ValueError("a"), KeyError("b")])
    with pytest.raises(ExceptionGroup) as caught:
        async with Host(discover=False):
            raise group
    assert caught.value is group


async def test_leaving_cancels_what_still_runs_and_waits_for_it() -> None:
    cleaned = []

    async def careful(run: Run) -> SubagentResult:
        try:
            return await hang(run)
        finally:
            with anyio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
            cleaned.append(run.id)

    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(careful=careful)) as host:
            children = [await host.spawn(task("careful")) for _ in range(3)]
            for child in children:
                await started(child)
        assert sorted(cleaned) == ["sub-0", "sub-1", "sub-2"]
        assert [(await child.wait()).stop_reason for child in children] == ["cancelled"] * 3


async def test_cancelling_around_the_host_leaves_children_their_grace() -> None:
    async def polite(run: Run) -> SubagentResult:
        await run.emit(Text(text="so far"))
        await run.cancel_requested.wait()
        await wait_all_tasks_blocked()
        await run.emit(Text(text=", and a word more"))
        return run.result(stop_reason="cancelled")

    actor = Actor(polite=polite)
    actor.cancel_grace = 5.0
    children = []
    with nothing_left(), anyio.fail_after(5), anyio.CancelScope() as around:
        async with opened(actor) as host:
            children.append(await host.spawn(task("polite")))
            await started(children[0])
            around.cancel()
            await checkpoint()
    assert around.cancelled_caught
    result = await children[0].wait()
    assert (result.stop_reason, result.summary) == ("cancelled", "so far, and a word more")


@pytest.mark.parametrize("text", ["", "all done"])
async def test_a_child_that_ends_its_turn_when_its_time_is_up(text: str) -> None:
    """Some agents answer a cancel with ``end_turn``: without a word it was the limit."""

    async def ends(run: Run) -> SubagentResult:
        await run.cancel_requested.wait()
        return run.result(text)

    actor = Actor(ends=ends)
    actor.cancel_grace = 5.0
    with anyio.fail_after(5):
        async with opened(actor) as host:
            result = await host.run(task("ends", timeout=0.01))
    assert result.exit_ok is bool(text)
    assert result.stop_reason == ("end_turn" if text else "cancelled")
    assert result.error == (
        None if text else "timed out after 0.01 s: raise timeout, or ask for less"
    )


async def test_a_runner_may_refuse_before_anything_is_made() -> None:
    class Choosy(Actor):
        def check(self, spec: SubagentSpec, host: Host) -> None:
            if spec.agent != "known":
                raise PluginNotSupportedError(f"agent {spec.agent!r} is not installed")

    async with opened(Choosy(say=say)) as host:
        spec = task("say", runner="actor", agent="other", worktree=WorktreeConfig(path="never"))
        with pytest.raises(PluginNotSupportedError, match="'other' is not installed"):
            await host.run(spec)
        result = await host.run(task("say", runner="actor", agent="known"))
    assert (result.subagent_id, result.exit_ok) == ("sub-0", True)


async def test_a_host_that_was_never_opened_says_so() -> None:
    host = Host(discover=False)
    with pytest.raises(GoferError, match="not open"):
        host.environment(1)
    with pytest.raises(GoferError, match="not open"):
        await host.release("anything")


async def test_a_blank_stop_reason_is_a_failure() -> None:
    async def blank(run: Run) -> SubagentResult:
        return run.result("text", stop_reason=" ")

    async with opened(Actor(blank=blank)) as host:
        result = await host.run(task("blank"))
    assert (result.exit_ok, result.stop_reason) == (False, "error")
    assert result.error


async def test_nothing_passes_the_hooks_after_the_end_of_a_child() -> None:
    kept: list[Run] = []

    async def keep(run: Run) -> SubagentResult:
        kept.append(run)
        return await say(run)

    seen = Turns()
    async with opened(Actor(keep=keep), seen) as host:
        await host.run(task("keep"))
        with pytest.raises(RunnerError, match="sub-0 has its result already"):
            await kept[0].emit(Text(text="late"))
        with pytest.raises(RunnerError, match="sub-0 has its result already"):
            kept[0].stream(Request(), Scripted(Finish()))
    assert [kind for kind, _ in seen.pairs] == ["request", "response"]


async def test_a_child_that_has_not_begun_ends_too() -> None:
    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(hang=hang)) as host:
            child = await host.spawn(task("hang"))
        result = await child.wait()
        assert (result.stop_reason, result.exit_ok) == ("cancelled", False)


async def test_outer_cancellation_ends_everything_as_cancelled() -> None:
    turns, left = Turns(), []

    @asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        yield "shared"
        left.append("resource")

    async def nested(run: Run) -> SubagentResult:
        await run.host.spawn(task("hang"), turn=turns.turns[run.id])
        return await hang(run)

    with nothing_left(), anyio.fail_after(5):
        with anyio.CancelScope() as scope:
            async with opened(Actor(nested=nested, hang=hang), turns, max_depth=2) as host:
                await host.resource("key", resource)
                child = await host.spawn(task("nested"))
                await started(child)
                await wait_all_tasks_blocked()
                assert len(host.children) == 2
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert (await child.wait()).stop_reason == "cancelled"
        assert left == ["resource"]
    assert [response.stop_reason for response in turns.responses] == ["cancelled"] * 2


async def test_outer_cancellation_reaches_a_call_of_run() -> None:
    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(hang=hang)) as host:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.run, task("hang"))
                await wait_all_tasks_blocked()
                [child] = host.children
                tasks.cancel_scope.cancel()
            # The call has waited for the child's end.
            assert child.state == "ended"
            assert host.children == []


# Results


async def test_a_childs_result() -> None:
    async with opened(Actor(say=say)) as host:
        result = await host.run(task("say"))
        assert result == SubagentResult(
            subagent_id="sub-0", summary="done", exit_ok=True, stop_reason="end_turn"
        )
        assert host.children == []


RESULTS: list[tuple[str, dict[str, Any], tuple[bool, str, str | None]]] = [
    ("text", {}, (True, "end_turn", None)),
    ("", {}, (False, "end_turn", "the turn ended with no text: there is no report")),
    (" \n", {}, (False, "end_turn", "the turn ended with no text: there is no report")),
    ("text", {"stop_reason": "max_tokens"}, (False, "max_tokens", None)),
    ("text", {"stop_reason": "refusal"}, (False, "refusal", None)),
    ("text", {"stop_reason": "cancelled"}, (False, "cancelled", None)),
    ("text", {"stop_reason": "a new one"}, (False, "a new one", None)),
    ("text", {"error": "the server died"}, (False, "error", "the server died")),
    (
        "text",
        {"stop_reason": "error"},
        (False, "error", "runner 'actor' reported an error and no cause"),
    ),
    ("", {"summary": "said by the runner"}, (True, "end_turn", None)),
]


@pytest.mark.parametrize(("text", "options", "expected"), RESULTS)
async def test_what_counts_as_success(
    text: str, options: dict[str, Any], expected: tuple[bool, str, str | None]
) -> None:
    async def act(run: Run) -> SubagentResult:
        await run.emit(Text(text=text))
        return run.result(**options)

    async with opened(Actor(act=act)) as host:
        result = await host.run(task("act"))
    assert (result.exit_ok, result.stop_reason, result.error) == expected


@pytest.mark.parametrize("garbage", ["text", None, {"type": "text", "text": "a"}, Finish()])
async def test_a_runner_that_emits_no_block_is_told_so(garbage: Any) -> None:
    turns = Turns()

    async def act(run: Run) -> SubagentResult:
        await run.emit(Text(text="so far"))
        await run.emit(garbage)
        raise AssertionError

    async with opened(Actor(act=act), turns) as host:
        result = await host.run(task("act"))
    said = f"runner 'actor' emitted a {type(garbage).__name__}, which is no block"
    assert (result.stop_reason, result.error, result.summary) == ("error", said, "so far")
    assert [what for what, _ in turns.pairs] == ["request", "response"]


async def test_the_summary_is_the_final_message_and_says_where_it_fell_back() -> None:
    async def act(run: Run) -> SubagentResult:
        for block in (
            Text(text="first"),
            ToolCall(id="1", name="look"),
            Text(text="report"),
            ToolCall(id="2", name="look"),
        ):
            await run.emit(block)
        return run.result()

    async with opened(Actor(act=act)) as host:
        result = await host.run(task("act"))
    assert (result.summary, result.fallback, result.exit_ok) == ("report", True, True)


async def test_it_counts_the_blocks_as_the_hooks_left_them() -> None:
    class Redact:
        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if isinstance(chunk.block, Text):
                chunk.block = Text(text=chunk.block.text.replace("secret", "[gone]"))

    async def act(run: Run) -> SubagentResult:
        emitted = await run.emit(Text(text="the secret"))
        assert emitted == Text(text="the [gone]")
        return run.result()

    async with opened(Actor(act=act), Redact) as host:
        assert (await host.run(task("act"))).summary == "the [gone]"


# Runners that fail


async def fail_with(run: Run, error: BaseException) -> SubagentResult:
    await run.emit(Text(text="partial"))
    raise error


FAILURES: list[tuple[BaseException, str]] = [
    (ValueError("bad"), "ValueError: bad"),
    (RunnerError("the agent died: start it again"), "the agent died: start it again"),
    (SystemExit(3), "SystemExit: 3"),
    (ExceptionGroup("g", [ValueError("a"), RunnerError("b")]), "ValueError: a; b"),
    (
        BaseExceptionGroup("g", [SystemExit(1), ExceptionGroup("h", [ValueError("a")])]),
        "SystemExit: 1; ValueError: a",
    ),
    (StopAsyncIteration("stop"), "StopAsyncIteration: stop"),
]


@pytest.mark.parametrize(("error", "said"), FAILURES, ids=lambda value: type(value).__name__)
async def test_an_exception_becomes_a_result_and_leaves_the_siblings_alone(
    error: BaseException, said: str
) -> None:
    go = anyio.Event()

    async def sibling(run: Run) -> SubagentResult:
        await run.emit(Text(text="fine"))
        await go.wait()
        return run.result()

    acts = {"fails": lambda run: fail_with(run, error), "sibling": sibling}
    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(**acts)) as host:
            other = await host.spawn(task("sibling"))
            result = await host.run(task("fails"))
            assert (result.exit_ok, result.stop_reason) == (False, "error")
            assert (result.summary, result.error) == ("partial", said)
            go.set()
            assert (await other.wait()).exit_ok


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nor_does_a_cancellation_from_within_the_runner(anyio_backend: str) -> None:
    go = anyio.Event()

    async def leaky(run: Run) -> SubagentResult:
        await run.emit(Text(text="partial"))
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner
        raise AssertionError

    async def sibling(run: Run) -> SubagentResult:
        await go.wait()
        return await say(run)

    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(leaky=leaky, sibling=sibling)) as host:
            other = await host.spawn(task("sibling"))
            result = await host.run(task("leaky"))
            assert (result.exit_ok, result.stop_reason, result.summary) == (
                False,
                "error",
                "partial",
            )
            assert "cancelled from within" in str(result.error)
            go.set()
            assert (await other.wait()).exit_ok


@pytest.mark.parametrize("answer", [None, "text", {"summary": "x"}])
async def test_a_runner_that_gives_no_result_is_told_so(answer: object) -> None:
    async def act(run: Run) -> object:
        return answer

    async with opened(Actor(act=act)) as host:
        result = await host.run(task("act"))
    assert result.stop_reason == "error"
    assert result.error == (
        f"runner 'actor' gave a {type(answer).__name__}: return run.result(...), a SubagentResult"
    )


async def test_a_runner_that_is_no_async_function_is_told_so() -> None:
    class Plain(Actor):
        def run(self, spec: SubagentSpec, run: Run) -> Any:
            return run.result("x")

    async with opened(Plain()) as host:
        result = await host.run(task("act"))
    assert "returned a SubagentResult from run_subagent: an awaitable" in str(result.error)
    assert "async def run(self, spec, run) gives one" in str(result.error)


# Children


async def test_children_have_ids_states_and_sessions() -> None:
    go = anyio.Event()

    async def wait(run: Run) -> SubagentResult:
        await go.wait()
        return await say(run)

    with anyio.fail_after(5):
        async with opened(Actor(wait=wait, say=say)) as host:
            first = await host.spawn(task("wait", name="one"))
            second = await host.spawn(task("wait"))
            assert [child.id for child in host.children] == ["sub-0", "sub-1"]
            await wait_all_tasks_blocked()
            assert {child.state for child in host.children} == {"running"}
            assert first.session != second.session
            assert first.parent_session == second.parent_session == host.default_session
            assert (first.depth, first.parent, first.result) == (1, None, None)
            go.set()
            assert (await first.wait()).subagent_id == "sub-0"
            # Two may wait for one child, and it can be asked again.
            assert await first.wait() is first.result
            await second.wait()
            assert first.state == "ended"
            assert host.children == []
            assert (await host.run(task("say"))).subagent_id == "sub-2"


async def test_a_waiting_caller_that_is_cancelled_leaves_the_child_as_it_was() -> None:
    go = anyio.Event()

    async def wait(run: Run) -> SubagentResult:
        await go.wait()
        return await say(run)

    with anyio.fail_after(5):
        async with opened(Actor(wait=wait)) as host:
            child = await host.spawn(task("wait"))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child.wait)
                await wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            go.set()
            assert (await child.wait()).exit_ok


async def test_a_refused_spawn_uses_no_id_and_leaves_nothing(tmp_path: Path) -> None:
    refused: list[tuple[SubagentSpec, type[PluginError], str]] = [
        (task(" \n"), PluginValidationError, r"SubagentSpec\.task: is blank: say what to do"),
        (task("say", runner="nope"), PluginNotSupportedError, "no runner 'nope'; installed: actor"),
        (task("say", agent="some"), PluginNotSupportedError, "no runner 'acp'"),
        (task("say", cwd=tmp_path / "gone"), PluginNotSupportedError, "gone' is no directory"),
    ]
    async with opened(Actor(say=say)) as host:
        for spec, kind, said in refused:
            with pytest.raises(kind, match=said):
                await host.spawn(spec)
            with pytest.raises(kind, match=said):
                await host.run(spec)
            assert host.children == []
        assert (await host.run(task("say"))).subagent_id == "sub-0"


async def test_where_a_child_works(tmp_path: Path) -> None:
    seen = []

    async def act(run: Run) -> SubagentResult:
        seen.append(run.cwd)
        return run.result("x")

    (tmp_path / "below").mkdir()
    config = {"default_runner": "actor"}
    async with Host([Actor(act=act)], config, discover=False, cwd=tmp_path) as host:
        for cwd in (None, Path("below"), tmp_path / "below"):
            await host.run(task("act", cwd=cwd))
    assert seen == [tmp_path, tmp_path / "below", tmp_path / "below"]


async def test_which_runner() -> None:
    class Other(Actor):
        name = "other"

    async def who(run: Run) -> SubagentResult:
        return run.result(str(run.spec.runner))

    acts = {"who": who}
    agents = {"mine": {"runner": "other"}}
    async with opened(Actor(**acts), Other(**acts), agents=agents) as host:
        assert (await host.run(task("who"))).summary == "actor"
        assert (await host.run(task("who", runner="other"))).summary == "other"
        assert (await host.run(task("who", agent="mine"))).summary == "other"
        assert (await host.run(task("who", agent="mine", runner="actor"))).summary == "actor"


# Cancelling


async def test_cancelling_a_child_keeps_what_it_said() -> None:
    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(hang=hang, say=say)) as host:
            child = await host.spawn(task("hang"))
            await started(child)
            await host.cancel("sub-0")
            result = child.result
            assert result is not None
            assert (result.stop_reason, result.summary, result.exit_ok) == (
                "cancelled",
                "so far",
                False,
            )
            assert "cancelled" in str(result.error)
            # An ended one is left alone.
            await host.cancel("sub-0")
            child.cancel()
            assert await child.wait() is result


@pytest.mark.parametrize(
    "child_id", ["sub-1", "sub-01", "sub--1", "0", "", "sub-", "sub-٠", "sub-" + "9" * 5000]
)
async def test_an_id_that_no_child_ever_had_is_refused(child_id: str) -> None:
    async with opened(Actor(say=say)) as host:
        await host.run(task("say"))
        with pytest.raises(PluginNotSupportedError, match=r"there is no child .*; running: none"):
            await host.cancel(child_id)


@pytest.mark.parametrize("ends_by_itself", [True, False])
async def test_a_runner_has_its_grace_to_end_by_itself(ends_by_itself: bool) -> None:
    class Graceful(Actor):
        cancel_grace = 60.0 if ends_by_itself else 0.05

    async def act(run: Run) -> SubagentResult:
        await run.emit(Text(text="working"))
        await run.cancel_requested.wait()
        if not ends_by_itself:
            await anyio.sleep_forever()
        await run.emit(Text(text=", and saved"))
        return run.result(stop_reason="cancelled")

    with nothing_left(), anyio.fail_after(5):
        async with opened(Graceful(act=act)) as host:
            child = await host.spawn(task("act"))
            await started(child)
            await host.cancel(child.id)
            result = await child.wait()
    assert result.stop_reason == "cancelled"
    assert result.summary == ("working, and saved" if ends_by_itself else "working")


async def test_the_request_to_end_is_seen_by_who_asks_late() -> None:
    class Graceful(Actor):
        cancel_grace = 60.0

    go = anyio.Event()

    async def act(run: Run) -> SubagentResult:
        await run.emit(Text(text="x"))
        await go.wait()
        await run.cancel_requested.wait()
        return run.result()

    with anyio.fail_after(5):
        async with opened(Graceful(act=act)) as host:
            child = await host.spawn(task("act"))
            await started(child)
            child.cancel()
            go.set()
            # It ended its turn all the same, in its grace.
            assert (await child.wait()).exit_ok


async def test_cancelling_is_sticky_and_reaches_all_below() -> None:
    turns, late = Turns(), []

    async def deep(run: Run) -> SubagentResult:
        turn = turns.turns[run.id]
        if run.depth < 3:
            await run.host.spawn(task("deep"), turn=turn)
        try:
            return await hang(run)
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await run.host.spawn(task("say"), turn=turn)
                except PluginInternalError as error:
                    late.append(str(error))

    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(deep=deep, say=say), turns, max_depth=4) as host:
            other = await host.spawn(task("deep", name="other"))
            first = await host.spawn(task("deep"))
            while len(host.children) < 6:
                await checkpoint()
            await wait_all_tasks_blocked()
            tree = [c for c in host.children if c.session.startswith(first.session)]
            below = {first.id} | {
                c.id for c in host.children if c.parent and c.parent.id != "sub-0"
            }
            assert first.id in {c.id for c in tree}
            await host.cancel(first.id)
            left = {c.id for c in host.children}
            assert other.id in left
            assert len(left) == 3
            assert len(late) == 3
            assert all("been cancelled: it starts no children any more" in said for said in late)
            assert below


async def test_those_below_are_cancelled_at_once_also_where_the_parent_has_its_grace() -> None:
    class Graceful(Actor):
        name = "graceful"
        cancel_grace = 60.0

    turns = Turns()

    async def parent(run: Run) -> SubagentResult:
        below = await run.host.spawn(task("hang", runner="actor"), turn=turns.turns[run.id])
        await run.emit(Text(text="delegated, "))
        await run.cancel_requested.wait()
        await run.emit(Text(text=f"and it was {(await below.wait()).stop_reason}"))
        return run.result(stop_reason="cancelled")

    with nothing_left(), anyio.fail_after(5):
        plugins = Actor(hang=hang), Graceful(parent=parent), turns
        async with opened(*plugins, max_depth=2) as host:
            child = await host.spawn(task("parent", runner="graceful"))
            await started(child)
            await host.cancel(child.id)
            assert (await child.wait()).summary == "delegated, and it was cancelled"


async def test_a_child_that_ends_cancels_what_it_left_running() -> None:
    turns = Turns()
    grandchildren: list[Child] = []

    async def parent(run: Run) -> SubagentResult:
        child = await run.host.spawn(task("hang"), turn=turns.turns[run.id])
        grandchildren.append(child)
        await started(child)
        return await say(run)

    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(parent=parent, hang=hang), turns, max_depth=2) as host:
            result = await host.run(task("parent"))
            assert result.exit_ok
            assert grandchildren[0].state == "ended"
            assert (await grandchildren[0].wait()).stop_reason == "cancelled"
            assert host.children == []
            with pytest.raises(PluginInternalError, match="child sub-0 has ended"):
                await host.spawn(task("hang"), turn=turns.turns["sub-0"])


async def test_a_child_that_is_ending_starts_no_more_children() -> None:
    turns, refusals, ending = Turns(), [], anyio.Event()

    async def stubborn(run: Run) -> SubagentResult:
        try:
            return await hang(run)
        finally:
            ending.set()
            with anyio.CancelScope(shield=True):
                await wait_all_tasks_blocked()

    async def parent(run: Run) -> SubagentResult:
        await started(await run.host.spawn(task("stubborn"), turn=turns.turns[run.id]))
        return await say(run)

    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(parent=parent, stubborn=stubborn), turns, max_depth=2) as host:
            child = await host.spawn(task("parent"))
            await ending.wait()
            assert child.state == "running"
            try:
                await host.spawn(task("stubborn"), turn=turns.turns["sub-0"])
            except PluginInternalError as error:
                refusals.append(str(error))
            await child.wait()
            assert host.children == []
    assert len(refusals) == 1


# Limits


async def test_children_do_not_delegate_unless_the_depth_allows_it() -> None:
    turns = Turns()

    async def deeper(run: Run) -> SubagentResult:
        try:
            result = await run.host.run(task("deeper"), turn=turns.turns[run.id])
        except PluginNotSupportedError as error:
            return run.result(f"{run.depth}: {error}")
        return run.result(result.summary)

    for limit in (1, 3):
        async with opened(Actor(deeper=deeper), turns, max_depth=limit) as host:
            summary = (await host.run(task("deeper"))).summary
            assert summary.startswith(f"{limit}: a child at depth {limit + 1} is over the limit")
            assert f"max_depth is {limit}" in summary
            assert "raise max_depth" in summary
    async with opened(Actor(deeper=deeper), max_depth=0) as host:
        with pytest.raises(PluginNotSupportedError, match="depth 1 is over the limit"):
            await host.run(task("deeper"))


async def test_places_are_per_runner_and_depth() -> None:
    class Other(Actor):
        name = "other"

    turns, gates = Turns(), {name: anyio.Event() for name in ("a", "b")}

    async def gated(run: Run) -> SubagentResult:
        await run.emit(Text(text="x"))
        await gates[run.spec.name].wait()
        if run.depth == 1:
            # Deeper is another queue, so that a parent in the only place cannot block itself.
            await run.host.run(task("say"), turn=turns.turns[run.id])
        return run.result()

    acts: dict[str, Act] = {"gated": gated, "say": say}
    config = {"max_concurrent": {"actor": 1, "*": 64}, "max_depth": 2}
    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(**acts), Other(**acts), turns, **config) as host:
            first, second, third = await in_order(
                host, task("gated", name="a"), task("gated", name="b"), task("say")
            )
            states = [child.state for child in (first, second, third)]
            assert states == ["running", "waiting", "waiting"]
            assert (await host.run(task("say", runner="other"))).exit_ok
            gates["b"].set()
            await wait_all_tasks_blocked()
            assert second.state == "waiting"
            gates["a"].set()
            # Free when the run ends: nobody has collected the first.
            assert (await third.wait()).exit_ok
            assert [child.state for child in (first, second)] == ["ended", "ended"]


async def test_children_wait_in_the_order_of_their_spawns() -> None:
    order = []

    async def act(run: Run) -> SubagentResult:
        order.append(run.id)
        await checkpoint()
        return await say(run)

    with nothing_left(), anyio.fail_after(10):
        async with opened(Actor(act=act), max_concurrent=1) as host:
            children = [await host.spawn(task("act")) for _ in range(12)]
            for child in children:
                await child.wait()
            assert order == [child.id for child in children]


async def test_a_waiting_child_can_be_cancelled_and_gives_up_its_turn() -> None:
    class Graceful(Actor):
        cancel_grace = 60.0

    with nothing_left(), anyio.fail_after(5):
        async with opened(Graceful(hang=hang, say=say), max_concurrent=1) as host:
            first, waiting, last = await in_order(host, task("hang"), task("say"), task("say"))
            # It has nothing to put in order, so it needs no grace.
            await host.cancel(waiting.id)
            assert (await waiting.wait()).stop_reason == "cancelled"
            first._cancel_grace = 0
            await host.cancel(first.id)
            assert (await last.wait()).exit_ok


async def test_a_timeout_ends_the_child_with_a_sentence() -> None:
    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(hang=hang)) as host:
            result = await host.run(task("hang", timeout=0.05))
    assert (result.stop_reason, result.exit_ok, result.summary) == ("cancelled", False, "so far")
    assert result.error == "timed out after 0.05 s: raise timeout, or ask for less"


async def test_the_configured_timeout_is_for_those_that_name_none() -> None:
    with anyio.fail_after(5):
        async with opened(Actor(hang=hang), timeout=0.05) as host:
            assert "timed out after 0.05 s" in str((await host.run(task("hang"))).error)


async def test_silence_ends_a_child_and_signs_of_life_keep_it() -> None:
    async def lively(run: Run) -> SubagentResult:
        ends = anyio.current_time() + 1.0
        while anyio.current_time() < ends:
            await run.emit(Update(kind="usage"))
            await checkpoint()
        return await say(run)

    with nothing_left(), anyio.fail_after(10):
        async with opened(Actor(hang=hang, lively=lively)) as host:
            lives = await host.spawn(task("lively", idle_timeout=0.5))
            result = await host.run(task("hang", idle_timeout=0.05))
            assert (result.stop_reason, result.summary) == ("cancelled", "so far")
            assert str(result.error).startswith("timed out after 0.05 s without a sign of life")
            assert (await lives.wait()).exit_ok


async def test_time_limits_start_when_the_child_does() -> None:
    async def slow(run: Run) -> SubagentResult:
        with anyio.move_on_after(0.15):
            await anyio.sleep_forever()
        return await say(run)

    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(slow=slow, say=say), max_concurrent=1) as host:
            first, second = await in_order(
                host, task("slow"), task("say", timeout=0.1, idle_timeout=0.1)
            )
            assert (await first.wait()).exit_ok
            assert (await second.wait()).exit_ok


async def test_a_timeout_reaches_the_children_below() -> None:
    turns = Turns()

    async def parent(run: Run) -> SubagentResult:
        await run.host.spawn(task("hang"), turn=turns.turns[run.id])
        return await hang(run)

    with nothing_left(), anyio.fail_after(5):
        async with opened(Actor(parent=parent, hang=hang), turns, max_depth=2) as host:
            result = await host.run(task("parent", timeout=0.1))
            assert "timed out" in str(result.error)
            assert host.children == []


async def test_a_log_line_tells_of_long_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = anyio.Event()

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has been silent" in record.getMessage():
                told.set()

    monkeypatch.setattr(gofer._family, "_SILENCE", 0.02)
    handler = Notice()
    logger = logging.getLogger("gofer")
    logger.addHandler(handler)
    try:
        with nothing_left(), anyio.fail_after(5), caplog.at_level(logging.INFO, "gofer"):
            async with opened(Actor(hang=hang)) as host:
                await host.spawn(task("hang"))
                await told.wait()
    finally:
        logger.removeHandler(handler)
    assert "child sub-0 on actor has been silent for 0 s: idle_timeout would end it" in caplog.text


# What a Host knows


async def test_plugins_of_one_kind_get_names_of_their_own() -> None:
    async with opened(Turns(), Turns(), Actor()) as host:
        assert [info.name for info in host.plugins] == ["Turns", "Turns-2", "actor"]
        assert [info.group for info in host.plugins][-1] == "gofer.runners"
        assert host.plugin("Turns-2") is not host.plugin("Turns")
        with pytest.raises(PluginNotSupportedError, match="plugin 'x'; installed: Turns, Turns-2"):
            host.plugin("x")


async def test_two_that_name_themselves_alike_are_refused() -> None:
    with pytest.raises(PluginValidationError, match="two plugins are named 'actor'"):
        async with opened(Actor(), Harness()):
            pytest.fail("it must not open")


async def test_a_plugin_and_a_runner_may_share_a_name() -> None:
    class Watching(Turns):
        name = "actor"

    plugin = Watching()
    async with opened(plugin, Actor(say=say)) as host:
        assert host.plugin("actor") is plugin
        assert (await host.run(task("say"))).exit_ok
    assert len(plugin.responses) == 1


async def test_a_runner_may_lend_its_model() -> None:
    class Lending(Actor):
        name = "lending"
        model = Scripted(Finish())

    async with opened(Lending(), Actor()) as host:
        assert host.model("lending") is Lending.model
        with pytest.raises(PluginNotSupportedError, match="'actor' offers no model of its own"):
            host.model("actor")


async def test_sessions_are_kept_by_name_and_the_oldest_is_forgotten() -> None:
    async with opened() as host:
        own = host.session()
        own.last_input = "hello"
        assert host.session() is host.session(host.default_session) is own
        first = host.session("s0")
        for number in range(1, 1023):
            host.session(f"s{number}")
        # Used again, so that another one is the oldest now.
        assert host.session("s0") is first
        assert len(host._sessions) == 1024
        host.session("one more")
        assert len(host._sessions) == 1024
        assert host.session("s0") is first
        assert host.session() is not own


# What plugins see of a child


async def test_an_observed_child_is_one_pair_and_its_calls_are_news() -> None:
    class Rewrite:
        @hookimpl
        def on_request(self, request: Request) -> None:
            request.messages.append(Message("user", f"{request.messages[-1].text}, briefly"))

    class Eager:
        """Would execute any call."""

        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            assert chunk.turn.observed
            if isinstance(chunk.block, ToolCall) and chunk.block.name == "bait":
                chunk.block = ToolResult(tool_call_id=chunk.block.id, output="done twice")

    turns, prompts = Turns(), []

    async def act(run: Run) -> SubagentResult:
        prompts.append(run.prompt)
        await run.emit(ToolCall(id="1", name="look"))
        await run.emit(ToolResult(tool_call_id="1", output="seen"))
        await run.emit(Text(text="re"))
        await run.emit(Text(text="port"))
        return run.result(usage=Usage(input_tokens=5))

    async def bait(run: Run) -> SubagentResult:
        await run.emit(ToolCall(id="1", name="bait"))
        raise AssertionError

    async with opened(Actor(act=act, bait=bait), Rewrite, Eager, turns) as host:
        child = await host.spawn(task("act", agent=None))
        await child.wait()
        assert prompts == ["act, briefly"]
        assert [what for what, _ in turns.pairs] == ["request", "response"]
        turn = turns.turns["sub-0"]
        assert turns.pairs[1][1] is turn
        assert (turn.depth, turn.subagent_id, turn.runner) == (1, "sub-0", "actor")
        assert (turn.observed, turn.probe, turn.session) == (True, False, child.session)
        [response] = turns.responses
        assert response.stop_reason == "end_turn"
        assert response.usage == Usage(input_tokens=5)
        assert response.blocks == [
            ToolCall(id="1", name="look"),
            ToolResult(tool_call_id="1", output="seen"),
            Text(text="report"),
        ]
        result = await host.run(task("bait"))
        assert result.stop_reason == "error"
        assert "is the child's own and was executed there" in str(result.error)


@pytest.mark.parametrize(
    ("act", "reason"), [("fails", "error"), ("hang", "cancelled"), ("refuses", "refusal")]
)
async def test_an_observed_pair_is_closed_however_the_child_ends(act: str, reason: str) -> None:
    async def refuses(run: Run) -> SubagentResult:
        return run.result("no", "refusal")

    async def fails(run: Run) -> SubagentResult:
        return await fail_with(run, ValueError("x"))

    turns = Turns()
    with anyio.fail_after(5):
        async with opened(Actor(fails=fails, hang=hang, refuses=refuses), turns) as host:
            child = await host.spawn(task(act))
            if act == "hang":
                await started(child)
                child.cancel()
            assert (await child.wait()).stop_reason == reason
    assert [response.stop_reason for response in turns.responses] == [reason]


async def test_a_harness_makes_its_requests_through_the_hooks() -> None:
    class Double:
        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if isinstance(chunk.block, ToolCall):
                assert not chunk.turn.observed
                chunk.block = ToolResult(tool_call_id=chunk.block.id, output="4")

    turns = Turns()

    async def act(run: Run) -> SubagentResult:
        models = [
            Scripted(
                Text(text="let me see"),
                ToolCall(id="1", name="double"),
                Finish("tool_use", Usage(input_tokens=1, output_tokens=2)),
            ),
            Scripted(Text(text="it is "), Text(text="4"), Finish(usage=Usage(input_tokens=3))),
        ]
        request = Request(messages=[Message("user", run.prompt)])
        for model in models:
            async with run.stream(request, model) as stream:
                async for _ in stream:
                    pass
            request.messages += stream.response.messages
        assert [message.role for message in request.messages] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        return run.result()

    async with opened(Harness(act=act), Double, turns) as host:
        child = await host.spawn(task("act"))
        result = await child.wait()
    assert (result.summary, result.exit_ok, result.fallback) == ("it is 4", True, False)
    assert result.usage == Usage(input_tokens=4, output_tokens=2)
    assert [what for what, _ in turns.pairs] == ["request", "response"] * 2
    ids = {turn.id for _, turn in turns.pairs}
    assert len(ids) == 2
    for _, turn in turns.pairs:
        assert (turn.subagent_id, turn.depth, turn.observed) == (child.id, 1, False)
        assert turn.session == child.session


async def test_two_responses_are_two_messages() -> None:
    async def act(run: Run) -> SubagentResult:
        for text in ("first", "second"):
            async with run.stream(Request(), Scripted(Text(text=text), Finish())) as stream:
                async for _ in stream:
                    pass
        return run.result()

    async with opened(Harness(act=act)) as host:
        assert (await host.run(task("act"))).summary == "second"


async def test_a_models_failure_inside_a_child_is_in_its_result() -> None:
    class Broken:
        async def stream(self, request: Request) -> AsyncIterator[Any]:
            yield Text(text="part")
            raise ModelError("the server broke off", 500, "oops")

    async def act(run: Run) -> SubagentResult:
        async with run.stream(Request(), Broken()) as stream:
            async for _ in stream:
                pass
        raise AssertionError

    turns = Turns()
    async with opened(Harness(act=act), turns) as host:
        result = await host.run(task("act"))
    assert (result.summary, result.stop_reason) == ("part", "error")
    assert result.error == "the server broke off"
    assert [response.stop_reason for response in turns.responses] == ["error"]


async def test_many_children_at_once_leave_nothing() -> None:
    async def busy(run: Run) -> SubagentResult:
        for _ in range(5):
            await run.emit(Text(text="."))
            await checkpoint()
        return run.result()

    with nothing_left(), anyio.fail_after(20):
        async with opened(Actor(busy=busy), max_concurrent=16) as host:
            children = [await host.spawn(task("busy")) for _ in range(200)]
            results = [await child.wait() for child in children]
            assert [result.subagent_id for result in results] == [f"sub-{n}" for n in range(200)]
            assert {result.summary for result in results} == {"....."}
            assert host.children == []


# For a script, or a notebook


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_another_threads_loop_is_refused_where_it_would_wait_for_ever(backend: str) -> None:
    calls: dict[str, Callable[[Host], Any]] = {
        "run": lambda host: host.run(task("say")),
        "spawn": lambda host: host.spawn(task("say")),
        "cancel": lambda host: host.cancel("sub-0"),
        "tools": lambda host: host.tools(),
        "call_tool": lambda host: host.call_tool("t"),
        "resource": lambda host: host.resource("key", contextlib.nullcontext),
        "stream": lambda host: host.stream(Request(), Scripted(Finish())).__aenter__(),
    }
    refused: list[str] = []

    async def elsewhere(host: Host) -> None:
        for name, call in calls.items():
            with pytest.raises(GoferError, match="opened in another thread"):
                await call(host)
            refused.append(name)
        # What only looks may look from anywhere.
        assert host.children == []
        assert host.is_open

    async with opened(Actor(say=say)) as host:
        await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere, host, backend=backend))
        assert (await host.run(task("say"))).exit_ok
    assert refused == list(calls)


def test_run_in_a_script() -> None:
    result = gofer.run("say", plugins=[Actor(say=say)], config={"default_runner": "actor"})
    assert (result.summary, result.exit_ok) == ("done", True)
    assert gofer.run("say", runner="actor", plugins=[Actor(say=say)], name="n").exit_ok


def test_run_raises_what_keeps_the_child_from_starting() -> None:
    with pytest.raises(PluginNotSupportedError, match="no runner 'nope'"):
        gofer.run("say", runner="nope")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("agnet", "x", r"SubagentSpec\.agnet: there is no such key; did you mean agent\?"),
        ("timeout", 0, r"SubagentSpec\.timeout: should be greater than 0, not 0"),
        ("worktree", {"branch": "x"}, r"SubagentSpec\.worktree\.path"),
        (
            "worktree",
            "/x",
            r"\.worktree: should be a table, not '/x': say worktree=gofer\.WorktreeConfig\(path=",
        ),
        ("worktree", {"path": "x", "brnch": "y"}, r"worktree\.brnch: .* did you mean branch\?"),
    ],
)
def test_a_field_that_a_child_cannot_have_is_named(field: str, value: object, said: str) -> None:
    with pytest.raises(PluginValidationError, match=said):
        gofer.run("say", **{field: value})
    with pytest.raises(ValidationError):
        SubagentSpec.model_validate({"task": "say", field: value})


@pytest.mark.parametrize("keeps", [True, False])
async def test_who_cannot_keep_to_a_scope_is_warned_of(
    keeps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Scoped(Actor):
        capabilities = Capabilities(tool_scope=keeps)

    async with Host([Scoped(say=say)], {"default_runner": "actor"}, discover=False) as host:
        assert (await host.run(task("say"))).exit_ok
        assert caplog.records == []
        assert (await host.run(SubagentSpec(task="say", tool_scope=["read", "edit"]))).exit_ok
    told = [record.getMessage() for record in caplog.records]
    assert bool(told) is not keeps
    assert all("runner 'actor'" in one and "read, edit" in one for one in told)


async def test_a_runner_that_is_not_the_agents_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = {"agents": {"mine": {"runner": "actor"}}}
    async with Host([Actor(say=say)], config, discover=False) as host:
        assert (await host.run(task("say", agent="mine", runner="actor"))).exit_ok
        assert caplog.records == []
        assert (await host.run(task("say", agent="opencode", runner="actor"))).exit_ok
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "agent 'opencode' is one of runner 'acp': runner 'actor', which was named for it, may not "
        "know it, and do the task itself"
    )


async def test_run_where_a_loop_runs_already() -> None:
    threads, main = [], threading.current_thread()

    async def act(run: Run) -> SubagentResult:
        threads.append(threading.current_thread())
        return await say(run)

    plugins = [Actor(act=act)]
    with nothing_left():
        assert gofer.run("act", runner="actor", plugins=plugins).exit_ok
        with pytest.raises(PluginNotSupportedError, match="no runner 'nope'"):
            gofer.run("act", runner="nope")
    assert threads
    assert main not in threads


SCRIPT = """
    import asyncio, sys
    import anyio, gofer

    class Slow(gofer.Runner):
        name = "slow"

        async def run(self, spec, run):
            print("running", flush=True)
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                print("cleaned up", flush=True)

    def play():
        try:
            gofer.run("t", runner="slow", plugins=[Slow])
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(7)

    async def main():
        play()

    if sys.argv[1] == "script":
        play()
    else:
        asyncio.new_event_loop().run_until_complete(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("where", ["script", "notebook"])
def test_an_interrupt_ends_the_child_first(where: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(dedent(SCRIPT))
    with subprocess.Popen(
        [sys.executable, str(script), where], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "running\n"
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=20)
        except BaseException:
            process.kill()
            raise
    assert said.splitlines() == ["cleaned up", "interrupted"]
    assert process.returncode == 7
