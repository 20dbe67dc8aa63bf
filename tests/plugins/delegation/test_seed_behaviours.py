"""What the delegation that gofer stands in for did (U24 to U36), and its faults (M1 to M12).

One test for each number. Where gofer differs on purpose, the test shows what gofer does.
"""

from __future__ import annotations

import json
import subprocess
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from gofer import (
    Block,
    Child,
    Finish,
    GoferError,
    Host,
    Message,
    PluginError,
    PluginErrors,
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
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    WorktreeConfig,
    hookimpl,
)
from gofer.testing import Script, ScriptedModel, ScriptedRunner
from gofer_plugins.delegation import Spawn, SubagentPlugin
from gofer_plugins.delegation.plugin import MAX_SPAWN_LOG
from gofer_runners.llama_server import LlamaServer

pytestmark = pytest.mark.anyio

SPAWN, COLLECT = "spawn_subagent", "collect_subagent"


def git(cwd: Path, *args: str) -> str:
    run = subprocess.run(["git", *args], cwd=cwd, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def spawn(task: object = "count the stars", **arguments: object) -> ToolCall:
    return ToolCall(id="call-s", name=SPAWN, arguments={"task": task, **arguments})


def collect(child: str = "sub-0") -> ToolCall:
    return ToolCall(id="call-c", name=COLLECT, arguments={"subagent_id": child})


@asynccontextmanager
async def opened(
    script: Script = "Done.",
    *plugins: object,
    runner: Runner | None = None,
    max_pending: int | None = None,
    cwd: Path | None = None,
    **config: Any,
) -> AsyncGenerator[tuple[Host, SubagentPlugin]]:
    runner = runner or ScriptedRunner(script)
    delegation = SubagentPlugin(max_pending)
    given = [delegation, runner, *plugins]
    config = {"default_runner": runner.name, **config}
    with anyio.fail_after(30):
        async with Host(given, config, discover=False, cwd=cwd) as host:
            yield host, delegation


async def turn(host: Host, *items: Any, **how: Any) -> Response:
    """Play one turn of a parent, and return its response."""
    async with host.stream(Request(), ScriptedModel([items]), **how) as stream:
        async for _ in stream:
            pass
    return stream.response


class Gate:
    """A script's item that lets no child pass before it is opened."""

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.reached = anyio.Event()

    async def __call__(self, run: Run) -> str:
        self.reached.set()
        await self.open.wait()
        return f"{run.spec.task}: done."


# What it did


async def test_u24_other_blocks_and_other_tools_pass_untouched() -> None:
    """It works on the blocks of the stream, and only on calls of its own two tools."""
    others: list[Block] = [Thinking(text="hm"), ToolCall(id="1", name="spawn", arguments=[SPAWN])]
    async with opened() as (host, delegation):
        response = await turn(host, *others, Text(text="spawn_subagent"))
        assert response.blocks == [*others, Text(text="spawn_subagent")]
        assert delegation.spawn_count == 0
        (info,) = [info for info in host.plugins if info.name == "delegation"]
        # The third hook, on_request, is gofer's addition: it offers the tools.
        assert set(info.hooks) == {"on_request", "on_stream_chunk"}


async def test_u25_the_runner_is_the_callers_and_gets_the_spec() -> None:
    """Whoever brings a runner gets what was asked for, and what it says is what is collected."""
    runner = ScriptedRunner("Three.")
    scope = ["read", "grep"]
    async with opened(runner=runner) as (host, delegation):
        await turn(host, spawn("count", name="counter", tool_scope=scope, session_id="mine"))
        result = await delegation.collect("sub-0")
    spec = runner.runs[0].spec
    assert (spec.task, spec.name, spec.tool_scope) == ("count", "counter", scope)
    assert (spec.worktree, spec.session_id) == (None, "mine")
    assert (result.subagent_id, result.summary, result.exit_ok) == ("sub-0", "Three.", True)
    assert result.worktree_path is None


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({}, "name", ""),
        ({"name": 5}, "name", ""),
        ({}, "tool_scope", []),
        ({"tool_scope": "read"}, "tool_scope", []),
        ({"tool_scope": ["read", 1, None, "write"]}, "tool_scope", ["read", "write"]),
        ({"worktree": None}, "worktree", None),
        ({"session_id": "s"}, "session_id", "s"),
        ({"session_id": ["s"]}, "session_id", None),
        ({"of no meaning": 1}, "task", "count the stars"),
    ],
)
async def test_u26_the_arguments_of_a_spawn(
    given: dict[str, object], field: str, expected: object
) -> None:
    """Only the task is needed; the labels are read with leniency."""
    runner = ScriptedRunner()
    async with opened(runner=runner) as (host, delegation):
        await turn(host, spawn(**given))
        await delegation.collect("sub-0")
    assert getattr(runner.runs[0].spec, field) == expected


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        (None, "arguments"),
        ("a text", "arguments"),
        ([{"task": "t"}], "arguments"),
        ({}, "task"),
        ({"task": None}, "task"),
        ({"task": ["t"]}, "task"),
        ({"task": " \n\t\u2003"}, "task"),
        ({"task": "t", "worktree": "path"}, "worktree"),
        ({"task": "t", "worktree": False}, "worktree"),
        ({"task": "t", "worktree": {}}, "worktree.path"),
        ({"task": "t", "worktree": {"path": 1}}, "worktree.path"),
        ({"task": "t", "worktree": {"path": "p", "branch": 1}}, "worktree.branch"),
    ],
)
async def test_u27_bad_arguments_are_validation_errors(arguments: object, schema: str) -> None:
    """Nothing is started, nothing is counted, and the error names the part that was wrong."""
    call = ToolCall(id="1", name=SPAWN, arguments=arguments)
    async with opened() as (host, delegation):
        stream = host.stream(Request(), ScriptedModel([call]))
        with pytest.raises(PluginValidationError) as caught:
            async with stream:
                async for _ in stream:
                    raise AssertionError("a block came")
        assert caught.value.schema == f"{SPAWN}.{schema}"
        assert (caught.value.plugin, caught.value.hook) == ("delegation", "on_stream_chunk")
        assert stream.response.stop_reason == "error"
        assert not any(isinstance(block, ToolResult) for block in stream.response.blocks)
        assert (delegation.spawn_count, delegation.pending_len, host.children) == (0, 0, [])
        assert (await turn(host, spawn())).blocks == [
            ToolResult(tool_call_id="call-s", output="sub-0")
        ]


