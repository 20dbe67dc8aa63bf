"""Kills gofer in the middle of random scripts, and looks whether anything outlives it.

    python tests/runners/acp/kill_soak.py --count 10000

Each script has a gofer of its own: a process forked off a warmed-up one, whose Host runs one or two
children on fake agents. Those play random scripts: they talk, ask, write files and run commands
through gofer, start tools in sessions of their own and daemons, ignore TERM and the end of stdin,
stop themselves. At a random moment gofer gets SIGKILL. Who watches is the subreaper of it all, so
whatever lost its parent becomes its child: when it has no child left, nothing is left.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import psutil

from gofer import Host, StreamChunk, SubagentSpec, hookimpl
from gofer.testing import fake_agent
from gofer_runners.acp import AcpRunner

SECONDS = 30.0
LONG, SHORT = 3000, 150

KINDS = ["say", "think", "call", "ask", "tool", "daemon", "terminal", "write", "stderr", "flood"]
DAEMON = "(setsid /bin/sh -c 'trap \"\" TERM HUP; /bin/sleep 3002 & /bin/sleep 3003' &)"
LAST: list[list[dict[str, Any]]] = [
    [],
    [{"wait": "forever"}],
    [{"signal": 19}],
    [{"exit": 1}],
    [{"close": "stdout"}, {"wait": "forever"}],
]
OPTIONS = ("ignore_term", "ignore_eof", "ignore_cancel")


def script(chance: random.Random) -> dict[str, Any]:
    """Return a random script of one turn."""
    steps: list[dict[str, Any]] = [{"say": "begin"}]
    for number in range(chance.randrange(8)):
        match chance.choice(KINDS):
            case "say":
                steps.append({"say": "some words ", "times": chance.choice([1, 10, 10_000])})
            case "think":
                steps.append({"think": "hm"})
            case "call":
                steps.append({"call": f"c{number}", "kind": "execute"})
            case "ask":
                steps.append({"ask": f"a{number}", "kind": "edit"})
            case "tool":
                steps.append({"start": ["/bin/sleep", "3001"], "session": chance.random() < 0.8})
            case "daemon":
                forks = (
                    "(setsid /bin/sh -c 'trap \"\" TERM HUP; /bin/sleep 3002 & /bin/sleep 3003' &)"
                )
                steps.append({"start": ["/bin/sh", "-c", forks]})
            case "terminal":
                line = "setsid sleep 3004 & trap '' TERM; sleep 3005"
                steps.append({"request": "terminal/create", "params": {"command": line}})
            case "write":
                params = {"path": "CWD/file", "content": "x" * chance.choice([1, 100_000])}
                steps.append({"request": "fs/write_text_file", "params": params})
            case "stderr":
                steps.append({"stderr": "noise\n" * chance.choice([1, 50_000])})
            case "flood":
                steps.append({"flood": chance.choice([10, 1000])})
    steps += chance.choice(LAST)
    options = {key: chance.random() < 0.3 for key in OPTIONS}
    return {"turns": [steps], "options": options}


class Progress:
    """A plugin that tells the watcher of each block, and at times ends the child itself."""

    name = "progress"

    def __init__(self, pipe: int, cancel_at: int) -> None:
        self._pipe = pipe
        self._left = cancel_at

    def tell(self, what: bytes) -> None:
        os.write(self._pipe, what)

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        self.tell(b"b")
        self._left -= 1
        if self._left == 0:
            for child in chunk.turn.host.children:
                child.cancel()


async def gofer(seed: int, pipe: int, cwd: Path) -> None:
    """Run what is to be killed."""
    chance = random.Random(seed)
    names = ["one", "two"][: chance.choice([1, 1, 2])]
    agents = {}
    for name in names:
        played = json.loads(json.dumps(script(chance)).replace("CWD", str(cwd)))
        agents[name] = {
            "command": fake_agent.command(played),
            "fs": True,
            "terminal": True,
            "cancel_grace": 0.05,
            "end_grace": 0.05,
        }
    progress = Progress(pipe, chance.choice([0, 0, 0, 1, 3]))
    progress.tell(b"s")
    async with Host([AcpRunner, progress], {"agents": agents}, discover=False, cwd=cwd) as host:
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(host.run, SubagentSpec(task="go", agent=name))
        progress.tell(b"e")
        if chance.random() < 0.7:
            await anyio.sleep_forever()
    progress.tell(b"c")
    await anyio.sleep_forever()


class Watcher:
    """Starts gofers, kills them, and counts what was seen."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.figures: Counter[str] = Counter()
        self.slowest = 0.0

    def one(self, cwd: Path) -> None:
        """Start one gofer, kill it, and wait until nothing is left of it."""
        chance = self._chance
        seed, backend = chance.getrandbits(48), chance.choice(["asyncio", "trio"])
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reader)
            self._be_gofer(seed, writer, cwd, backend)
        os.close(writer)
        seen = self._watch(reader, chance.choices([0, 1, 2, 3, 5, 8, 20], [1, 3, 4, 4, 4, 2, 2])[0])
        time.sleep(chance.choice([0.0, 0.001, 0.01, chance.random() * 0.2]))
        os.close(reader)
        below = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        left = self._await_all()
        self.slowest = max(self.slowest, time.monotonic() - started)
        self.figures["kills"] += 1
        self.figures[f"killed {self._moment(seen)}"] += 1
        self.figures["processes below gofer when it was killed"] += len(below)
        self.figures["processes left"] += len(left)
        for process in left:
            print(f"left by seed {seed} on {backend}: {process}", flush=True)
            with suppress(psutil.NoSuchProcess):
                process.kill()

    @staticmethod
    def _be_gofer(seed: int, pipe: int, cwd: Path, backend: str) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            devnull = os.open(os.devnull, os.O_RDWR)
            os.dup2(devnull, 2)
            anyio.run(gofer, seed, pipe, cwd, backend=backend)
        finally:
            os._exit(0)

    @staticmethod
    def _watch(pipe: int, count: int) -> bytes:
        """Wait for so many signs, and return them; a script may not have as many."""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        seen = b""
        while len(seen) < count and poll.poll(LONG if b"b" not in seen else SHORT):
            data = os.read(pipe, count - len(seen))
            if not data:
                break
            seen += data
        return seen

    @staticmethod
    def _moment(seen: bytes) -> str:
        if not seen:
            return "before it had begun"
        if b"c" in seen:
            return "after its Host had closed"
        if b"e" in seen:
            return "after its children had ended"
        return "in the middle of a turn" if b"b" in seen else "before the first block"

    @staticmethod
    def _await_all() -> list[psutil.Process]:
        """Wait until this process has no child; return those that are left after all patience."""
        ends = time.monotonic() + SECONDS
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return []
            if not pid:
                wait = ends - time.monotonic()
                if wait <= 0 or signal.sigtimedwait([signal.SIGCHLD], wait) is None:
                    return psutil.Process().children(recursive=True)


