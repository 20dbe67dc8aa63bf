"""gofer's own rules for runners, tried on this one."""

from __future__ import annotations

import sys

import pytest
from gofer import Runner
from gofer.testing import RunnerConformance

from gofer_command import CommandRunner

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="gofer supervises processes on Linux"
)

# It says its task back, or tells its directory.
CODE = """
import os, sys
task = sys.stdin.read()
sys.stdout.write(os.getcwd() if task == "Where are you?" else task)
"""


class TestCommandRunner(RunnerConformance):
    """Each rule is a test."""

    max_examples = 8  # each starts a process

    def make_runner(self) -> Runner:
        """Return the runner, with a command that says its task back."""
        return CommandRunner([sys.executable, "-I", "-S", "-X", "utf8", "-c", CODE], grace=0.5)

    def task_that_says(self, text: str) -> str:
        """Return a task whose answer is *text*."""
        return text

    def task_that_is_long(self) -> str:
        """Return a task whose answer does not fit in one read."""
        return "There is much to say. " * 20_000

    def task_that_tells_cwd(self) -> str:
        """Return a task whose answer is the command's directory."""
        return "Where are you?"