async def test_u28_a_spawn_answers_with_the_id_at_once() -> None:
    """The call becomes its own result while the child still runs."""
    gate = Gate()
    async with opened(gate) as (host, delegation):
        response = await turn(host, spawn())
        assert response.blocks == [ToolResult(tool_call_id="call-s", output="sub-0")]
        await gate.reached.wait()
        assert [child.id for child in host.children] == ["sub-0"]
        gate.open.set()
        assert (await delegation.collect("sub-0")).exit_ok


async def test_u29_the_order_of_a_spawns_checks() -> None:
    """A blank task is seen first, and a full registry before Git is asked (gofer's order)."""
    nowhere = WorktreeConfig(path="/dev/null/no/place")
    async with opened(max_pending=1) as (_, delegation):
        with pytest.raises(PluginNotSupportedError):
            await delegation.spawn_subagent(SubagentSpec(task="t", worktree=nowhere))
        assert delegation.spawns() == []
        await delegation.spawn_subagent(SubagentSpec(task="t"))
        with pytest.raises(PluginValidationError) as caught:
            await delegation.spawn_subagent(SubagentSpec(task=" ", worktree=nowhere))
        assert caught.value.schema == "SubagentSpec.task"
        with pytest.raises(PluginInternalError):
            await delegation.spawn_subagent(SubagentSpec(task="t", worktree=nowhere))
        assert len(delegation.spawns()) == 1


async def test_u30_ids_count_up_and_a_refused_spawn_uses_none() -> None:
    """sub-0, sub-1, and so on, for those children that were really started."""
    async with opened() as (host, delegation):
        ids = []
        for _ in range(3):
            with pytest.raises(PluginValidationError):
                await host.call_tool(SPAWN, {"task": ""})
            with pytest.raises(PluginNotSupportedError):
                await delegation.spawn_subagent(SubagentSpec(task="t", runner="nobody's"))
            ids.append(await delegation.spawn_subagent(SubagentSpec(task="t")))
            await delegation.collect(ids[-1])
        assert ids == ["sub-0", "sub-1", "sub-2"]
        assert delegation.spawn_count == 3


