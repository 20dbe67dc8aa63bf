"""The same children through the tool calls of a parent, against a bare HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from fan_out import CHUNKS, OF_ONE_CLIENT, TO_A_CLIENT, by_hand, timed
from harness import Row, new_host, side_by_side
from server import running

from gofer import Block, Finish, Host, Request, ToolCall, ToolResult
from gofer_plugins.delegation import SubagentPlugin
from gofer_runners.llama_server import LlamaServerRunner


class Parent:
    """A model that makes the calls it is told to make."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self.calls = calls

    async def stream(self, request: Request) -> AsyncIterator[Block | Finish]:
        """Make them."""
        for call in self.calls:
            yield call
        yield Finish("tool_use")


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield two rows for each latency: against one client, and against many."""
    number, rounds = (100, 3) if quick else (1_000, 5)
    with running() as address:
        for latency in (0, 50):
            url = f"{address}/{CHUNKS}/{latency}/v1"

            async def ours(url: str = url) -> float:
                return await timed(delegated, number, url)

            async def bare(url: str = url) -> float:
                return await timed(by_hand, number, url)

            async def sharded(url: str = url) -> float:
                return await timed(by_hand, number, url, number // TO_A_CLIENT)

            name = f"{number:,} spawned and collected, {latency} ms"
            pair = await side_by_side(ours, bare, rounds if quick else OF_ONE_CLIENT, warm_up=quick)
            yield Row(f"{name}, against one client", pair, "s", 1.3)
            pair = await side_by_side(ours, sharded, rounds)
            yield Row(f"{name}, against {TO_A_CLIENT} to a client", pair, "s", 1.3)


async def delegated(number: int, url: str) -> list[str]:
    """Have a parent spawn the children in one response, and collect them in its next."""
    plugin, runner = SubagentPlugin(), LlamaServerRunner(url, "bench")
    async with new_host(plugin, runner, config={"default_runner": "llama-server"}) as host:
        ids = await _make_calls(host, "spawn_subagent", [{"task": "x"}] * number)
        return await _make_calls(host, "collect_subagent", [{"subagent_id": i} for i in ids])


async def _make_calls(host: Host, name: str, arguments: Sequence[dict[str, str]]) -> list[str]:
    parent = Parent(
        [ToolCall(id=f"c{key}", name=name, arguments=given) for key, given in enumerate(arguments)]
    )
    async with host.stream(Request(), parent) as stream:
        return [block.output async for block in stream if isinstance(block, ToolResult)]
