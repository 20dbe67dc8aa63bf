"""Which version of each agent is installed: asked of the program, without starting a model."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from .agents import Found
from .errors import RunnerError
from .processes import Supervisor

__all__ = ["versions"]

_VERSION = re.compile(r"\d+\.\d+[0-9A-Za-z.+-]*")
_MOST = 64 * 1024
_AT_ONCE = 4


async def versions(found: Sequence[Found], seconds: float = 10.0) -> dict[str, str]:
    """Return the versions of those agents that are installed and tell theirs, by name.

    Each program is run with ``--version``, a few at once, and ended with all that it started; one
    that does not answer within *seconds* tells none.
    """
    told: dict[str, str] = {}
    if sys.platform != "linux":
        return told
    places = anyio.CapacityLimiter(_AT_ONCE)
    async with Supervisor() as supervisor, anyio.create_task_group() as tasks:

        async def ask(entry: Found) -> None:
            async with places:
                version = await _version(supervisor, entry, seconds)
            if version is not None:
                told[entry.agent.name] = version

        for entry in found:
            if entry.tells_version:
                tasks.start_soon(ask, entry)
    return told


async def _version(supervisor: Supervisor, entry: Found, seconds: float) -> str | None:
    assert entry.command is not None
    argv = [entry.command[0], "--version"]
    output, aside = b"", ""
    try:
        with anyio.move_on_after(seconds):
            async with supervisor.process(
                argv, cwd=Path("/"), environment=os.environ, grace=0.2
            ) as process:
                process.close_stdin()
                while len(output) < _MOST and (data := await process.receive()):
                    output += data
                await process.drained(seconds)
                aside = process.stderr_tail
    except RunnerError:
        return None
    lines = (output.decode(errors="replace") + "\n" + aside).splitlines()
    return next((match[0] for match in map(_VERSION.search, lines) if match), None)
