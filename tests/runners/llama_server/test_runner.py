"""The runner: one child, one turn."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gofer import (
    ConfigError,
    Host,
    Request,
    Response,
    StreamChunk,
    SubagentResult,
    SubagentSpec,
    Text,
    ToolResult,
    Usage,
    hookimpl,
)
from gofer_runners.llama_server import LlamaServer, LlamaServerRunner

pytestmark = pytest.mark.anyio


def frame(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"delta": said, "finish_reason": finish}]}


async def run(url: str, task: str = "do it", /, plugins: Any = (), **spec: Any) -> SubagentResult:
    runner = LlamaServerRunner(url, "m")
    async with Host([*plugins, runner], discover=False) as host:
        return await host.run(SubagentSpec(task=task, runner="llama-server", **spec))


async def test_a_child_is_one_turn(serve: Any) -> None:
    async def handler(exchange: Any) -> None:
        usage = {"choices": [], "usage": {"completion_tokens": 2}}
        await exchange.stream(frame(content="do"), frame("stop", content="ne"), usage)

    async with serve(handler) as server:
        result = await run(server.url)
    assert result == SubagentResult(
        subagent_id="sub-0",
        summary="done",
        exit_ok=True,
        stop_reason="end_turn",
        usage=Usage(output_tokens=2),
    )
    (request,) = server.requests
    assert request.json["messages"] == [{"role": "user", "content": "do it"}]


async def test_its_blocks_pass_the_hooks(serve: Any) -> None:
    class Watcher:
        seen: list[Any] = []  # noqa: RUF012

        @hookimpl
        def on_request(self, request: Request) -> None:
            request.messages[0].content[0] = Text(text="changed")
            self.seen.append(request.turn)

        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            assert isinstance(chunk.block, Text)
            chunk.block = Text(text=chunk.block.text.upper())

        @hookimpl
        def on_response_complete(self, response: Response) -> None:
            self.seen.append(response.turn)

    async with serve(lambda exchange: exchange.say("a", "b")) as server:
        result = await run(server.url, plugins=[Watcher()])
    assert result.summary == "AB"
    assert server.requests[0].json["messages"][0]["content"] == "changed"
    first, last = Watcher.seen
    assert first is last
    assert (first.subagent_id, first.runner, first.observed) == ("sub-0", "llama-server", False)


async def test_options(serve: Any) -> None:
    options = {"model": "other", "temperature": 0, "max_tokens": 5, "extra": {"seed": 1}}
    async with serve(lambda exchange: exchange.say("a")) as server:
        await run(server.url, options=options)
        await run(server.url)
    first, second = (request.json for request in server.requests)
    assert {key: first[key] for key in ("model", "temperature", "max_tokens", "seed")} == {
        "model": "other", "temperature": 0, "max_tokens": 5, "seed": 1
    }  # fmt: skip
    assert second["model"] == "m"
    assert not {"temperature", "max_tokens", "seed"} & set(second)


@pytest.mark.parametrize(
    ("options", "place"),
    [({"temprature": 0}, "options.temprature"), ({"max_tokens": 0}, "options.max_tokens")],
)
async def test_wrong_options(options: dict[str, Any], place: str) -> None:
    result = await run("http://127.0.0.1:1", options=options)
    assert result.stop_reason == "error"
    assert place in str(result.error)
    assert "known are model, temperature, max_tokens, extra" in str(result.error)


async def test_settings(serve: Any) -> None:
    async with serve(lambda exchange: exchange.say("a")) as server:
        table = {"base_url": server.url, "temperature": 0.5, "max_tokens": 9, "api_key": "key"}
        config = {"runners": {"llama-server": table}}
        async with Host(config=config) as host:
            assert (await host.run(SubagentSpec(task="x", runner="llama-server"))).exit_ok
            assert isinstance(host.model("llama-server"), LlamaServer)
    (request,) = server.requests[-1:]
    assert request.headers["authorization"] == "Bearer key"
    assert (request.json["temperature"], request.json["max_tokens"]) == (0.5, 9)


@pytest.mark.parametrize("table", [{"base_url": "ftp://h"}, {"max_tokens": 0}, {"unknown": 1}])
async def test_wrong_settings(table: dict[str, Any]) -> None:
    async with Host(config={"runners": {"llama-server": table}}) as host:
        with pytest.raises(ConfigError):
            await host.run(SubagentSpec(task="x", runner="llama-server"))


async def test_a_blank_prompt_is_refused() -> None:
    class Blanker:
        @hookimpl(hookwrapper=True)
        def run_subagent(self, spec: SubagentSpec, run: Any) -> Any:
            run.prompt = " \n"
            yield

    result = await run("http://127.0.0.1:1", plugins=[Blanker()])
    assert "llama-server.task: is blank" in str(result.error)


@pytest.mark.parametrize(
    ("finish", "stop_reason"), [("length", "max_tokens"), ("content_filter", "refusal")]
)
async def test_other_ends(serve: Any, finish: str, stop_reason: str) -> None:
    async with serve(lambda exchange: exchange.say("a", finish=finish)) as server:
        result = await run(server.url)
    assert (result.stop_reason, result.summary) == (stop_reason, "a")
    assert not result.exit_ok


async def test_a_task_larger_than_the_context(serve: Any, recorded: Any) -> None:
    answer = recorded("http.400-context-stream.json")
    async with serve(lambda exchange: exchange.answer(400, answer["body"])) as server:
        result = await run(server.url)
    assert result.stop_reason == "max_tokens"
    assert "context overflow" in str(result.error)
    assert not result.exit_ok


async def test_a_broken_stream_keeps_the_partial_text(serve: Any) -> None:
    async with serve(lambda e: e.say("partial", finish=None, done=False)) as server:
        result = await run(server.url)
    assert (result.stop_reason, result.summary) == ("error", "partial")
    assert "without a finish reason" in str(result.error)


async def test_tool_calls_are_executed_and_the_turn_is_over(serve: Any) -> None:
    class Tool:
        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if chunk.block.type == "tool_call":
                chunk.block = ToolResult(tool_call_id=chunk.block.id, output="result")

    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}

    async def handler(exchange: Any) -> None:
        await exchange.stream(frame(content="a"), frame("tool_calls", tool_calls=[call]))

    async with serve(handler) as server:
        result = await run(server.url, plugins=[Tool()])
    assert len(server.requests) == 1
    assert (result.stop_reason, result.summary, result.exit_ok) == ("tool_use", "a", False)
    assert "one turn only" in str(result.error)


async def test_cancelling_a_child_closes_its_connection(serve: Any) -> None:
    asked, closed = anyio.Event(), anyio.Event()

    async def handler(exchange: Any) -> None:
        await exchange.say("partial", finish=None, done=False)
        asked.set()
        await exchange.gone()
        closed.set()

    async with serve(handler) as server:
        async with Host([LlamaServerRunner(server.url, "m")], discover=False) as host:
            child = await host.spawn(SubagentSpec(task="x", runner="llama-server"))
            await asked.wait()
            await host.cancel(child.id)
            with anyio.fail_after(5):
                await closed.wait()
            assert (await child.wait()).stop_reason == "cancelled"


async def test_many_children(serve: Any) -> None:
    async with serve(lambda exchange: exchange.say("a")) as server:
        async with Host([LlamaServerRunner(server.url, "m")], discover=False) as host:
            results: list[SubagentResult] = []

            async def one() -> None:
                results.append(await host.run(SubagentSpec(task="x", runner="llama-server")))

            async with anyio.create_task_group() as tasks:
                for _ in range(60):
                    tasks.start_soon(one)
    assert len(results) == 60
    assert all(result.exit_ok for result in results)
