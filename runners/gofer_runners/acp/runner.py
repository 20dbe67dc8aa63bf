"""The runner: one child is one turn of an agent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import BaseModel, Field, ValidationError

from gofer import (
    Capabilities,
    ConfigError,
    Host,
    PluginNotSupportedError,
    PluginValidationError,
    Run,
    Runner,
    RunnerError,
    SubagentResult,
    SubagentSpec,
    Usage,
    agents,
)
from gofer.processes import Supervisor

from ._client import Client
from ._errors import Lost
from ._permissions import Ask
from ._pool import Pool
from ._settings import AcpAgent

if TYPE_CHECKING:
    from ._agent import Agent
    from ._schema import PromptEnd
    from ._session import Session

__all__ = ["AcpRunner"]

log = logging.getLogger("gofer.acp")

_CLOSING_SECONDS = 2.0


class AcpRunner(Runner):
    """Runs children on agents that speak the Agent Client Protocol.

    :param ask: who answers permission requests of agents with ``permissions = "ask"``.
    :param warm: how many idle agent processes are kept for their next turn; 0: none.
    :param warm_seconds: how long each is kept.
    """

    name = "acp"
    capabilities = Capabilities(streams=True, cancels=True, resumes=True, cwd=True, tools=True)
    observed = True

    class Config(BaseModel, extra="forbid"):
        """Its settings, in ``[tool.gofer.runners.acp]``."""

        warm: int = Field(default=4, ge=0)
        warm_seconds: float = Field(default=300.0, gt=0)

    def __init__(
        self, warm: int = 4, warm_seconds: float = 300.0, *, ask: Ask | None = None
    ) -> None:
        self._warm = warm
        self._warm_seconds = warm_seconds
        self._ask = ask
        # Long enough for every agent's own grace, which is what counts.
        self.cancel_grace = 60.0

    def check(self, spec: SubagentSpec, host: Host) -> None:
        """Refuse an agent that is unknown, not installed, or wrongly configured; say what to do.

        :raises PluginError: the agent cannot be used. :raises ConfigError: its settings are wrong.
        """
        if not spec.agent:
            raise PluginValidationError(
                "SubagentSpec.agent", "is missing: runner 'acp' needs the name of an agent"
            )
        _settings(spec.agent, host)

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Have one turn with the agent that *spec* names.

        :raises RunnerError: it cannot be started, or not logged in.
        """
        assert spec.agent is not None
        if not run.prompt.strip():
            raise PluginValidationError("SubagentSpec.task", "is blank: say what to do")
        settings = _settings(spec.agent, run.host)
        cwd = run.cwd / settings.cwd if settings.cwd else run.cwd
        environment = {**settings.env.variables(), **run.environment}
        supervisor: Supervisor = await run.host.supervisor()
        pool = await self._pool(run.host, supervisor)
        turn = _Turn(run, settings)
        try:
            async with anyio.create_task_group() as tasks:
                # The terminals that the agent opens are tasks of this group: they end with it.
                turn.client = Client(run, settings, cwd, environment, supervisor, tasks, self._ask)
                tasks.start_soon(turn.watch_cancel, tasks.cancel_scope)
                try:
                    await turn.open(pool, cwd, environment)
                    await turn.go()
                except Exception as error:
                    turn.error = error
                tasks.cancel_scope.cancel()
            await turn.close()
            return turn.result()
        finally:
            with anyio.CancelScope(shield=True):
                if turn.agent is not None:
                    await (pool.give_back if turn.well else pool.discard)(turn.agent)

    async def _pool(self, host: Host, supervisor: Supervisor) -> Pool:
        @asynccontextmanager
        async def factory() -> AsyncIterator[Pool]:
            async with Pool(supervisor, self._warm, self._warm_seconds) as pool:
                yield pool

        pool: Pool = await host.resource(("acp", "pool"), factory)
        return pool


