"""The delegation registry against a simple model, under programs of hypothesis's choice.

Each example opens a Host and plays one program in it: an operation, then a moment in which
everything that can happen happens, then a comparison with the model.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import anyio
import pytest
import sniffio
import trio.testing
from anyio.streams.memory import MemoryObjectSendStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gofer import (
    Host,
    PluginError,
    PluginInternalError,
    PluginNotSupportedError,
    Request,
    Run,
    Runner,
    SubagentResult,
    SubagentSpec,
    Text,
    ToolCall,
    ToolResult,
)
from gofer.testing import ScriptedModel
from gofer_plugins.delegation import SubagentPlugin

MAX_PENDING = 5
MAX_CONCURRENT = 2
MAX_DEPTH = 3
GRACE = 60.0

PLAIN, STUBBORN, STAYING, OBEDIENT, LINGERING = (
    "plain",  # is cancelled at once
    "stubborn",  # swallows its cancellation, and only ends at the next
    "staying",  # swallows its cancellation and ends as if nothing had been
    "obedient",  # ends by itself in its time of grace
    "lingering",  # lets its time of grace pass, until it is told to end
)
RUNNERS = (PLAIN, STUBBORN, STAYING, OBEDIENT, LINGERING)
SESSIONS = ("one", "two")


async def settle() -> None:
    """Return when nothing can go on without a new event."""
    if sniffio.current_async_library() == "trio":
        await trio.testing.wait_all_tasks_blocked()
        return
    loop: Any = asyncio.get_running_loop()
    for _ in range(100):  # a cancelled scope that waits keeps the loop busy
        await asyncio.sleep(0)
        if not loop._ready:
            return


class Puppet(Runner):
    """A runner that does what the test tells each of its children."""

    observed = False

    def __init__(self, name: str, stage: dict[str, MemoryObjectSendStream[Any]]) -> None:
        self.name = name  # type: ignore[misc]
        self.cancel_grace = GRACE if name in (OBEDIENT, LINGERING) else 0.0
        self.stage = stage

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        strings, orders = anyio.create_memory_object_stream[Callable[[Run], Any]](100)
        assert run.id not in self.stage
        self.stage[run.id] = strings
        try:
            with strings, orders:
                return await self._play(orders, run)
        finally:
            del self.stage[run.id]

    async def _play(self, orders: Any, run: Run) -> Any:
        if self.name == OBEDIENT:
            return await self._until_asked(orders, run)
        try:
            return await self._obey(orders, run)
        except anyio.get_cancelled_exc_class():
            if self.name == STAYING:
                return run.result("I stayed")
            if self.name == STUBBORN:
                await anyio.lowlevel.checkpoint()
            raise

    async def _until_asked(self, orders: Any, run: Run) -> Any:
        answer = None

        async def watch(scope: anyio.CancelScope) -> None:
            await run.cancel_requested.wait()
            scope.cancel()

        # What it raises comes out of the task group as an exception group.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            answer = await self._obey(orders, run)
            tasks.cancel_scope.cancel()
        return run.result(stop_reason="cancelled") if answer is None else answer

    async def _obey(self, orders: Any, run: Run) -> Any:
        async for order in orders:
            answer = await order(run)
            if answer is not None:
                return answer[0]
        raise AssertionError("nobody tells this child to end")


async def say(run: Run, text: str) -> None:
    await run.emit(Text(text=text))


async def spawn_below(run: Run, agent: str, outcome: list[ToolResult]) -> None:
    call = ToolCall(id="c", name="spawn_subagent", arguments={"task": "t", "agent": agent})
    async with run.stream(Request(), ScriptedModel([call]), errors="report") as stream:
        outcome += [block async for block in stream if isinstance(block, ToolResult)]


async def end(run: Run, how: str) -> Any:
    match how:
        case "ok":
            return [run.result()]
        case "refusal":
            return [run.result(stop_reason="refusal")]
        case "failed":
            return [run.result(error="it broke")]
        case "exception":
            raise RuntimeError("boom")
        case "exit":
            raise SystemExit(3)
        case "group":
            raise BaseExceptionGroup("g", [SystemExit(4), ValueError("boom")])
        case "unspeakable":
            raise Unspeakable
        case "text":
            return ["a text is no result"]
        case _:
            return [SubagentResult.model_construct(summary=5, stop_reason=None)]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no words")


ENDS = {
    "ok": ("end_turn", ""),
    "refusal": ("refusal", ""),
    "failed": ("error", "it broke"),
    "exception": ("error", "RuntimeError: boom"),
    "exit": ("error", "SystemExit: 3"),
    "group": ("error", "SystemExit: 4; ValueError: boom"),
    "unspeakable": ("error", "Unspeakable"),
    "text": ("error", "gave a str"),
    "malformed": ("error", "SubagentResult"),
}


@dataclass(repr=False)
class Kid:
    """What the model knows of a child."""

    id: str
    runner: str
    session: str
    depth: int
    parent: Kid | None
    phase: Literal["waiting", "running", "closing", "ended"] = "waiting"
    cancelled: bool = False
    said: str = ""
    last: str = ""
    below: list[Kid] = field(default_factory=list)
    expected: tuple[str, str, str] = ("", "", "")  # stop reason, summary, part of the error
    collected: bool = False

    def __repr__(self) -> str:
        return f"{self.id} ({self.runner}, {self.phase})"

    @property
    def summary(self) -> str:
        return self.said or self.last


@dataclass(repr=False)
class Waiter:
    """A call of the test's that waits for a child."""

    kid: Kid
    kind: str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    outcome: Any = None
    state: Literal["waiting", "done", "cancelled"] = "waiting"

    def __repr__(self) -> str:
        return f"{self.kind} {self.kid.id}"


