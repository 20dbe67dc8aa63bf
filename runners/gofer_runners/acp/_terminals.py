"""Commands that an agent runs through gofer, each a tree of processes of its own."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gofer import RunnerError
from gofer.processes import Process, Supervisor

from ._errors import INTERNAL_ERROR, METHOD_NOT_FOUND, NOT_FOUND, Refused
from ._files import Files
from ._text import as_json, cut

__all__ = ["Terminals"]

_DEFAULT_BYTES = 1024 * 1024
_MOST_BYTES = 16 * 1024 * 1024
_MOST_TERMINALS = 64
_GRACE = 1.0
_OF_ONE = frozenset(
    {"terminal/output", "terminal/wait_for_exit", "terminal/kill", "terminal/release"}
)
_SHELL = frozenset(" \t\n|&;<>()$`\\\"'*?[]#~={}")


class _Terminal:
    """One command: its output so far, the last bytes of it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._output = bytearray()
        self.truncated = False
        self.process: Process | None = None
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()
        self.gone = anyio.Event()

    async def live(
        self,
        supervisor: Supervisor,
        argv: list[str],
        cwd: Path,
        environment: dict[str, str],
        *,
        task_status: TaskStatus[RunnerError | None],
    ) -> None:
        try:
            with self.scope:
                async with supervisor.process(
                    argv, cwd=cwd, environment=environment, grace=_GRACE, merge_stderr=True
                ) as process:
                    process.close_stdin()
                    self.process = process
                    task_status.started(None)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._read)
                        await process.wait()
                        tasks.cancel_scope.cancel()
                    # What it started may hold the pipe open, and write on: what lies in it is all.
                    rest = process.unread
                    while rest > 0 and (data := process.receive_nowait(rest)):
                        rest -= len(data)
                        self._keep(data)
                    self.ended.set()
                    await anyio.sleep_forever()
        except RunnerError as error:
            task_status.started(error)
        finally:
            self.ended.set()
            self.gone.set()

    async def _read(self) -> None:
        assert self.process is not None
        while data := await self.process.receive():
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._output += data
        if len(self._output) > self._limit:
            self.truncated = True
            del self._output[: len(self._output) - self._limit]

    @property
    def output(self) -> str:
        """The output so far, cut at its beginning where it was over the limit."""
        data = bytes(self._output)
        start = 0
        if self.truncated:
            # Not in the middle of a character: bytes 10xxxxxx go on with one.
            while start < min(4, len(data)) and data[start] & 0xC0 == 0x80:
                start += 1
        return data[start:].decode(errors="replace")

    @property
    def status(self) -> dict[str, Any] | None:
        """How it ended; None while it runs."""
        code = self.process.returncode if self.process is not None else None
        if code is None or not self.ended.is_set():
            return None
        if code >= 0:
            return {"exitCode": code, "signal": None}
        try:
            return {"exitCode": None, "signal": signal.Signals(-code).name}
        except ValueError:
            return {"exitCode": None, "signal": str(-code)}

    async def end(self) -> None:
        """End it, and all that it started."""
        self.scope.cancel()
        with anyio.CancelScope(shield=True):
            await self.gone.wait()


class Terminals:
    """The terminals of one turn; all of them end with *tasks*."""

    def __init__(
        self,
        tasks: TaskGroup,
        supervisor: Supervisor,
        files: Files,
        cwd: Path,
        environment: dict[str, str],
    ) -> None:
        self._tasks = tasks
        self._supervisor = supervisor
        self._files = files
        self._cwd = cwd
        self._environment = environment
        self._numbers = itertools.count()
        self._terminals: dict[str, _Terminal] = {}

    async def serve(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer one ``terminal/`` request.

        :raises Refused: with the error to answer with.
        """
        if method == "terminal/create":
            return {"terminalId": await self._create(params)}
        if method not in _OF_ONE:
            raise Refused(f"method not found: {method}", METHOD_NOT_FOUND)
        terminal_id = params.get("terminalId")
        terminal = self._terminals.get(str(terminal_id))
        if terminal is None:
            raise Refused(f"there is no terminal {cut(as_json(terminal_id))}", NOT_FOUND)
        match method:
            case "terminal/output":
                return {
                    "output": terminal.output,
                    "truncated": terminal.truncated,
                    "exitStatus": terminal.status,
                }
            case "terminal/wait_for_exit":
                await terminal.ended.wait()
                return terminal.status or {"exitCode": None, "signal": None}
            case "terminal/kill":
                if terminal.process is not None:
                    await terminal.process.end(0)
                return {}
            case _:
                del self._terminals[str(terminal_id)]
                await terminal.end()
                return {}

    def kill(self) -> None:
        """Kill every command, so that who waits for one goes on."""
        for terminal in self._terminals.values():
            if terminal.process is not None:
                terminal.process.kill()

    async def _create(self, params: dict[str, Any]) -> str:
        if len(self._terminals) >= _MOST_TERMINALS:
            raise Refused(f"{_MOST_TERMINALS} terminals are open: release some first")
        terminal_id = f"term-{next(self._numbers)}"
        terminal = _Terminal(_limit(params.get("outputByteLimit")))
        self._terminals[terminal_id] = terminal
        try:
            await self._start(terminal, params)
        except BaseException:
            del self._terminals[terminal_id]
            raise
        return terminal_id

    async def _start(self, terminal: _Terminal, params: dict[str, Any]) -> None:
        given = params.get("cwd")
        cwd = await self._files.directory(given) if isinstance(given, str) else self._cwd
        environment = {**self._environment, **_variables(params.get("env"))}
        error = await self._tasks.start(
            terminal.live, self._supervisor, _argv(params, cwd), cwd, environment
        )
        if error is not None:
            raise Refused(str(error), INTERNAL_ERROR)


def _argv(params: dict[str, Any], cwd: Path) -> list[str]:
    command, args = params.get("command"), params.get("args")
    if not isinstance(command, str) or not command.strip():
        raise Refused("terminal/create: command must be a string that is not blank")
    if isinstance(args, list) and args:
        return [command, *map(str, args)]
    # Some agents send a whole line for a shell.
    line = bool(_SHELL & set(command)) and not (cwd / command).is_file()
    return ["/bin/sh", "-c", command] if line else [command]


def _variables(env: Any) -> dict[str, str]:
    entries = env if isinstance(env, list) else []
    return {
        entry["name"]: entry["value"]
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("value"), str)
    }


def _limit(value: Any) -> int:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return min(value, _MOST_BYTES) if count else _DEFAULT_BYTES
