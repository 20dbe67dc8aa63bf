"""A Host with fake agents, what it brought, and a look at what lives."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from gofer import Block, Host, StreamChunk, SubagentResult, SubagentSpec, hookimpl
from gofer._proc import descendants, parent_of
from gofer.testing import fake_agent
from gofer_runners.acp import AcpRunner

Script = dict[str, Any]


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"say": text, **more}


def turn(*steps: dict[str, Any], **script: Any) -> Script:
    """A script of one turn."""
    return {"turns": [list(steps)], **script}


class Watcher:
    """A plugin that keeps every block, and can react to one."""

    name = "watcher"

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.react: Callable[[StreamChunk], Any] | None = None

    @hookimpl
    async def on_stream_chunk(self, chunk: StreamChunk) -> None:
        assert chunk.turn.observed
        self.blocks.append(chunk.block)
        if self.react is not None:
            answer = self.react(chunk)
            if answer is not None:
                await answer

    def of(self, kind: type[Any]) -> list[Any]:
        return [block for block in self.blocks if isinstance(block, kind)]


class Bench:
    """A Host with fake agents by name."""

    def __init__(self, host: Host, watcher: Watcher) -> None:
        self.host = host
        self.watcher = watcher

    async def run(self, agent: str = "fake", task: str = "do it", **spec: Any) -> SubagentResult:
        return await self.host.run(SubagentSpec(task=task, agent=agent, **spec))

    async def play(self, *steps: dict[str, Any], agent: str = "player") -> SubagentResult:
        """Have the agent ``player`` play these steps, a warm one where there is one."""
        return await self.run(agent, json.dumps(steps))

    async def alive(self) -> set[int]:
        """Return all processes that were started for agents and live."""
        supervisor = await self.host.supervisor()
        found = {pid for pid, _ in descendants(supervisor.pid)}
        return {pid for pid in found if parent_of(pid) in found and lives(pid)}

    async def pids(self) -> set[int]:
        """Return the processes of the agents themselves."""
        supervisor = await self.host.supervisor()
        found = dict(descendants(supervisor.pid))
        reapers = {pid for pid in found if parent_of(pid) == supervisor.pid}
        return {pid for pid in found if parent_of(pid) in reapers and lives(pid)}


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def settings(script: Script, **more: Any) -> dict[str, Any]:
    """Return the configuration of an agent that plays *script*."""
    return {
        "command": fake_agent.command(script),
        "cancel_grace": 0.3,
        "end_grace": 0.2,
        **more,
    }


@asynccontextmanager
async def bench(
    script: Script | None = None,
    *,
    agents: dict[str, Any] | None = None,
    runner: AcpRunner | None = None,
    cwd: Path | None = None,
    plugins: list[Any] | None = None,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[Bench]:
    """Open a Host whose agent ``fake`` plays *script*, with *more* settings."""
    all_agents = dict(agents or {})
    if script is not None:
        all_agents["fake"] = settings(script, **more)
    player = settings({"options": {"prompts_are_steps": True}}, **more)
    all_agents.setdefault("player", player)
    watcher = Watcher()
    given = [runner or AcpRunner(), watcher, *(plugins or [])]
    async with Host(
        given, {"agents": all_agents, **(config or {})}, discover=False, cwd=cwd
    ) as host:
        yield Bench(host, watcher)


def sent(path: Path, method: str | None = None) -> list[dict[str, Any]]:
    """Return what gofer sent to a fake agent that records it; of one *method*, its parameters."""
    messages: list[dict[str, Any]] = [json.loads(line) for line in path.read_bytes().splitlines()]
    if method is None:
        return messages
    return [message["params"] for message in messages if message.get("method") == method]


def told(summary: str) -> Any:
    """Return what a fake agent was answered and told."""
    return json.loads(summary)
