"""The base class of a runner's conformance test."""

from __future__ import annotations

from ._subject import Subject

__all__ = ["RunnerConformance"]


class RunnerConformance(Subject):
    """Tests a runner against all that users of gofer rely on: subclass it in a test module.

    ::

        class TestShout(RunnerConformance):
            def make_runner(self) -> Runner:
                return Shout()
    """
