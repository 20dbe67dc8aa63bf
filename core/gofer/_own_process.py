"""A process of its own for code that may hang, crash, or leave something behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from ._plain_process import plain_process
from .processes import Supervisor

__all__ = ["OwnProcess", "own_process"]


class OwnProcess(Protocol):
    """What is needed of a process, supervised or not."""

    async def send(self, data: bytes) -> None: ...
    async def receive(self) -> bytes: ...
    async def wait(self) -> int: ...
    async def drained(self, seconds: float) -> None: ...
    @property
    def stderr_tail(self) -> str: ...
    @property
    def exit_text(self) -> str: ...


@asynccontextmanager
async def own_process(
    supervisor: Supervisor | None, argv: Sequence[str], name: str
) -> AsyncIterator[OwnProcess]:
    """Start a process; leaving the block ends it at once, and on Linux all that it started.

    :param supervisor: None where there is none: what has left its process group may stay.
    """
    if supervisor is None:
        async with plain_process(argv) as plain:
            yield plain
    else:
        cwd = Path.cwd()
        async with supervisor.process(
            argv, cwd=cwd, environment=os.environ, name=name, grace=0
        ) as process:
            yield process
