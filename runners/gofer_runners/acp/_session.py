"""One session of an agent, from ``session/new`` to the end of its turn."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

import anyio

from gofer import Block, RunnerError, SessionInfo, Text, Update

from ._connection import AgentError, Connection
from ._schema import Initialized, NewSession, PromptEnd, read
from ._settings import AcpAgent
from ._updates import Updates

__all__ = ["Session", "open_session"]

log = logging.getLogger("gofer.acp")

_DRAIN_SECONDS = 0.25
_OF_THE_ANSWER = frozenset(
    {
        "agent_message_chunk",
        "agent_thought_chunk",
        "user_message_chunk",
        "tool_call",
        "tool_call_update",
    }
)


class Session:
    """A conversation with an agent: it routes what belongs to it to the turn that goes on.

    Before the prompt is sent nothing is part of an answer: a session that is resumed replays old
    messages, a new one greets. While a turn goes on, ``on_block`` takes its blocks.
    """

    def __init__(self, connection: Connection, session_id: str, info: SessionInfo) -> None:
        self.id = session_id
        self.info = info
        self.state = NewSession()
        self._connection = connection
        self._on_block: Callable[[Block], Awaitable[Any]] | None = None
        self._updates = Updates()
        self._phase: Literal["before", "turn"] = "before"
        self._said = False
        self._arrived = anyio.Event()
        self._asking = anyio.CancelScope()
        self._failure: Exception | None = None

    # Its settings

    async def apply(self, agent: AcpAgent) -> None:
        """Set mode, model and options as configured.

        :raises RunnerError: the agent does not offer what is configured; lists what it offers.
        """
        for name, value in agent.config_options.items():
            await self._set_option(name, value)
        if agent.mode is not None:
            await self._set_mode(agent.mode)
        if agent.model is not None:
            await self._set_model(agent.model, strict=True)
        elif agent.preferred_model is not None:
            await self._set_model(agent.preferred_model, strict=False)

    async def _set_mode(self, mode: str) -> None:
        option = next((o for o in self.state.config_options if "mode" in (o.category, o.id)), None)
        modes = self.state.modes
        if option is not None and option.id is not None:
            await self._choose(option.id, mode, option.values, option.current_value)
            return
        offered = [choice.id for choice in modes.available_modes if choice.id] if modes else []
        if mode not in offered:
            raise _not_offered("mode", mode, offered)
        if modes is None or modes.current_mode_id != mode:
            await self._ask("session/set_mode", {"modeId": mode})

    async def _set_model(self, model: str, *, strict: bool) -> None:
        option = next((o for o in self.state.config_options if o.id == "model"), None)
        models = self.state.models
        offered = (
            option.values
            if option is not None
            else [choice.model_id for choice in models.available_models if choice.model_id]
            if models
            else []
        )
        if model not in offered:
            if strict:
                raise _not_offered("model", model, offered)
            log.info("the agent does not offer the model %r: its own default is used", model)
            return
        if option is not None:
            await self._choose("model", model, offered, option.current_value)
        elif models is None or models.current_model_id != model:
            await self._ask("session/set_model", {"modelId": model})

    async def _set_option(self, name: str, value: str | bool) -> None:
        option = next((o for o in self.state.config_options if o.id == name), None)
        if option is None:
            known = [o.id for o in self.state.config_options if o.id]
            raise _not_offered("config option", name, known)
        if isinstance(value, bool):
            if option.current_value is not value:
                params = {"configId": name, "type": "boolean", "value": value}
                await self._ask("session/set_config_option", params)
            return
        await self._choose(name, value, option.values, option.current_value)

    async def _choose(self, name: str, value: str, offered: list[str], current: Any) -> None:
        if value not in offered:
            raise _not_offered(name, value, offered)
        if value != current:
            await self._ask("session/set_config_option", {"configId": name, "value": value})

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._connection.request(method, {"sessionId": self.id, **params})

    # Its turn

    def begin(self, on_block: Callable[[Block], Awaitable[Any]]) -> None:
        """Begin a turn: from now on what comes goes to *on_block*."""
        self._on_block = on_block
        self._updates = Updates()
        self._phase = "before"
        self._said = False
        self._asking = anyio.CancelScope()
        self._failure = None

    async def prompt(self, text: str, drain: float | None) -> PromptEnd:
        """Send the prompt of the turn that has begun, and return why it ended.

        What arrives late is waited for: *drain* seconds; None: only where the turn seems
        unfinished, with a call left open or no text.

        :raises AgentError: the agent answered with an error. :raises Lost: it is gone.
        """
        on_block = self._on_block
        assert on_block is not None
        self._phase = "turn"
        answer: PromptEnd | None = None
        try:
            with self._asking:
                answer = await self._end_of_turn(text)
                await self._drain(drain)
        except RunnerError:
            await self._close(on_block, failed=True)
            raise
        finally:
            self._on_block = None
        if self._failure is not None:
            raise self._failure
        assert answer is not None
        await self._close(on_block, failed=answer.stop_reason != "end_turn")
        return answer

    async def _close(self, on_block: Callable[[Block], Awaitable[Any]], *, failed: bool) -> None:
        self._on_block = None
        for block in list(self._updates.end(failed=failed)):
            await on_block(block)

    async def _end_of_turn(self, text: str) -> PromptEnd:
        """Wait for the end of a turn. Version 2 of the protocol changes this, and only this."""
        params = {"prompt": [{"type": "text", "text": text}]}
        return read(PromptEnd, await self._ask("session/prompt", params), "session/prompt")

    async def _drain(self, seconds: float | None) -> None:
        if seconds is not None:
            with anyio.move_on_after(seconds):
                await self._connection.closed.wait()
            return
        with anyio.move_on_after(_DRAIN_SECONDS):
            while not self._said or self._updates.open:
                self._arrived = anyio.Event()
                await self._arrived.wait()

    async def cancel(self) -> None:
        """Ask the agent to end the turn."""
        await self._connection.notify("session/cancel", {"sessionId": self.id})

    # What comes from the agent

    async def take(self, update: dict[str, Any]) -> None:
        """Take one update of this session's."""
        if self._phase == "before" and str(update.get("sessionUpdate")) in _OF_THE_ANSWER:
            if not self.info.resumed:
                await self._pass([Update(kind="before_prompt", data=update)])
            return
        await self._pass(self._updates.blocks(update))
        self._arrived.set()

    async def take_foreign(self, session_id: object, update: dict[str, Any]) -> None:
        """Take an update of a session that is not ours: an agent's own subagent."""
        data = {"session_id": session_id, "update": update}
        await self._pass([Update(kind="subagent", data=data)])

    async def take_permission(self, params: dict[str, Any]) -> None:
        """Take what a permission request tells of a call."""
        await self._pass(self._updates.permission(params))

    async def _pass(self, blocks: Iterable[Block]) -> None:
        on_block = self._on_block
        if on_block is None or self._failure is not None:
            log.debug("session %s: outside of a turn: %r", self.id, blocks)
            return
        try:
            for block in blocks:
                if type(block) is Text and not self._said:
                    self._said = bool(block.text) and not block.text.isspace()
                await on_block(block)
        except Exception as error:
            # A plugin's error ends the turn, not the connection that brought the block.
            self._failure = error
            self._asking.cancel()


