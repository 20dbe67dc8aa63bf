"""What one block costs on its way through the hooks, against pluggy's own call."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pluggy
from harness import Pair, Row, new_host, side_by_side

from gofer import Host, StreamChunk, Text, Turn, hookimpl
from gofer._dispatch import pass_chunk
from gofer.hooks import HookSpecs


class Watcher:
    """A plugin that only looks."""

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        """Look at nothing."""


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield a row for each number of plugins."""
    for plugins in (0, 1, 5):
        watchers = [Watcher() for _ in range(plugins)]
        async with new_host(*watchers) as host:
            pair = await _compare(host, watchers, 20_000 if quick else 100_000, 5 if quick else 15)
        yield Row(f"one block through {plugins} plugins, against pluggy", pair, "us", 0.5)


async def _compare(host: Host, watchers: list[Watcher], blocks: int, rounds: int) -> Pair:
    turn = Turn(id="turn-0", host=host, session="bench")
    block = Text(text="word ")
    hooks = host._registry.on_stream_chunk
    manager = pluggy.PluginManager("gofer")
    manager.add_hookspecs(HookSpecs)
    for watcher in watchers:
        manager.register(watcher)
    call = manager.hook.on_stream_chunk

    async def ours() -> float:
        started = time.process_time()
        for _ in range(blocks):
            chunk = StreamChunk(block, turn)
            if hooks:
                await pass_chunk(hooks, chunk)
        return (time.process_time() - started) * 1e6 / blocks

    async def pluggys() -> float:
        started = time.process_time()
        for _ in range(blocks):
            chunk = StreamChunk(block, turn)
            call(chunk=chunk)
        return (time.process_time() - started) * 1e6 / blocks

    return await side_by_side(ours, pluggys, rounds)
