"""Where in a runner something happened."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

__all__ = ["place"]


def _folders() -> tuple[str, ...]:
    folders = [str(Path(__file__).parents[1])]
    for name in ("anyio", "trio"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parent))
    return tuple(folders)


_NOT_THEIRS = _folders()
_LIBRARY = sysconfig.get_path("stdlib")


def place(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return the innermost of *frames* that is neither gofer's, nor Python's, in words."""
    chosen = None
    for frame in frames:
        library = frame.filename.startswith(_LIBRARY) and "site-packages" not in frame.filename
        if not (library or frame.filename.startswith(("<", *_NOT_THEIRS))):
            chosen = frame
    if chosen is None:
        return ""
    return f"{chosen.filename}:{chosen.lineno}, in {chosen.name}"
