"""The driver of the conformance kit: it has a runner do things, and nothing can make it hang."""

from __future__ import annotations

__all__ = ["Kit"]


class Kit:
    """Runs a subject's runner on one event loop."""
