"""JSON-RPC 2.0 over the pipes of an agent: tolerant in what it reads, exact in what it sends."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from gofer import RunnerError
from gofer.processes import Process

from ._lines import Lines

__all__ = ["AgentError", "Connection", "Lost"]

log = logging.getLogger("gofer.acp")

_EXIT_SECONDS = 1.0
"""How long an exit code may take after the pipes have closed."""


class AgentError(RunnerError):
    """The agent answered a request with a JSON-RPC error."""

    def __init__(self, method: str, code: object, message: str, data: object = None) -> None:
        details = f": {_short(data)}" if data not in (None, "", {}, []) else ""
        super().__init__(f"the agent refused {method}: {message} (code {code}){details}")
        self.method = method
        self.code = code
        self.data = data


class Lost(RunnerError):
    """The agent is gone: it ended, closed its pipes, or sent what cannot be read."""


class _Pending:
    __slots__ = ("answer", "done", "error", "method")

    def __init__(self, method: str) -> None:
        self.method = method
        self.done = anyio.Event()
        self.answer: Any = None
        self.error: RunnerError | None = None


class Connection:
    """Requests, notifications and their answers, in both directions.

    What the agent sends is taken in the order in which it came: a handler of a notification is
    awaited before the next message is read, and so is the first step of a request's.

    :param on_notification: takes the method and the parameters.
    :param on_request: takes the id, the method and the parameters, and sees to the answer.
    """

    def __init__(
        self,
        process: Process,
        on_notification: Callable[[str, dict[str, Any]], Awaitable[None]],
        on_request: Callable[[Any, str, dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._process = process
        self._on_notification = on_notification
        self._on_request = on_request
        self._ids = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._writing = anyio.Lock(fast_acquire=True)
        self._lost: Lost | None = None
        self._lines = Lines()
        self._reading = anyio.CancelScope()
        self.closed = anyio.Event()
        self.noise = 0
        """How many lines of stdout were no message."""

    @property
    def lost(self) -> Lost | None:
        """Why nothing can be asked any more; None while it can."""
        return self._lost

    # Asking

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the agent, and return its result; an empty one where it is no object.

        :raises AgentError: it answered with an error.
        :raises Lost: it is gone, or goes before it has answered.
        """
        if self._lost is not None:
            raise self._lost
        number = next(self._ids)
        pending = self._pending[number] = _Pending(method)
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            await pending.done.wait()
        finally:
            self._pending.pop(number, None)
        if pending.error is not None:
            raise pending.error
        return pending.answer if isinstance(pending.answer, dict) else {}

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Tell the agent.

        :raises Lost: it is gone.
        """
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def answer(self, number: Any, result: Any) -> None:
        """Answer a request of the agent's; one that is gone needs no answer."""
        await self._reply({"jsonrpc": "2.0", "id": number, "result": result})

    async def refuse(self, number: Any, code: int, message: str) -> None:
        """Answer a request of the agent's with an error."""
        error = {"code": code, "message": message}
        await self._reply({"jsonrpc": "2.0", "id": number, "error": error})

    async def _reply(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except Lost as error:
            log.debug("%s: an answer was not wanted any more: %s", self._process.name, error)

    async def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        async with self._writing:
            if self._lost is not None:
                raise self._lost
            whole = False
            try:
                await self._process.send(line)
                whole = True
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise await self._gone("it does not read its stdin any more") from None
            finally:
                if not whole and self._lost is None:
                    # Half a line went out: nothing that follows could be understood.
                    self._fail(Lost("a message to the agent was cut off by a cancellation"))

    # Listening

    async def serve(self) -> None:
        """Read until the agent is gone; every request that waits then fails with why."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._await_exit)
                while data := await self._receive():
                    await self._take(data)
                tasks.cancel_scope.cancel()
            self._fail(await self._gone("it closed its stdout"))
        except RunnerError as error:
            self._fail(Lost(str(error)))
        finally:
            self._fail(Lost("the connection to the agent was closed"))

    async def _receive(self) -> bytes:
        # Others may hold the pipe open when the agent has ended: then what lies in it is all.
        if self._process.returncode is None:
            with anyio.CancelScope() as self._reading:
                return await self._process.receive()
        return self._process.receive_nowait()

    async def _await_exit(self) -> None:
        await self._process.wait()
        self._reading.cancel()

    async def _gone(self, why: str) -> Lost:
        """Return the error that says how the agent went."""
        with anyio.move_on_after(_EXIT_SECONDS):
            await self._process.wait()
        process = self._process
        if process.returncode is not None:
            await process.drained(_EXIT_SECONDS)
            why = process.exit_text
        said = process.stderr_tail.strip()
        return Lost(f"{process.name}: {why}" + (f"; its stderr ends:\n{said}" if said else ""))

    def _fail(self, error: Lost) -> None:
        if self._lost is None:
            self._lost = error
            self.closed.set()
        for pending in self._pending.values():
            if not pending.done.is_set():
                pending.error = self._lost
                pending.done.set()

    async def _take(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                if line.strip():
                    self._skip(line)
                continue
            if type(message) is not dict:
                self._skip(line)
                continue
            method = message.get("method")
            if method is None:
                self._answered(message, line)
                continue
            params = message.get("params")
            if type(params) is not dict:
                params = {}
            number = message.get("id")
            if number is None:
                await self._on_notification(str(method), params)
            else:
                await self._on_request(number, str(method), params)

    def _answered(self, message: dict[str, Any], line: bytes) -> None:
        number = message.get("id")
        if isinstance(number, str) and number.strip().isdecimal():
            number = int(number)  # some agents send every id back as a string
        pending = self._pending.get(number) if isinstance(number, int) else None
        if pending is None or pending.done.is_set():
            self._skip(line)
            return
        error = message.get("error")
        if error is not None:
            fields = error if isinstance(error, dict) else {"message": str(error)}
            pending.error = AgentError(
                pending.method,
                fields.get("code"),
                str(fields.get("message") or "no reason given"),
                fields.get("data"),
            )
        pending.answer = message.get("result")
        pending.done.set()

    def _skip(self, line: bytes) -> None:
        self.noise += 1
        log.debug("%s: skipped on stdout: %.200r", self._process.name, line)


def _short(data: object) -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
    return text if len(text) <= 2000 else f"{text[:2000]}…"
