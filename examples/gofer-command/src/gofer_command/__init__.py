"""A runner for any command line program: the task on its stdin, its stdout as the answer."""

from __future__ import annotations

from ._runner import CommandRunner

__all__ = ["CommandRunner"]
