"""The runner, with agents whose model is a function: no network."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pydantic
import pytest
from gofer import (
    Block,
    ConfigError,
    GoferError,
    Host,
    PluginNotSupportedError,
    PluginValidationError,
    StreamChunk,
    SubagentResult,
    SubagentSpec,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    hookimpl,
)
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import ContentFilterError, IncompleteToolCall, ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from gofer_pydantic_ai import PydanticAIRunner
from gofer_pydantic_ai._sessions import Sessions

pytestmark = pytest.mark.anyio

Stream = Callable[[list[ModelMessage], AgentInfo], AsyncIterator[Any]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's own settings out of the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


class Seen:
    """Keeps the blocks that passed, and calls back at each."""

    def __init__(self, at_each: Callable[[Block], None] = lambda block: None) -> None:
        self.blocks: list[Block] = []
        self._at_each = at_each

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        assert chunk.turn.observed
        self.blocks.append(chunk.block)
        self._at_each(chunk.block)


def agent_of(stream: Stream, **settings: Any) -> Agent[Any, Any]:
    return Agent(FunctionModel(stream_function=stream), **settings)


def says(*pieces: Any) -> Stream:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    return stream


async def repeat(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Say all that the user has said so far."""
    yield " | ".join(
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    )


async def ask(
    agent: Any, task: str = "go", *plugins: object, spec: dict[str, Any] | None = None, **given: Any
) -> SubagentResult:
    runner = PydanticAIRunner(agent, **given)
    with anyio.fail_after(60):
        async with Host([runner, *plugins], discover=False) as host:
            return await host.run(SubagentSpec(task=task, runner="pydantic-ai", **(spec or {})))


async def test_text_and_thoughts_come_as_they_are_made() -> None:
    seen = Seen()
    stream = says(
        {0: DeltaThinkingPart(content="Hm")}, {0: DeltaThinkingPart(content="m")}, "A", "B"
    )
    result = await ask(agent_of(stream), "go", seen)
    assert seen.blocks == [
        Thinking(text="Hm", message_id="1"),
        Thinking(text="m", message_id="1"),
        Text(text="A", message_id="1"),
        Text(text="B", message_id="1"),
    ]
    assert (result.summary, result.stop_reason, result.exit_ok) == ("AB", "end_turn", True)
    assert result.usage is not None
    assert result.usage.output_tokens


async def test_each_call_has_its_result_even_where_the_model_repeats_an_id() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        if len(messages) < 6:
            yield "Let me see."
            first = len(messages) == 1
            arguments = '{"word": "no"}' if first else '{"word": "yes"}'
            yield {1: DeltaToolCall(name="check", json_args=arguments, tool_call_id="same")}
        else:
            yield "Done."

    agent = agent_of(stream)

    @agent.tool_plain(retries=3)
    def check(word: str) -> dict[str, str]:
        if word == "no":
            raise ModelRetry("say yes")
        return {"said": word}

    seen = Seen()
    result = await ask(agent, "go", seen)
    tools = [block for block in seen.blocks if isinstance(block, ToolCall | ToolResult)]
    calls = [block for block in tools if isinstance(block, ToolCall)]
    assert [call.id for call in calls] == ["same", "same#2", "same#3"]
    assert [call.arguments for call in calls] == [{"word": "no"}, {"word": "yes"}, {"word": "yes"}]
    results = [block for block in tools if isinstance(block, ToolResult)]
    assert [done.tool_call_id for done in results] == ["same", "same#2", "same#3"]
    assert [done.is_error for done in results] == [True, False, False]
    assert "say yes" in results[0].output
    assert results[1].output == '{"said":"yes"}'
    assert (result.summary, result.fallback) == ("Done.", False)


async def test_an_output_that_is_no_text_is_given_as_json() -> None:
    class City(pydantic.BaseModel):
        name: str
        people: int

    model = TestModel(custom_output_args={"name": "Köln", "people": 1})
    result = await ask(Agent(model, output_type=City))
    assert result.summary == '{"name": "Köln", "people": 1}'
    assert result.exit_ok


async def test_an_output_that_was_changed_counts() -> None:
    agent = agent_of(says("raw"))

    @agent.output_validator
    def better(output: str) -> str:
        return output.upper()

    seen = Seen()
    result = await ask(agent, "go", seen)
    assert [block.text for block in seen.blocks if isinstance(block, Text)] == ["raw", "RAW"]
    assert result.summary == "RAW"


