"""``subagent_call``: one tool that has an agent do a task, and gives its report."""

from __future__ import annotations

from .plugin import SubagentCallPlugin

__all__ = ["SubagentCallPlugin"]
