"""The loop: what the model is told and sent back, what runs together, and what ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer import (
    Block,
    ContextOverflowError,
    Finish,
    Host,
    Message,
    ModelError,
    PluginError,
    Request,
    StreamChunk,
    SubagentSpec,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    hookimpl,
)
from gofer.testing import ScriptedModel, ScriptedRunner
from gofer_plugins.delegation import SubagentPlugin
from gofer_plugins.subagent_call import SubagentCallPlugin
from gofer_runners.internal import InternalRunner
from gofer_runners.internal._guards import Guards
from gofer_runners.internal._loop import Loop
from gofer_runners.internal._tool import HarnessTool, ToolFailure
from gofer_runners.internal.runner import SYSTEM_PROMPT

pytestmark = pytest.mark.anyio

OURS = ["read_file", "list_directory", "write_file", "edit_file", "find_files", "search_files",
        "run_shell"]  # fmt: skip


def names_in(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


# What the model is sent


async def test_the_first_request(play: Any, work: Path) -> None:
    played = await play("Done.", spec={"task": " Do {it}. "})
    [request] = played.model.requests
    assert request.messages == [
        Message("system", SYSTEM_PROMPT.replace("{cwd}", str(work))),
        Message("user", " Do {it}. "),
    ]
    assert [tool.name for tool in request.tools] == OURS
    for tool in request.tools:
        assert tool.description
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
    assert (request.model, request.temperature, request.max_tokens) == (None, None, None)
    assert played.result.exit_ok
    assert played.result.summary == "Done."


async def test_settings_and_options_of_a_request(play: Any) -> None:
    settings = {"temperature": 0.5, "max_tokens": 9, "system_prompt": "In {cwd}, {x}."}
    played = await play("Done.", **settings)
    request = played.model.requests[0]
    assert (request.temperature, request.max_tokens) == (0.5, 9)
    assert request.messages[0].text.endswith("work, {x}.")
    options = {"model": "m", "temperature": 0, "max_tokens": 5, "extra": {"seed": 1}}
    request = (await play("Done.", spec={"options": options}, **settings)).model.requests[0]
    assert (request.model, request.temperature, request.max_tokens) == ("m", 0, 5)
    assert request.extra == {"seed": 1}


async def test_a_wrong_option_or_a_blank_task_is_refused(play: Any) -> None:
    wrong = (await play(spec={"options": {"max_turn": 3}})).result
    assert wrong.stop_reason == "error"
    assert wrong.error == (
        "internal.options.max_turn: Extra inputs are not permitted; known are model, temperature, "
        "max_tokens, max_turns, extra"
    )

    class Blank:
        name = "blank"

        @hookimpl(wrapper=True)
        def run_subagent(self, spec: SubagentSpec, run: Any) -> Any:
            run.prompt = "  "
            return (yield)

    blank = (await play(plugins=[Blank()])).result
    assert blank.error == "internal.task: is blank: say what to do"


async def test_the_conversation_holds_what_was_thought_said_called_and_found(
    play: Any, work: Path
) -> None:
    (work / "a.txt").write_text("A")
    (work / "b.txt").write_text("B")
    calls = [
        ToolCall(id="x", name="read_file", arguments={"path": "a.txt"}),
        ToolCall(id="y", name="read_file", arguments={"path": "b.txt"}),
    ]
    thought = Thinking(text="Hm.", signature="s")
    played = await play([thought, "Let me ", "look.", *calls], [Thinking(text="So."), "Done."])
    assert played.model.requests[1].messages[2:] == [
        Message("assistant", [thought, Text(text="Let me look."), *calls]),
        Message("tool", [ToolResult(tool_call_id="x", output="A")]),
        Message("tool", [ToolResult(tool_call_id="y", output="B")]),
    ]
    assert played.result.summary == "Done."


async def test_the_hooks_see_it_all(play: Any, call: Any, work: Path) -> None:
    seen: list[Any] = []

    class Watch:
        name = "watch"

        @hookimpl
        def on_request(self, request: Request) -> None:
            seen.append(("request", request.turn.observed, request.turn.depth, request.turn.runner))

        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            seen.append((chunk.block.type, chunk.turn.observed, chunk.turn.subagent_id))

        @hookimpl
        def on_response_complete(self, response: Any) -> None:
            seen.append(("complete", response.stop_reason))

    await play([call("list_directory")], "Done.", plugins=[Watch()])
    assert seen == [
        ("request", False, 1, "internal"), ("tool_call", False, "sub-0"), ("complete", "tool_use"),
        ("tool_result", False, "sub-0"),
        ("request", False, 1, "internal"), ("text", False, "sub-0"), ("complete", "end_turn"),
    ]  # fmt: skip


async def test_usage_is_summed(play: Any, call: Any) -> None:
    usage = Usage(input_tokens=5, output_tokens=2)
    played = await play(
        [call("list_directory"), Finish("tool_use", usage)], ["Done.", Finish("end_turn", usage)]
    )
    assert played.result.usage == Usage(input_tokens=10, output_tokens=4)


async def test_the_model_may_be_another_runners(work: Path) -> None:
    class Other(ScriptedRunner):
        model = ScriptedModel(["From there."])

    spec = SubagentSpec(task="t", runner="internal")
    with anyio.fail_after(30):
        given = [InternalRunner("other"), Other(name="other")]
        async with Host(given, discover=False, cwd=work) as host:
            assert (await host.run(spec)).summary == "From there."
        async with Host([InternalRunner("none")], discover=False, cwd=work) as host:
            result = await host.run(spec)
            assert not result.exit_ok
            assert "'none'" in str(result.error)


# What a model gets wrong


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read_file", "{broken", "the arguments of read_file are no JSON: '{broken'. Send a JSON"),
        ("read_file", [1], "the arguments of read_file must be a JSON object"),
        ("read_file", {}, "path: Field required. It takes: path, line, limit"),
        ("read_file", "", "path: Field required"),
        ("read_file", {"path": 1}, "path: Input should be a valid string"),
        ("read_file", {"path": "x", "limit": 0}, "limit: Input should be greater than or equal"),
        ("read_file", {"path": "x", "file": "y"}, "file: Extra inputs are not permitted"),
        ("nowhere", {}, f"there is no tool 'nowhere' here; the tools are: {', '.join(OURS)}"),
        ("", None, "there is no tool '' here"),
    ],
)
async def test_bad_calls_go_back_to_the_model(
    play: Any, name: str, arguments: Any, said: str
) -> None:
    bad = ToolCall(id="1", name=name, arguments=arguments)
    played = await play([bad], "Done.")
    [result] = played.results
    assert result.is_error
    assert said in result.output
    assert played.result.exit_ok


async def test_no_arguments_are_none(play: Any) -> None:
    for none in ("", None, {}, " "):
        played = await play([ToolCall(id="1", name="list_directory", arguments=none)], "Done.")
        assert played.results[0].output == "(the directory is empty)"


async def test_a_broken_tool_is_an_error_of_the_call(
    play: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oops " * 50_000)

    monkeypatch.setattr("gofer.roots.Roots.entries", broken)
    result = (await play([call("list_directory")], "Done.")).results[0]
    assert result.is_error
    assert result.output.startswith("list_directory failed: ZeroDivisionError: oops")
    assert len(result.output) < 140_000


# What runs together


def tool(name: str, call: Any, *, reads: bool) -> HarnessTool:
    return HarnessTool(name, name, call, reads=reads)


async def loop_of(tools: list[HarnessTool], *turns: Any, work: Path) -> list[ToolResult]:
    """Run a loop with these tools, and return what the model has seen of them."""
    model = ScriptedModel(turns)

    class Own(InternalRunner):
        async def run(self, spec: SubagentSpec, run: Any) -> Any:
            return await Loop(run, model, tools, Request(), 9).go()

    with anyio.fail_after(30):
        async with Host([Own()], discover=False, cwd=work) as host:
            result = await host.run(SubagentSpec(task="t", runner="internal"))
    assert result.exit_ok
    return [block for message in model.requests[-1].messages for block in message.content
            if isinstance(block, ToolResult)]  # fmt: skip


async def test_calls_that_only_read_run_together_and_keep_their_order(
    work: Path, call: Any
) -> None:
    waiting = 0
    all_there = anyio.Event()
    ended: list[int] = []

    async def meet(arguments: dict[str, Any]) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            all_there.set()
        await all_there.wait()
        for _ in range(9 - 3 * arguments["n"]):
            await anyio.lowlevel.checkpoint()
        ended.append(arguments["n"])
        return str(arguments["n"])

    calls = [call("meet", n=number) for number in range(3)]
    results = await loop_of([tool("meet", meet, reads=True)], calls, "Done.", work=work)
    assert [result.output for result in results] == ["0", "1", "2"]
    assert sorted(ended) == [0, 1, 2]


async def test_a_call_that_writes_runs_alone_and_in_its_place(work: Path, call: Any) -> None:
    running: set[str] = set()
    order: list[str] = []

    def traced(name: str) -> Any:
        async def run(_: Any) -> str:
            assert "write" not in running
            assert name == "read" or not running
            running.add(name)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            running.discard(name)
            order.append(name)
            return name

        return run

    tools = [tool("read", traced("read"), reads=True), tool("write", traced("write"), reads=False)]
    names = ["read", "read", "write", "write", "read", "write", "read"]
    results = await loop_of(tools, [call(name) for name in names], "Done.", work=work)
    assert [result.output for result in results] == names
    assert order == names


async def test_only_so_many_run_at_once(work: Path, call: Any) -> None:
    running = most = 0

    async def count(_: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        running -= 1
        return "x"

    results = await loop_of(
        [tool("count", count, reads=True)],
        [call("count", n=n) for n in range(50)],
        "Done.",
        work=work,
    )
    assert len(results) == 50
    assert most == 8


async def test_one_that_fails_does_not_end_the_others(work: Path, call: Any) -> None:
    async def run(arguments: dict[str, Any]) -> str:
        if arguments["n"] == 1:
            raise ToolFailure("no")
        if arguments["n"] == 2:
            raise ZeroDivisionError
        await anyio.lowlevel.checkpoint()
        return "yes"

    calls = [call("run", n=number) for number in range(4)]
    results = await loop_of([tool("run", run, reads=True)], calls, "Done.", work=work)
    assert [result.is_error for result in results] == [False, True, True, False]


# Scope and depth


async def test_a_tool_outside_the_scope_is_neither_offered_nor_executed(
    play: Any, call: Any, work: Path
) -> None:
    executed: list[str] = []

    class Plugin:
        name = "extra"

        @hookimpl
        def on_request(self, request: Request) -> None:
            request.tools += [Tool(name="mine"), Tool(name="other")]

        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if isinstance(chunk.block, ToolCall) and chunk.block.name in ("mine", "other"):
                executed.append(chunk.block.name)
                chunk.block = ToolResult(tool_call_id=chunk.block.id, output="did")

    calls = [call("write_file", path="x", content="y"), call("run_shell", command="touch y"),
             call("other"), call("mine"), call("list_directory")]  # fmt: skip
    scope = ["list_directory", "mine", "unknown"]
    played = await play(calls, "Done.", plugins=[Plugin()], spec={"tool_scope": scope})
    assert [tool.name for tool in played.model.requests[0].tools] == ["list_directory", "mine"]
    results = {result.tool_call_id: result for result in played.results}
    for refused in calls[:3]:
        assert results[refused.id].is_error
        assert f"no tool '{refused.name}' here" in results[refused.id].output
    assert results[calls[3].id].output == "did"
    assert results[calls[4].id].output == "(the directory is empty)"
    assert executed == ["mine"]
    assert names_in(work) == set()


async def test_plugins_tools_are_offered_and_their_errors_are_the_models(
    play: Any, call: Any
) -> None:
    class Plugin:
        name = "extra"

        @hookimpl
        def on_request(self, request: Request) -> None:
            request.tools.append(Tool(name="mine"))

        @hookimpl
        async def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if isinstance(chunk.block, ToolCall) and chunk.block.name == "mine":
                raise PluginError("not today")

    played = await play([call("mine")], "Done.", plugins=[Plugin()])
    assert [tool.name for tool in played.model.requests[0].tools] == [*OURS, "mine"]
    assert played.results[0].is_error
    assert played.results[0].output == "not today"


@pytest.mark.parametrize("limit", [1, 2])
async def test_delegation_reaches_as_deep_as_is_allowed(play: Any, call: Any, limit: int) -> None:
    ours = {"spawn_subagent", "collect_subagent", "subagent_call"}
    played = await play(
        [call("subagent_call", input="go deeper")],
        *(["From below."] if limit == 2 else []),
        "Done.",
        plugins=[SubagentPlugin, SubagentCallPlugin],
        config={"max_depth": limit},
    )
    offered = [{tool.name for tool in request.tools} for request in played.model.requests]
    result = played.results[0]
    if limit == 1:
        assert not offered[0] & ours
        assert result.is_error
        assert "max_depth is 1" in result.output
    else:
        assert offered[0] >= ours
        assert not offered[1] & ours
        assert result.output == '{"output":"From below.","stop_reason":"end_turn"}'


# What ends it


async def test_too_many_requests(play: Any, call: Any, work: Path) -> None:
    turns = [[f"Step {number}.", call("write_file", path=str(number), content="x")]
             for number in range(3)]  # fmt: skip
    played = await play(*turns, max_turns=3)
    assert played.result.stop_reason == "max_turn_requests"
    assert played.result.summary == "Step 2."
    assert played.result.fallback
    assert "used up its 3 requests" in str(played.result.error)
    assert not played.result.exit_ok
    assert names_in(work) == {"0", "1", "2"}
    played = await play(*turns, spec={"options": {"max_turns": 2}})
    assert len(played.model.requests) == 2


def test_the_default_is_a_hundred_requests() -> None:
    assert InternalRunner.Config().max_turns == 100
    assert InternalRunner()._max_turns == 100


async def test_the_same_call_over_and_over(play: Any, call: Any) -> None:
    played = await play(*[["Hm.", call("list_directory")]] * 5, "Done.")
    assert played.result.exit_ok
    played = await play(*[["Hm.", call("list_directory")]] * 20)
    assert len(played.model.requests) == 6
    assert played.result.stop_reason == "error"
    assert played.result.summary == "Hm."
    assert "the same call of list_directory more than 5 times in 10" in str(played.result.error)


async def test_the_same_call_with_other_results_is_work(play: Any, call: Any, work: Path) -> None:
    def grow(_: Request) -> None:
        (work / "a").write_text((work / "a").read_text() + "x" if (work / "a").exists() else "x")

    turn = [grow, call("read_file", path="a")]
    assert (await play(*[turn] * 12, "Done.")).result.exit_ok


async def test_ten_failures_in_a_row(play: Any, call: Any, work: Path) -> None:
    def bad() -> Any:
        return call("read_file", path=f"gone-{len(bads)}-{bads.append(0)}")

    bads: list[int] = []
    nine = [[bad()] for _ in range(9)]
    played = await play(*nine, [call("list_directory")], *[[bad()] for _ in range(9)], "Done.")
    assert played.result.exit_ok
    played = await play(["Trying.", *[bad() for _ in range(9)]], [bad()])
    assert played.result.stop_reason == "error"
    assert played.result.summary == "Trying."
    assert str(played.result.error).startswith("10 tool calls in a row failed; the last: 'gone-")


async def test_plugins_calls_count_too(play: Any, call: Any) -> None:
    class Plugin:
        name = "extra"

        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if isinstance(chunk.block, ToolCall):
                chunk.block = ToolResult(tool_call_id=chunk.block.id, output="same")

    played = await play(*[[call("mine")]] * 20, plugins=[Plugin()])
    assert "the same call of mine" in str(played.result.error)


def test_guards_look_at_ten_calls() -> None:
    guards = Guards()
    same = ToolCall(id="1", name="a", arguments={"x": 1, "y": 2})
    again = ToolCall(id="2", name="a", arguments={"y": 2, "x": 1})
    for number in range(40):
        other = ToolCall(id="3", name="b", arguments={"n": number})
        assert guards.saw(same if number % 4 else again, "out", failed=False) is None
        assert guards.saw(other, "out", failed=False) is None


async def test_context_overflow(play: Any, call: Any) -> None:
    overflow = ContextOverflowError("too many tokens")
    played = await play(["So far.", call("list_directory")], overflow)
    assert played.result.stop_reason == "max_tokens"
    assert played.result.error == "too many tokens"
    assert played.result.summary == "So far."
    assert not played.result.exit_ok


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "error", "cancelled"])
async def test_a_call_that_was_cut_off_is_not_executed(
    play: Any, call: Any, work: Path, reason: str
) -> None:
    cut = call("write_file", path="a", content="half")
    played = await play(["Writing.", cut, Finish(reason)])
    assert played.result.stop_reason == reason
    assert f"ended with {reason} amid tool calls" in str(played.result.error)
    assert played.result.summary == "Writing."
    assert names_in(work) == set()


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "odd"])
async def test_why_the_model_stopped_is_told(play: Any, reason: str) -> None:
    result = (await play(["Half", Finish(reason)])).result
    assert (result.stop_reason, result.summary, result.exit_ok) == (reason, "Half", False)
    assert (result.error is not None) is (reason == "max_tokens")


async def test_a_last_turn_of_nothing_falls_back(play: Any, call: Any) -> None:
    result = (await play(["I look.", call("list_directory")], [])).result
    assert (result.summary, result.fallback, result.exit_ok) == ("I look.", True, True)
    result = (await play([])).result
    assert not result.exit_ok
    assert "no text" in str(result.error)


async def test_a_model_that_fails_leaves_what_there_is(play: Any, call: Any) -> None:
    played = await play(["So far.", call("list_directory")], ["and", ModelError("gone")])
    assert played.result.stop_reason == "error"
    assert played.result.error == "gone"
    assert played.result.summary == "and"


async def test_cancelling_ends_it_in_the_model_and_keeps_the_text(work: Path) -> None:
    asked = anyio.Event()

    class Hangs:
        async def stream(self, request: Request) -> AsyncIterator[Block | Finish]:
            yield Text(text="Begun")
            asked.set()
            await anyio.sleep_forever()

    with anyio.fail_after(30):
        async with Host([InternalRunner(Hangs())], discover=False, cwd=work) as host:
            child = await host.spawn(SubagentSpec(task="t", runner="internal"))
            await asked.wait()
            await host.cancel(child.id)
            result = await child.wait()
    assert (result.stop_reason, result.summary) == ("cancelled", "Begun")
