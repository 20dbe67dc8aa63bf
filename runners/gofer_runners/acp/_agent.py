"""One agent process: started, logged in, and asked."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from gofer import RunnerError
from gofer.processes import Process

from ._auth import Login, wanted
from ._connection import Connection
from ._errors import CANCELLED_REQUEST, INTERNAL_ERROR, METHOD_NOT_FOUND, AgentError, Refused
from ._mcp import servers
from ._opening import open_session
from ._options import apply
from ._permissions import CANCELLED
from ._schema import PROTOCOL_VERSION, Initialized, NewSession, read
from ._session import OnBlock, Session
from ._settings import AcpAgent

__all__ = ["Agent", "Serve"]

log = logging.getLogger("gofer.acp")

_SILENCE_SECONDS = 20.0
_EARLY_UPDATES = 1024
_SESSIONS = 256
_OPEN_REQUESTS = 256
_PERMISSION = "session/request_permission"

T = TypeVar("T")
Serve = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Answers a request of the agent's: takes its method and parameters, returns its result."""


class _Asked:
    """The requests of the agent's in one turn: who answers them, and until when.

    ``closed``: no new one is granted; ``over``: those that are open are answered so too.
    """

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.closed = False
        self.over = anyio.Event()


class Agent:
    """A running agent, with the sessions it has: the last 256 of them.

    :param first: whether no process of this agent has been started before.
    """

    used = False
    """Whether it has had a turn."""

    def __init__(
        self, name: str, settings: AcpAgent, process: Process, tasks: TaskGroup, *, first: bool
    ) -> None:
        self.name = name
        self.settings = settings
        self.process = process
        self.connection = Connection(process, self._notified, self._requested)
        self.known = Initialized()
        self.sessions: dict[str, Session] = {}
        self._tasks = tasks
        self._first = first
        self._current: Session | None = None
        self._asked: _Asked | None = None
        self._open = 0
        self._early: deque[tuple[object, dict[str, Any]]] = deque(maxlen=_EARLY_UPDATES)

    # Starting

    async def start(self, version: str, environment: dict[str, str]) -> None:
        """Introduce gofer and, where a method is configured, log in.

        :raises RunnerError: the agent speaks another protocol, refuses, or takes too long.
        """
        capabilities = {
            "fs": {"readTextFile": self.settings.fs, "writeTextFile": self.settings.fs},
            "terminal": self.settings.terminal,
        }
        params = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": capabilities,
            "clientInfo": {"name": "gofer", "title": "gofer", "version": version},
        }
        asking = self.connection.request("initialize", params)
        waiting = anyio.CancelScope()
        self._tasks.start_soon(self._tell_of_silence, waiting)
        try:
            data = await self._in_time("initialize", asking)
        finally:
            waiting.cancel()
        self.known = read(Initialized, data, "initialize")
        spoken = self.known.protocol_version
        if spoken is not None and spoken != PROTOCOL_VERSION:
            raise RunnerError(
                f"agent {self.name!r} speaks version {spoken} of the Agent Client Protocol, "
                f"gofer version {PROTOCOL_VERSION}: install a version of the agent that does too"
            )
        self._login = Login(self.name, self.known, self.settings.auth_method, environment)
        if self._login.configured:
            await self._in_time("authenticate", self._login.go(self.connection))

    async def open(self, cwd: str, resume: str | None) -> Session:
        """Return a session in *cwd*: the one to resume, where that works, else a new one.

        It has the mode, model and options that are configured. Where the agent wants a login
        first, that is done, once.

        :raises RunnerError: no session could be opened; says which login or variable is missing.
        """
        kept = self.sessions.pop(resume, None) if resume is not None else None
        if kept is not None:
            self.sessions[kept.id] = kept  # as the one used last
            await kept.resumed()
            return kept
        capabilities = self.known.agent_capabilities
        offered = capabilities.mcp_capabilities if capabilities is not None else {}
        mcp_servers = servers(self.name, self.settings.mcp_servers, offered)
        params = {"cwd": cwd, "mcpServers": mcp_servers}
        session = await self._in_time("the opening of a session", self._opened(params, resume))
        if self._early and session.id != resume:
            # What was told of one that could not be resumed is nobody's.
            others = [entry for entry in self._early if entry[0] != resume]
            self._early.clear()
            self._early.extend(others)
        while len(self.sessions) > _SESSIONS:
            del self.sessions[next(iter(self.sessions))]
        return session

    async def _opened(self, params: dict[str, Any], resume: str | None) -> Session:
        session, state = await self._logged_in(params, resume)
        await apply(self.connection, session.id, state, self.settings)
        return session

    async def _logged_in(
        self, params: dict[str, Any], resume: str | None
    ) -> tuple[Session, NewSession]:
        try:
            return await open_session(self.connection, self.known, params, resume, self.sessions)
        except AgentError as error:
            if not wanted(error):
                raise
            await self._login.go(self.connection, error)
        try:
            return await open_session(self.connection, self.known, params, resume, self.sessions)
        except AgentError as error:
            raise (self._login.missing(error) if wanted(error) else error) from None

    async def _tell_of_silence(self, waiting: anyio.CancelScope) -> None:
        """Tell who waits, once, that the agent has said nothing yet."""
        with waiting:
            await anyio.sleep(_SILENCE_SECONDS)
            log.warning(
                "agent %r (%s) has not answered initialize, after %g s; %g s is the limit (%s)%s",
                self.name, " ".join(self.settings.command), _SILENCE_SECONDS, *self._limit,
                self.connection.noise.instead,
            )  # fmt: skip

    @property
    def _limit(self) -> tuple[float, str]:
        setting = "first_start_timeout" if self._first else "start_timeout"
        return getattr(self.settings, setting), setting

    async def _in_time(self, what: str, asking: Awaitable[T]) -> T:
        seconds, setting = self._limit
        with anyio.move_on_after(seconds):
            return await asking
        said = self.process.stderr_tail.strip()
        said = self.connection.noise.instead + (f"; its stderr ends:\n{said}" if said else "")
        raise RunnerError(
            f"agent {self.name!r} ({' '.join(self.settings.command)}) did not answer {what} "
            f"within {seconds:g} s: raise {setting}, or start it by hand to see what it wants{said}"
        )

    # Turns

    async def turn(
        self, session: Session, text: str, on_block: OnBlock, serve: Serve, scope: anyio.CancelScope
    ) -> None:
        """Have one turn in *session*; what the agent asks meanwhile is answered by *serve*.

        :param scope: what is cancelled where *on_block* fails; ``session.failure`` is its error.
        """
        self._first, self.used = False, True
        self._current, asked = session, _Asked(serve)
        self._asked = asked
        try:
            early = list(self._early)
            self._early.clear()
            session.begin(on_block, scope)
            for session_id, update in early:
                if session_id == session.id:
                    await session.take(update)
                elif session_id not in self.sessions:
                    await session.take_foreign(session_id, update)
            await session.prompt(text, self.settings.drain)
        finally:
            self._current = self._asked = None
            asked.closed = True
            asked.over.set()

    async def cancel(self) -> None:
        """Cancel the turn that goes on: every open question is answered ``cancelled``."""
        asked = self._asked
        if asked is not None:
            asked.closed = True
        try:
            if self._current is not None:
                await self._current.cancel()
        finally:
            if asked is not None:
                asked.over.set()

    # What comes from the agent

    async def _notified(self, method: str, params: dict[str, Any]) -> None:
        if method != "session/update":
            log.debug("%s: notification %s", self.name, method)
            return
        update = params.get("update")
        if not isinstance(update, dict):
            log.debug("%s: an update that is no object", self.name)
            return
        session_id = params.get("sessionId")
        session = self.sessions.get(session_id) if isinstance(session_id, str) else None
        if self._current is None:
            if session is not None:
                session.arrived.set()
            if session is None or not session.is_replay(update):
                self._early.append((session_id, update))
        elif session is self._current:
            await session.take(update)
        elif session is None:
            await self._current.take_foreign(session_id, update)
        else:
            log.debug("%s: an update of session %s, which has no turn", self.name, session_id)

    async def _requested(self, number: Any, method: str, params: dict[str, Any]) -> None:
        if method == _PERMISSION and self._current is not None:
            await self._current.take_permission(params)
        if self._open >= _OPEN_REQUESTS:
            message = f"{_OPEN_REQUESTS} requests are open: wait for answers first"
            await self.connection.refuse_soon(self._tasks, number, INTERNAL_ERROR, message)
            return
        self._open += 1
        self._tasks.start_soon(self._answer, self._asked, number, method, params)

    async def _answer(
        self, asked: _Asked | None, number: Any, method: str, params: dict[str, Any]
    ) -> None:
        try:
            result = await _answer_of(asked, method, params)
        except Refused as error:
            await self.connection.refuse(number, error.code, str(error))
        except Exception as error:
            log.warning("%s: %s failed: %s", self.name, method, error, exc_info=error)
            message = f"{type(error).__name__}: {error}"
            await self.connection.refuse(number, INTERNAL_ERROR, message)
        else:
            await self.connection.answer(number, result)
        finally:
            self._open -= 1


async def _answer_of(asked: _Asked | None, method: str, params: dict[str, Any]) -> Any:
    if asked is None:
        if method == _PERMISSION:
            return CANCELLED
        raise Refused(f"there is no turn: {method}", METHOD_NOT_FOUND)
    if method.startswith("terminal/") and method != "terminal/create":
        return await asked.serve(method, params)  # its terminals end when the turn is cancelled
    answer: Any = None
    error: Exception | None = None
    if not asked.closed:
        answer, error = await _unless_over(asked, method, params)
    if error is not None:
        raise error
    if answer is not None:
        return answer
    if method == _PERMISSION:
        return CANCELLED
    raise Refused("the turn was cancelled", CANCELLED_REQUEST)


async def _unless_over(
    asked: _Asked, method: str, params: dict[str, Any]
) -> tuple[Any, Exception | None]:
    answer: Any = None
    error: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def until_over() -> None:
            await asked.over.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(until_over)
        try:
            answer = await asked.serve(method, params)
        except Exception as failure:
            error = failure
        tasks.cancel_scope.cancel()
    return answer, error
