"""Delegation at its edges: any arguments, both ways of refusing, limits, Hosts, broken parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gofer import (
    ConfigError,
    GoferError,
    Host,
    PluginInternalError,
    PluginNotSupportedError,
    PluginValidationError,
    Request,
    Response,
    Run,
    Runner,
    StreamChunk,
    SubagentResult,
    SubagentSpec,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    WorktreeConfig,
    hookimpl,
)
from gofer.testing import ScriptedModel, ScriptedRunner
from gofer_plugins.delegation import SubagentPlugin
from gofer_plugins.delegation._arguments import collect_id, spawn_spec
from gofer_plugins.delegation._collected import Collected

pytestmark = pytest.mark.anyio

SPAWN, COLLECT = "spawn_subagent", "collect_subagent"
SPEC = SubagentSpec(task="t")


@asynccontextmanager
async def opened(
    runner: Runner | None = None, *plugins: object, cwd: Path | None = None, **config: Any
) -> AsyncGenerator[tuple[Host, SubagentPlugin]]:
    runner = runner or ScriptedRunner()
    given = [SubagentPlugin, runner, *plugins]
    config = {"default_runner": runner.name, **config}
    with anyio.fail_after(30):
        async with Host(given, config, discover=False, cwd=cwd) as host:
            yield host, host.plugin("delegation")


async def turn(host: Host, *items: Any, **how: Any) -> Response:
    async with host.stream(Request(), ScriptedModel([items]), **how) as stream:
        async for _ in stream:
            pass
    return stream.response


def names_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


class Gate:
    """A script's item that lets no child pass before it is opened."""

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.reached = anyio.Event()

    async def __call__(self, run: Run) -> str:
        self.reached.set()
        await self.open.wait()
        return "Done."


# Arguments


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
text_or_anything = st.text(st.characters()) | json_values
worktrees = text_or_anything | st.fixed_dictionaries(
    {}, optional={"path": text_or_anything, "branch": text_or_anything}
)
spawn_arguments = json_values | st.fixed_dictionaries(
    {},
    optional={
        "task": text_or_anything,
        "name": text_or_anything,
        "agent": text_or_anything,
        "tool_scope": st.lists(text_or_anything) | json_values,
        "worktree": worktrees,
        "session_id": text_or_anything,
        "more": json_values,
    },
)


def as_received(arguments: Any) -> Any:
    """Return *arguments* as a call of a model's holds them."""
    return ToolCall(id="1", name=SPAWN, arguments=arguments).arguments


def wrong_part(arguments: Any) -> str | None:
    """Return what of the arguments of a spawn does not fit, in the order of the checks."""
    if not isinstance(arguments, dict):
        return "arguments"
    task, worktree = arguments.get("task"), arguments.get("worktree")
    if not isinstance(task, str) or not task.strip():
        return "task"
    if worktree is None:
        return None
    if not isinstance(worktree, dict):
        return "worktree"
    if not isinstance(worktree.get("path"), str):
        return "worktree.path"
    return None if isinstance(worktree.get("branch"), str | None) else "worktree.branch"


@settings(max_examples=300, deadline=None)
@given(spawn_arguments)
@example({"task": "\ud800"})
@example({"task": "t", "tool_scope": ["\ud800", 1]})
@example({"task": "t", "worktree": {"path": "", "branch": ""}})
@example({"task": math.nan})
def test_any_spawn_arguments_are_a_spec_or_a_validation_error(arguments: Any) -> None:
    arguments = as_received(arguments)
    wrong = wrong_part(arguments)
    if wrong is not None:
        with pytest.raises(PluginValidationError) as caught:
            spawn_spec(arguments)
        assert caught.value.schema == f"{SPAWN}.{wrong}"
        assert len(caught.value.message) < 1000
        return
    spec = spawn_spec(arguments)

    def text(key: str) -> str | None:
        value = arguments.get(key)
        return value if isinstance(value, str) else None

    assert spec.task == arguments["task"]
    assert spec.task.strip()
    assert spec.name == (text("name") or "")
    assert spec.agent == ((text("agent") or "").strip() or None)
    assert spec.session_id == text("session_id")
    scope = arguments.get("tool_scope")
    names = scope if isinstance(scope, list) else []
    assert spec.tool_scope == [name for name in names if isinstance(name, str)]
    worktree = arguments.get("worktree")
    assert (spec.worktree is None) == (worktree is None)
    if spec.worktree is not None:
        assert spec.worktree.path == worktree["path"]
        assert spec.worktree.branch == worktree.get("branch")
    # Nothing else can be asked for by a model: no runner, no directory, no limits, no options.
    assert spec == SubagentSpec(
        **{key: getattr(spec, key) for key in ("task", "name", "agent", "tool_scope")},
        session_id=spec.session_id,
        worktree=spec.worktree,
    )
    assert SubagentSpec.model_validate_json(spec.model_dump_json()) == spec


