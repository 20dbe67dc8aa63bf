"""Why a program could not be started, as a person can mend it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["reason"]

# As many as Linux follows, one after another, and as much as it reads of each.
_INTERPRETERS = 5
_FIRST_LINE = 256


def reason(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str], said: dict[str, Any]
) -> str:
    """Return why a process was not started.

    :param said: what its reaper said; the name of a file in it is *cwd* or the program.
    """
    if "errno" not in said:
        return "its reaper failed, see stderr"
    number, named, program = said["errno"], said.get("filename"), argv[0]
    path = environment.get("PATH")
    if named != str(cwd) and number == errno.ENOENT:
        is_path = bool(os.path.dirname(program))
        found = cwd / program if is_path else shutil.which(program, path=path or os.defpath)
        if found is not None and os.path.isfile(found):
            return f"{program!r} is there, but {_lacking(cwd, str(found))}"
        if not path and not is_path:
            return f"{program!r} is not found, since its environment has no PATH"
    if number == errno.ENOEXEC:
        return f"{program!r} is no program: neither one for this machine, nor a script with #!"
    return os.strerror(number) + (f" ({named!r})" if named else "")


def _lacking(cwd: Path, program: str) -> str:
    """Say what a program lacks that is there, and still is not found."""
    for _ in range(_INTERPRETERS):
        line = b""
        with suppress(OSError), open(program, "rb") as file:
            line = file.readline(_FIRST_LINE)
        if not line.startswith(b"#!"):
            break
        # What ends a line elsewhere is part of the name here.
        word = line[2:].strip(b" \t\n").replace(b"\t", b" ").partition(b" ")[0]
        interpreter = cwd / os.fsdecode(word)
        if not interpreter.exists():
            return f"its interpreter {os.fsdecode(word)!r} is not"
        program = str(interpreter)
    return "what it is loaded with is not"
