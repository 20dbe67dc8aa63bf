"""One agent in a scratch folder, started as a user would, watched, and gone in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil

from gofer import Block, Host, StreamChunk, SubagentResult, SubagentSpec, Text, hookimpl
from gofer_runners.acp import AcpRunner

from .recipes import Ready, Recipe
from .server import ModelServer

__all__ = ["Scene", "Watch", "scene"]

# More than the slowest agent needs on a busy machine.
LIMIT = 120.0


class Watch:
    """A plugin that keeps every block of every child, and tells when one comes that is wanted."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.children: set[str] = set()
        self._changed = anyio.Event()

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        """Keep it."""
        assert chunk.turn.observed
        self.blocks.append(chunk.block)
        self.children.add(chunk.turn.subagent_id or "")
        self._changed.set()

    async def until(self, wanted: Callable[[Block], bool]) -> None:
        """Wait until such a block has come."""
        while not any(wanted(block) for block in self.blocks):
            self._changed = anyio.Event()
            await self._changed.wait()

    async def until_text(self) -> None:
        """Wait for the first words."""
        await self.until(lambda block: isinstance(block, Text) and bool(block.text.strip()))

    def of(self, kind: type[Block] | str) -> list[Any]:
        """Return the blocks of a class, or the updates of a kind."""
        if isinstance(kind, str):
            return [block for block in self.blocks if getattr(block, "kind", None) == kind]
        return [block for block in self.blocks if isinstance(block, kind)]


@dataclass
class Scene:
    """An agent's scratch folder: ``home`` is its home, ``work`` a repository to work in."""

    recipe: Recipe
    folder: Path
    ready: Ready
    server: ModelServer
    watch: Watch = field(default_factory=Watch)

    @property
    def work(self) -> Path:
        """The repository that the agent works in."""
        return self.folder / "work"

    @asynccontextmanager
    async def host(self, ask: Any = None, **settings: Any) -> AsyncIterator[Host]:
        """Open a Host that knows the agent; when it has closed, nothing of the agent may live."""
        self.watch = Watch()
        agent = {
            "command": self.ready.command,
            "env": {"inherit": False, "set": self.ready.env},
            "auth_method": self.recipe.auth_method,
            "mode": self.recipe.mode,
            "first_start_timeout": LIMIT,
            **settings,
        }
        plugins: list[object] = [self.watch]
        if ask is not None:
            plugins.append(AcpRunner(ask=ask))
        config = {"default_runner": "acp", "agents": {self.recipe.name: agent}}
        with anyio.fail_after(LIMIT):
            async with Host(plugins=plugins, config=config) as host:
                yield host
        left = self.processes()
        assert not left, f"still running: {left}"

    def spec(self, task: str, **more: Any) -> SubagentSpec:
        """Return what to ask of the agent, in its repository."""
        return SubagentSpec(task=task, agent=self.recipe.name, cwd=self.work, **more)

    async def run(self, host: Host, task: str, **more: Any) -> SubagentResult:
        """Have one turn."""
        return await host.run(self.spec(task, **more))

    def processes(self) -> list[psutil.Process]:
        """Return what runs of the agent and its tools, the oldest first."""
        return sorted(_marked(str(self.folder)), key=lambda process: process.create_time())

    def last_asked(self) -> list[str]:
        """Return the texts of the user's part in the last conversation that the model saw."""
        asked = next(r.asked for r in reversed(self.server.requests) if r.asked and r.asked.tools)
        return [message.text for message in asked.messages if message.role == "user"]


def _marked(folder: str) -> Iterator[psutil.Process]:
    """Go through the processes with *folder* in their environment, or that are in it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            own = process.environ().get("HOME", ""), process.cwd()
            if any(path.startswith(folder) for path in own):
                yield process


@contextmanager
def scene(recipe: Recipe, server: ModelServer) -> Iterator[Scene]:
    """Set an agent up in a scratch folder; remove the folder, and end what is left, at the end."""
    # A short path: some agents keep a socket in their home.
    with tempfile.TemporaryDirectory(prefix="gofer-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        (folder / "home").mkdir()
        ready = recipe.ready(folder / "home", server.url)
        made = Scene(recipe, folder, ready, server)
        _repository(made.work)
        try:
            for command in ready.before:
                _run(command, made.work, ready.env)
                # Some leave a service of theirs behind.
                _kill(made)
            yield made
        finally:
            _kill(made)


def _kill(made: Scene) -> None:
    for process in made.processes():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
            process.wait(10)


def _repository(path: Path) -> None:
    path.mkdir()
    (path / "README").write_text("a repository to work in\n", encoding="utf-8")
    who = {"GIT_AUTHOR_NAME": "test", "GIT_AUTHOR_EMAIL": "test@localhost"}
    who |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in who.items()}
    env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    _run(["git", "init", "--quiet", "--initial-branch=main"], path, env)
    _run(["git", "add", "README"], path, env)
    _run(["git", "commit", "--quiet", "--message=begin"], path, env)


def _run(command: list[str], cwd: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