@settings(max_examples=150, deadline=None)
@given(json_values | st.fixed_dictionaries({}, optional={"subagent_id": text_or_anything}))
def test_any_collect_arguments_are_an_id_or_a_validation_error(arguments: Any) -> None:
    arguments = as_received(arguments)
    named = arguments.get("subagent_id") if isinstance(arguments, dict) else None
    if isinstance(named, str):
        assert collect_id(arguments) == named
    else:
        with pytest.raises(PluginValidationError) as caught:
            collect_id(arguments)
        assert caught.value.schema == f"{COLLECT}.arguments"
        assert len(caught.value.message) < 1000


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.just(SPAWN), spawn_arguments)
        | st.tuples(st.just(COLLECT), st.builds(dict, subagent_id=st.text() | st.just("sub-0"))),
        max_size=5,
    )
)
def test_any_calls_are_answered_through_a_host(backend: str, calls: list[tuple[str, Any]]) -> None:
    """With refusals reported, every call has one result, and the next one goes on."""

    async def main() -> None:
        made = [
            ToolCall(id=str(number), name=name, arguments=without_worktree(arguments))
            for number, (name, arguments) in enumerate(calls)
        ]
        async with opened() as (host, delegation):
            response = await turn(host, *made, errors="report")
            assert [block.tool_call_id for block in response.blocks] == [c.id for c in made]
            spawned = [
                block.output
                for block, call in zip(response.blocks, made, strict=True)
                if call.name == SPAWN and not block.is_error
            ]
            assert spawned == [f"sub-{number}" for number in range(delegation.spawn_count)]
            for child in spawned:
                assert (await delegation.collect(child)).exit_ok

    anyio.run(main, backend=backend)


def without_worktree(arguments: Any) -> Any:
    if isinstance(arguments, dict):
        return {key: value for key, value in arguments.items() if key != "worktree"}
    return arguments


@pytest.mark.parametrize("path", ["", "-f", "a\0b", "~/x", "x" * 5000, "a\nb", "."])
async def test_a_worktree_path_that_cannot_be_is_refused(repo: Path, path: str) -> None:
    async with opened(cwd=repo) as (host, delegation):
        with pytest.raises((PluginValidationError, PluginNotSupportedError)):
            await host.call_tool(SPAWN, {"task": "t", "worktree": {"path": path, "branch": "b"}})
        with pytest.raises((PluginValidationError, PluginNotSupportedError)):
            config = WorktreeConfig(path=path, branch="b")
            await delegation.spawn_subagent(SubagentSpec(task="t", worktree=config))
        assert (delegation.pending_len, delegation.spawn_count, host.children) == (0, 0, [])
    assert names_in(repo) == [".git"]


async def test_an_unknown_agent_names_what_is_installed() -> None:
    async with opened() as (host, delegation):
        with pytest.raises(PluginNotSupportedError, match="installed: scripted"):
            await host.call_tool(SPAWN, {"task": "t", "agent": "nobody"})
        assert (delegation.spawn_count, delegation.pending_len) == (0, 0)
        assert (await host.call_tool(SPAWN, {"task": "t", "agent": "  "})).output == "sub-0"


# How a refusal arrives


REFUSED = [
    (SPAWN, {}, PluginValidationError),
    (SPAWN, {"task": "t", "agent": "nobody"}, PluginNotSupportedError),
    (SPAWN, {"task": "t", "worktree": {"path": "p"}}, PluginNotSupportedError),
    (COLLECT, {}, PluginValidationError),
]


