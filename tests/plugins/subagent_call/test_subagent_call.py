"""The tool: what it resolves, what it gives, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer import (
    Host,
    ModelError,
    PluginNotSupportedError,
    Request,
    RunnerError,
    SubagentCallOutput,
    Text,
    ToolCall,
    ToolResult,
)
from gofer.agents import AGENTS
from gofer.testing import ScriptedModel, ScriptedRunner
from gofer_plugins.subagent_call import SubagentCallPlugin
from gofer_plugins.subagent_call import plugin as plugin_module
from gofer_plugins.subagent_call._description import TOOL

pytestmark = pytest.mark.anyio

ABSENT = object()
NOTHING = {"absent": ABSENT, "null": None, "empty": "", "blank": " \n\t "}


def arguments(**given: Any) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not ABSENT}


def output(result: ToolResult) -> tuple[str, str]:
    assert not result.is_error
    read = json.loads(result.output)
    assert set(read) == {"output", "stop_reason"}
    answer = SubagentCallOutput.model_validate(read)
    return answer.output, answer.stop_reason


# The table: what is there, and what is not


@pytest.mark.parametrize("stored", [False, True], ids=["nothing sent yet", "something sent"])
@pytest.mark.parametrize("message", ["  task ", *NOTHING.values()], ids=["given", *NOTHING])
@pytest.mark.parametrize("agent", [" one\n", *NOTHING.values()], ids=["given", *NOTHING])
async def test_what_is_left_out_selects_what_is_done(
    scene: Any, agent: Any, message: Any, stored: bool
) -> None:
    who = "one" if agent == " one\n" else None
    async with scene() as opened:
        if stored:
            await opened.host.call_tool(TOOL, {"agent": "two", "input": " earlier "})
        result = await opened.host.call_tool(TOOL, arguments(agent=agent, input=message))
        if message == "  task ":
            assert opened.asked[-1] == (who, "task")
            assert output(result) == (f"{who}: task", "end_turn")
        elif stored:
            assert opened.asked[-1] == (who, "earlier")
            assert output(result) == (f"{who}: earlier", "end_turn")
        else:
            assert opened.asked == []
            assert result.is_error
            assert "no message was sent to an agent in this session yet" in result.output
            assert "`input`" in result.output


@pytest.mark.parametrize("none", [None, "", " "])
async def test_no_arguments_at_all_are_an_empty_object(scene: Any, none: Any) -> None:
    async with scene() as opened:
        await opened.host.call_tool(TOOL, {"input": "t"})
        assert output(await opened.host.call_tool(TOOL, none)) == ("None: t", "end_turn")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agent": 1}, "subagent_call.arguments.agent: Input should be a valid string, not 1"),
        ({"input": ["x"]}, "subagent_call.arguments.input: Input should be a valid string"),
        ({"input": True}, "subagent_call.arguments.input"),
        ([], "subagent_call.arguments: "),
        ("{broken", "subagent_call.arguments: "),
        (7, "subagent_call.arguments: "),
    ],
)
async def test_wrong_arguments_are_told_the_model_before_anything_runs(
    scene: Any, given: Any, said: str
) -> None:
    async with scene() as opened:
        result = await opened.host.call_tool(TOOL, given)
        assert result.is_error
        assert result.output.startswith(said)
        assert "it takes `agent` and `input`, both optional strings" in result.output
        assert opened.asked == []
        # Nothing was stored either.
        assert (await opened.host.call_tool(TOOL)).is_error


async def test_what_is_unknown_in_the_arguments_is_passed_over(scene: Any) -> None:
    async with scene() as opened:
        result = await opened.host.call_tool(TOOL, {"input": "t", "code_review": False})
        assert output(result) == ("None: t", "end_turn")


# The last message


async def test_a_call_that_failed_can_be_repeated_without_its_message(scene: Any) -> None:
    async with scene() as opened:
        result = await opened.host.call_tool(TOOL, {"agent": "nobody", "input": " again "})
        assert result.is_error
        assert "agent 'nobody' is unsupported; the supported agents are: gemini, " in result.output
        assert "one, two" in result.output
        assert output(await opened.host.call_tool(TOOL, {"agent": "one"}))[0] == "one: again"


async def test_each_session_has_its_own_last_message(scene: Any) -> None:
    async with scene() as opened:
        call = opened.host.call_tool
        await call(TOOL, {"input": "a"}, session="A")
        assert (await call(TOOL, {}, session="B")).is_error
        await call(TOOL, {"input": "b"}, session="B")
        assert output(await call(TOOL, {}, session="A"))[0] == "None: a"
        assert output(await call(TOOL, {"agent": "one"}, session="B"))[0] == "one: b"


async def test_concurrent_calls_do_not_swap_their_messages(scene: Any) -> None:
    all_there = anyio.Event()
    seen: dict[str, str] = {}
    waiting = 0

    async def script(run: Any) -> Any:
        nonlocal waiting
        waiting += 1
        if waiting == 20:
            all_there.set()
        await all_there.wait()
        return run.result(f"answer to {run.prompt}")

    async with scene(script) as opened:

        async def one(name: str) -> None:
            result = await opened.host.call_tool(TOOL, {"input": name}, session=None)
            seen[name] = output(result)[0]

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(one, f"task {number}")
    assert seen == {f"task {n}": f"answer to task {n}" for n in range(20)}


async def test_several_calls_of_one_response_run_one_after_another(scene: Any) -> None:
    running: list[str] = []

    async def script(run: Any) -> str:
        assert not running
        running.append(run.id)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        running.clear()
        return f"did {run.prompt}"

    calls = [ToolCall(id=str(n), name=TOOL, arguments={"input": f"t{n}"}) for n in range(3)]
    async with scene(script) as opened:
        async with opened.host.stream(Request(), ScriptedModel([calls])) as stream:
            blocks = [block async for block in stream]
        assert [output(block)[0] for block in blocks] == ["did t0", "did t1", "did t2"]
        assert [block.tool_call_id for block in blocks] == ["0", "1", "2"]


# How it ends


@pytest.mark.parametrize(
    "reason", ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "odd_one"]
)
@pytest.mark.parametrize("text", ["some", ""])
async def test_a_prompt_that_was_answered_is_an_output(scene: Any, reason: str, text: str) -> None:
    async with scene(lambda run: run.result(text, reason)) as opened:
        for agent in (None, "one"):
            result = await opened.host.call_tool(TOOL, {"agent": agent, "input": "t"})
            assert output(result) == (text, reason)


async def test_a_failure_after_some_text_keeps_text_and_cause(
    scene: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(["Half of it.", RunnerError("the pipe broke")]) as opened:
        result = await opened.host.call_tool(TOOL, {"agent": "one", "input": "t"})
        assert output(result) == ("Half of it.", "error")
        assert opened.plugin.results[-1].error == "the pipe broke"
        assert opened.plugin.results[-1].subagent_id == "sub-0"
        assert "agent one failed: the pipe broke" in caplog.text


@pytest.mark.parametrize("error", [RunnerError("no start"), ModelError("no server"), OSError("x")])
async def test_a_failure_without_text_is_a_sentence(scene: Any, error: Exception) -> None:
    async with scene(error) as opened:
        result = await opened.host.call_tool(TOOL, {"agent": "one", "input": "t"})
        assert result.is_error
        assert str(error) in result.output
        assert opened.plugin.results[-1].stop_reason == "error"


async def test_a_limit_that_ended_it_is_told(scene: Any) -> None:
    async def hang(_: Any) -> None:
        await anyio.sleep_forever()

    async with scene(hang, timeout=0.05) as opened:
        silent = await opened.host.call_tool(TOOL, {"input": "t"})
        assert silent.is_error
        assert "timed out after 0.05 s: raise timeout" in silent.output
    async with scene(["Begun.", hang], timeout=0.05) as opened:
        result = await opened.host.call_tool(TOOL, {"input": "t"})
        assert output(result) == ("Begun.", "cancelled")
        assert "timed out" in str(opened.plugin.results[-1].error)


async def test_a_runner_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with Host([SubagentCallPlugin], discover=False, cwd=tmp_path) as host:
            result = await host.call_tool(TOOL, {"input": "t"})
    assert result.is_error
    assert "'internal'" in result.output


async def test_what_is_kept_of_results_has_bounds(
    scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_module, "_RESULTS", 3)
    monkeypatch.setattr(plugin_module, "_BYTES", 1000)
    async with scene(lambda run: run.result(run.prompt)) as opened:
        kept = opened.plugin.results
        for size in (1, 2, 3, 4):
            await opened.host.call_tool(TOOL, {"input": "x" * size})
        assert [len(result.summary) for result in kept] == [2, 3, 4]
        await opened.host.call_tool(TOOL, {"input": "x" * 998})
        assert [len(result.summary) for result in kept] == [998]
        await opened.host.call_tool(TOOL, {"input": "x" * 5000})
        assert [len(result.summary) for result in kept] == [5000]


# Sessions of agents


async def test_an_agents_session_is_gone_on_with_where_configured(scene: Any) -> None:
    async with scene(plugin=SubagentCallPlugin(continue_session=True)) as opened:
        call = opened.host.call_tool
        for agent, session in [("one", None), ("one", None), ("two", None), ("one", "B"),
                               (None, None), ("one", None)]:  # fmt: skip
            await call(TOOL, {"agent": agent, "input": "t"}, session=session)
        runs = [*opened.external.runs]
        resumed = [(run.spec.agent, run.spec.resume) for run in runs]
        assert resumed == [
            ("one", None), ("one", "s-sub-0"), ("two", None), ("one", None), ("one", "s-sub-1"),
        ]  # fmt: skip
        assert opened.internal.runs[0].spec.resume is None


async def test_by_default_each_call_is_a_new_session(scene: Any) -> None:
    async with scene() as opened:
        for _ in range(2):
            await opened.host.call_tool(TOOL, {"agent": "one", "input": "t"})
        assert [run.spec.resume for run in opened.external.runs] == [None, None]


@pytest.mark.parametrize("reason", ["error", "cancelled"])
async def test_a_turn_that_was_not_answered_leaves_the_older_session(
    scene: Any, reason: str
) -> None:
    from gofer import SessionInfo

    def script(run: Any) -> Any:
        session = SessionInfo(id=run.id)
        if run.id == "sub-1":
            return run.result("Some.", reason, error="it broke", session=session)
        return run.result("ok", session=session)

    async with scene(script, plugin=SubagentCallPlugin(continue_session=True)) as opened:
        for _ in range(3):
            await opened.host.call_tool(TOOL, {"agent": "one", "input": "t"})
        assert [run.spec.resume for run in opened.external.runs] == [None, "sub-0", "sub-0"]


def test_its_settings() -> None:
    assert set(SubagentCallPlugin.Config.model_fields) == {"continue_session", "note"}
    plugin = SubagentCallPlugin(**SubagentCallPlugin.Config(continue_session=True).model_dump())
    assert plugin._continue


# What it says of itself


def put_on_path(folder: Path, *names: str, mode: int = 0o755) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(mode)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def description(tmp_path: Path) -> Callable[..., Any]:
    async def ask(plugin: Any = None, **config: Any) -> Any:
        given = [plugin or SubagentCallPlugin(), ScriptedRunner(name="internal")]
        async with Host(given, config, discover=False, cwd=tmp_path) as host:
            return {tool.name: tool for tool in await host.tools()}[TOOL]

    return ask


async def test_the_schema(description: Any, path: Path) -> None:
    put_on_path(path, "gemini", "goose")
    tool = await description()
    assert tool.input_schema["required"] == []
    assert set(tool.input_schema["properties"]) == {"agent", "input"}
    assert tool.input_schema["properties"]["agent"]["enum"] == ["gemini", "goose"]
    assert "The agents that are installed here:\n- gemini: gemini --acp\n- goose: goose acp" in (
        tool.description
    )
    for word in ("spawn_subagent", "collect_subagent", "`input`", "empty context", "permission"):
        assert word in tool.description


async def test_none_installed(description: Any, path: Path) -> None:
    tool = await description()
    assert tool.input_schema["properties"]["agent"]["enum"] == list(AGENTS)
    assert "No other agent was found here" in tool.description
    assert "`gofer agents` says how" in tool.description
    for name in AGENTS:
        assert name in tool.description


async def test_a_note_of_the_hosts(description: Any, path: Path) -> None:
    plain = (await description()).description
    plugin = SubagentCallPlugin(note=" Only for reviews. ")
    noted = (await description(plugin)).description
    first, rest = noted.split("\n\n", 1)
    assert first == plain.split("\n\n", 1)[0] + " Only for reviews."
    assert rest == plain.split("\n\n", 1)[1]
    plugin.set_note(" \n ")
    assert (await description(plugin)).description == plain
    plugin.set_note("More.")
    assert "More.\n\n" in (await description(plugin)).description


async def test_it_is_offered_once_and_not_where_children_are_not_allowed(
    scene: Any, tmp_path: Path
) -> None:
    async with scene() as opened:
        names = [tool.name for tool in await opened.host.tools()]
        assert names.count(TOOL) == 1
        assert {"spawn_subagent", "collect_subagent"} < set(names)
    async with scene(max_depth=0) as opened:
        assert await opened.host.tools() == []
        result = await opened.host.call_tool(TOOL, {"input": "t"})
        assert result.is_error
        assert "max_depth is 0" in result.output
        assert opened.asked == []


async def test_an_observed_call_is_left_alone(scene: Any) -> None:
    call = ToolCall(id="1", name=TOOL, arguments={"input": "t"})
    async with scene([call, "Done."]) as opened:
        result = await opened.host.call_tool(TOOL, {"input": "start"})
        assert output(result) == ("Done.", "end_turn")
        assert len(opened.asked) == 1


# Beside delegation


async def test_the_tools_share_limits_and_sessions(scene: Any) -> None:
    started = anyio.Event()
    release = anyio.Event()

    async def script(run: Any) -> str:
        if run.prompt == "first":
            started.set()
            await release.wait()
        return f"did {run.prompt}"

    calls = [
        ToolCall(id="1", name="spawn_subagent", arguments={"task": "first"}),
        ToolCall(id="2", name=TOOL, arguments={"input": "second"}),
        ToolCall(id="3", name="collect_subagent", arguments={"subagent_id": "sub-0"}),
    ]
    config = {"max_concurrent": 1, "default_runner": "internal"}
    async with scene(script, **config) as opened:

        async def let_go() -> None:
            await started.wait()
            while len(opened.host.children) < 2:
                await anyio.lowlevel.checkpoint()
            assert [child.state for child in opened.host.children] == ["running", "waiting"]
            release.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(let_go)
            async with opened.host.stream(Request(), ScriptedModel([calls])) as stream:
                blocks = [block async for block in stream]
        assert blocks[0].output == "sub-0"
        assert output(blocks[1]) == ("did second", "end_turn")
        assert blocks[2].output == "did first"
        assert opened.host.plugin("delegation").pending_len == 0


async def test_what_the_other_plugin_asks_is_not_this_ones_last_message(scene: Any) -> None:
    async with scene(default_runner="internal") as opened:
        await opened.host.call_tool("spawn_subagent", {"task": "theirs"})
        assert (await opened.host.call_tool(TOOL)).is_error


async def test_cancelling_the_call_cancels_the_child(scene: Any) -> None:
    started = anyio.Event()

    async def script(_: Any) -> None:
        started.set()
        await anyio.sleep_forever()

    async with scene(script) as opened:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opened.host.call_tool, TOOL, {"input": "t"})
            await started.wait()
            tasks.cancel_scope.cancel()
        assert opened.host.children == []
        assert opened.internal.running == set()


async def test_a_stream_of_the_parent_goes_on_after_a_failed_call(scene: Any) -> None:
    calls = [ToolCall(id="1", name=TOOL, arguments={"agent": "nobody", "input": "t"})]
    async with scene() as opened:
        async with opened.host.stream(Request(), ScriptedModel([[*calls, "And on."]])) as stream:
            blocks = [block async for block in stream]
        assert blocks[0].is_error
        assert blocks[1] == Text(text="And on.")


async def test_no_plugin_no_tool(tmp_path: Path) -> None:
    async with Host(discover=False, cwd=tmp_path) as host:
        with pytest.raises(PluginNotSupportedError, match="no plugin has a tool 'subagent_call'"):
            await host.call_tool(TOOL, {"input": "t"})
