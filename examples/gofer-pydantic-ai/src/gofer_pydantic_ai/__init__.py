"""A runner that drives an agent of pydantic-ai."""

from __future__ import annotations

from ._runner import PydanticAIRunner

__all__ = ["PydanticAIRunner"]
