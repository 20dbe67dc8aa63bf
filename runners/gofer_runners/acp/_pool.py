"""The agent processes of a Host: started, kept warm between turns, ended."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from gofer import Response, RunnerError, SubagentResult
from gofer.processes import Supervisor

from ._settings import AcpAgent

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["Pool"]

log = logging.getLogger("gofer.acp")

Key = tuple[object, ...]


class _Place:
    """One process, from its start to its end: a task of the pool's owns it."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.agent: Agent | None = None
        self.error: BaseException | None = None
        self.started = anyio.Event()
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()
        self.idle_since = 0.0

    @property
    def lives(self) -> bool:
        """Whether its agent can have another turn."""
        return self.agent is not None and self.agent.connection.lost is None

    @property
    def reads(self) -> bool:
        """Whether its agent would see the prompt of another turn."""
        return self.agent is not None and not self.agent.connection.behind


class Pool:
    """Gives out agents, one to a turn; an async context manager, shared by a Host's turns.

    An agent that is given back is kept for the next turn of the same name, settings, environment
    and directory. At most *most* are kept so, each at most *idle_seconds*; the one that has
    waited longest goes first.
    """

    supervisor: Supervisor

    def __init__(
        self, supervisor: Callable[[], Awaitable[Supervisor]], most: int, idle_seconds: float
    ) -> None:
        self._get_supervisor = supervisor
        self._most = most
        self._idle_seconds = idle_seconds
        self._places: dict[Agent, _Place] = {}
        self._idle: dict[_Place, None] = {}  # in the order in which they were kept
        self._kept = anyio.Event()
        self._known: set[str] = set()
        self._tasks: TaskGroup = anyio.create_task_group()

    async def __aenter__(self) -> Pool:
        self.supervisor = await self._get_supervisor()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._end_the_idle)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Each place ends its process, shielded, when it is cancelled.
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task of the pool's; whoever does sees that it ends."""
        self._tasks.start_soon(function)

    @property
    def idle(self) -> int:
        """How many processes wait for a turn."""
        return len(self._idle)

    async def take(
        self,
        name: str,
        settings: AcpAgent,
        cwd: Path,
        environment: dict[str, str],
        resume: str | None,
    ) -> Agent:
        """Return an agent that is ready for a session, a warm one where there is one.

        :raises RunnerError: it could not be started; says why, with the end of its stderr.
        """
        key = (name, settings, cwd, environment)
        warm = self._warm(key, resume)
        if warm is not None:
            return warm
        place = _Place(key)
        self._tasks.start_soon(self._live, place, name, settings, cwd, environment)
        try:
            await place.started.wait()
        except BaseException:
            await self._end(place)
            raise
        if place.error is not None:
            await self._end(place)
            raise place.error
        assert place.agent is not None
        return place.agent

    def keep(self, agent: Agent) -> bool:
        """Keep the agent for another turn; return False where that is not wanted, or it is gone."""
        place = self._places.get(agent)
        if place is None or not (place.lives and agent.settings.warm and self._most):
            return False
        place.idle_since = anyio.current_time()
        self._idle[place] = None
        self._kept.set()
        if len(self._idle) > self._most:
            self._end_oldest()
        return True

    async def discard(self, agent: Agent) -> None:
        """End the agent and all that it started; when this returns nothing of it lives."""
        place = self._places.get(agent)
        if place is not None:
            await self._end(place)

    def _warm(self, key: Key, resume: str | None) -> Agent | None:
        fitting = [p for p in self._idle if p.lives and p.reads and p.key == key]
        having = [p for p in fitting if p.agent is not None and resume in p.agent.sessions]
        if not fitting:
            return None
        place = (having or fitting)[-1]
        del self._idle[place]
        return place.agent

    def _end_oldest(self) -> None:
        # Its place ends it; nobody need wait for that.
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        oldest.scope.cancel()

    async def _end_the_idle(self) -> None:
        """End each agent that has been idle for too long."""
        while True:
            await self._kept.wait()
            self._kept = anyio.Event()
            while self._idle:
                ends = next(iter(self._idle)).idle_since + self._idle_seconds
                if anyio.current_time() >= ends:
                    self._end_oldest()
                else:
                    await anyio.sleep_until(ends)

    async def _end(self, place: _Place) -> None:
        self._idle.pop(place, None)
        place.scope.cancel()
        with anyio.CancelScope(shield=True):
            await place.ended.wait()

    async def _live(
        self,
        place: _Place,
        name: str,
        settings: AcpAgent,
        cwd: Path,
        environment: dict[str, str],
    ) -> None:
        try:
            with place.scope:
                async with self.supervisor.process(
                    settings.command,
                    name=f"agent {name}",
                    cwd=cwd,
                    environment=environment,
                    grace=settings.end_grace,
                ) as process:
                    program = settings.command[0]
                    log.info(
                        "agent %s: %s runs as process %d in %s", name, program, process.pid, cwd
                    )
                    # What talks to it is loaded while the first agent comes up, and what its turn
                    # ends with is built.
                    from ._agent import Agent

                    for model in (Response, SubagentResult):
                        model.model_rebuild()
                    async with anyio.create_task_group() as tasks:
                        first = name not in self._known
                        agent = Agent(name, settings, process, tasks, first=first)
                        tasks.start_soon(agent.connection.serve)
                        await agent.start(version("gofer"), environment)
                        self._known.add(name)
                        place.agent = agent
                        self._places[agent] = place
                        place.started.set()
                        await agent.connection.over.wait()
                        if place not in self._idle:
                            # A turn still wants to read what it left; its end discards it.
                            await anyio.sleep_forever()
                        tasks.cancel_scope.cancel()
        except (Exception, BaseExceptionGroup) as error:
            place.error = _only(error)
            if place.started.is_set():
                log.warning("agent %s: %s", name, place.error, exc_info=error)
        finally:
            if not place.started.is_set() and place.error is None:
                place.error = RunnerError(f"the start of agent {name!r} was cancelled")
            if place.agent is not None:
                self._places.pop(place.agent, None)
            self._idle.pop(place, None)
            place.started.set()
            place.ended.set()


def _only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
