"""What pytest loads of gofer: the option of the conformance kit, and its part of the summary."""

from __future__ import annotations

__all__: list[str] = []
