"""A nested harness: an agent loop over any model, with tools for files and commands."""

from __future__ import annotations

from .runner import InternalRunner

__all__ = ["InternalRunner"]
