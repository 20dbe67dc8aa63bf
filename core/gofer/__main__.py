"""``python -m gofer`` is ``gofer``."""

from __future__ import annotations

from .cli import main

main()
