"""Reads a plain ``gofer run`` itself: the library that reads every command line loads for long."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._cli_output import Format

__all__ = ["VALUES", "read"]

VALUES: dict[str, type[Any]] = {
    "agent": str,
    "runner": str,
    "cwd": Path,
    "worktree": str,
    "branch": str,
    "timeout": float,
    "idle_timeout": float,
    "resume": str,
    "tool": list,
    "base_url": str,
    "model": str,
    "format": Format,
}
"""The options of ``gofer run`` that take a value, and what each becomes."""

_NUMBER = r"[0-9]{1,9}(\.[0-9]{1,9})?"


def read(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what the command line asks of ``gofer run``, by name; None: it is not so plain.

    What it returns is what the command of ``_cli_run`` is given for it. Whatever is of another
    command, rare, doubtful or wrong is None, help and errors among it.

    :param argv: the arguments, without the program's name.
    """
    if argv[:1] != ["run"] or "_GOFER_COMPLETE" in environ or sys.platform == "win32":
        return None
    asked: dict[str, Any] = {}
    words = iter(argv[1:])
    for word in words:
        name, value = _task(word) or _flag(word) or _option(word, words)
        if name == "tool" and value:
            value = [*asked.pop(name, []), *value]
        if value is None or name in asked:
            return None
        asked[name] = value
    return asked if "task" in asked else None


def _task(word: str) -> tuple[str, Any] | None:
    return None if word.startswith("--") else ("task", word if _is_plain(word) else None)


def _flag(word: str) -> tuple[str, Any] | None:
    return ("as_json", True) if word == "--json" else None


def _option(word: str, words: Iterator[str]) -> tuple[str, Any]:
    option, stands_here, text = word[2:].partition("=")
    name = option.replace("-", "_")
    kind = VALUES.get(name)
    text = text if stands_here else next(words, "")
    if kind is None or "_" in option or not _is_plain(text):
        return name, None
    if kind is float:
        return name, float(text) if re.fullmatch(_NUMBER, text) else None
    if kind is Format:
        return name, Format.__members__.get(text)
    return name, [text] if kind is list else kind(text)


def _is_plain(text: str) -> bool:
    # What is no text in this locale is not printable.
    return bool(text.strip()) and text[0] != "-" and (text.isascii() or text.isprintable())
