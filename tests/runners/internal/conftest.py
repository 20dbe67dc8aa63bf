"""What the tests of the harness share: a run of it on a scripted model."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from gofer import Host, SubagentResult, SubagentSpec, ToolCall, ToolResult
from gofer.testing import Script, ScriptedModel
from gofer_runners.internal import InternalRunner

_numbers = itertools.count()


class Played(NamedTuple):
    """What came of a run, and the model that saw it."""

    result: SubagentResult
    model: ScriptedModel

    @property
    def results(self) -> list[ToolResult]:
        """The tool results that the model has seen at the end."""
        last = self.model.requests[-1].messages
        return [
            block for message in last for block in message.content if isinstance(block, ToolResult)
        ]


Play = Callable[..., Awaitable[Played]]
Use = Callable[..., Awaitable[ToolResult]]


def call_of(name: str, **arguments: Any) -> ToolCall:
    """Return a call with an id of its own."""
    return ToolCall(id=f"c{next(_numbers)}", name=name, arguments=arguments)


@pytest.fixture
def call() -> Callable[..., ToolCall]:
    """Return what makes calls."""
    return call_of


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return the directory of the runs, in one where nothing else may appear."""
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def play(work: Path) -> Play:
    """Return what runs the harness on the scripts of its model."""

    async def played(
        *turns: Script,
        plugins: Sequence[object] = (),
        config: dict[str, Any] | None = None,
        spec: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Played:
        model = ScriptedModel(turns)
        given = [InternalRunner(model, **settings), *plugins]
        with anyio.fail_after(60):
            async with Host(given, config, discover=False, cwd=work) as host:
                asked = SubagentSpec(**{"task": "Do it.", "runner": "internal", **(spec or {})})
                return Played(await host.run(asked), model)

    return played


@pytest.fixture
def use(play: Play) -> Use:
    """Return what has the model call one tool, and gives the result that it sees."""

    async def used(name: str, /, **arguments: Any) -> ToolResult:
        played = await play([call_of(name, **arguments)], "Done.")
        assert played.result.exit_ok
        [result] = played.results
        return result

    return used
