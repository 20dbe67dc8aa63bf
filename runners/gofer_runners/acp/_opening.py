"""How a session comes to be: new, resumed, or loaded."""

from __future__ import annotations

import logging
from typing import Any

import anyio

from gofer import RunnerError, SessionInfo

from ._connection import Connection
from ._errors import METHOD_NOT_FOUND, AgentError
from ._schema import Initialized, NewSession, read
from ._session import Session
from ._text import as_json, cut

__all__ = ["open_session"]

log = logging.getLogger("gofer.acp")

_QUIET_SECONDS = 0.1
_REPLAY_SECONDS = 2.0


async def open_session(
    connection: Connection,
    known: Initialized,
    params: dict[str, Any],
    resume: str | None,
    sessions: dict[str, Session],
) -> tuple[Session, NewSession]:
    """Return a session, and what the agent said of it: the one to *resume*, else a new one.

    :param params: what each of the methods wants: the directory and the MCP servers.
    :param sessions: where a session is entered before anything of it can arrive.
    :raises AgentError: no session could be opened.
    """
    reason: str | None = None
    if resume is not None:
        methods = [
            *(["session/resume"] if known.resumes else []),
            *(["session/load"] if known.loads else []),
        ]
        reason = "the agent cannot resume sessions"
        for method in methods:
            session = sessions[resume] = Session(
                connection, resume, SessionInfo(id=resume, resumed=True)
            )
            try:
                data = await connection.request(method, {"sessionId": resume, **params})
                if method == "session/load":
                    await _replayed(connection, session)
            except AgentError as error:
                del sessions[resume]
                reason = str(error)
                # An agent may offer what it does not have; nothing has happened then.
                if error.code != METHOD_NOT_FOUND:
                    break
            except BaseException:
                del sessions[resume]
                raise
            else:
                return session, read(NewSession, data, method)
        log.info("session %s is not resumed: %s", resume, reason)
    answer = await connection.request("session/new", params)
    state = read(NewSession, answer, "session/new")
    if not state.session_id:
        said = (
            f"its sessionId is {cut(as_json(answer['sessionId']))}"
            if isinstance(answer, dict) and "sessionId" in answer
            else f"its answer is {cut(as_json(answer))}"
        )
        raise RunnerError(
            f"the agent opened a session and gave it no id: {said}, "
            "where a text that is not empty is needed"
        )
    info = SessionInfo(id=state.session_id, resumed=False, reason=reason)
    session = sessions[state.session_id] = Session(connection, state.session_id, info)
    return session, state


async def _replayed(connection: Connection, session: Session) -> None:
    """Wait until old messages have stopped to come: some agents go on after the answer."""
    with anyio.move_on_after(_REPLAY_SECONDS):
        while True:
            session.arrived = anyio.Event()
            with anyio.move_on_after(_QUIET_SECONDS):
                await connection.settle()
                await session.arrived.wait()
                continue
            return