@pytest.mark.parametrize(("name", "arguments", "kind"), REFUSED)
async def test_a_refusal_is_raised_or_reported(
    tmp_path: Path, name: str, arguments: Any, kind: type[GoferError]
) -> None:
    call = ToolCall(id="1", name=name, arguments=arguments)
    async with opened(cwd=tmp_path) as (host, _):
        with pytest.raises(kind) as raised:
            await turn(host, call, "after")
        with pytest.raises(kind) as called:
            await host.call_tool(name, arguments)
        response = await turn(host, call, "after", errors="report")
        result = ToolResult(tool_call_id="1", output=str(raised.value), is_error=True)
        assert response.blocks == [result, Text(text="after")]
        assert str(called.value) == str(raised.value)
        assert raised.value.plugin == "delegation"  # type: ignore[attr-defined]


async def test_call_tool_spawns_collects_and_knows_its_tools() -> None:
    async with opened() as (host, _):
        assert not (await host.call_tool(SPAWN, {"task": "t"})).is_error
        result = await host.call_tool(COLLECT, {"subagent_id": "sub-0"})
        assert (result.output, result.is_error) == ("Done.", False)
        with pytest.raises(PluginNotSupportedError, match=f"the tools are: {SPAWN}, {COLLECT}"):
            await host.call_tool("spawn")


# Who may delegate


class Delegating(Runner):
    """A runner whose children make one request of a model: the next turn of its script."""

    name = "delegating"
    observed = False

    def __init__(self, turns: list[Any]) -> None:
        self.model = ScriptedModel(turns)

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        async with run.stream(Request(), self.model, errors="report") as stream:
            async for _ in stream:
                pass
        return run.result("Done.")


@pytest.mark.parametrize("max_depth", [0, 1, 2])
async def test_the_tools_are_offered_as_deep_as_children_may_be(max_depth: int) -> None:
    call = ToolCall(id="1", name=SPAWN, arguments={"task": "t"})
    wait = ToolCall(id="2", name=COLLECT, arguments={"subagent_id": "sub-1"})
    runner = Delegating([[call, wait], "Done."])
    async with opened(runner, max_depth=max_depth) as (host, delegation):
        parent = ScriptedModel([call])
        async with host.stream(Request(), parent, errors="report") as stream:
            (answer,) = [block async for block in stream]
        requests = parent.requests
        if max_depth:
            await delegation.collect("sub-0")
        requests += runner.model.requests
        assert len(requests) == 1 + max_depth
        for depth, request in enumerate(requests):
            offered = [tool.name for tool in request.tools]
            assert offered == ([SPAWN, COLLECT] if depth < max_depth else [])
        assert bool(await host.tools()) == (max_depth > 0)
        assert isinstance(answer, ToolResult)
        assert answer.is_error == (max_depth == 0)
        assert delegation.spawn_count == max_depth


async def test_a_tool_that_is_offered_already_is_left_alone() -> None:
    model = ScriptedModel(["ok"])
    mine = Tool(name=COLLECT, description="mine")
    async with opened() as (host, _):
        async with host.stream(Request(tools=[mine]), model) as stream:
            async for _ in stream:
                pass
    assert [tool.name for tool in model.requests[0].tools] == [COLLECT, SPAWN]
    assert model.requests[0].tools[0] == mine


async def test_calls_of_a_child_that_executes_its_own_tools_are_left_alone() -> None:
    calls = [
        ToolCall(id="1", name=SPAWN, arguments={"task": "its own"}),
        ToolCall(id="2", name=COLLECT, arguments={"no": "id"}),
    ]
    heard: list[object] = []

    class Watch:
        @hookimpl
        def on_request(self, request: Request) -> None:
            heard.append(request.tools)

        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            heard.append(chunk.block)

    async with opened(ScriptedRunner([*calls, "Done."]), Watch(), max_depth=5) as (_, delegation):
        await delegation.spawn_subagent(SPEC)
        assert (await delegation.collect("sub-0")).exit_ok
        assert delegation.spawn_count == 1
    assert heard == [[], *calls, Text(text="Done.")]


async def test_a_session_collects_only_what_it_spawned() -> None:
    async with opened() as (host, delegation):
        await host.call_tool(SPAWN, {"task": "t"}, session="one")
        await host.call_tool(SPAWN, {"task": "t"}, session="two")
        for _ in range(2):  # before and after it was collected
            answer = await host.call_tool(COLLECT, {"subagent_id": "sub-0"}, session="two")
            assert answer.is_error
            assert "sub-0" not in answer.output.removeprefix("there is no subagent 'sub-0'")
            assert not (await host.call_tool(COLLECT, {"subagent_id": "sub-0"}, "one")).is_error
        assert "collected: sub-1" in answer.output
        assert delegation.pending_len == 1
        # The program itself stands above the sessions.
        assert (await delegation.collect("sub-1")).exit_ok


