"""One agent process: started, logged in, and asked."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup

from gofer import RunnerError
from gofer.processes import Process

from ._connection import AgentError, Connection
from ._errors import INTERNAL_ERROR, METHOD_NOT_FOUND, Refused
from ._permissions import CANCELLED
from ._schema import PROTOCOL_VERSION, AuthMethod, Initialized, read
from ._session import Session, open_session
from ._settings import AcpAgent

__all__ = ["Agent", "Serve"]

log = logging.getLogger("gofer.acp")

_AUTH_REQUIRED = -32000
_EARLY_UPDATES = 1024

Serve = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Answers a request of the agent's: takes its method and parameters, returns its result."""


class Agent:
    """A running agent, with the sessions it has.

    :param serve: answers what the agent asks while a turn goes on; see :meth:`turn`.
    """

    def __init__(self, name: str, settings: AcpAgent, process: Process, tasks: TaskGroup) -> None:
        self.name = name
        self.settings = settings
        self.process = process
        self.connection = Connection(process, self._notified, self._requested)
        self.known = Initialized()
        self.sessions: dict[str, Session] = {}
        self._tasks = tasks
        self._current: Session | None = None
        self._serve: Serve | None = None
        self._cancelling = anyio.Event()
        self._early: deque[tuple[object, dict[str, Any]]] = deque(maxlen=_EARLY_UPDATES)

    # Starting

    async def start(self, version: str) -> None:
        """Introduce gofer and, where a method is configured, log in.

        :raises RunnerError: the agent speaks another protocol, or refuses.
        """
        capabilities = {
            "fs": {"readTextFile": self.settings.fs, "writeTextFile": self.settings.fs},
            "terminal": self.settings.terminal,
        }
        data = await self.connection.request(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "clientCapabilities": capabilities,
                "clientInfo": {"name": "gofer", "title": "gofer", "version": version},
            },
        )
        self.known = read(Initialized, data, "initialize")
        spoken = self.known.protocol_version
        if spoken is not None and spoken != PROTOCOL_VERSION:
            raise RunnerError(
                f"agent {self.name!r} speaks version {spoken} of the Agent Client Protocol, "
                f"gofer version {PROTOCOL_VERSION}: install a version of the agent that does too"
            )
        if self.settings.auth_method is not None:
            await self._authenticate(self.settings.auth_method)

    async def open(self, cwd: str, resume: str | None) -> Session:
        """Return a session in *cwd*: the one to resume, where that works, else a new one.

        Where the agent wants a login first, one that needs nobody at the screen is tried, once.

        :raises RunnerError: no session could be opened; says which login or variable is missing.
        """
        kept = self.sessions.get(resume) if resume is not None else None
        if kept is not None:
            kept.info = kept.info.model_copy(update={"resumed": True, "reason": None})
            return kept
        servers = self.settings.mcp_servers
        try:
            return await open_session(
                self.connection, self.known, cwd, servers, resume, self._register
            )
        except AgentError as error:
            if not _wants_login(error) or self.settings.auth_method is not None:
                raise self._failed(error) from None
            method = self._quiet_method()
            if method is None or method.id is None:
                raise self._login_missing(error) from None
        await self._authenticate(method.id)
        try:
            return await open_session(
                self.connection, self.known, cwd, servers, resume, self._register
            )
        except AgentError as error:
            raise self._failed(error) from None

    async def _authenticate(self, method_id: str) -> None:
        try:
            await self.connection.request("authenticate", {"methodId": method_id})
        except AgentError as error:
            raise self._login_missing(error) from None

    def _quiet_method(self) -> AuthMethod | None:
        """Return a way to log in by a key that is there already."""
        own = self.settings.env.variables()
        for method in self.known.auth_methods:
            names = method.variables
            if names and all(own.get(name) for name in names):
                return method
        for method in self.known.auth_methods:
            said = f"{method.id} {method.name}".lower().replace("_", "-").replace(" ", "-")
            if method.type in (None, "agent") and "api-key" in said:
                return method
        return None

    def _failed(self, error: AgentError) -> RunnerError:
        return self._login_missing(error) if _wants_login(error) else error

    def _login_missing(self, error: AgentError) -> RunnerError:
        ways = []
        for method in self.known.auth_methods:
            needs = f" (set {', '.join(method.variables)})" if method.variables else ""
            ways.append(f"{method.id}{needs}: {method.description or method.name or 'a login'}")
        offered = "; ".join(ways) or "the agent names no way to log in"
        return RunnerError(
            f"agent {self.name!r} wants a login: {error}. Log in with the agent's own command, set "
            f"its key, or name the method as auth_method of [tool.gofer.agents.{self.name}]. "
            f"It offers: {offered}"
        )

    # Turns

    async def turn(
        self,
        session: Session,
        text: str,
        on_block: Callable[[Any], Awaitable[Any]],
        serve: Serve,
    ) -> Any:
        """Have one turn in *session*; what the agent asks meanwhile is answered by *serve*."""
        self._current, self._serve = session, serve
        self._cancelling = anyio.Event()
        try:
            early = [update for key, update in self._early if key == session.id]
            self._early.clear()
            session.begin(on_block)
            for update in early:
                await session.take(update)
            return await session.prompt(text, self.settings.drain)
        finally:
            self._current = self._serve = None

    async def cancel(self) -> None:
        """Cancel the turn that goes on: every open question is answered ``cancelled``."""
        self._cancelling.set()
        if self._current is not None:
            await self._current.cancel()

    # What comes from the agent

    def _register(self, session: Session) -> None:
        self.sessions[session.id] = session

    async def _notified(self, method: str, params: dict[str, Any]) -> None:
        if method != "session/update":
            log.debug("%s: notification %s", self.name, method)
            return
        update = params.get("update")
        if not isinstance(update, dict):
            return
        session_id = params.get("sessionId")
        session = self.sessions.get(session_id) if isinstance(session_id, str) else None
        if session is not None and session is self._current:
            await session.take(update)
        elif self._current is not None and session is None:
            await self._current.take_foreign(session_id, update)
        elif session is None or self._current is None:
            self._early.append((session_id, update))

    async def _requested(self, number: Any, method: str, params: dict[str, Any]) -> None:
        if method == "session/request_permission" and self._current is not None:
            await self._current.take_permission(params)
        self._tasks.start_soon(self._answer, number, method, params)

    async def _answer(self, number: Any, method: str, params: dict[str, Any]) -> None:
        serve = self._serve
        if serve is None:
            if method == "session/request_permission":
                await self.connection.answer(number, CANCELLED)
            else:
                await self.connection.refuse(number, METHOD_NOT_FOUND, f"no turn: {method}")
            return
        try:
            result = await self._unless_cancelled(serve, method, params)
        except Refused as error:
            await self.connection.refuse(number, error.code, str(error))
        except Exception as error:
            log.warning("%s: %s failed: %s", self.name, method, error, exc_info=error)
            message = f"{type(error).__name__}: {error}"
            await self.connection.refuse(number, INTERNAL_ERROR, message)
        else:
            await self.connection.answer(number, result)

    async def _unless_cancelled(self, serve: Serve, method: str, params: dict[str, Any]) -> Any:
        if method != "session/request_permission":
            return await serve(method, params)
        answer: Any = CANCELLED
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                await self._cancelling.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait)
            answer = await serve(method, params)
            tasks.cancel_scope.cancel()
        return answer


def _wants_login(error: AgentError) -> bool:
    return error.code == _AUTH_REQUIRED or "auth" in str(error.args[0]).lower()
