"""The scripted runner against the conformance kit: what is built on it, is built on a right one."""

from __future__ import annotations

import anyio

from gofer import Capabilities, Run, Runner
from gofer.testing import RunnerConformance, Script, ScriptedRunner


async def _pause(_: Run) -> None:
    await anyio.lowlevel.checkpoint()


def _play(run: Run) -> Script:
    if run.prompt == "long":
        return [item for number in range(100) for item in (_pause, f"{number:5}")]
    return [_pause, run.prompt.removeprefix("say ")]


class TestScripted(RunnerConformance):
    capabilities = Capabilities(streams=True)

    def make_runner(self) -> Runner:
        return ScriptedRunner(_play)

    def task_that_says(self, text: str) -> str:
        return f"say {text}"

    def task_that_is_long(self) -> str:
        return "long"