async def test_u31_a_worktree_is_made_for_the_child_and_kept(repo: Path) -> None:
    """The child works in it; worktree_args says what Git is asked; nobody removes it."""
    runner = ScriptedRunner()
    made = repo.parent / "made"
    async with opened(runner=runner, cwd=repo) as (host, delegation):
        config = WorktreeConfig(path=str(made), branch="side")
        args = ["worktree", "add", "-b", "side", str(made)]
        assert delegation.worktree_args(config) == args
        assert delegation.worktree_args(WorktreeConfig(path="p")) == ["worktree", "add", "p"]
        assert not made.exists()
        await turn(host, spawn(worktree={"path": str(made), "branch": "side"}))
        result = await delegation.collect("sub-0")
        assert runner.runs[0].cwd == made
        assert result.worktree_path == str(made)
        assert delegation.spawns() == [Spawn(None, str(made))]
        with pytest.raises(PluginNotSupportedError, match="not a git repository"):
            elsewhere = SubagentSpec(task="t", worktree=config, cwd=repo.parent)
            await delegation.spawn_subagent(elsewhere)
    assert git(made, "branch", "--show-current") == "side"


async def test_u32_a_collect_answers_with_the_summary_alone() -> None:
    """Without an id it is an error of the stream; what fails later is the call's result."""
    async with opened(["Hm.", ToolCall(id="x", name="ls"), "Done."]) as (host, _):
        await turn(host, spawn())
        for arguments in ({}, {"subagent_id": 0}, None, "sub-0"):
            call = ToolCall(id="1", name=COLLECT, arguments=arguments)
            with pytest.raises(PluginValidationError) as caught:
                await turn(host, call)
            assert caught.value.schema == f"{COLLECT}.arguments"
        collected, unknown = (await turn(host, collect(), collect("sub-1"))).blocks
        assert collected == ToolResult(tool_call_id="call-c", output="Done.")
        assert isinstance(unknown, ToolResult)
        assert unknown.is_error
        assert "no subagent 'sub-1'" in unknown.output


async def test_u33_a_direct_collect() -> None:
    """An unknown id is not supported; a child that died has a result, and can be asked again."""
    async with opened(["Half", RuntimeError("the agent died")]) as (_, delegation):
        with pytest.raises(PluginNotSupportedError, match="waiting to be collected: none"):
            await delegation.collect("sub-0")
        await delegation.spawn_subagent(SubagentSpec(task="t"))
        result = await delegation.collect("sub-0")
        assert (result.exit_ok, result.summary) == (False, "Half")
        assert result.error == "RuntimeError: the agent died"
        assert await delegation.collect("sub-0") is result


async def test_u34_the_cap_of_pending_children() -> None:
    """1024, or what the caller says; a full registry refuses, with its numbers, and loses none."""
    assert SubagentPlugin().max_pending == 1024
    for wrong in (0, -1):
        with pytest.raises(PluginValidationError) as caught:
            SubagentPlugin(max_pending=wrong)
        assert "max_pending" in caught.value.schema
    async with opened(max_pending=2) as (host, delegation):
        assert (delegation.pending_len, delegation.max_pending) == (0, 2)
        for _ in range(2):
            await host.call_tool(SPAWN, {"task": "t"})
        while host.children:
            await host.children[0].wait()
        # They have ended, and count until they are collected.
        with pytest.raises(PluginInternalError, match=r"full: 2 children .* the limit is 2"):
            await host.call_tool(SPAWN, {"task": "t"})
        assert delegation.pending_len == 2
        for number in range(2):
            assert (await delegation.collect(f"sub-{number}")).summary == "Done."
        assert delegation.pending_len == 0
        assert (await host.call_tool(SPAWN, {"task": "t"})).output == "sub-2"


