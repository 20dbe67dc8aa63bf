"""No-op children, spawned and collected, against a task group that runs as many no-ops."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
from harness import Row, new_host, side_by_side

from gofer import Run, Runner, SubagentResult, SubagentSpec
from gofer_plugins.delegation import SubagentPlugin


class NoOp(Runner):
    """Answers at once."""

    name = "no-op"
    observed = False

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Say that it is done."""
        return run.result("done")


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield a row for each number of children, and one for the growth between them."""
    few, many = (200, 2_000) if quick else (1_000, 10_000)
    rounds = 3 if quick else 7
    plugin = SubagentPlugin(max_pending=many)
    config = {"default_runner": "no-op"}

    async def delegated(number: int) -> float:
        async with new_host(plugin, NoOp(), config=config):
            started = time.process_time()
            ids = [await plugin.spawn_subagent(SubagentSpec(task="x")) for _ in range(number)]
            for child_id in ids:
                await plugin.collect(child_id)
            return (time.process_time() - started) * 1e6 / number

    for number in (few, many):
        pair = await side_by_side(lambda n=number: delegated(n), lambda n=number: _bare(n), rounds)
        yield Row(f"{number:,} no-op children, against an anyio task group", pair, "us/child", 2.0)
    growth = await side_by_side(lambda: delegated(many), lambda: delegated(few), rounds)
    yield Row(f"a no-op child of {many:,}, against one of {few:,}", growth, "us/child", 1.3)


async def _bare(number: int) -> float:
    results: dict[int, str] = {}

    async def child(key: int) -> None:
        results[key] = "done"

    started = time.process_time()
    async with anyio.create_task_group() as group:
        for key in range(number):
            group.start_soon(child, key)
    for key in range(number):
        results.pop(key)
    return (time.process_time() - started) * 1e6 / number
