"""A thousand children at once, one request each, against a bare HTTP client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
from bare import ask_at_once
from harness import Row, new_host, side_by_side
from server import WORD, running

from gofer import Host, SubagentSpec
from gofer_runners.llama_server import LlamaServerRunner

CHUNKS = 20
TO_A_CLIENT = 25


# One client's pool is quadratic: a thousand at once take it half a minute of one processor, ten
# times as long as all the rest. One round tells what there is to tell.
OF_ONE_CLIENT = 1


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield two rows for each latency: against one client, and against many."""
    number, rounds = (100, 3) if quick else (1_000, 5)
    with running() as address:
        for latency in (0, 50):
            url = f"{address}/{CHUNKS}/{latency}/v1"

            async def ours(url: str = url) -> float:
                return await timed(host_run, number, url)

            async def bare(url: str = url) -> float:
                return await timed(by_hand, number, url)

            async def sharded(url: str = url) -> float:
                return await timed(by_hand, number, url, number // TO_A_CLIENT)

            name = f"{number:,} children, {latency} ms"
            pair = await side_by_side(ours, bare, rounds if quick else OF_ONE_CLIENT, warm_up=quick)
            yield Row(f"{name}, against one httpx client", pair, "s", 1.0)
            pair = await side_by_side(ours, sharded, rounds)
            yield Row(f"{name}, against httpx, {TO_A_CLIENT} to a client", pair, "s")


async def timed(side, *arguments) -> float:  # type: ignore[no-untyped-def]
    """Return how many seconds *side* took; each of its texts must be whole."""
    started = time.perf_counter()
    texts = await side(*arguments)
    seconds = time.perf_counter() - started
    assert texts == [WORD * CHUNKS] * arguments[0]
    return seconds


async def by_hand(number: int, url: str, clients: int = 1) -> list[str]:
    """Ask without gofer."""
    return await ask_at_once(number, f"{url}/chat/completions", clients)


async def host_run(number: int, url: str) -> list[str]:
    """Have ``host.run`` do it."""
    texts: list[str] = []

    async def child(host: Host) -> None:
        result = await host.run(SubagentSpec(task="x"))
        texts.append(result.summary)

    config = {"default_runner": "llama-server"}
    async with new_host(LlamaServerRunner(url, "bench"), config=config) as host:
        async with anyio.create_task_group() as group:
            for _ in range(number):
                group.start_soon(child, host)
    return texts
