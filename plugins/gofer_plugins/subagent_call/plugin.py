"""The plugin: it resolves what a call leaves out, runs the child, and words its result."""

from __future__ import annotations

import logging
from collections import deque

from pydantic import BaseModel, ConfigDict, ValidationError

from gofer import (
    ConfigError,
    PluginError,
    PluginValidationError,
    Request,
    StreamChunk,
    SubagentCallInput,
    SubagentCallOutput,
    SubagentResult,
    SubagentSpec,
    ToolCall,
    ToolResult,
    Turn,
    agents,
    hookimpl,
)

from ._description import TOOL, tool

__all__ = ["SubagentCallPlugin"]

log = logging.getLogger("gofer.subagent_call")

_RESULTS = 256
_BYTES = 64 * 1024 * 1024


class SubagentCallPlugin:
    """Offers the tool ``subagent_call``.

    :param continue_session: go on with the agent's last session in this conversation.
    :param note: a sentence for the tool's description.

    ``results`` holds the last 256 results whole, 64 MiB of text at most: a cause that the model is
    not told is there.
    """

    name = "subagent_call"

    class Config(BaseModel):
        """Its settings, in ``[tool.gofer.plugins.subagent_call]``."""

        model_config = ConfigDict(extra="forbid")

        continue_session: bool = False
        note: str = ""

    def __init__(self, continue_session: bool = False, note: str = "") -> None:
        self._continue = continue_session
        self._note = note.strip()
        self.results: deque[SubagentResult] = deque()
        self._size = 0

    def set_note(self, note: str) -> None:
        """Set the sentence that ends the first paragraph of the description; blank: none."""
        self._note = note.strip()

    @hookimpl
    def on_request(self, request: Request) -> None:
        """Offer the tool, where children may be started at all."""
        turn = request.turn
        if turn.observed or turn.depth >= turn.host.max_depth:
            return
        if all(offered.name != TOOL for offered in request.tools):
            request.tools.append(tool(agents.find_all(turn.host.config), self._note))

    @hookimpl
    async def on_stream_chunk(self, chunk: StreamChunk) -> None:
        """Execute calls of the tool."""
        call = chunk.block
        if type(call) is ToolCall and call.name == TOOL and not chunk.turn.observed:
            chunk.block = await self._call(call, chunk.turn)

    async def _call(self, call: ToolCall, turn: Turn) -> ToolResult:
        try:
            asked = _input(call.arguments)
        except PluginValidationError as error:
            return _sentence(call, str(error))
        session = turn.host.session(turn.session)
        # Kept before anything can fail, so that a failed call can be repeated without its input.
        given = (asked.input or "").strip()
        if given:
            session.last_input = given
        task = given or session.last_input
        if task is None:
            return _sentence(
                call, "no message was sent to an agent in this session yet: give one as `input`"
            )
        agent = (asked.agent or "").strip() or None
        try:
            spec = SubagentSpec(
                task=task,
                agent=agent,
                runner=None if agent else "internal",
                resume=session.agent_sessions.get(agent) if agent and self._continue else None,
            )
            if agent is not None:
                agents.find(agent, turn.host.config)
            result = await turn.host.run(spec, turn=turn)
        except (PluginError, ConfigError) as error:
            return _sentence(call, str(error))
        self._keep(result)
        # An answer may be empty, and why it ended may be all that it says.
        if result.error is not None and result.stop_reason != "end_turn":
            log.warning("agent %s failed: %s", agent or "internal", result.error)
            if not result.summary.strip():
                return _sentence(call, result.error)
        answered = result.error is None or result.stop_reason not in ("error", "cancelled")
        if agent and result.session is not None and answered:
            session.agent_sessions[agent] = result.session.id
        output = SubagentCallOutput(output=result.summary, stop_reason=result.stop_reason)
        return ToolResult(tool_call_id=call.id, output=output.model_dump_json())

    def _keep(self, result: SubagentResult) -> None:
        self.results.append(result)
        self._size += _size(result)
        while len(self.results) > 1 and (len(self.results) > _RESULTS or self._size > _BYTES):
            self._size -= _size(self.results.popleft())


def _size(result: SubagentResult) -> int:
    return len(result.summary.encode()) + len((result.error or "").encode())


def _input(arguments: object) -> SubagentCallInput:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}  # models that give none write nothing
    try:
        return SubagentCallInput.model_validate(arguments, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(["arguments", *map(str, problem["loc"])])
        raise PluginValidationError(
            f"{TOOL}.{where}",
            f"{problem['msg']}, not {problem['input']!r:.100}; it takes `agent` and `input`, both "
            "optional strings",
        ) from None


def _sentence(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(tool_call_id=call.id, output=text, is_error=True)