async def test_dependencies_reach_the_tools() -> None:
    agent: Agent[str, str] = Agent(TestModel(), deps_type=str)

    @agent.tool
    def who(context: RunContext[str]) -> str:
        return context.deps

    assert (await ask(agent, deps="me")).summary == '{"who":"me"}'


async def test_a_conversation_is_resumed() -> None:
    runner = PydanticAIRunner(agent_of(repeat))

    async def tell(host: Host, task: str, resume: str | None) -> SubagentResult:
        return await host.run(SubagentSpec(task=task, runner="pydantic-ai", resume=resume))

    with anyio.fail_after(60):
        async with Host([runner], discover=False) as host:
            first = await tell(host, "one", None)
            assert first.session is not None
            second = await tell(host, "two", first.session.id)
            other = await tell(host, "other", None)
            third = await tell(host, "three", first.session.id)
        async with Host([runner], discover=False) as host:
            fresh = await tell(host, "four", first.session.id)
    assert [r.summary for r in (first, second, other, third)] == [
        "one", "one | two", "other", "one | two | three",
    ]  # fmt: skip
    assert (first.session.resumed, first.session.reason) == (False, None)
    assert second.session is not None
    assert (second.session.id, second.session.resumed) == (first.session.id, True)
    assert (fresh.summary, fresh.exit_ok) == ("four", True)
    assert fresh.session is not None
    assert fresh.session.id != first.session.id
    assert f"there is no session '{first.session.id}'" in str(fresh.session.reason)


def test_sessions_are_bounded_and_one_child_has_each() -> None:
    def of(text: str) -> list[ModelMessage]:
        return [ModelRequest(parts=[UserPromptPart(text)])]

    sessions = Sessions(most=2, size=2000)
    infos = []
    for number in range(3):
        info, messages = sessions.open(None)
        assert messages == []
        sessions.keep(info, of(f"text {number}"))
        sessions.close(info)
        infos.append(info)
    assert len(sessions) == 2
    assert "not any more" in str(sessions.open(infos[0].id)[0].reason)
    taken, messages = sessions.open(infos[1].id)
    assert (taken.resumed, len(messages)) == (True, 1)
    busy, messages = sessions.open(infos[1].id)
    assert (busy.resumed, messages) == (False, [])
    assert "in use by another child" in str(busy.reason)
    sessions.close(taken)
    assert sessions.open(infos[1].id)[0].resumed
    sessions.keep(infos[2], of("x" * 3000))
    assert (len(sessions), sessions.bytes) == (0, 0)


async def test_a_cancelled_agent_keeps_what_it_said_and_can_be_resumed() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        if len(messages) > 1:
            yield f"again, after {len(messages)}"
            return
        yield "Begun."
        yield {1: DeltaToolCall(name="block", json_args="{}", tool_call_id="b")}

    agent = agent_of(stream)
    go_on = threading.Event()

    @agent.tool_plain
    def block() -> str:
        go_on.wait(60)
        return "late"

    def at_call(block: Block) -> None:
        if isinstance(block, ToolCall):
            child.cancel()

    seen = Seen(at_call)
    try:
        with anyio.fail_after(60):
            async with Host([PydanticAIRunner(agent), seen], discover=False) as host:
                child = await host.spawn(SubagentSpec(task="go", runner="pydantic-ai"))
                result = await child.wait()
                assert result.session is not None
                resumed = await host.run(
                    SubagentSpec(task="on", runner="pydantic-ai", resume=result.session.id)
                )
    finally:
        go_on.set()
    assert (result.stop_reason, result.summary, result.fallback) == ("cancelled", "Begun.", True)
    assert [block.is_error for block in seen.blocks if isinstance(block, ToolResult)] == [True]
    assert resumed.session is not None
    assert resumed.session.resumed
    assert resumed.summary.startswith("again")


async def test_a_time_limit_ends_an_agent() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        await anyio.sleep_forever()
        yield "never"

    result = await ask(agent_of(stream), spec={"timeout": 0.5})
    assert result.stop_reason == "cancelled"
    assert "timed out" in str(result.error)