# Limits


async def test_collected_results_go_when_there_are_too_many() -> None:
    async with opened(ScriptedRunner(lambda run: run.spec.task)) as (_, delegation):
        delegation._collected = Collected(most=2, size=100)
        for task in ("a", "b", "c"):
            await delegation.collect(await delegation.spawn_subagent(SubagentSpec(task=task)))
        with pytest.raises(PluginNotSupportedError, match="no subagent 'sub-0'"):
            await delegation.collect("sub-0")
        assert (await delegation.collect("sub-1")).summary == "b"  # now the one used last
        await delegation.collect(await delegation.spawn_subagent(SubagentSpec(task="d" * 90)))
        assert (len(delegation._collected), delegation._collected.bytes) == (2, 91)
        assert (await delegation.collect("sub-1")).summary == "b"
        await delegation.collect(await delegation.spawn_subagent(SubagentSpec(task="é" * 49)))
        assert (len(delegation._collected), delegation._collected.bytes) == (2, 99)
        # One that is too large alone is returned all the same, and not kept.
        large = await delegation.spawn_subagent(SubagentSpec(task="x" * 101))
        assert len((await delegation.collect(large)).summary) == 101
        assert (len(delegation._collected), delegation._collected.bytes) == (0, 0)
    assert Collected()._most == 256
    assert Collected()._size == 64 * 1024 * 1024


async def test_max_pending_comes_from_the_settings() -> None:
    async with opened(max_pending=7) as (_, delegation):
        assert delegation.max_pending == 7
    settings_of_it = {"delegation": {"max_pending": 1}}
    async with opened(max_pending=7, plugins=settings_of_it) as (_, delegation):
        assert delegation.max_pending == 1
        await delegation.spawn_subagent(SPEC)
        with pytest.raises(PluginInternalError, match="the limit is 1"):
            await delegation.spawn_subagent(SPEC)
    for wrong in (0, "many", None):
        table = {"max_pending": wrong} if wrong is not None else {"max_pendings": 1}
        with pytest.raises(ConfigError, match="max_pending"):
            async with opened(plugins={"delegation": table}):
                raise AssertionError("it opened")


async def test_spawns_at_once_do_not_exceed_the_cap(repo: Path) -> None:
    """Making a worktree takes a while, in which others ask as well."""
    refused: list[PluginInternalError] = []

    async def ask(delegation: SubagentPlugin, number: int) -> None:
        worktree = WorktreeConfig(path=f"../tree-{number}")
        try:
            await delegation.spawn_subagent(SubagentSpec(task="t", worktree=worktree))
        except PluginInternalError as error:
            refused.append(error)

    async with opened(cwd=repo, max_pending=2) as (_, delegation):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(ask, delegation, number)
        assert (len(refused), delegation.pending_len, delegation.spawn_count) == (2, 2, 2)
        assert sorted(delegation._pending) == ["sub-0", "sub-1"]
        assert len(names_in(repo.parent)) == 3


async def test_a_cancelled_spawn_frees_its_place_and_leaves_no_worktree(repo: Path) -> None:
    async with opened(cwd=repo, max_pending=1) as (host, delegation):
        with anyio.CancelScope() as scope:
            scope.cancel()
            worktree = WorktreeConfig(path="../gone")
            await delegation.spawn_subagent(SubagentSpec(task="t", worktree=worktree))
        assert scope.cancelled_caught
        assert (delegation.pending_len, delegation.spawn_count, host.children) == (0, 0, [])
        assert names_in(repo.parent) == ["repo"]
        assert await delegation.spawn_subagent(SPEC) == "sub-0"


# Hosts


async def test_a_second_host_starts_anew() -> None:
    delegation = SubagentPlugin()
    plugins = [delegation, ScriptedRunner()]
    config = {"default_runner": "scripted"}
    with anyio.fail_after(30):
        first = Host(plugins, config, discover=False)
        for host in (first, Host(plugins, config, discover=False), first):
            async with host:
                assert delegation.pending_len == 0
                with pytest.raises(PluginNotSupportedError):
                    await delegation.collect("sub-0")
                assert await delegation.spawn_subagent(SPEC) == "sub-0"
                assert (await delegation.collect("sub-0")).exit_ok
                assert await delegation.spawn_subagent(SPEC) == "sub-1"
                assert delegation.pending_len == 1
                with pytest.raises(GoferError, match="another open Host"):
                    async with Host([delegation], discover=False):
                        raise AssertionError("it opened")
        assert delegation.spawn_count == 6