class Program:
    """The operations, and what the model says of each."""

    def __init__(self, data: st.DataObject, host: Host, tasks: Any) -> None:
        self.draw = data.draw
        self.host = host
        self.tasks = tasks
        self.plugin: SubagentPlugin = host.plugin("delegation")
        self.stage: dict[str, MemoryObjectSendStream[Any]] = host.runner(PLAIN).stage  # type: ignore[attr-defined]
        self.kids: list[Kid] = []
        self.gates: dict[tuple[str, int], tuple[list[Kid], deque[Kid]]] = {}
        self.waiters: list[Waiter] = []

    # The model

    def alive(self) -> list[Kid]:
        return [kid for kid in self.kids if kid.phase != "ended"]

    def pending(self) -> int:
        return sum(not kid.collected for kid in self.kids)

    def born(self, kid_id: str, runner: str, session: str, parent: Kid | None) -> None:
        assert kid_id == f"sub-{len(self.kids)}"
        depth = parent.depth + 1 if parent else 1
        kid = Kid(kid_id, runner, session, depth, parent)
        self.kids.append(kid)
        if parent:
            parent.below.append(kid)
        running, queue = self.gates.setdefault((runner, depth), ([], deque()))
        queue.append(kid)
        self.fill(running, queue)

    def fill(self, running: list[Kid], queue: deque[Kid]) -> None:
        while queue and len(running) < MAX_CONCURRENT:
            kid = queue.popleft()
            kid.phase = "running"
            running.append(kid)

    def cancel(self, kid: Kid) -> None:
        for below in kid.below:
            self.cancel(below)
        if kid.cancelled or kid.phase == "ended":
            return
        kid.cancelled = True
        if kid.phase == "waiting":
            self.gates[kid.runner, kid.depth][1].remove(kid)
            self.finish(kid, "cancelled", "cancelled before it ended")
        elif kid.phase == "running" and kid.runner != LINGERING:
            if kid.runner == STAYING:
                kid.said = "I stayed"
                self.finish(kid, "end_turn", "")
            else:
                self.finish(kid, "cancelled", "" if kid.runner == OBEDIENT else "cancelled before")

    def finish(self, kid: Kid, stop_reason: str, error: str) -> None:
        if stop_reason == "end_turn" and not kid.summary:
            error = "no text"
        kid.expected = stop_reason, kid.summary, error
        if kid.phase == "running":
            running, queue = self.gates[kid.runner, kid.depth]
            running.remove(kid)
            self.fill(running, queue)
        kid.phase = "closing"
        for below in kid.below:
            self.cancel(below)
        self.close(kid)

    def close(self, kid: Kid) -> None:
        if kid.phase != "closing" or any(below.phase != "ended" for below in kid.below):
            return
        kid.phase = "ended"
        if kid.parent:
            self.close(kid.parent)

    def matches(self, kid: Kid, result: object) -> None:
        stop_reason, summary, error = kid.expected
        if isinstance(result, ToolResult):
            assert result.is_error == (not (stop_reason == "end_turn" and summary))
            assert summary in result.output
            assert error in result.output
            return
        assert isinstance(result, SubagentResult)
        assert result.subagent_id == kid.id
        assert (result.stop_reason, result.summary) == (stop_reason, summary)
        assert result.exit_ok == (stop_reason == "end_turn" and bool(summary))
        assert error in (result.error or "")

    # Operations

    async def spawn(self) -> None:
        runner = self.draw(st.sampled_from(RUNNERS))
        session = self.draw(st.sampled_from(SESSIONS))
        full = self.pending() >= MAX_PENDING
        if through_tool := self.draw(st.booleans()):
            arguments = {"task": "t", "agent": runner}
            call = partial(self.host.call_tool, "spawn_subagent", arguments, session)
        else:
            session = self.host.default_session
            call = partial(self.plugin.spawn_subagent, SubagentSpec(task="t", runner=runner))
        if full:
            with pytest.raises(PluginInternalError, match=f"{MAX_PENDING} children await"):
                await call()
        else:
            answer = await call()
            self.born(answer.output if through_tool else answer, runner, session, None)

    async def refused_spawn(self) -> None:
        with pytest.raises(PluginError):
            await self.plugin.spawn_subagent(SubagentSpec(task="t", runner="of nobody"))

    async def spawn_below(self) -> None:
        await self.spawn_under(self.told())

    async def spawn_below_cancelled(self) -> None:
        await self.spawn_under(self.draw(st.sampled_from(self.in_grace())))

    async def spawn_under(self, parent: Kid) -> None:
        runner = self.draw(st.sampled_from(RUNNERS))
        outcome: list[ToolResult] = []
        await self.order(parent, partial(spawn_below, agent=runner, outcome=outcome))
        parent.last, parent.said = parent.summary, ""  # a tool call cuts the text
        if self.pending() >= MAX_PENDING:
            assert "the registry is full" in outcome[0].output
        elif parent.cancelled:
            assert "cancelled" in outcome[0].output
        elif parent.depth >= MAX_DEPTH:
            assert "max_depth is 3" in outcome[0].output
        else:
            assert not outcome[0].is_error
            self.born(outcome[0].output, runner, f"{parent.session}/{parent.id}", parent)
            return
        assert outcome[0].is_error

    async def say(self) -> None:
        kid = self.told()
        text = self.draw(st.sampled_from(["Hm. ", "Done."]))
        await self.order(kid, partial(say, text=text))
        kid.said += text

    async def end(self) -> None:
        kid = self.told()
        how = self.draw(st.sampled_from(sorted(ENDS)))
        await self.order(kid, partial(end, how=how))
        self.finish(kid, *ENDS[how])

    async def cancel_child(self) -> None:
        kid = self.draw(st.sampled_from(self.kids))
        self.wait_for(kid, "cancel", partial(self.plugin.cancel, kid.id))
        await settle()
        self.cancel(kid)

    async def collect(self) -> None:
        kid = self.draw(st.sampled_from(self.kids))
        if self.draw(st.booleans()):
            call = partial(self.plugin.collect, kid.id)
        else:
            tool = {"subagent_id": kid.id}
            call = partial(self.host.call_tool, "collect_subagent", tool, kid.session)
        for _ in range(self.draw(st.integers(1, 3))):
            self.wait_for(kid, "collect", call)

    async def collect_in_time(self) -> None:
        kid = self.draw(st.sampled_from(self.kids))
        if kid.phase == "ended":
            self.matches(kid, await self.plugin.collect(kid.id, timeout=0))
            kid.collected = True
        else:
            with pytest.raises(TimeoutError):
                await self.plugin.collect(kid.id, timeout=0)

    async def collect_elsewhere(self) -> None:
        kid = self.draw(st.sampled_from(self.kids))
        tool = {"subagent_id": kid.id}
        answer = await self.host.call_tool("collect_subagent", tool, session="three")
        assert answer.is_error
        assert "no subagent" in answer.output

    async def collect_unknown(self) -> None:
        name = self.draw(st.sampled_from([f"sub-{len(self.kids)}", "sub-00", "", "\ud800"]))
        with pytest.raises(PluginNotSupportedError):
            await self.plugin.collect(name)

    async def give_up(self) -> None:
        waiter = self.draw(st.sampled_from([w for w in self.waiters if w.state == "waiting"]))
        waiter.scope.cancel()
        await settle()
        assert waiter.state == "cancelled"

    def in_grace(self) -> list[Kid]:
        return [kid for kid in self.kids if kid.phase == "running" and kid.cancelled]

    def told(self) -> Kid:
        return self.draw(st.sampled_from([kid for kid in self.kids if kid.phase == "running"]))

    async def order(self, kid: Kid, order: Callable[[Run], Any]) -> None:
        self.stage[kid.id].send_nowait(order)
        await settle()

    def wait_for(self, kid: Kid, kind: str, call: Callable[[], Any]) -> None:
        waiter = Waiter(kid, kind)
        self.waiters.append(waiter)

        async def wait() -> None:
            with waiter.scope:
                waiter.outcome = await call()
                waiter.state = "done"
            if waiter.scope.cancelled_caught:
                waiter.state = "cancelled"

        self.tasks.start_soon(wait)

    # Playing

    async def play(self) -> None:
        for _ in range(self.draw(st.integers(1, 30))):
            choices = [self.spawn, self.spawn, self.refused_spawn, self.collect_unknown]
            if self.kids:
                choices += [self.collect, self.collect, self.collect_in_time]
                choices += [self.collect_elsewhere, self.cancel_child]
            if any(kid.phase == "running" for kid in self.kids):
                choices += [self.say, self.say, self.end, self.end, self.spawn_below]
            if self.in_grace():
                choices += [self.spawn_below_cancelled, self.spawn_below_cancelled]
            if any(waiter.state == "waiting" for waiter in self.waiters):
                choices.append(self.give_up)
            await self.draw(st.sampled_from(choices))()
            await settle()
            self.compare()
        await self.finish_up()

    def compare(self) -> None:
        for waiter in self.waiters:
            if waiter.state != "cancelled":
                assert (waiter.state == "done") == (waiter.kid.phase == "ended")
            if waiter.state == "done" and waiter.kind == "collect":
                self.matches(waiter.kid, waiter.outcome)
                waiter.kid.collected = True
        alive = self.alive()
        assert [child.id for child in self.host.children] == [kid.id for kid in alive]
        states = {"waiting": "waiting", "running": "running", "closing": "running"}
        assert [child.state for child in self.host.children] == [states[k.phase] for k in alive]
        assert set(self.stage) == {kid.id for kid in alive if kid.phase == "running"}
        assert self.plugin.pending_len == self.pending()
        assert self.plugin.spawn_count == len(self.kids) == len(self.plugin.spawns())
        assert self.plugin.max_pending == MAX_PENDING

    async def finish_up(self) -> None:
        # What still runs is the Host's to end; but it would grant the lingering their grace.
        while staying := [k for k in self.kids if k.phase == "running" and k.runner == LINGERING]:
            await self.order(staying[0], partial(end, how="ok"))
            self.finish(staying[0], *ENDS["ok"])
        self.compare()
        for kid in self.kids:
            if kid.phase == "ended":
                # Twice, for results that were collected can be collected again.
                self.matches(kid, await self.plugin.collect(kid.id))
                self.matches(kid, await self.plugin.collect(kid.id))
                kid.collected = True
            else:
                self.wait_for(kid, "collect", partial(self.plugin.collect, kid.id))
        await settle()
        self.compare()
        # The Host cancels all in one step, so a place that comes free is never used again: here
        # those that wait for one go first.
        for kid in sorted(self.alive(), key=lambda kid: kid.phase != "waiting"):
            self.cancel(kid)

    def check_end(self) -> None:
        assert not self.stage
        for waiter in self.waiters:
            assert waiter.state == ("cancelled" if waiter.scope.cancel_called else "done")
            if waiter.state == "done" and waiter.kind == "collect":
                self.matches(waiter.kid, waiter.outcome)
                waiter.kid.collected = True
        assert all(kid.phase == "ended" for kid in self.kids)
        assert self.plugin.pending_len == self.pending() == 0


async def let_go(host: Host, stage: dict[str, MemoryObjectSendStream[Any]]) -> None:
    """End all, so that a test that failed need not wait for the children's time of grace."""
    with anyio.CancelScope(shield=True):
        for _ in range(100):
            for child in host.children:
                child._cancel_grace = 0.0
            for strings in stage.values():
                strings.close()
            await settle()


async def play(data: st.DataObject) -> None:
    stage: dict[str, MemoryObjectSendStream[Any]] = {}
    config = {
        "max_depth": MAX_DEPTH,
        "max_concurrent": MAX_CONCURRENT,
        "max_pending": MAX_PENDING,
        "agents": {name: {"runner": name} for name in RUNNERS},
    }
    plugins = [SubagentPlugin(), *(Puppet(name, stage) for name in RUNNERS)]
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with Host(plugins, config, discover=False) as host:
                program = Program(data, host, tasks)
                try:
                    await program.play()
                except BaseException:
                    await let_go(host, stage)
                    raise
        program.check_end()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_any_program_keeps_every_result_and_exact_gauges(backend: str, data: st.DataObject) -> None:
    anyio.run(play, data, backend=backend)
