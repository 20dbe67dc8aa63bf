"""Loading plugins each in a process of its own: one that hangs or crashes is found and named."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import AsyncExitStack

import anyio

from ._discovery import Found, leave_out
from ._own_process import OwnProcess, own_process
from .errors import GoferError, RunnerError
from .processes import Supervisor

__all__ = ["probe"]

SUPERVISED = sys.platform == "linux"

_START_SECONDS = 30.0
"""How long the interpreter may take to start, beyond what the plugin may."""

_PROGRAM = """
import json, sys
order = json.loads(sys.stdin.buffer.readline())
sys.path[:] = order["path"]
from gofer._probe import main
main(order)
"""
_NO_PROCESS = "no process can be started in which to try it"
_WITHOUT = "gofer plugins --no-load reads the metadata alone"
# As faulthandler writes them: a thread, then its frames.
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+[^\n]*:\n((?:  File .*\n?)+)", re.M)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.M)
_MOST_PRINTED = 4096


async def probe(entries: Sequence[Found], seconds: float) -> dict[int, str]:
    """Load each of *entries* in a process of its own, so many at once as there are processors.

    What came of it stands in the entry then. On Linux nothing stays behind of what a plugin
    starts; elsewhere nothing that stays in its process group.

    :param seconds: how long each may take.
    :return: what those that were loaded wrote to stdout meanwhile, by their position.
    """
    printed: dict[int, str] = {}
    places = anyio.CapacityLimiter(_processors())
    async with AsyncExitStack() as stack:
        supervisor = None
        if SUPERVISED:
            try:
                supervisor = await stack.enter_async_context(Supervisor())
            except OSError as error:
                raise GoferError(f"{_NO_PROCESS}: {error}; {_WITHOUT}") from error

        async def load(position: int, entry: Found) -> None:
            async with places:
                text = await _probe(supervisor, entry, seconds)
            if text:
                printed[position] = text

        async with anyio.create_task_group() as tasks:
            for position, entry in enumerate(entries):
                tasks.start_soon(load, position, entry)
    return printed


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


async def _probe(supervisor: Supervisor | None, entry: Found, seconds: float) -> str:
    """Load one; return what it wrote to stdout."""
    reader = _Reader(f"gofer-{secrets.token_hex(16)} ")
    argv = [sys.executable, "-P", "-c", _PROGRAM]
    try:
        async with own_process(supervisor, argv, "a plugin's process") as process:
            with anyio.move_on_after(seconds + _START_SECONDS) as scope:
                await process.send(_order(entry, reader.mark.decode(), seconds))
                await reader.read(process)
            if reader.answer is None:
                await process.drained(1.0)
                _explain(entry, process, seconds, late=scope.cancelled_caught)
    except (OSError, RunnerError, anyio.BrokenResourceError) as error:
        entry.fail(f"{_NO_PROCESS}: {error or 'it ends at once'}", f"Try again; {_WITHOUT}")
    if reader.answer is not None:
        info, answer = entry.info, json.loads(reader.answer)
        info.status, info.hooks = answer["status"], tuple(answer["hooks"])
        info.error, info.remedy = answer["error"], answer["remedy"]
    return reader.printed.decode(errors="replace").strip()


def _order(entry: Found, mark: str, seconds: float) -> bytes:
    info = entry.info
    order = {
        "mark": mark,
        "timeout": seconds,
        "path": list(map(str, sys.path)),
        "value": entry.value,
        "built_in": entry.built_in,
        "info": {key: getattr(info, key) for key in ("name", "group", "distribution", "version")},
    }
    return json.dumps(order).encode() + b"\n"


class _Reader:
    """Tells the answer, which begins with a mark, from what a plugin writes to stdout."""

    def __init__(self, mark: str) -> None:
        self.mark = mark.encode()
        self.answer: bytes | None = None
        self.printed = b""
        self._unread = b""

    async def read(self, process: OwnProcess) -> None:
        """Read until the answer is there, or the process has ended."""
        async with anyio.create_task_group() as tasks:

            async def receive() -> None:
                while self.answer is None and (data := await process.receive()):
                    self._feed(data)
                if self.answer is not None:
                    tasks.cancel_scope.cancel()

            tasks.start_soon(receive)
            await process.wait()
            # It ends only once it is told to: there is no answer. What it started may hold the
            # pipe open for ever.
            tasks.cancel_scope.cancel()

    def _feed(self, data: bytes) -> None:
        self._unread += data
        before, mark, rest = self._unread.partition(self.mark)
        if not mark:
            # The end of it may be the beginning of the mark.
            cut = max(0, len(self._unread) - len(self.mark))
            self._keep(self._unread[:cut])
            self._unread = self._unread[cut:]
            return
        line, newline, _ = rest.partition(b"\n")
        if newline:
            self._keep(before)
            self.answer = line

    def _keep(self, data: bytes) -> None:
        self.printed += data[: max(0, _MOST_PRINTED - len(self.printed))]


def _explain(entry: Found, process: OwnProcess, seconds: float, *, late: bool) -> None:
    """Record why there is no answer."""
    said = process.stderr_tail
    where = _where(said)
    if late or "Timeout (" in said:
        error = f"loading {entry.value} takes more than {seconds:g} seconds{where}"
        remedy = f"Give it longer with --timeout, or {leave_out(entry)}"
    else:
        error = f"loading {entry.value} ends the interpreter: {process.exit_text}{where}"
        remedy = (
            f"Every program that loads it ends: reinstall or uninstall {entry.info.distribution}, "
            f"or {leave_out(entry)}"
        )
    entry.fail(error, remedy)


def _where(traceback: str) -> str:
    """Return the innermost line of a traceback, outside of the standard library where there is."""
    threads = _THREAD.findall(traceback)
    if not threads:
        return ""
    # The one that crashed, else the main one, which is written last.
    frames = _FRAME.findall(dict(threads).get("Current thread") or threads[-1][1])
    library = sysconfig.get_path("stdlib")
    own = [
        frame for frame in frames
        if not frame[0].startswith(("<", library)) or "site-packages" in frame[0]
    ]  # fmt: skip
    file, line = (own or frames)[0]
    return f" (it was at {file}, line {line})"