@pytest.mark.parametrize("grace", [0.0, 3600.0])
async def test_closing_a_host_ends_children_in_every_state(grace: float) -> None:
    gate = Gate()

    async def until_asked(run: Run) -> None:
        gate.reached.set()
        await run.cancel_requested.wait()

    script = until_asked if grace else gate
    runner = ScriptedRunner(["Half", script], cancel_grace=grace)
    results: dict[str, SubagentResult] = {}

    async def collect(delegation: SubagentPlugin, child: str) -> None:
        results[child] = await delegation.collect(child)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            async with opened(runner, max_concurrent=1) as (_, delegation):
                for number in range(2):
                    child = await delegation.spawn_subagent(SPEC)
                    assert child == f"sub-{number}"
                    tasks.start_soon(collect, delegation, child)
                await gate.reached.wait()
                # And one that has not even begun.
                tasks.start_soon(collect, delegation, await delegation.spawn_subagent(SPEC))
    # With time of grace, the one that ran ended as its runner says.
    assert results["sub-0"].stop_reason == ("end_turn" if grace else "cancelled")
    assert results["sub-0"].summary == "Half"
    assert [results[f"sub-{n}"].stop_reason for n in (1, 2)] == ["cancelled"] * 2
    assert runner.running == set()
    assert [run.id for run in runner.runs] == ["sub-0"]


async def test_cancelling_the_body_of_a_host_loses_no_result() -> None:
    gate = Gate()
    runner = ScriptedRunner(["Half", gate])
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        async with opened(runner) as (_, delegation):
            child = await delegation.spawn_subagent(SPEC)
            await gate.reached.wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert runner.running == set()
    result = await delegation.collect(child)
    assert (result.stop_reason, result.summary) == ("cancelled", "Half")


# Broken parts


