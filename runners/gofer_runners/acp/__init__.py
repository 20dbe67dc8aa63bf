"""Runs children on agent processes that speak the Agent Client Protocol."""

from __future__ import annotations

from ._permissions import Permission
from ._settings import AcpAgent, Environment
from .runner import AcpRunner

__all__ = ["AcpAgent", "AcpRunner", "Environment", "Permission"]
