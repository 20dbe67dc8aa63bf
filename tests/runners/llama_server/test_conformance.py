"""The runner ``llama-server`` against the conformance kit, on a server that obeys."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gofer import Runner
from gofer.testing import RunnerConformance
from gofer_runners.llama_server import LlamaServerRunner


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    program = Path(__file__).with_name("obedient_server.py")
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


class TestLlamaServer(RunnerConformance):
    max_examples = 10

    @pytest.fixture(autouse=True)
    def serve(self, url: str) -> None:
        self.url = url

    def make_runner(self) -> Runner:
        return LlamaServerRunner(self.url, "m")

    def task_that_says(self, text: str) -> str:
        return f"say {text}"

    def task_that_is_long(self) -> str:
        return "long"
