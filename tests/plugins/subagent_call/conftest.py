"""What the tests of ``subagent_call`` share: a Host with two scripted runners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer import Host, Run, SessionInfo, SubagentResult
from gofer.testing import ScriptedRunner
from gofer_plugins.delegation import SubagentPlugin
from gofer_plugins.subagent_call import SubagentCallPlugin


class Scene:
    """The Host, the plugin, and what its runners were asked."""

    def __init__(self, host: Host, plugin: SubagentCallPlugin, *runners: ScriptedRunner) -> None:
        self.host = host
        self.plugin = plugin
        self.internal, self.external = runners

    @property
    def asked(self) -> list[tuple[str | None, str]]:
        """Every call so far: the agent (None: the internal one) and the task."""
        runs = [*self.internal.runs, *self.external.runs]
        return [
            (run.spec.agent, run.spec.task) for run in sorted(runs, key=lambda run: int(run.id[4:]))
        ]


def echo(run: Run) -> SubagentResult:
    """Answer with who was asked what, in a session of the agent's."""
    session = SessionInfo(id=f"s-{run.id}", resumed=run.spec.resume is not None)
    return run.result(f"{run.spec.agent}: {run.prompt}", session=session)


Open = Callable[..., AbstractAsyncContextManager[Scene]]


@pytest.fixture
def scene(tmp_path: Path) -> Open:
    """Return what opens a Host with the plugin; agents ``one`` and ``two`` are of a runner."""

    @asynccontextmanager
    async def opened(
        script: Any = echo, *plugins: Any, internal: Any = None, plugin: Any = None, **config: Any
    ) -> AsyncIterator[Scene]:
        plugin = plugin or SubagentCallPlugin()
        runners = [
            ScriptedRunner(script if internal is None else internal, name="internal"),
            ScriptedRunner(script, name="external"),
        ]
        agents = {name: {"runner": "external"} for name in ("one", "two")}
        config = {"agents": agents, **config}
        given = [plugin, SubagentPlugin, *runners, *plugins]
        with anyio.fail_after(30):
            async with Host(given, config, discover=False, cwd=tmp_path) as host:
                yield Scene(host, plugin, *runners)

    return opened