async def test_u35_the_spawn_log() -> None:
    """The last 4096 spawns, oldest first: the parent's session as it said it, and the worktree."""
    async with opened() as (_, delegation):
        assert delegation._log.maxlen == MAX_SPAWN_LOG == 4096
        delegation._log = deque(maxlen=3)
        for number in range(5):
            await delegation.spawn_subagent(SubagentSpec(task="t", session_id=str(number)))
        copy = delegation.spawns()
        assert copy == [Spawn("2", None), Spawn("3", None), Spawn("4", None)]
        copy.clear()
        assert len(delegation.spawns()) == 3
        assert delegation.spawn_count == 5


class OneTurn(Runner):
    """Runs a child as one turn of a model of its own."""

    name = "one-turn"
    observed = False

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        request = Request(messages=[Message("user", run.prompt)])
        async with run.stream(request, self.model) as stream:
            async for _ in stream:
                pass
        return run.result()


@pytest.mark.parametrize(
    ("said", "summary", "ok"),
    [
        ([Thinking(text="Saturn…"), "Titan", ", it is."], "Titan, it is.", True),
        ([Thinking(text="Saturn…")], "the turn ended with no text", False),
        ([RuntimeError("no server")], "RuntimeError: no server", False),
    ],
)
async def test_u36_the_example_spawn_run_collect(said: list[Any], summary: str, ok: bool) -> None:
    """Two turns of a parent around a turn of its child, which can delegate nothing itself."""
    child = ScriptedModel([said])
    parent = ScriptedModel([[Thinking(text="I ask."), spawn("Name it.")], collect()])
    request = Request(messages=[Message("user", "Which moon is the largest of Saturn?")])
    async with opened(runner=OneTurn(child)) as (host, delegation):
        gauges = [delegation.pending_len]
        for _ in range(2):
            async with host.stream(request, parent) as stream:
                blocks = [block async for block in stream]
            request.messages += stream.response.messages
            gauges.append(delegation.pending_len)
        assert delegation.spawn_count == 1
    assert gauges == [0, 1, 0]
    assert child.requests[0].messages == [Message("user", "Name it.")]
    assert child.requests[0].tools == []
    assert {tool.name for tool in parent.requests[0].tools} == {SPAWN, COLLECT}
    assert parent.requests[1].messages[-1].content == [
        ToolResult(tool_call_id="call-s", output="sub-0")
    ]
    (answer,) = blocks
    assert isinstance(answer, ToolResult)
    assert answer.is_error is not ok
    assert summary in answer.output


# Its faults


