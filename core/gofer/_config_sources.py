"""Where settings come from: a project's file, the user's own, and the environment."""

from __future__ import annotations

import logging
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from .errors import ConfigError

__all__ = [
    "OTHER_VARIABLES",
    "Key",
    "Source",
    "did_you_mean",
    "dotted",
    "project_file",
    "read_environment",
    "read_file",
    "read_project",
    "read_user",
    "user_file",
]

Key = tuple[str | int, ...]

logger = logging.getLogger("gofer.config")

PREFIX = "GOFER_"
# GOFER_ variables that are no settings: how gofer's own processes and tests talk to each other.
OTHER_VARIABLES = frozenset({"GOFER_DEPTH", "GOFER_DEPTH_LIMIT", "GOFER_MODEL_FILE", "GOFER_TREE"})

# How the text of a variable becomes a value, for each key that can be given by one.
LISTS = frozenset({"allow", "disable"})
NUMBERS = frozenset({"idle_timeout", "timeout"})
WHOLE_NUMBERS = frozenset({"max_concurrent", "max_depth", "max_pending"})
SWITCHES = frozenset({"strict"})
TEXTS = frozenset({"api_key", "base_url", "default_runner", "model"})
VARIABLES = {
    f"{PREFIX}{key.upper()}": key
    for key in sorted(LISTS | NUMBERS | WHOLE_NUMBERS | SWITCHES | TEXTS)
}
_SWITCH = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class Source:
    """Settings from one place. ``content`` is the file they were read from, as it was then."""

    __slots__ = ("content", "data", "path", "prefix", "variables")

    def __init__(
        self,
        data: dict[str, Any],
        path: Path | None = None,
        content: bytes = b"",
        prefix: str = "",
        variables: bool = False,
    ) -> None:
        self.data, self.path, self.content = data, path, content
        self.prefix, self.variables = prefix, variables
        # The two ways to write it become one, so that tables merge.
        limit = data.get("max_concurrent")
        if isinstance(limit, int) and not isinstance(limit, bool):
            data["max_concurrent"] = {"*": limit}

    def label(self, key: str) -> str:
        """Return where the dotted *key* stands, as a person would look for it."""
        if self.path is not None:
            return f"{self.path}:{self.prefix}{key}"
        if self.variables:
            return PREFIX + key.partition(".")[0].upper()
        return "argument"


def dotted(parts: Iterable[object]) -> str:
    """Join the parts of a key as TOML writes it: quoted where a part is no bare word."""
    return ".".join(
        part if re.fullmatch(r"[A-Za-z0-9_-]+|\*", part) else f'"{part}"'
        for part in map(str, parts)
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the closest known name, or nothing."""
    import difflib  # for mistakes alone

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def directory(cwd: str | os.PathLike[str] | None = None) -> Path:
    """Return *cwd*, by default the current directory, as an absolute path.

    :raises ConfigError: the current directory has been removed.
    """
    try:
        return Path(cwd or Path.cwd()).absolute()
    except FileNotFoundError as error:
        raise ConfigError(
            "the current directory does not exist any more: go to another one, or name one as cwd"
        ) from error


def user_file() -> Path:
    """Return where the user's own settings are, whether there are any or not."""
    return platformdirs.user_config_path("gofer") / "gofer.toml"


def read_user() -> Source | None:
    """Read the user's own file, if there is one. Raises ConfigError if it cannot be read."""
    path = user_file()
    content = _read(path)
    return None if content is None else Source(_parse(path, content), path, content)


def project_file(directory: Path) -> Path | None:
    """Return the file that holds the settings of the project *directory* is in, if any does."""
    source = read_project(directory)
    return source.path if source else None


def read_file(path: Path) -> Source:
    """Read the project settings that *path* holds.

    :raises ConfigError: there are none, or the file cannot be read.
    """
    path = path.absolute()
    if path.name == "pyproject.toml":
        table = _read_table(path)
        if table is None:
            raise ConfigError(f"{path}: there is no table [tool.gofer] in it")
        return table
    content = _read(path)
    if content is None:
        raise ConfigError(f"{path}: there is no such file")
    return Source(_parse(path, content), path, content)


def read_project(directory: Path) -> Source | None:
    """Read the nearest ``gofer.toml``, or ``pyproject.toml`` with the table, from here upwards.

    In one directory ``gofer.toml`` wins. Raises ConfigError if the file cannot be read.
    """
    own = user_file()
    for folder in (directory, *directory.parents):
        path = folder / "gofer.toml"
        # The user's own file is no project's, not even for work on one's own settings.
        content = _read(path) if not _same(path, own) else None
        table = _read_table(folder / "pyproject.toml")
        if content is not None:
            if table is not None:
                logger.warning("%s is used; [tool.gofer] in %s is not", path, table.path)
            return Source(_parse(path, content), path, content)
        if table is not None:
            return table
    return None


def _read_table(path: Path) -> Source | None:
    content = _read(path)
    # Most files are somebody else's; one that is broken is no reason to fail then.
    if content is None or b"gofer" not in content:
        return None
    tool = _parse(path, content).get("tool")
    if not isinstance(tool, dict) or "gofer" not in tool:
        return None
    if not isinstance(tool["gofer"], dict):
        raise ConfigError(f"{path}:tool.gofer: should be a table, [tool.gofer]")
    return Source(tool["gofer"], path, content, "tool.gofer.")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _read(path: Path) -> bytes | None:
    try:
        # Before opening: a pipe of that name would keep us waiting.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path}: should be a file with settings, but it is none")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        # Some editors start a UTF-8 file with a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: not UTF-8 text; save the file as UTF-8") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
        line_at = found[1] if found and found[1] else str(text.count("\n") + 1)
        reason = message[: found.start()] if found else message
        raise ConfigError(f"{path}: line {line_at}: not valid TOML: {reason}") from error
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None


def read_environment(environ: Mapping[str, str]) -> Source:
    """Read the ``GOFER_*`` variables; an empty one counts as not set.

    An unknown one is only logged: it may belong to somebody's plugin. Raises ConfigError for a
    value that cannot be right.
    """
    data: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES or not text.strip():
            continue
        key = VARIABLES.get(name)
        if key is None:
            logger.warning(
                "%s is no variable that gofer knows%s", name, did_you_mean(name, VARIABLES)
            )
        else:
            data[key] = _value(key, text.strip())
    return Source(data, variables=True)


def _value(key: str, text: str) -> Any:
    if key in LISTS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if key in SWITCHES:
        return _SWITCH.get(text.lower(), text)
    for kinds, kind in ((WHOLE_NUMBERS, int), (NUMBERS, float)):
        # Python takes 1_0 for ten, and digits of any script; nobody who writes it means that.
        if key in kinds and text.isascii() and "_" not in text:
            try:
                return kind(text)
            except ValueError:
                return text  # the check of all values says what it should have been
    return text
