"""What importing gofer costs, in fresh interpreters, against the libraries it stands on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator

from harness import Figure, Row, side_by_side

# pydantic loads most of itself when a first model is defined.
IN_USE = """
import anyio, pluggy, pydantic
class Model(pydantic.BaseModel):
    text: str
"""
GOFER_IN_USE = "from gofer import Host, Request, Runner, SubagentSpec, hookimpl"


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield a row for the bare imports, and one for what both sides need to do anything."""
    rounds = 5 if quick else 15
    floor = importing("import anyio, pluggy, pydantic")
    pair = await side_by_side(importing("import gofer"), floor, rounds)
    yield Row("import gofer, against pluggy, pydantic and anyio", pair, "ms", 1.3)
    pair = await side_by_side(importing(GOFER_IN_USE), importing(IN_USE), rounds)
    yield Row("its classes, against pluggy, anyio and one pydantic model", pair, "ms", 1.3)


def importing(code: str) -> Figure:
    """Return what measures *code* in a fresh interpreter."""

    async def figure() -> float:
        return _processor_time(code) * 1000

    return figure


def _processor_time(code: str) -> float:
    # Of the child alone: what else the machine does matters less.
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{code!r} failed")
    return usage.ru_utime + usage.ru_stime
