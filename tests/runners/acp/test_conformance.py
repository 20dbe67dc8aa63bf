"""The runner ``acp`` against the conformance kit, on an agent that plays its prompt."""

from __future__ import annotations

import json
from typing import Any

from gofer import Runner, SubagentSpec
from gofer.testing import RunnerConformance
from gofer_runners.acp import AcpRunner

from .support import settings


class TestAcp(RunnerConformance):
    max_examples = 5
    deadline = 20.0

    def make_runner(self) -> Runner:
        return AcpRunner()

    def config(self) -> dict[str, Any]:
        return {"agents": {"player": settings({"options": {"prompts_are_steps": True}})}}

    def spec(self, task: str, **fields: Any) -> SubagentSpec:
        return SubagentSpec(task=task, **{"agent": "player", **fields})

    def task_that_says(self, text: str) -> str:
        return json.dumps([{"say": text}])

    def task_that_is_long(self) -> str:
        # What is sent at once is over at once: it takes a moment where it waits for answers.
        asks = {"request": "_example/nothing", "params": {}}
        return json.dumps([{"say": "word " * 10}, {"think": "hm"}, asks] * 40)

    def task_that_tells_cwd(self) -> str:
        return json.dumps([{"cwd": True}])

    def task_that_calls_a_tool(self) -> tuple[str, str]:
        steps: list[dict[str, Any]] = [
            {"call": "1", "kind": "read", "status": "in_progress"},
            {"progress": "1", "status": "completed", "text": "seen"},
            {"say": "I looked."},
        ]
        return json.dumps(steps), "read"
