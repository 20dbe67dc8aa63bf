"""One child is one run of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from gofer import (
    Capabilities,
    Host,
    PluginNotSupportedError,
    PluginValidationError,
    Run,
    Runner,
    SubagentResult,
    SubagentSpec,
)

from ._settings import Settings, load_agent, options_of

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

    from ._sessions import Sessions

__all__ = ["PydanticAIRunner"]


class PydanticAIRunner(Runner):
    """Runs a child on an agent of pydantic-ai, with the agent's own model and tools.

    What the agent says, thinks and calls is passed on as it happens; an output that is no text is
    given as JSON. Its conversations can be resumed as long as they are kept. Its tools are its
    own: a child with a ``tool_scope`` is refused. pydantic-ai works on asyncio alone, so this
    runner does too.

    :param agent: ``module:attribute``, or the agent itself.
    :param deps: what the agent's tools are given as their dependencies, if they want any.

    The other parameters are those of :class:`Settings`.
    """

    name: ClassVar[str] = "pydantic-ai"
    capabilities: ClassVar[Capabilities] = Capabilities(
        streams=True, cancels=True, resumes=True, tools=True
    )
    cancel_grace = 5.0
    Config = Settings

    def __init__(
        self,
        agent: str | AbstractAgent[Any, Any],
        *,
        deps: Any = None,
        request_limit: int = 50,
        sessions: int = 64,
        session_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._given = agent
        self._deps = deps
        self._request_limit = request_limit
        self._sessions = sessions
        self._session_bytes = session_bytes
        self._agent: AbstractAgent[Any, Any] | None = None

    def check(self, spec: SubagentSpec, host: Host) -> None:
        """Refuse what the agent cannot do.

        :raises PluginError: an option is wrong, a tool scope was asked for, the agent cannot be
            imported, or the event loop is none of asyncio's.
        """
        options_of(spec)
        if spec.tool_scope:
            raise PluginNotSupportedError(
                f"an agent of pydantic-ai has its own tools, and cannot be held to "
                f"{', '.join(spec.tool_scope)}: leave out tool_scope, or use a runner that "
                "keeps to it, such as internal"
            )
        if not _on_asyncio():
            raise PluginNotSupportedError(
                "pydantic-ai works on asyncio alone: run your program with "
                "anyio.run(main, backend='asyncio'), or use another runner"
            )
        self._loaded()

    def _loaded(self) -> AbstractAgent[Any, Any]:
        if self._agent is None:
            given = self._given
            self._agent = load_agent(given) if isinstance(given, str) else given
        return self._agent

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Have the agent do the task.

        :raises GoferError: its model or a tool failed, or it is not made as it must be.
        """
        if not run.prompt.strip():
            raise PluginValidationError("SubagentSpec.task", "is blank: say what to do")
        # pydantic-ai takes most of a second to import, so only who uses it waits for that.
        from ._turn import Turn

        limit = options_of(spec).request_limit or self._request_limit
        sessions = await self._kept(run.host)
        info, messages = sessions.open(spec.resume)
        try:
            turn = Turn(run, self._loaded(), self._deps, messages, limit)
            await turn.go()
            if turn.messages:
                sessions.keep(info, turn.messages)
            return turn.result(info if turn.messages or info.resumed else None)
        finally:
            sessions.close(info)

    async def _kept(self, host: Host) -> Sessions:
        from ._sessions import Sessions

        @asynccontextmanager
        async def factory() -> AsyncIterator[Sessions]:
            yield Sessions(self._sessions, self._session_bytes)

        kept: Sessions = await host.resource((self, "sessions"), factory)
        return kept


def _on_asyncio() -> bool:
    try:
        # Where trio runs as a guest of asyncio there is a loop, and no task of it here.
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
