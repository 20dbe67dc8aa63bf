"""A plugin that only watches: it writes the life of each child as JSON lines."""

from __future__ import annotations

from ._plugin import JournalPlugin

__all__ = ["JournalPlugin"]
