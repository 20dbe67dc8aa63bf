"""Models behind an OpenAI-compatible HTTP API, and the runner that asks them."""

from __future__ import annotations

from .model import LlamaServer
from .runner import LlamaServerRunner

__all__ = ["LlamaServer", "LlamaServerRunner"]
