"""One long response through ``host.stream``, against httpx and json by hand; and its memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

from bare import ask, client
from dispatch import Watcher
from harness import Pair, Row, new_host, side_by_side
from server import WORD, running

from gofer import Host, Message, Request, Text
from gofer_runners.llama_server import LlamaServer


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield a row for the rate, and one for the memory."""
    few = 2_000 if quick else 20_000
    # Buffers of a fixed size must count for little beside the text.
    short, long = 20_000, 100_000 if quick else 200_000
    with running() as address:
        async with new_host(Watcher()) as host, client() as http:

            async def ours(chunks: int) -> int:
                return await _stream(host, f"{address}/{chunks}/0/v1")

            async def bare(chunks: int) -> int:
                return len(await ask(http, f"{address}/{chunks}/0/v1/chat/completions"))

            pair = await side_by_side(
                lambda: _rate(ours, few), lambda: _rate(bare, few), 5 if quick else 11
            )
            yield Row(
                f"{few:,} chunks through one plugin, against httpx", pair, "/s", 0.65, at_least=True
            )
            # As tracemalloc counts it: how much higher memory stood at its highest in the long
            # response than in the short one, against the text that is between them. The text
            # itself is 1; a 32nd of it may wait to be joined, and is there twice while it is.
            grown = await _peak(ours, long) - await _peak(ours, short)
            text = (long - short) * len(WORD)
            yield Row(
                f"peak memory, {short:,} to {long:,} chunks, against their text",
                Pair(grown / 1024, text / 1024, grown / text),
                "KiB",
                1.1,
            )


async def _stream(host: Host, base_url: str) -> int:
    request = Request(messages=[Message("user", "x")])
    length = 0
    async with host.stream(request, LlamaServer(base_url, "bench")) as stream:
        async for block in stream:
            if isinstance(block, Text):
                length += len(block.text)
    return length


async def _rate(side: Callable[[int], Awaitable[int]], chunks: int) -> float:
    started = time.perf_counter()
    length = await side(chunks)
    seconds = time.perf_counter() - started
    assert length == chunks * len(WORD)
    return chunks / seconds


async def _peak(side: Callable[[int], Awaitable[int]], chunks: int) -> int:
    await side(10)
    tracemalloc.start()
    await side(chunks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