class _Turn:
    """One turn: what it brought, and whether the agent may have another."""

    client: Client

    def __init__(self, run: Run, settings: AcpAgent) -> None:
        self.agent: Agent | None = None
        self.error: Exception | None = None
        self._run = run
        self._settings = settings
        self._session: Session | None = None

    @property
    def well(self) -> bool:
        """Whether it ended as it should, so that its agent can be kept."""
        return (
            self.error is None
            and self._end is not None
            and self._end.stop_reason not in (None, "cancelled")
            and not self._run.cancel_requested.is_set()
        )

    async def open(self, pool: Pool, cwd: Path, environment: dict[str, str]) -> None:
        """Take an agent and open a session; a kept one that has died meanwhile is replaced."""
        spec = self._run.spec
        assert spec.agent is not None
        while True:
            agent = self.agent = await pool.take(
                spec.agent, self._settings, cwd, environment, spec.resume
            )
            try:
                self._session = await agent.open(str(cwd), spec.resume)
            except Lost:
                if not agent.used:
                    raise
                self.agent = None
                await pool.discard(agent)
            else:
                return

    async def go(self) -> None:
        """Send the prompt, and take what comes until the end of the turn."""
        assert self.agent is not None
        assert self._session is not None
        session = self._session
        await self.agent.turn(session, self._run.prompt, self._run.emit, self.client.serve)

    async def watch_cancel(self, scope: anyio.CancelScope) -> None:
        """Ask the agent to end when the child should, and give it its grace to answer."""
        await self._run.cancel_requested.wait()
        if self.agent is not None and self._prompted:
            with anyio.move_on_after(self._settings.cancel_grace):
                with suppress(RunnerError):  # who does not read any more may still have to say
                    await self.agent.cancel()
                self.client.cancel()
                await anyio.sleep_forever()
        scope.cancel()

    async def close(self) -> None:
        """Tell of the calls that were left open that they have ended."""
        if self._session is None:
            return
        failed = self.error is not None or self._end is None or self._end.stop_reason != "end_turn"
        with anyio.move_on_after(_CLOSING_SECONDS):
            try:
                await self._session.close(failed=failed)
            except Exception as error:
                if self.error is None and not self._run.cancel_requested.is_set():
                    self.error = error
                    self._session.end = None

    @property
    def _end(self) -> PromptEnd | None:
        return self._session.end if self._session is not None else None

    @property
    def _prompted(self) -> bool:
        return self._session is not None and self._session.prompted

    def result(self) -> SubagentResult:
        """Return the child's result, whatever became of the turn.

        :raises Exception: the turn's own error, where there was no session yet.
        """
        session = self._session.info if self._session is not None else None
        cancelled = self._run.cancel_requested.is_set()
        if self.error is not None and not cancelled and not isinstance(self.error, RunnerError):
            raise self.error
        if self._end is not None and self._end.stop_reason is not None:
            stop_reason, error = self._end.stop_reason, None
        elif cancelled:
            stop_reason = "cancelled"
            error = "the child was cancelled before it ended"
            if self._end is not None:
                error = "the agent gave no stop reason"
            elif self._prompted:
                error = (
                    f"the agent did not answer session/cancel within "
                    f"{self._settings.cancel_grace:g} s and was ended"
                )
            if self.error is not None:
                error = str(self.error)
        else:
            stop_reason, error = "error", str(self.error or "the agent gave no stop reason")
        return self._run.result(
            stop_reason=stop_reason,
            error=error,
            usage=_usage(self._end),
            permissions_denied=self.client.denied,
            session=session,
        )


def _settings(agent: str, host: Host) -> AcpAgent:
    found = agents.find(agent, host.config)
    own = host.config.agents.get(agent)
    given: dict[str, Any] = {**found.agent.settings, **((own.model_extra or {}) if own else {})}
    if found.command is None:
        raise PluginNotSupportedError(
            f"agent {agent!r} is not installed: {', '.join(found.missing)} "
            f"is not on PATH. To install it: {found.agent.install}"
        )
    if not found.command:
        raise ConfigError(f"[tool.gofer.agents.{agent}]: command is missing: how is it started?")
    given["command"] = list(found.command)
    given.pop("args", None)  # they are in it
    try:
        settings = AcpAgent.model_validate(given)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        )
        allowed = ", ".join(sorted(AcpAgent.model_fields))
        raise ConfigError(
            f"[tool.gofer.agents.{agent}]: {problems}. Its keys are: {allowed}"
        ) from None
    return settings


def _usage(end: PromptEnd | None) -> Usage | None:
    said = end.usage if end is not None else None
    if said is None:
        return None
    return Usage(
        input_tokens=said.input_tokens,
        output_tokens=said.output_tokens,
        cached_tokens=said.cached_read_tokens,
        reasoning_tokens=said.thought_tokens,
    )