class Failing:
    """A plugin that fails where it is told to, in turns of children only."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _fail(self, where: str, depth: int) -> None:
        if where == self.where and depth:
            raise ValueError(where)

    @hookimpl
    async def on_request(self, request: Request) -> None:
        self._fail("on_request", request.turn.depth)

    @hookimpl
    async def on_stream_chunk(self, chunk: StreamChunk) -> None:
        self._fail("on_stream_chunk", chunk.turn.depth)

    @hookimpl
    async def on_response_complete(self, response: Response) -> None:
        self._fail("on_response_complete", response.turn.depth)


@pytest.mark.parametrize("where", ["on_request", "on_stream_chunk", "on_response_complete"])
async def test_a_hook_that_fails_in_a_child_fails_that_child_at_most(where: str) -> None:
    async with opened(None, Failing(where)) as (host, delegation):
        for child in ("sub-0", "sub-1"):
            assert (await host.call_tool(SPAWN, {"task": "t"})).output == child
        for child in ("sub-0", "sub-1"):
            result = await delegation.collect(child)
            if where == "on_response_complete":  # it comes too late to take the result away
                assert (result.exit_ok, result.error) == (True, None)
            else:
                assert (result.exit_ok, result.stop_reason) == (False, "error")
                assert result.error == f"plugin 'Failing' failed in {where}: ValueError: {where}"


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def grouped(run: Run) -> None:
    inner = ExceptionGroup("inner", [ValueError("one"), ValueError("one")])
    raise BaseExceptionGroup("outer", [inner, SystemExit("two")])


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (SystemExit(2), "SystemExit: 2"),
        (GoferError("a sentence"), "a sentence"),
        (grouped, "ValueError: one; SystemExit: two"),
        (Wordless(), "Wordless, which cannot be shown"),
        (lambda run: SubagentResult.model_construct(), "gave a SubagentResult that is none"),
        (lambda run: SubagentResult.model_construct(subagent_id="x", summary=3), "summary"),
        (lambda run: run.result("x").model_copy(update={"stop_reason": None}), "stop_reason"),
    ],
)
async def test_whatever_a_runner_does_is_a_result(script: Any, error: str) -> None:
    async with opened(ScriptedRunner(["Half", script])) as (_, delegation):
        child, other = [await delegation.spawn_subagent(SPEC) for _ in range(2)]
        result = await delegation.collect(child)
        assert (result.exit_ok, result.stop_reason, result.summary) == (False, "error", "Half")
        assert error in (result.error or "")
        assert (await delegation.collect(other)).error is not None


@pytest.mark.parametrize("answer", [None, "a text", 5, {"summary": "x"}])
async def test_an_answer_that_is_no_result_is_an_error(answer: object) -> None:
    class Odd(Runner):
        name = "odd"

        async def run(self, spec: SubagentSpec, run: Run) -> Any:
            return answer

    async with opened(Odd()) as (_, delegation):
        result = await delegation.collect(await delegation.spawn_subagent(SPEC))
        assert result.error == (
            f"runner 'odd' gave a {type(answer).__name__}: return run.result(...), a SubagentResult"
        )


async def test_a_surrogate_in_a_result_reaches_nobody() -> None:
    def script(run: Run) -> SubagentResult:
        return run.result("x").model_copy(update={"summary": "\ud800!"})

    async with opened(ScriptedRunner(script)) as (_, delegation):
        result = await delegation.collect(await delegation.spawn_subagent(SPEC))
        assert result.summary == "\ufffd!"
        assert await delegation.collect("sub-0") is result


@pytest.mark.parametrize("stays", [True, False])
async def test_a_runner_that_swallows_its_cancellation(stays: bool) -> None:
    gate = Gate()

    class Stubborn(Runner):
        name = "stubborn"

        async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
            await run.emit(Text(text="Half"))
            try:
                await gate(run)
            except anyio.get_cancelled_exc_class():
                if not stays:
                    await anyio.lowlevel.checkpoint()
            return run.result()

    async with opened(Stubborn()) as (host, delegation):
        await delegation.spawn_subagent(SPEC)
        await gate.reached.wait()
        await delegation.cancel("sub-0")
        assert host.children == []
        result = await delegation.collect("sub-0")
        assert result.summary == "Half"
        assert result.stop_reason == ("end_turn" if stays else "cancelled")


async def test_a_result_survives_a_cancellation_that_comes_while_watchers_are_told() -> None:
    told, numbers = anyio.Event(), itertools.count()
    heard: list[str] = []

    class Slow:
        @hookimpl
        async def on_response_complete(self, response: Response) -> None:
            if next(numbers) == 0:
                told.set()
                await anyio.sleep_forever()

    class Second:
        @hookimpl
        def on_response_complete(self, response: Response) -> None:
            heard.append(response.stop_reason)

    async with opened(ScriptedRunner("Done."), Slow(), Second()) as (_, delegation):
        child = await delegation.spawn_subagent(SPEC)
        await told.wait()
        await delegation.cancel(child)
        result = await delegation.collect(child)
        assert (result.summary, result.stop_reason, result.exit_ok) == ("Done.", "end_turn", True)
    assert heard == ["end_turn"]


async def test_grandchildren_end_with_their_parent_and_a_cancelled_child_starts_none() -> None:
    gate = Gate()
    outcome: list[Callable[[], object] | ToolResult] = []

    class Family(Runner):
        name = "family"
        observed = False
        cancel_grace = 3600.0

        async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
            if run.depth == 2:
                gate.reached.set()
                await run.cancel_requested.wait()
                return run.result("grandchild", "cancelled")
            for number in range(2):
                call = ToolCall(id="1", name=SPAWN, arguments={"task": str(number)})
                async with run.stream(Request(), ScriptedModel([call]), errors="report") as stream:
                    outcome.extend([block async for block in stream])
                if not number:
                    await run.cancel_requested.wait()
            return run.result("child")

    async with opened(Family(), max_depth=2) as (host, delegation):
        await delegation.spawn_subagent(SPEC)
        await gate.reached.wait()
        await delegation.cancel("sub-0")
        assert host.children == []
        assert delegation.spawn_count == 2
        assert [block.is_error for block in outcome] == [False, True]  # type: ignore[union-attr]
        assert "child sub-0 has been cancelled" in outcome[1].output  # type: ignore[union-attr]
        assert (await delegation.collect("sub-0")).summary == "child"
        assert (await delegation.collect("sub-1")).stop_reason == "cancelled"
