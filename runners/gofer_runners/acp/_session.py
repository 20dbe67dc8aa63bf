"""One session of an agent, and its turns."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anyio

from gofer import Block, SessionInfo, Text, ToolCall

from ._connection import Connection
from ._schema import PromptEnd, read
from ._text import as_json, cut
from ._updates import Updates, update_of

__all__ = ["OnBlock", "Session"]

log = logging.getLogger("gofer.acp")

OnBlock = Callable[[Block], Awaitable[Any]]

_DRAIN_SECONDS = 0.25
_LATE_SECONDS = 0.1
"""How long after a turn what comes is of that turn, though another of the session is wanted."""
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
    messages, a new one greets. ``prompted`` says whether the prompt of the turn has been sent,
    ``end`` how it was answered, ``answer`` with what, as text, where it gave no stop reason;
    ``failure`` is what a plugin raised meanwhile; ``arrived`` is set when an update comes.
    """

    def __init__(self, connection: Connection, session_id: str, info: SessionInfo) -> None:
        self.id = session_id
        self.info = info
        self.prompted = False
        self.end: PromptEnd | None = None
        self.answer = ""
        self.failure: Exception | None = None
        self.arrived = anyio.Event()
        self._connection = connection
        self._on_block: OnBlock | None = None
        self._updates = Updates()
        self._said = False
        self._cancelling = False
        self._scope: anyio.CancelScope | None = None
        self._ended = -math.inf

    async def resumed(self) -> None:
        """Begin to go on with it: what an agent tells late of the turn before is over then.

        :raises Lost: the agent is gone.
        """
        late = self._ended + _LATE_SECONDS - anyio.current_time()
        if late > 0:
            with anyio.move_on_after(late):
                await self._connection.closed.wait()
        await self._connection.settle()
        if self._connection.lost is not None:
            raise self._connection.lost
        self.prompted = False
        self.info = self.info.model_copy(update={"resumed": True, "reason": None})

    def begin(self, on_block: OnBlock, scope: anyio.CancelScope) -> None:
        """Begin a turn: from now on what comes goes to *on_block*; *scope* ends where it fails."""
        self._on_block = on_block
        self._updates = Updates()
        self.prompted = self._said = self._cancelling = False
        self.end = self.failure = None
        self._scope = scope

    async def prompt(self, text: str, drain: float | None) -> None:
        """Send the prompt of the turn that has begun, and wait until it has ended.

        What the agent has written by then counts. What comes later is waited for *drain* seconds;
        None: only where the turn seems unfinished, with no text after its last call.

        :raises AgentError: the agent answered with an error.
        :raises Lost: it is gone.
        """
        try:
            self.end = await self._end_of_turn(text)
        finally:
            await self._drain(drain)

    async def _end_of_turn(self, text: str) -> PromptEnd:
        """Wait for the end of a turn. Version 2 of the protocol changes this, and only this."""
        params = {"sessionId": self.id, "prompt": [{"type": "text", "text": text}]}
        answer = await self._connection.request("session/prompt", params, self._sent)
        end = read(PromptEnd, answer, "session/prompt")
        if end.stop_reason is None:
            self.answer = cut(as_json(answer))
        return end

    def _sent(self) -> None:
        self.prompted = True

    async def _drain(self, seconds: float | None) -> None:
        if seconds is None and self._connection.settled and not self._unfinished:
            return
        with anyio.move_on_after(_DRAIN_SECONDS):
            await self._connection.settle()
            while seconds is None and self._unfinished:
                self.arrived = anyio.Event()
                await self.arrived.wait()
        if seconds is not None:
            with anyio.move_on_after(seconds):
                await self._connection.closed.wait()

    @property
    def _unfinished(self) -> bool:
        lives = not (self._cancelling or self._connection.closed.is_set())
        return lives and self.end is not None and not self._said

    def close(self, *, failed: bool) -> list[Block]:
        """End the turn: what comes now is no part of it.

        Return what is still to be told of it: a result for each call that was left open.
        """
        began, self._on_block = self._on_block is not None, None
        self._ended = anyio.current_time()
        return list(self._updates.end(failed=failed)) if began else []

    async def cancel(self) -> None:
        """Ask the agent to end the turn.

        :raises Lost: it is gone.
        """
        self._cancelling = True
        await self._connection.notify("session/cancel", {"sessionId": self.id})

    # What comes from the agent

    def is_replay(self, update: dict[str, Any]) -> bool:
        """Whether an update tells of an earlier turn."""
        return self.info.resumed and self._before(update)

    def _before(self, update: dict[str, Any]) -> bool:
        return not self.prompted and str(update.get("sessionUpdate")) in _OF_THE_ANSWER

    async def take(self, update: dict[str, Any]) -> None:
        """Take one update of this session's."""
        self.arrived.set()
        if not self._before(update):
            await self._pass(self._updates.blocks(update))
        elif not self.info.resumed:
            await self._pass([update_of("before_prompt", update)])

    async def take_foreign(self, session_id: object, update: dict[str, Any]) -> None:
        """Take an update of a session that is not ours: an agent's own subagent."""
        data = {"session_id": session_id, "update": update}
        await self._pass([update_of("subagent", data)])

    async def take_permission(self, params: dict[str, Any]) -> None:
        """Take what a permission request tells of a call."""
        await self._pass(self._updates.permission(params))

    async def _pass(self, blocks: Iterable[Block]) -> None:
        on_block = self._on_block
        if on_block is None or self.failure is not None:
            log.debug("session %s: an update outside of a turn", self.id)
            return
        try:
            for block in blocks:
                if type(block) is ToolCall:
                    self._said = False
                elif type(block) is Text and not self._said:
                    self._said = bool(block.text) and not block.text.isspace()
                await on_block(block)
        except Exception as error:
            # A plugin's error ends the turn, not the connection that brought the block.
            self.failure = error
            assert self._scope is not None
            self._scope.cancel()
