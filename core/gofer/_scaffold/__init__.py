"""A new package for a runner: which names it may have, what is in it, and how it is written."""

from __future__ import annotations

from ._names import Names, check_name
from ._write import render, write_package

__all__ = ["Names", "check_name", "render", "write_package"]
