"""The model and the runner against the real llama.cpp server."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import anyio
import httpx
import pytest

from gofer import Finish, Host, Message, ModelError, Request, SubagentSpec, Text, Tool, ToolCall
from gofer_plugins.delegation._prefill import PrefilledModel
from gofer_runners.llama_server import LlamaServer, LlamaServerRunner
from gofer_runners.llama_server._embedded import embedded_server

pytestmark = [pytest.mark.anyio, pytest.mark.model]


def request(text: str, **rest: object) -> Request:
    return Request.model_validate({"messages": [Message("user", text)], "temperature": 0, **rest})


async def test_the_model(embedded_model: Path) -> None:
    with anyio.fail_after(120):
        async with embedded_server(embedded_model, slots=1, context=512) as server:
            model = LlamaServer(server.base_url, api_key=server.api_key)

            *blocks, finish = [
                item async for item in model.stream(request("What is a cat?", max_tokens=5))
            ]
            assert blocks
            assert all(isinstance(block, Text) for block in blocks)
            assert isinstance(finish, Finish)
            assert finish.stop_reason == "max_tokens"
            assert finish.usage is not None
            assert finish.usage.output_tokens == 5
            assert finish.model == server.model

            with pytest.raises(ModelError, match=r"context overflow.*tokens into 512"):
                async for _ in model.stream(request("word " * 600)):
                    pass

            wrong = LlamaServer(server.base_url, api_key="wrong")
            with pytest.raises(ModelError, match="the key in GOFER_API_KEY"):
                async for _ in wrong.stream(request("hi")):
                    pass

            # Leaving frees the only slot: the next request is answered while the first would
            # still be written.
            async with aclosing(
                model.stream(request("Tell a long story.", max_tokens=400))
            ) as long:
                await anext(long)
                assert await busy(server.base_url, server.api_key)
            with anyio.fail_after(10):
                while await busy(server.base_url, server.api_key):
                    pass


async def busy(base_url: str, key: str) -> bool:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as client:
        slots = (await client.get(base_url.removesuffix("/v1") + "/slots")).json()
    return any(slot["is_processing"] for slot in slots)


async def test_a_tool_call(embedded_model: Path) -> None:
    schema = {"type": "object", "properties": {"task": {"type": "string", "maxLength": 60}}}
    tool = Tool(name="spawn", input_schema={**schema, "required": ["task"]})
    asked = request("Have someone greet Ann.", tools=[tool], tool_choice="required", max_tokens=160)
    with anyio.fail_after(120):
        async with embedded_server(None, slots=1, context=1024) as server:
            # Even so small a model calls a tool, where its call is begun for it.
            model = PrefilledModel(LlamaServer(server.base_url, api_key=server.api_key))
            items = [item async for item in model.stream(asked)]
    calls = [item for item in items if isinstance(item, ToolCall)]
    assert calls
    assert calls[0].name == "spawn"
    assert isinstance(calls[0].arguments, dict)
    assert isinstance(items[-1], Finish)
    assert items[-1].stop_reason == "tool_use"


async def test_children_on_the_server_of_the_host(embedded_model: Path) -> None:
    runner = LlamaServerRunner(
        model_file=embedded_model, slots=2, context=512, max_tokens=5, temperature=0
    )
    with anyio.fail_after(120):
        async with Host([runner], discover=False) as host:
            results = []

            async def one(task: str) -> None:
                spec = SubagentSpec(task=task, runner="llama-server")
                results.append(await host.run(spec))

            async with anyio.create_task_group() as tasks:
                for task in ("Say hi.", "Name a colour.", "word " * 600):
                    tasks.start_soon(one, task)
    assert sorted(result.stop_reason for result in results) == ["max_tokens"] * 3
    assert sorted(bool(result.summary) for result in results) == [False, True, True]