def _not_offered(what: str, value: str, offered: list[Any]) -> RunnerError:
    listed = ", ".join(map(str, offered)) or "none"
    return RunnerError(f"the agent offers no {what} {value!r}; it offers: {listed}")


async def open_session(
    connection: Connection,
    known: Initialized,
    cwd: str,
    mcp_servers: list[dict[str, Any]],
    resume: str | None,
    register: Callable[[Session], None],
) -> Session:
    """Return a session: the one to *resume* as the agent offers it, else a new one.

    *register* is told of a session before anything of it can arrive.

    :raises AgentError: no session could be opened.
    """
    params: dict[str, Any] = {"cwd": cwd, "mcpServers": mcp_servers}
    reason: str | None = None
    if resume is not None:
        method = "session/resume" if known.resumes else "session/load" if known.loads else None
        if method is None:
            reason = "the agent cannot resume sessions"
        else:
            session = Session(connection, resume, SessionInfo(id=resume, resumed=True))
            register(session)
            try:
                data = await connection.request(method, {"sessionId": resume, **params})
            except AgentError as error:
                reason = str(error)
            else:
                session.state = read(NewSession, data, method)
                return session
        log.info("session %s is not resumed: %s", resume, reason)
    state = read(NewSession, await connection.request("session/new", params), "session/new")
    if not state.session_id:
        raise RunnerError("the agent opened a session and gave it no id")
    info = SessionInfo(id=state.session_id, resumed=False, reason=reason)
    session = Session(connection, state.session_id, info)
    session.state = state
    register(session)
    return session
