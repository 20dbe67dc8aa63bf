"""Begun calls: what is asked for them, and how what a real server left out is put back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import (
    Block,
    Finish,
    Host,
    Message,
    Request,
    Run,
    Runner,
    SubagentResult,
    SubagentSpec,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from gofer_plugins.delegation import SubagentPlugin, demo
from gofer_plugins.delegation._prefill import PrefilledModel, opening
from gofer_runners.llama_server._assemble import Assembler
from gofer_runners.llama_server._sse import EventReader

FIXTURES = Path(__file__).parents[2] / "fixtures" / "llama-server"
SPAWN = "smollm2.1-parent-spawn.sse"
COLLECT = "smollm2.3-parent-collect.sse"


class Scripted:
    """Gives the same items for each request, and keeps what it was asked."""

    def __init__(self, *items: Block) -> None:
        self.items = items
        self.asked: list[Request] = []
        self.bound: list[Host] = []
        self.closed = 0

    def bind(self, host: Host) -> None:
        self.bound.append(host)

    async def stream(self, request: Request) -> AsyncIterator[Block | Finish]:
        self.asked.append(request)
        try:
            for item in self.items:
                yield item
            yield Finish("tool_use")
        finally:
            self.closed += 1


def recorded(name: str) -> Scripted:
    """Return a model that says what the real server sent for a begun call."""
    reader, assembler = EventReader(), Assembler()
    events = [*reader.feed((FIXTURES / name).read_bytes()), *reader.end()]
    return Scripted(*(block for event in events for block in assembler.feed(event)))


def required(*tools: str, **rest: Any) -> Request:
    offered = [Tool(name=name) for name in tools]
    return Request(messages=[Message("user", "Do.")], tools=offered, tool_choice="required", **rest)


async def answered(model: Scripted, request: Request) -> list[Block | Finish]:
    return [item async for item in PrefilledModel(model).stream(request)]


def mended(arguments: Any) -> Any:
    model = Scripted(ToolCall(id="x", name="f", arguments=arguments))
    call, finish = anyio.run(answered, model, required("f"))
    assert isinstance(call, ToolCall)
    assert (call.id, call.name, finish) == ("x", "f", Finish("tool_use"))
    return call.arguments


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "tool", "arguments"),
    [
        (SPAWN, "spawn_subagent", {"task": "What is the largest moon of Saturn?"}),
        (COLLECT, "collect_subagent", {"id": "sub-1"}),
    ],
)
async def test_a_recorded_call_has_its_brace_again(
    name: str, tool: str, arguments: dict[str, str]
) -> None:
    model = recorded(name)
    (bare,) = model.items
    assert isinstance(bare, ToolCall)
    assert isinstance(bare.arguments, str)
    call, finish = await answered(model, required(tool))
    assert call == ToolCall(id=bare.id, name=tool, arguments=arguments)
    assert finish == Finish("tool_use")


@pytest.mark.anyio
async def test_the_turns_of_the_demo_on_recorded_calls() -> None:
    class Child(Runner):
        name = "child"

        async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
            return run.result(summary=f"asked: {spec.task}")

    shown, spawning = demo._Shown(), recorded(SPAWN)
    shown.small = True
    collecting = Scripted(
        ToolCall(id="c", name="collect_subagent", arguments='"subagent_id": "sub-0"}')
    )
    conversation = [Message("user", "Ask.")]
    settings = {"default_runner": "child"}
    with anyio.fail_after(20):
        async with Host([SubagentPlugin, Child, shown], settings, discover=False) as host:
            for tool, model in (("spawn_subagent", spawning), ("collect_subagent", collecting)):
                forced = PrefilledModel(model)
                response = await demo._turn(host, forced, conversation, tool, shown)
                conversation += response.messages
            assert spawning.bound == collecting.bound == [host]

    question = "What is the largest moon of Saturn?"
    spawned, _, collected, result = conversation[1:]
    assert [call.arguments for call in spawned.content + collected.content] == [
        {"task": question},
        {"subagent_id": "sub-0"},
    ], "the conversation goes on with whole calls"
    assert result.content == [ToolResult(tool_call_id="c", output=f"asked: {question}")]

    (asked,) = collecting.asked
    assert asked.messages[:-1] == conversation[:-2]
    assert asked.messages[-1] == Message("assistant", opening("collect_subagent"))
    assert asked.extra == {"parallel_tool_calls": False, "stop": ["</tool_call>"]}
    assert [tool.name for tool in asked.tools] == ["collect_subagent"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    value=st.dictionaries(st.text(), JSON, max_size=4),
    indent=st.none() | st.integers(0, 4),
    ascii_only=st.booleans(),
)
def test_any_object_is_whole_again(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert mended(text[1:]) == ToolCall(id="", name="", arguments=value).arguments


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": 1},
        [1],
        None,
        "",
        "do it",
        '"task": "cut by the lim',
        pytest.param('"a": ' + "[" * 100_000, id="too deep to read"),
        pytest.param('"a": ' + "[" * 900 + "]" * 900 + "}", id="too deep for a block"),
    ],
)
def test_what_cannot_be_mended_stays(arguments: Any) -> None:
    assert mended(arguments) == arguments


@pytest.mark.anyio
async def test_the_rest_of_the_answer_stays() -> None:
    said = Text(text="Sure.")
    items = await answered(Scripted(said), required("f"))
    assert items == [said, Finish("tool_use")]
    assert items[0] is said


@pytest.mark.anyio
@pytest.mark.parametrize(
    "request_",
    [
        required(),
        required("f", "g"),
        Request(messages=[Message("user", "Do.")], tools=[Tool(name="f")]),
        Request(messages=[Message("user", "Do.")], tools=[Tool(name="f")], tool_choice="auto"),
    ],
)
async def test_a_request_that_requires_no_one_call_is_sent_as_it_is(request_: Request) -> None:
    call = ToolCall(id="x", name="f", arguments='"a": 1}')
    model = Scripted(call)
    assert await answered(model, request_) == [call, Finish("tool_use")]
    assert model.asked == [request_]


@pytest.mark.anyio
async def test_the_request_itself_is_not_changed() -> None:
    request = required("f", extra={"stop": ["x"], "seed": 1})
    before = request.model_copy(deep=True)
    model = Scripted()
    await answered(model, request)
    assert request == before
    assert model.asked[0].extra == {"stop": ["</tool_call>"], "seed": 1}


@pytest.mark.anyio
async def test_leaving_early_closes_the_answer_behind() -> None:
    model = Scripted(Text(text="a"), Text(text="b"))
    async with aclosing(PrefilledModel(model).stream(required("f"))) as stream:
        await anext(stream)
        assert model.closed == 0
    assert model.closed == 1