async def test_m1_a_collect_that_starts_before_its_child_has_finished_returns_its_result() -> None:
    """On one thread, the collect waits and the child runs on; and a collect can have a limit."""
    gate = Gate()
    async with opened(gate) as (host, delegation):
        await turn(host, spawn())
        with pytest.raises(TimeoutError):
            await delegation.collect("sub-0", timeout=0)
        collected: list[Response] = []

        async def ask() -> None:
            collected.append(await turn(host, collect()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await gate.reached.wait()
            await anyio.wait_all_tasks_blocked()
            assert collected == []
            assert delegation.pending_len == 1
            gate.open.set()
        output = "count the stars: done."
        assert collected[0].blocks == [ToolResult(tool_call_id="call-c", output=output)]


@pytest.mark.parametrize(
    ("script", "output"),
    [
        (["Half", RuntimeError("boom")], "Half\n\nRuntimeError: boom"),
        (RuntimeError("boom"), "RuntimeError: boom"),
        (lambda run: run.result("Half", "max_tokens"), "Half\n\nmax_tokens"),
        (lambda run: run.result("", "refusal"), "refusal"),
        ([], "the turn ended with no text: there is no report"),
    ],
)
async def test_m2_a_failure_does_not_look_like_success(script: Any, output: str) -> None:
    """The model sees the failure and its cause; a caller in Python sees all of it."""
    async with opened(script) as (host, delegation):
        (answer,) = (await turn(host, spawn(), collect())).blocks[1:]
        assert answer == ToolResult(tool_call_id="call-c", output=output, is_error=True)
        assert not (await delegation.collect("sub-0")).exit_ok


async def test_m3_tools_are_offered_by_themselves_and_the_scope_holds() -> None:
    """Nobody adds definitions by hand, and a child neither sees nor gets what is out of scope."""

    class Tools:
        """Two tools that answer with their name."""

        def __init__(self) -> None:
            self.executed: list[str] = []

        @hookimpl
        def on_request(self, request: Request) -> None:
            request.tools += [Tool(name="read"), Tool(name="write")]

        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            call = chunk.block
            if isinstance(call, ToolCall) and call.name in ("read", "write"):
                self.executed.append(call.name)
                chunk.block = ToolResult(tool_call_id=call.id, output=call.name)

    calls = [ToolCall(id=name, name=name) for name in ("read", "write", SPAWN)]
    child = ScriptedModel([[*calls, "Done."]])
    tools = Tools()
    async with opened("", tools, runner=OneTurn(child), max_depth=2) as (host, delegation):
        assert {SPAWN, COLLECT} <= {tool.name for tool in await host.tools()}
        await turn(host, spawn(tool_scope=["read"]))
        assert (await delegation.collect("sub-0")).summary == "Done."
        assert delegation.spawn_count == 1
    assert [tool.name for tool in child.requests[0].tools] == ["read"]
    assert tools.executed == ["read"]


async def test_m4_children_can_be_listed_watched_bounded_and_cancelled() -> None:
    """Who runs, what they say, how long, how many at once; and each can be ended."""

    class Watch:
        def __init__(self) -> None:
            self.heard: list[tuple[str | None, str]] = []

        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if isinstance(chunk.block, Text):
                self.heard.append((chunk.turn.subagent_id, chunk.block.text))

    def states() -> list[tuple[str, str]]:
        return [(child.id, child.state) for child in host.children]

    watch, gate = Watch(), Gate()
    async with opened(["On it.", gate], watch, max_concurrent=1) as (host, delegation):
        for _ in range(3):
            await delegation.spawn_subagent(SubagentSpec(task="t", timeout=3600))
        await gate.reached.wait()
        assert states() == [("sub-0", "running"), ("sub-1", "waiting"), ("sub-2", "waiting")]
        assert watch.heard == [("sub-0", "On it.")]
        await delegation.cancel("sub-1")
        assert states() == [("sub-0", "running"), ("sub-2", "waiting")]
        await delegation.cancel("sub-0")
        results = [await delegation.collect(f"sub-{number}") for number in (0, 1)]
        assert [result.stop_reason for result in results] == ["cancelled"] * 2
        assert [result.summary for result in results] == ["On it.", ""]
        with pytest.raises(PluginNotSupportedError, match="no child 'sub-7'"):
            await delegation.cancel("sub-7")

    async with opened(gate) as (_, delegation):
        await delegation.spawn_subagent(SubagentSpec(task="t", timeout=0.001))
        result = await delegation.collect("sub-0")
        assert (result.stop_reason, result.exit_ok) == ("cancelled", False)
        assert "timed out after 0.001 s" in (result.error or "")


async def test_m5_the_runner_is_told_the_id_and_cannot_give_another() -> None:
    """What the runner calls the child, what the model was told, and the result: one id."""
    told: list[str] = []

    def script(run: Run) -> SubagentResult:
        told.append(run.id)
        return SubagentResult(subagent_id="of my own", summary="Done.", exit_ok=False)

    async with opened(script) as (host, delegation):
        assert (await host.call_tool(SPAWN, {"task": "t"})).output == "sub-0"
        result = await delegation.collect("sub-0")
    assert told == ["sub-0"]
    # Neither is success the runner's to say: it follows from the stop reason and the text.
    assert (result.subagent_id, result.exit_ok) == ("sub-0", True)


async def test_m6_a_refused_spawn_leaves_no_worktree(repo: Path) -> None:
    """The cap comes before Git; Git's own words are in the error; the branch has a name."""
    async with opened(cwd=repo, max_pending=1) as (host, delegation):
        await host.call_tool(SPAWN, {"task": "t"})
        with pytest.raises(PluginInternalError, match="the registry is full"):
            await host.call_tool(SPAWN, {"task": "t", "worktree": {"path": "../left"}})
        await delegation.collect("sub-0")
        with pytest.raises(PluginNotSupportedError):
            spec = SubagentSpec(task="t", runner="nobody's", worktree={"path": "../left"})
            await delegation.spawn_subagent(spec)
        with pytest.raises(PluginNotSupportedError, match=r"fatal: .*not a valid branch name"):
            worktree = {"path": "../left", "branch": "a..b"}
            await host.call_tool(SPAWN, {"task": "t", "worktree": worktree})
        assert not (repo.parent / "left").exists()
        assert git(repo, "branch", "--format=%(refname:short)") == "main"
        assert len(git(repo, "worktree", "list").splitlines()) == 1
        assert delegation.spawn_count == 1
        await host.call_tool(SPAWN, {"task": "t", "worktree": {"path": "../named"}})
        result = await delegation.collect("sub-1")
    assert git(repo.parent / "named", "branch", "--show-current") == "named"
    assert result.worktree is not None
    assert result.worktree.branch == "named"


async def test_m7_a_model_can_be_told_that_its_call_was_refused() -> None:
    """A harness that asks for it gets every refusal as the result of the call, and goes on."""
    calls = [spawn(" "), spawn(), spawn(), ToolCall(id="c", name=COLLECT)]
    async with opened(max_pending=1) as (host, _):
        response = await turn(host, *calls, collect(), errors="report")
    results = [block for block in response.blocks if isinstance(block, ToolResult)]
    assert [result.is_error for result in results] == [True, False, True, True, False]
    assert "' ' is no task" in results[0].output
    assert "the registry is full: 1" in results[2].output
    assert "subagent_id is None" in results[3].output
    assert [message.role for message in response.messages] == ["assistant", *["tool"] * 5]
    assert response.messages[0].content == [*calls, collect()]


async def test_m8_every_collector_of_one_child_gets_its_result() -> None:
    """At once, one after the other, and after one of them was cancelled."""
    gate = Gate()
    results: list[SubagentResult] = []
    async with opened(gate) as (_, delegation):
        await delegation.spawn_subagent(SubagentSpec(task="t"))

        async def ask(scope: anyio.CancelScope) -> None:
            with scope:
                results.append(await delegation.collect("sub-0"))

        scopes = [anyio.CancelScope() for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(ask, scope)
            await gate.reached.wait()
            scopes[1].cancel()
            await anyio.wait_all_tasks_blocked()
            assert delegation.pending_len == 1
            gate.open.set()
        assert len(results) == 2
        results.append(await delegation.collect("sub-0"))
        assert {id(result) for result in results} == {id(results[0])}
        assert results[0].exit_ok
        assert delegation.pending_len == 0
    with pytest.raises(GoferError, match="give it to Host"):
        await SubagentPlugin().spawn_subagent(SubagentSpec(task="t"))


def frame(finish: str | None = None, **said: Any) -> bytes:
    data = {"choices": [{"delta": said, "finish_reason": finish}]}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def piece(index: int, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"index": index, "function": function, **({"id": f"id-{index}"} if name else {})}


async def served(*frames: bytes) -> tuple[list[Block], Finish, dict[str, Any]]:
    """Ask a server that answers with *frames*; return blocks, finish, and what it was sent."""
    body = b"".join(frames)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    sent: list[dict[str, Any]] = []

    async def handle(connection: anyio.abc.SocketStream) -> None:
        async with connection:
            data = b""
            while b"\r\n\r\n" not in data:
                data += await connection.receive()
            headers, _, content = data.partition(b"\r\n\r\n")
            (length,) = (
                int(line.split(b":")[1])
                for line in headers.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            while len(content) < length:
                content += await connection.receive()
            sent.append(json.loads(content))
            await connection.send(head + body)

    async def serve(listener: Any) -> None:
        async with listener:
            await listener.serve(handle)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
            tasks.start_soon(serve, listener)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            model = LlamaServer(f"http://127.0.0.1:{port}", model="m")
            request = Request(messages=[Message("user", "hi")], tools=[Tool(name="f")])
            items: list[Any] = [item async for item in model.stream(request)]
            tasks.cancel_scope.cancel()
    return items[:-1], items[-1], sent[0]


async def test_m9_the_stream_reader_loses_nothing() -> None:
    """Calls and words that stand beside, before or behind each other all arrive, in order."""
    one, two = piece(0, "f", '{"a": 1}'), piece(1, "g", "{")
    blocks, finish, sent = await served(
        frame(reasoning_content="hm", content="Both. ", tool_calls=[one, two]),
        frame(tool_calls=[piece(1, arguments="}")]),
        frame(content="After."),
        frame("tool_calls"),
        b"data: [DONE]\n\n",
    )
    assert blocks == [
        Thinking(text="hm"),
        Text(text="Both. "),
        ToolCall(id="id-0", name="f", arguments={"a": 1}),
        ToolCall(id="id-1", name="g", arguments={}),
        Text(text="After."),
    ]
    assert finish.stop_reason == "tool_use"
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["f"]

    # A null finish reason ends nothing, and a call that was cut is no call without arguments.
    blocks, _, _ = await served(
        frame(None, tool_calls=[piece(0, "f", '{"a"')]),
        frame(None, tool_calls=[piece(0, arguments=": [1]}")]),
        frame("tool_calls"),
    )
    assert blocks == [ToolCall(id="id-0", name="f", arguments={"a": [1]})]


async def test_m10_stop_reason_usage_and_failing_watchers_are_seen() -> None:
    """The finish reason and the tokens are the server's; an error of a watcher is raised."""

    class Watch:
        @hookimpl
        def on_response_complete(self, response: Response) -> None:
            raise ValueError(response.stop_reason)

    class Another(Watch):
        pass

    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    _, finish, sent = await served(
        frame(content="a"),
        frame(content="b"),
        frame("length"),
        b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n",
        b"data: [DONE]\n\n",
    )
    assert sent["stream_options"] == {"include_usage": True}
    assert (finish.stop_reason, finish.usage) == (
        "max_tokens",
        Usage(input_tokens=7, output_tokens=2),
    )
    async with opened() as (host, _):
        response = await turn(host, "a", finish)
        assert (response.stop_reason, response.usage) == ("max_tokens", finish.usage)
    async with opened("", Watch()) as (host, _):
        with pytest.raises(
            PluginError, match=r"'Watch' failed in on_response_complete: .*end_turn"
        ):
            await turn(host, "a")
    async with opened("", Watch(), Another()) as (host, _):
        with pytest.raises(PluginErrors) as caught:
            await turn(host, "a")
        assert len(caught.value.exceptions) == 2


@pytest.mark.parametrize("before", [True, False])
async def test_m11_a_gate_sees_a_spawn_before_it_happens(before: bool) -> None:
    """A plugin that says so comes first, wherever it stands, and what it answers is not run."""

    class Approval:
        @hookimpl(tryfirst=True)
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            call = chunk.block
            if isinstance(call, ToolCall) and call.name == SPAWN:
                chunk.block = ToolResult(tool_call_id=call.id, output="denied", is_error=True)

    delegation = SubagentPlugin()
    plugins = [Approval(), delegation] if before else [delegation, Approval()]
    async with Host([*plugins, ScriptedRunner()], discover=False) as host:
        (answer,) = (await turn(host, spawn())).blocks
        assert answer == ToolResult(tool_call_id="call-s", output="denied", is_error=True)
        assert (delegation.spawn_count, host.children) == (0, [])


async def test_m12_an_error_ends_the_stream_and_sessions_are_used() -> None:
    """One rule, everywhere: no block follows an error; and a session has its own children."""
    async with opened() as (host, _):
        stream = host.stream(Request(), ScriptedModel([["a", spawn(""), "b"]]))
        seen = []
        async with stream:
            with pytest.raises(PluginValidationError):
                async for block in stream:
                    seen.append(block)
            assert [block async for block in stream] == []
        assert seen == [Text(text="a")]
        assert stream.response.stop_reason == "error"

        await turn(host, spawn(session_id="only a label"), session="one")
        for session, is_error in (("two", True), ("only a label", True), ("one", False)):
            (answer,) = (await turn(host, collect(), session=session)).blocks
            assert isinstance(answer, ToolResult)
            assert answer.is_error is is_error


async def test_a_child_is_what_the_host_says_it_is() -> None:
    """The plugin keeps no children of its own: its ids are the Host's."""
    gate = Gate()
    async with opened(gate) as (host, delegation):
        first = await host.spawn(SubagentSpec(task="not delegated"))
        second = await delegation.spawn_subagent(SubagentSpec(task="t"))
        assert isinstance(first, Child)
        assert (first.id, second) == ("sub-0", "sub-1")
        with pytest.raises(PluginNotSupportedError, match="collected: sub-1"):
            await delegation.collect(first.id)