async def test_failures_say_what_went_wrong() -> None:
    def fails(error: Exception) -> Agent[Any, Any]:
        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            yield "Begun."
            raise error

        return agent_of(stream)

    for error, stop_reason, words in (
        (ModelHTTPError(503, "m", {"why": "busy"}), "error", "503"),
        (ContentFilterError("not this"), "refusal", "not this"),
        (IncompleteToolCall("too long"), "max_tokens", "too long"),
        (ZeroDivisionError("a bug"), "error", "ZeroDivisionError: a bug"),
    ):
        result = await ask(fails(error))
        assert (result.stop_reason, result.summary) == (stop_reason, "Begun."), error
        assert words in str(result.error)
        assert result.session is None


async def test_a_tool_that_raises_fails_the_run_and_its_call_is_closed() -> None:
    agent: Agent[None, str] = Agent(TestModel())

    @agent.tool_plain
    def broken() -> str:
        raise ZeroDivisionError("in the tool")

    seen = Seen()
    result = await ask(agent, "go", seen)
    assert result.error == "the agent failed: ZeroDivisionError: in the tool"
    assert [type(block) for block in seen.blocks] == [ToolCall, ToolResult]


async def test_a_request_limit_is_an_end_of_its_own() -> None:
    agent = agent_of(says({0: DeltaToolCall(name="again", json_args="{}")}))

    @agent.tool_plain
    def again() -> str:
        return "once more"

    seen = Seen()
    result = await ask(agent, "go", seen, spec={"options": {"request_limit": 3}})
    assert result.stop_reason == "max_turn_requests"
    assert "request_limit of 3" in str(result.error)
    assert sum(isinstance(block, ToolCall) for block in seen.blocks) == 3
    assert (await ask(agent, request_limit=2)).stop_reason == "max_turn_requests"


async def test_an_error_of_a_hook_ends_the_run() -> None:
    def refuse(block: Block) -> None:
        raise ValueError("not this block")

    result = await ask(agent_of(says("a", "b")), "go", Seen(refuse))
    assert result.stop_reason == "error"
    assert "not this block" in str(result.error)


async def test_children_in_parallel_do_not_mix() -> None:
    results: dict[int, SubagentResult] = {}
    with anyio.fail_after(60):
        async with Host([PydanticAIRunner(agent_of(repeat))], discover=False) as host:

            async def one(number: int) -> None:
                spec = SubagentSpec(task=f"task {number}", runner="pydantic-ai")
                results[number] = await host.run(spec)

            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(one, number)
    assert {number: result.summary for number, result in results.items()} == {
        number: f"task {number}" for number in range(20)
    }


async def test_what_it_cannot_do_is_refused() -> None:
    agent = agent_of(repeat)
    for given, spec, error, words in (
        (agent, {"tool_scope": ["read"]}, PluginNotSupportedError, "cannot be held to read"),
        (agent, {"options": {"model": "x"}}, PluginValidationError, "pydantic-ai.options.model"),
        ("nowhere_at_all:agent", {}, PluginNotSupportedError, "No module named 'nowhere_at_all'"),
        ("json:agent", {}, PluginNotSupportedError, "has no attribute 'agent'"),
        ("json:dumps", {}, PluginNotSupportedError, "is a function and no agent"),
    ):
        with pytest.raises(error, match=words):
            await ask(given, spec=spec)


async def test_an_agent_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("agents_of_mine")
    module.inner = types.SimpleNamespace(repeat=agent_of(repeat))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agents_of_mine", module)
    config = {"runners": {"pydantic-ai": {"agent": "agents_of_mine:inner.repeat"}}}
    with anyio.fail_after(60):
        async with Host([PydanticAIRunner], config, discover=False) as host:
            result = await host.run(SubagentSpec(task="hello", runner="pydantic-ai"))
    assert result.summary == "hello"


@pytest.mark.parametrize("settings", [{}, {"agent": "no colon"}, {"agent": "a:b", "sessions": -1}])
async def test_wrong_settings_are_an_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"runners\.pydantic-ai"):
        async with Host([PydanticAIRunner], {"runners": {"pydantic-ai": settings}}, discover=False):
            pass


def test_on_trio_it_says_what_to_do() -> None:
    pytest.importorskip("trio")
    with pytest.raises(GoferError, match="works on asyncio alone"):
        anyio.run(ask, agent_of(repeat), backend="trio")
