"""The tools that read, list, write and edit files below the run's directory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, TypeVar

from anyio.to_thread import run_sync
from pydantic import Field

from gofer.roots import Roots, RootsError

from ._output import cut
from ._tool import Arguments, HarnessTool, ToolFailure

__all__ = ["file_tools"]

_LINES = 2000
_CHARACTERS = 64 * 1024
_ENTRIES = 1000
_SKIPPED = 256 * 1024 * 1024

T = TypeVar("T")


class Read(Arguments):
    path: str = Field(description="The file, relative to the working directory.")
    line: int = Field(default=1, ge=1, description="The first line to read, counted from 1.")
    limit: int = Field(default=_LINES, ge=1, le=_LINES, description="How many lines at most.")


class Write(Arguments):
    path: str = Field(description="The file; directories are made as needed.")
    content: str = Field(description="The whole new content.")


class Edit(Arguments):
    path: str = Field(description="The file.")
    old: str = Field(min_length=1, description="The text to replace, exactly as it stands there.")
    new: str = Field(description="What to put in its place.")
    every: bool = Field(default=False, description="Replace every place, not just one.")


class List(Arguments):
    path: str = Field(default=".", description="The directory.")


def file_tools(roots: Roots) -> list[HarnessTool]:
    """Return the tools; none of them leaves *roots*."""
    return [
        HarnessTool(
            "read_file",
            "Read a text file, or some lines of it.",
            partial(_read, roots),
            Read,
            reads=True,
        ),
        HarnessTool(
            "list_directory",
            "List what is in a directory; directories end with a slash.",
            partial(_list, roots),
            List,
            reads=True,
        ),
        HarnessTool(
            "write_file",
            "Write a file as a whole. To change a part of one, use edit_file.",
            partial(_write, roots),
            Write,
        ),
        HarnessTool(
            "edit_file",
            "Replace a text in a file; it must stand there exactly once, unless every is true.",
            partial(_edit, roots),
            Edit,
        ),
    ]


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    try:
        return await run_sync(function, *args)
    except RootsError as error:
        raise ToolFailure(str(error)) from None


async def _read(roots: Roots, asked: Read) -> str:
    return await _in_thread(_read_lines, roots, asked)


def _read_lines(roots: Roots, asked: Read) -> str:
    lines: list[str] = []
    size = 0
    with roots.opened(asked.path) as file:
        for line in itertools.islice(_bounded(file, asked.path), asked.line - 1, None):
            if len(lines) == asked.limit or size > _CHARACTERS:
                lines.append(f"[… more follows: go on with line {asked.line + len(lines)} …]")
                break
            if b"\0" in line:
                raise ToolFailure(f"{asked.path!r} is no text file")
            lines.append(line.decode(errors="replace"))
            size += len(lines[-1])
    if not lines:
        return "(the file is empty)" if asked.line == 1 else f"(there is no line {asked.line})"
    return "".join(lines)


def _bounded(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Give the lines of a file; one without end comes in pieces."""
    size = 0
    while line := file.readline(_CHARACTERS):
        size += len(line)
        if size > _SKIPPED:
            raise ToolFailure(
                f"{path!r} is too long to be read this far: search_files finds places in it"
            )
        yield line


async def _list(roots: Roots, asked: List) -> str:
    entries = await _in_thread(roots.entries, asked.path)
    names = [f"{name}/" if is_directory else name for name, is_directory in entries[:_ENTRIES]]
    if len(entries) > _ENTRIES:
        names.append(f"[… {len(entries) - _ENTRIES} more …]")
    return cut("\n".join(names), _CHARACTERS) or "(the directory is empty)"


async def _write(roots: Roots, asked: Write) -> str:
    data = asked.content.encode()
    await _in_thread(roots.write, asked.path, data)
    return f"wrote {len(data)} bytes to {asked.path}"


async def _edit(roots: Roots, asked: Edit) -> str:
    try:
        text = (await _in_thread(roots.read, asked.path)).decode()
    except UnicodeDecodeError:
        raise ToolFailure(f"{asked.path!r} is no UTF-8 text") from None
    old, new = asked.old, asked.new
    count = text.count(old)
    if not count and "\r\n" in text:
        # The model sees such lines as lines, and writes them with its own ends.
        old, new = (_with_crlf(part) for part in (old, new))
        count = text.count(old)
    if not count:
        raise ToolFailure(
            f"the text does not stand in {asked.path!r}: read the file, and copy it exactly"
        )
    if count > 1 and not asked.every:
        raise ToolFailure(
            f"the text stands {count} times in {asked.path!r}: take more of what is around it, "
            "or set every to true"
        )
    await _in_thread(roots.write, asked.path, text.replace(old, new).encode())
    return f"replaced {count} place{'s' if count > 1 else ''} in {asked.path}"


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")
