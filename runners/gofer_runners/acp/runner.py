"""The runner: one child is one turn of an agent."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
from pydantic import BaseModel, Field

from gofer import (
    Capabilities,
    Host,
    PluginValidationError,
    Run,
    Runner,
    RunnerError,
    SubagentResult,
    SubagentSpec,
    Usage,
)

from ._client import Client
from ._errors import Lost
from ._permissions import Ask
from ._pool import Pool
from ._settings import AcpAgent, KnownAgent

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
        self._known: WeakKeyDictionary[Host, dict[str, KnownAgent]] = WeakKeyDictionary()
        # Long enough for every agent's own grace, which is what counts.
        self.cancel_grace = 60.0

    def check(self, spec: SubagentSpec, host: Host) -> None:
        """Refuse an agent that is unknown, not installed, or wrongly configured, and any option.

        :raises PluginError: the agent cannot be used. :raises ConfigError: its settings are wrong.
        """
        if not spec.agent:
            raise PluginValidationError(
                "SubagentSpec.agent", "is missing: runner 'acp' needs the name of an agent"
            )
        if spec.options:
            raise PluginValidationError(
                "SubagentSpec.options",
                f"{', '.join(spec.options)}: runner 'acp' has no options; what an agent can "
                f"be told stands in the settings of {spec.agent!r}",
            )
        agent = self._agent(spec.agent, host)
        if agent is None or not agent.is_there:
            self._known.setdefault(host, {})[spec.agent] = KnownAgent(spec.agent, host.config)

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Have one turn with the agent that *spec* names.

        :raises RunnerError: it cannot be started, or not logged in.
        """
        assert spec.agent is not None
        if not run.prompt.strip():
            raise PluginValidationError("SubagentSpec.task", "is blank: say what to do")
        if self._agent(spec.agent, run.host) is None:
            self.check(spec, run.host)
        settings = self._known[run.host][spec.agent].settings
        settings, cwd = await settings.placed(run)
        environment = {**settings.env.variables(), **run.environment}
        pool = await self._pool(run.host)
        client = Client(run, settings, cwd, environment, pool.supervisor, self._ask)
        turn = _Turn(run, settings, client, pool)
        run.on_cancel(turn.cancel)
        try:
            async with client:
                await turn.go(cwd, environment)
            await turn.close()
            return turn.result()
        finally:
            if turn.agent is not None and not (turn.well and pool.keep(turn.agent)):
                with anyio.CancelScope(shield=True):
                    await pool.discard(turn.agent)

    def _agent(self, name: str, host: Host) -> KnownAgent | None:
        """Return what is known of an agent since the Host was opened."""
        agent = self._known[host].get(name) if host in self._known else None
        return agent if agent is not None and agent.config is host.config else None

    async def _pool(self, host: Host) -> Pool:
        factory = partial(Pool, host.supervisor, self._warm, self._warm_seconds)
        pool: Pool = await host.resource(("acp", "pool"), factory)
        return pool


class _Turn:
    """One turn: what it brought, and whether the agent may have another."""

    def __init__(self, run: Run, settings: AcpAgent, client: Client, pool: Pool) -> None:
        self.agent: Agent | None = None
        self.error: Exception | None = None
        self._pool = pool
        self._scope = anyio.CancelScope()
        self._cancelling: anyio.CancelScope | None = None
        self._over = False
        self._run = run
        self._settings = settings
        self._client = client
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

    async def go(self, cwd: Path, environment: dict[str, str]) -> None:
        """Send the prompt to an agent, and take what comes until the end of the turn."""
        try:
            with self._scope:
                agent, session = await self._open(cwd, environment)
                emit, serve = self._run.emit, self._client.serve
                await agent.turn(session, self._run.prompt, emit, serve, self._scope)
        except Exception as error:
            self.error = error
        finally:
            self._over = True
            if self._cancelling is not None:
                self._cancelling.cancel()
        failure = self._session.failure if self._session is not None else None
        if self._session is not None and failure is not None:
            self._session.end = None
            self.error = self.error or failure

    async def _open(self, cwd: Path, environment: dict[str, str]) -> tuple[Agent, Session]:
        """Take an agent and open a session; a kept one that has died meanwhile is replaced."""
        spec = self._run.spec
        assert spec.agent is not None
        while True:
            agent = self.agent = await self._pool.take(
                spec.agent, self._settings, cwd, environment, spec.resume
            )
            try:
                session = self._session = await agent.open(str(cwd), spec.resume)
            except Lost:
                if not agent.used:
                    raise
                self.agent = None
                await self._pool.discard(agent)
            else:
                return agent, session

    def cancel(self) -> None:
        """Have the turn ended: called when the child should end."""
        if not self._over:
            self._pool.start(self._cancel)

    async def _cancel(self) -> None:
        """Ask the agent to end, give it its grace to answer, and wait no longer."""
        if self._over:
            return
        with anyio.CancelScope() as self._cancelling:
            if self.agent is not None and self._prompted:
                with anyio.move_on_after(self._settings.cancel_grace):
                    with suppress(RunnerError):  # who does not read any more may still have to say
                        await self.agent.cancel()
                    self._client.cancel()
                    await anyio.sleep_forever()
            self._scope.cancel()

    async def close(self) -> None:
        """Tell of the calls that were left open that they have ended."""
        if self._session is None:
            return
        failed = self.error is not None or self._end is None or self._end.stop_reason != "end_turn"
        left = self._session.close(failed=failed)
        if not left:
            return
        with anyio.move_on_after(_CLOSING_SECONDS):
            try:
                for block in left:
                    await self._run.emit(block)
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

    @property
    def _where(self) -> str:
        if self.agent is None:
            return f"while agent {self._run.spec.agent!r} was being started"
        if self._session is None:
            return f"while agent {self._run.spec.agent!r} was opening a session"
        return "before it ended"

    @property
    def _no_reason(self) -> str:
        said = self._session.answer if self._session is not None else "nothing"
        return (
            f"agent {self._run.spec.agent!r} gave no stop reason: "
            f"its answer to session/prompt is {said}"
        )

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
            error = f"the child was cancelled {self._where}"
            if self._end is not None:
                error = self._no_reason
            elif self._prompted:
                error = (
                    f"the agent did not answer session/cancel within "
                    f"{self._settings.cancel_grace:g} s and was ended"
                )
            if self.error is not None:
                error = str(self.error)
        else:
            stop_reason, error = "error", str(self.error or self._no_reason)
        return self._run.result(
            stop_reason=stop_reason,
            error=error,
            usage=_usage(self._end),
            permissions_denied=self._client.denied,
            session=session,
        )


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
