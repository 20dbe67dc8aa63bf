"""Which of a project's settings need the user's trust, and which files have it.

Whoever writes to a project's files could otherwise run commands as its user, or send the user's
words and keys to a server of their own. So only what is known to be harmless is taken from such a
file unasked; any other key, new ones included, needs trust. Trust holds for one place and one
content: a change to the file ends it. The place is where the file is found, for there its settings
hold: that a link leads to a file that is trusted elsewhere says nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from .errors import ConfigError

__all__ = ["SAFE", "grant", "is_trusted", "needs_trust", "revoke", "store"]

DEFAULT_CONCURRENCY = {"acp": 8, "*": 64}
DEFAULT_DEPTH = 1
DEFAULT_PENDING = 1024


def _always(value: object) -> bool:
    return True


def _at_most(limit: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and value <= limit


def _concurrency(value: object) -> bool:
    if not isinstance(value, Mapping):
        return _at_most(min(DEFAULT_CONCURRENCY.values()))(value)
    others = DEFAULT_CONCURRENCY["*"]
    # "*" also covers the runners with a lower default of their own, unless they are named too.
    if any(name not in value for name in DEFAULT_CONCURRENCY):
        others = min(DEFAULT_CONCURRENCY.values())
    limits = {**DEFAULT_CONCURRENCY, "*": others}
    return all(
        _at_most(limits.get(name, DEFAULT_CONCURRENCY["*"]))(count) for name, count in value.items()
    )


# Not here on purpose: `disable` and `allow`, which could switch off a plugin that guards, and
# `default_runner`, which could turn a model's answer into a program that runs.
SAFE: Mapping[str, Callable[[object], bool]] = {
    "idle_timeout": _always,
    "max_concurrent": _concurrency,
    "max_depth": _at_most(DEFAULT_DEPTH),
    "max_pending": _at_most(DEFAULT_PENDING),
    "model": _always,
    "strict": _always,
    "timeout": _always,
}


def needs_trust(data: Mapping[str, Any]) -> list[str]:
    """Return the top-level keys of a project's settings that only a trusted file may set."""
    return [key for key, value in data.items() if key not in SAFE or not SAFE[key](value)]


def store() -> Path:
    """Return the directory that holds one small file for each trusted one."""
    return platformdirs.user_data_path("gofer") / "trusted"


def is_trusted(path: Path, content: bytes) -> bool:
    """Say whether the user has trusted the file at *path* with just this *content*."""
    path = _place(path)
    try:
        entry = json.loads(_entry(path).read_bytes())
    except (OSError, ValueError):
        return False
    return bool(entry == _record(path, content))


def grant(path: Path, content: bytes) -> None:
    """Trust the file at *path* as long as it has this *content*.

    :raises ConfigError: the note of it could not be written.
    """
    path = _place(path)
    entry = _entry(path)
    try:
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp gives mode 0600.
        handle, temporary = tempfile.mkstemp(dir=entry.parent, prefix=".new-")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(_record(path, content), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, entry)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ConfigError(
            f"{entry}: the trust in {path} cannot be written down: {error}"
        ) from error


def revoke(path: Path) -> bool:
    """Trust the file at *path* no longer; return whether it was trusted, in any content.

    :raises ConfigError: the note of it could not be removed.
    """
    path = _place(path)
    entry = _entry(path)
    try:
        entry.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"{entry}: the trust in {path} cannot be removed: {error}") from error
    return True


def _place(path: Path) -> Path:
    return path.parent.resolve() / path.name


def _entry(path: Path) -> Path:
    return store() / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"


def _record(path: Path, content: bytes) -> dict[str, str]:
    # A path that is not UTF-8 carries lone surrogates; json writes those as escapes.
    return {"path": str(path), "sha256": hashlib.sha256(content).hexdigest()}
