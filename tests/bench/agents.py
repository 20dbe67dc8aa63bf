"""Turns of an agent process, against raw JSON over its pipes in the same run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
from agents_raw import Raw, cold_turn
from harness import Row, new_host, side_by_side

from gofer import Host, SubagentSpec
from gofer.testing import fake_agent
from gofer_runners.acp import AcpRunner

PLAIN = {"turns": [[{"say": "hello"}]]}
CHUNKS = 100_000
# A warm turn is short: one alone, after a search for garbage, measures cold caches.
IN_A_ROW = 20


def command(script: dict[str, Any]) -> list[str]:
    """Return how the fake agent is started, with as little else as can be."""
    return [sys.executable, "-I", "-S", str(fake_agent.__file__), json.dumps(script)]


async def raw_cold() -> float:
    """Start an agent, have a turn, and end it."""
    started = time.perf_counter()
    assert await cold_turn(command(PLAIN)) == "hello"
    return (time.perf_counter() - started) * 1e3


def agents(**scripts: Any) -> dict[str, Any]:
    """Return the settings for agents of these scripts."""
    return {
        "default_runner": "acp",
        "agents": {
            name: {"command": command(script), "warm": not name.startswith("cold")}
            for name, script in scripts.items()
        },
    }


async def turn(host: Host, agent: str) -> float:
    """Have one turn through the Host."""
    started = time.perf_counter()
    result = await host.run(SubagentSpec(task="go", agent=agent))
    assert result.exit_ok, result
    return (time.perf_counter() - started) * 1e3


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield a row for a cold and a warm turn, a flood, its memory, and the whole command."""
    rounds, chunks = (5, CHUNKS // 10) if quick else (21, CHUNKS)
    flood = {"turns": [[{"flood": chunks, "text": "word "}]]}
    config = agents(cold=PLAIN, warm=PLAIN, flood=flood)
    async with new_host(AcpRunner(), config=config) as host:
        pair = await side_by_side(lambda: turn(host, "cold"), raw_cold, rounds)
        yield Row("a cold turn in a running Host, against raw JSON", pair, "ms", 1.2)
        async with await anyio.open_process(command(PLAIN), stderr=None) as process:
            raw = Raw(process)
            await raw.begin()

            async def raw_warm() -> float:
                started = time.perf_counter()
                for _ in range(IN_A_ROW):
                    await raw.turn()
                return (time.perf_counter() - started) * 1e3 / IN_A_ROW

            async def gofer_warm() -> float:
                return statistics.fmean([await turn(host, "warm") for _ in range(IN_A_ROW)])

            pair = await side_by_side(gofer_warm, raw_warm, 2 * rounds)
            process.kill()
        added = f"{pair.gofer - pair.floor:.2f} ms above it, aim 0.4"
        yield Row(f"a warm turn ({added})", pair, "ms")
        async with await anyio.open_process(command(flood), stderr=None) as process:
            raw = Raw(process)
            await raw.begin()

            async def raw_flood() -> float:
                started = time.perf_counter()
                assert len(await raw.turn()) == 5 * chunks
                return chunks / (time.perf_counter() - started)

            async def gofer_flood() -> float:
                return chunks / (await turn(host, "flood") / 1e3)

            pair = await side_by_side(gofer_flood, raw_flood, 3 if quick else 5)
            process.kill()
        yield Row(f"{chunks:,} chunks of an agent", pair, "/s", 0.7, at_least=True)
    pair = await side_by_side(_whole_command, lambda: _whole_raw("agents_raw"), rounds)
    yield Row("gofer run --agent as a whole process, against raw", pair, "ms", 2.3)
    pair = await side_by_side(_whole_command, lambda: _whole_raw("agents_blocking"), rounds)
    yield Row("the same, against raw without an event loop", pair, "ms")
    if peer := shutil.which("acpx"):
        pair = await side_by_side(_whole_command, lambda: _whole_peer(peer), rounds)
        yield Row("the same, against the acpx on PATH", pair, "ms")


async def _whole_command() -> float:
    # In a folder of its own, whose settings name the agent.
    with tempfile.TemporaryDirectory() as home:
        _configure(Path(home, "gofer"))
        environment = {**os.environ, "XDG_CONFIG_HOME": home}
        argv = [str(Path(sysconfig.get_path("scripts"), "gofer")), "run", "--agent", "fake", "go"]
        return await _process(argv, environment, home)


def _configure(folder: Path) -> None:
    folder.mkdir()
    words = ", ".join(json.dumps(word) for word in command(PLAIN))
    (folder / "gofer.toml").write_text(f"[agents.fake]\ncommand = [{words}]\n")


async def _whole_raw(program: str) -> float:
    folder = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import {program}; {program}.main()"
    return await _process([sys.executable, "-c", code, *command(PLAIN)], dict(os.environ), "/")


async def _whole_peer(program: str) -> float:
    argv = [program, "--format", "quiet", "--agent", shlex.join(command(PLAIN)), "exec", "go"]
    with tempfile.TemporaryDirectory() as home:
        return await _process(argv, {**os.environ, "HOME": home}, home)


async def _process(argv: list[str], environment: dict[str, str], cwd: str) -> float:
    started = time.perf_counter()
    done = await anyio.run_process(argv, env=environment, cwd=cwd, check=False)
    if done.returncode or done.stdout.strip() != b"hello":
        raise RuntimeError(f"{argv} failed: {done.stdout!r} {done.stderr!r}")
    return (time.perf_counter() - started) * 1e3
