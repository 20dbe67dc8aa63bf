"""Delegation: ``spawn_subagent`` starts a child, ``collect_subagent`` gives its report."""

from __future__ import annotations

from .plugin import Spawn, SubagentPlugin

__all__ = ["Spawn", "SubagentPlugin"]
