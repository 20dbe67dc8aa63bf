"""JSON-RPC 2.0 over the pipes of an agent: tolerant in what it reads, exact in what it sends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from gofer import RunnerError
from gofer.processes import Process

from ._errors import PARSE_ERROR, Lost
from ._joined import joined
from ._lines import Lines
from ._messages import decode, encode
from ._noise import Noise
from ._refusals import Refusals
from ._requests import Pending, Requests, fail_unless_answered
from ._text import as_json, cut

__all__ = ["Connection"]

log = logging.getLogger("gofer.acp")

_DEAF = "it does not read its stdin any more"

_EXIT_SECONDS = 1.0
"""How long an exit code may take after the pipes have closed."""


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
        self._requests = Requests(process.stop_sending)
        self._told = 0
        self._unclear = False
        self._writing = anyio.Lock(fast_acquire=True)
        self._lost: Lost | None = None
        self._deaf: Lost | None = None
        self._refusals = Refusals(self._write)
        self._tasks: TaskGroup  # of who reads
        self._lines = Lines()
        self._reading = anyio.CancelScope()
        self._waits = False
        self._busy = False
        self._handled = anyio.Event()
        self.closed = anyio.Event()
        """Set when nothing more is read."""
        self.over = anyio.Event()
        """Set when nothing can be asked any more."""
        self.noise = Noise()

    @property
    def lost(self) -> Lost | None:
        """Why nothing can be asked any more; None while it can."""
        return self._lost or self._deaf

    @property
    def behind(self) -> bool:
        """Whether the agent has not read yet all that it was told."""
        return bool(self._refusals) or self._writing.locked()

    # Asking

    async def request(
        self, method: str, params: dict[str, Any], on_sent: Callable[[], None] | None = None
    ) -> Any:
        """Ask the agent, and return its result, whatever it is.

        :param on_sent: is called when the request has been written as a whole.
        :raises AgentError: it answered with an error.
        :raises Lost: it is gone, or goes before it has answered.
        """
        with self._requests.new(method) as pending:
            self._told = 0
            number = pending.number
            try:
                await self._send(
                    {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                )
            except Lost:
                if not pending.done.is_set():
                    raise
            else:
                pending.end = self._process.sent
                if on_sent is not None:
                    on_sent()
            return await pending.outcome()

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Tell the agent.

        :raises Lost: it is gone.
        """
        self._told += 1
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def answer(self, number: Any, result: Any) -> None:
        """Answer a request of the agent's; one that is gone needs no answer."""
        await self._reply({"jsonrpc": "2.0", "id": number, "result": result})

    async def refuse(self, number: Any, code: int, message: str) -> None:
        """Answer a request of the agent's with an error."""
        await self._reply(_refusal(number, code, message))

    async def refuse_soon(self, tasks: TaskGroup, number: Any, code: int, message: str) -> None:
        """Have a request refused by a task of *tasks*, so that reading goes on meanwhile.

        Where too many wait so, this waits until the agent has read some.

        :raises RunnerError: it reads nothing.
        """
        await self._refusals.add(encode(_refusal(number, code, message)), tasks)

    async def _reply(self, message: dict[str, Any]) -> None:
        self._told += 1
        try:
            await self._send(message)
        except Lost as error:
            log.debug("%s: an answer was not wanted any more: %s", self._process.name, error)

    async def _send(self, message: dict[str, Any]) -> None:
        await self._write(encode(message))

    async def _write(self, line: bytes) -> None:
        async with self._writing:
            if self.lost is not None:
                raise self.lost
            whole = False
            try:
                await self._process.send(line)
                whole = True
                self._refusals.has_read()
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                # What it has still to say is heard all the same.
                if self._lost is None:
                    self._deafen(await self._gone(_DEAF))
                assert self.lost is not None
                raise self.lost from None
            finally:
                if not whole:
                    # Half a line may have gone out: nothing that followed would be understood.
                    self._deafen(Lost(f"{self._process.name}: a message to it was cut off"))

    def _deafen(self, why: Lost) -> None:
        self._deaf = self._deaf or why
        self.over.set()

    # Listening

    async def serve(self) -> None:
        """Read until the agent is gone; every request that waits then fails with why."""
        try:
            self._fail(await self._read())
        finally:
            self._fail(Lost(f"{self._process.name}: the connection was closed"))

    async def _read(self) -> Lost:
        error: Lost | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._await_exit)
            tasks.start_soon(self._await_deafness)
            try:
                await self._read_while_it_runs()
                if self._process.returncode is not None:
                    await self._read_the_rest()
                await self._handle(b"\n")  # its last line may have no end
            except RunnerError as reason:
                error = Lost(f"{self._process.name}: {reason}")
            except Exception as fault:
                log.warning("%s: reading failed", self._process.name, exc_info=fault)
                why = cut(f"{type(fault).__name__}: {fault}")
                error = Lost(f"{self._process.name}: what it sent could not be handled: {why}")
            tasks.cancel_scope.cancel()
        return error or await self._gone("it closed its stdout")

    @property
    def settled(self) -> bool:
        """Whether all that the agent has written so far has been handled."""
        return self._lost is not None or not (self._busy or self._process.unread)

    async def settle(self) -> None:
        """Wait until all that the agent has written so far has been handled."""
        while not self.settled:
            self._handled = anyio.Event()
            await self._handled.wait()

    async def _read_while_it_runs(self) -> None:
        data = b""
        with self._reading:
            while self._process.returncode is None:
                self._waits = True
                data = await self._process.receive()
                self._waits = False
                if not data or self._reading.cancel_called:
                    break
                await self._handle(data)
                data = b""
                await checkpoint()  # who has waited for it goes on first
        if data:  # it came together with the exit
            await self._handle(data)

    async def _read_the_rest(self) -> None:
        # Others may hold the pipe open, and write to it, when the agent has ended: what lies in
        # it now is all.
        rest = self._process.unread
        while data := self._process.receive_nowait(rest):
            rest -= len(data)
            await self._handle(data)
            await checkpoint()

    async def _handle(self, data: bytes) -> None:
        self._busy = True
        await self._take(data)
        self._busy = False
        self._handled.set()

    async def _await_exit(self) -> None:
        await self._process.wait()
        if self._waits:  # and does not handle what came before
            self._reading.cancel()

    async def _await_deafness(self) -> None:
        """Fail what the agent can never have read, where it closes its stdin and lives on."""
        try:
            unread = await self._process.deafened()
        except OSError as error:
            log.warning("%s: the end of its stdin cannot be seen: %s", self._process.name, error)
            return
        read = self._process.sent - unread
        lost = await self._gone(_DEAF)
        if self._process.returncode is not None:
            return  # who reads tells
        self._deafen(lost)
        self._requests.fail_unread(read, lost)

    async def _gone(self, why: str) -> Lost:
        """Return the error that says how the agent went."""
        with anyio.move_on_after(_EXIT_SECONDS):
            await self._process.wait()
        process = self._process
        if process.returncode is not None:
            await process.drained(_EXIT_SECONDS)
            why = process.exit_text
        said = process.stderr_tail.strip()
        code = process.returncode
        unexplained = code == 0 or (code is not None and code > 0 and not said)
        if unexplained and self._requests.wait_for("initialize"):
            why += (
                " before it answered initialize: does it speak the Agent Client Protocol, or need "
                "an argument for that, such as --acp?"
            )
        why += self.noise.instead
        return Lost(f"{process.name}: {why}" + (f"; its stderr ends:\n{said}" if said else ""))

    def _fail(self, error: Lost) -> None:
        if self._lost is None:
            self._lost = error
            self.closed.set()
            self.over.set()
            self._handled.set()
        self._requests.fail(self._lost)
        self._process.stop_sending()

    async def _take(self, data: bytes) -> None:
        messages = list(self._messages(data))
        for message in joined(messages) if len(messages) > 1 else messages:
            method = message.get("method")
            # Some name the method in its answer too.
            if method is None or ("params" not in message and {"result", "error"} & message.keys()):
                self._answered(message)
                continue
            params = message.get("params")
            if type(params) is not dict:
                params = {}
            number = message.get("id")
            if number is None:
                await self._on_notification(str(method), params)
            else:
                await self._on_request(number, str(method), params)

    def _messages(self, data: bytes) -> Iterator[dict[str, Any]]:
        for line in self._lines.feed(data):
            message = decode(line)
            if isinstance(message, dict):
                self.noise.spoken()
                yield message
            elif line.strip():
                self._skip(line)

    def _answered(self, message: dict[str, Any]) -> None:
        error = message.get("error")
        if message.get("id") is None and isinstance(error, dict) and "jsonrpc" in message:
            self._failed(error)
        elif not self._requests.answer(message):
            self._skip(message)

    def _failed(self, error: dict[str, Any]) -> None:
        """Take an error without an id: the agent could not read something that it was sent.

        What wants no answer has no id that an error could name: it is thought of first.
        """
        waiting = self._requests.waiting
        if waiting and (error.get("code") == PARSE_ERROR or not self._told):
            if not self._unclear:
                self._unclear = True
                self._tasks.start_soon(self._end_unless_answered, waiting, error)
            return
        self._told = max(0, self._told - 1)
        self.noise.add()
        log.info("%s: an error of no request: %.200s", self._process.name, as_json(error))

    async def _end_unless_answered(self, waiting: list[Pending], error: dict[str, Any]) -> None:
        try:
            await fail_unless_answered(waiting, error)
        finally:
            self._unclear = False

    def _skip(self, what: bytes | dict[str, Any]) -> None:
        self.noise.add(what if isinstance(what, bytes) else None)
        if log.isEnabledFor(logging.DEBUG):
            # As JSON, for what is nested deeply has no other text.
            said = what if isinstance(what, bytes) else as_json(what)
            log.debug("%s: skipped on stdout: %.200r", self._process.name, said)


def _refusal(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