async def warm_up() -> None:
    """Import all that a run needs, so that no gofer has to."""
    agents = {"one": {"command": fake_agent.command({"turns": [[{"say": "x"}]]})}}
    async with Host([AcpRunner], {"agents": agents}, discover=False) as host:
        await host.run(SubagentSpec(task="go", agent="one"))


def watch(count: int, seed: int, pipe: int) -> None:
    """Do a share of the work, and send its figures."""
    for backend in ("asyncio", "trio"):
        anyio.run(warm_up, backend=backend)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    if ctypes.CDLL(None).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
        raise OSError("prctl")
    watcher = Watcher(seed)
    with tempfile.TemporaryDirectory() as cwd:
        for number in range(count):
            watcher.one(Path(cwd))
            if number % 500 == 499:
                print(f"{number + 1} of {count}: {dict(watcher.figures)}", flush=True)
    os.write(pipe, json.dumps({"slowest": watcher.slowest, **watcher.figures}).encode())


def main() -> int:
    """Run the scripts on several watchers, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.monotonic()
    pipes = []
    for job in range(arguments.jobs):
        reader, writer = os.pipe()
        share = len(range(job, arguments.count, arguments.jobs))
        if not os.fork():
            watch(share, arguments.seed * 1000 + job, writer)
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    total: Counter[str] = Counter()
    slowest = 0.0
    for reader in pipes:
        with open(reader, "rb") as file:
            said = json.loads(file.read() or b"{}")
        slowest = max(slowest, said.pop("slowest", 0.0))
        total.update(said)
    for _ in pipes:
        os.wait()
    figures = {
        **total,
        "slowest end in seconds": round(slowest, 3),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(figures))
    return 0 if total["kills"] == arguments.count and not total["processes left"] else 1


if __name__ == "__main__":
    sys.exit(main())
