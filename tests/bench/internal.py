"""The harness's loop against one by hand, over the same server: a turn, and many children."""

from __future__ import annotations

import json
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.to_thread import run_sync
from bare import client
from harness import Pair, Row, side_by_side
from tool_server import REPORT, running

from gofer import Host, SubagentSpec
from gofer_runners.internal import InternalRunner
from gofer_runners.internal._files import Read
from gofer_runners.internal._tool import schema_of
from gofer_runners.llama_server import LlamaServer

_TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read.", "parameters": schema_of(Read)},
}


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield a row for a turn, and for many children one for their time and one for memory."""
    turns, number, rounds = (20, 50, 3) if quick else (50, 200, 5)
    with tempfile.TemporaryDirectory() as folder, running() as address:
        work = Path(folder)
        (work / "a.txt").write_text("word\n" * 100)

        def sides(turns: int, calls: int, number: int) -> tuple[Callable[[], Any], ...]:
            url = f"{address}/{turns}/{calls}/v1"
            return partial(_ours, url, work, number), partial(_bare, url, work, number)

        ours, bare = sides(turns, 1, 1)
        pair = await side_by_side(
            partial(_cpu, ours, turns), partial(_cpu, bare, turns), rounds * 2 + 1
        )
        # The model opens a connection for each request, because llama-server closes them.
        yield Row(f"one turn of a loop of {turns}, a call in each", pair, "us CPU", 2.5)

        ours, bare = sides(3, 2, number)
        pair = await side_by_side(partial(_wall, ours), partial(_wall, bare), rounds)
        yield Row(f"{number} children at once, 3 turns, 2 calls each", pair, "s", 1.5)
        grown, floor = await _peak(ours), await _peak(bare)
        yield Row(
            f"peak memory of {number} such children",
            Pair(grown / 1024, floor / 1024, grown / floor),
            "KiB",
            3.0,
        )


async def _ours(url: str, work: Path, number: int) -> None:
    config = {"max_concurrent": number, "default_runner": "internal"}
    runner = InternalRunner(LlamaServer(url, "bench"))
    async with Host([runner], config, discover=False, cwd=work) as host:

        async def child() -> None:
            spec = SubagentSpec(task="Read it.", tool_scope=["read_file"])
            result = await host.run(spec)
            assert result.summary == REPORT, result

        await _at_once(child, number)


async def _bare(url: str, work: Path, number: int) -> None:
    async with client() as http:

        async def child() -> None:
            assert await _loop(http, f"{url}/chat/completions", work) == REPORT

        await _at_once(child, number)


async def _loop(http: httpx.AsyncClient, url: str, work: Path) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read it."}]
    while True:
        body = {"messages": messages, "tools": [_TOOL], "stream": True}
        content, calls = "", []
        async with http.stream("POST", url, json=body) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                delta = json.loads(line[6:])["choices"][0]["delta"]
                content += delta.get("content") or ""
                calls += delta.get("tool_calls") or []
        if not calls:
            return content
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        for call in calls:
            asked = json.loads(call["function"]["arguments"])
            text = await run_sync(_read, work / asked["path"], asked["line"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


def _read(path: Path, line: int) -> str:
    return "".join(path.read_text().splitlines(keepends=True)[line - 1 :])


async def _at_once(child: Callable[[], Awaitable[None]], number: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(number):
            group.start_soon(child)


async def _cpu(side: Callable[[], Awaitable[None]], turns: int) -> float:
    started = time.process_time()
    await side()
    return (time.process_time() - started) * 1e6 / turns


async def _wall(side: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await side()
    return time.perf_counter() - started


async def _peak(side: Callable[[], Awaitable[None]]) -> int:
    await side()
    tracemalloc.start()
    await side()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
