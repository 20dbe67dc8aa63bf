"""What the command line writes: results to stdout, everything else to stderr."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from contextlib import suppress
from enum import StrEnum
from typing import Any, TextIO

from .errors import ConfigError, GoferError, PluginError

__all__ = [
    "Format",
    "Plain",
    "complain",
    "exit_code",
    "is_terminal",
    "note",
    "plain",
    "show_log",
    "write",
]

# Texts, for the re module compiles what is used, once: a run off a terminal uses none of them.
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"
_ESCAPE = rf"""(?xs)
      (?:\x1b\[|\x9b) [0-?]* [\x20-/]* [@-~]           # a control sequence, such as a colour
    | {_STRING} [^\x07\x9c\x1b]* (?:\x07|\x9c|\x1b\\)  # a string, such as a title or a link
    | \x1b [\x20-/]* [0-OQ-WYZ`-~\\]                   # anything shorter
    """
_UNFINISHED = (
    rf"(?s)(?:(?:\x1b\[|\x9b)[0-?]*[\x20-/]*|{_STRING}[^\x07\x9c\x1b]*\x1b?|\x1b[\x20-/]*)\Z"
)
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
_LONGEST = 4096


class Format(StrEnum):
    """What goes to stdout."""

    text = "text"
    json = "json"
    quiet = "quiet"


class Plain:
    """Takes what could drive a terminal out of a text that comes in pieces."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what of *text* is fit to be shown now; half an escape sequence is kept."""
        text = self._held + text
        found = re.search(_UNFINISHED, text)
        # A sequence without an end must not swallow all that follows.
        cut = found.start() if found and len(text) - found.start() <= _LONGEST else len(text)
        self._held = text[cut:]
        return plain(text[:cut])


def plain(text: str) -> str:
    """Return a whole *text* without escape sequences and control characters."""
    return re.sub(_CONTROL, "", re.sub(_ESCAPE, "", text))


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether somebody watches *stream*, which may be closed, None or somebody's own."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False


def write(text: str, end: str = "\n") -> None:
    """Write a result to stdout: plain text to a terminal, else *text* as it is, in UTF-8.

    If nobody reads any more, it is silently lost.

    :raises GoferError: it cannot be written, as to a full disk.
    """
    _write(sys.stdout, text + end, "stdout")


def note(text: str) -> None:
    """Write a line for people to stderr."""
    try:
        _write(sys.stderr, text + "\n", "stderr")
    except GoferError:
        return


def complain(error: object) -> None:
    """Tell of an error, in lines that name the program."""
    for line in str(error).splitlines() or [type(error).__name__]:
        note(f"gofer: {line}")


def exit_code(error: GoferError) -> int:
    """Return 2 for what could not be started: settings, or something not installed; else 1."""
    return 2 if isinstance(error, ConfigError | PluginError) else 1


class _Notes(logging.Handler):
    """Writes log messages as lines for people."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"gofer: {record.getMessage()}")


def show_log(verbose: bool = False) -> None:
    """Show what gofer logs on stderr: warnings, or all of it."""
    logger = logging.getLogger("gofer")
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    if not any(isinstance(handler, _Notes) for handler in logger.handlers):
        logger.addHandler(_Notes())


def _write(stream: TextIO | None, text: str, name: str) -> None:
    if stream is None:
        return
    encoding = "utf-8"
    if is_terminal(stream):
        text, encoding = plain(text), stream.encoding or encoding
    data = text.encode(encoding, "replace")
    try:
        if isinstance(stream, io.TextIOWrapper):
            _write_all(stream, data)
        else:  # of somebody's own, who may do more with it than write it
            stream.write(data.decode(encoding))
            stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        raise GoferError(f"cannot write to {name}: {error.strerror or error}") from error


def _write_all(stream: io.TextIOWrapper, data: bytes) -> None:
    """Write what *stream* holds, and then *data*, past its buffers, which it may not have.

    What is written to may take a part at a time, and nothing at the moment, where it is
    non-blocking: then it is waited for.
    """
    raw: Any = getattr(stream.buffer, "raw", stream.buffer)
    while True:
        try:
            stream.flush()
            break
        except BlockingIOError:
            _wait(raw)
    rest = memoryview(data)
    while rest:
        written: int | None = raw.write(rest)
        if written is None:
            _wait(raw)
        else:
            rest = rest[written:]


def _wait(raw: Any) -> None:
    """Wait until *raw* takes something again, or nobody reads it any more."""
    import select

    select.select([], [raw], [])


def _discard(stream: TextIO) -> None:
    # What the buffers still hold would fail again when the interpreter ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with suppress(AttributeError, OSError):  # who has no descriptor writes elsewhere
            os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
