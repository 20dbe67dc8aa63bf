"""Runs git so that it can neither ask, hang, run a hook, nor be led astray by the environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

from .errors import PluginNotSupportedError

if sys.platform != "win32":
    import fcntl

__all__ = ["Git", "Output", "directory_lock", "readable"]

#: How long git may take to clean up after SIGTERM, before SIGKILL.
TERMINATE_SECONDS = 5.0

#: How often another process's lock is tried again: flock has no event to wait for.
LOCK_INTERVAL = 0.05

# A parent that is itself a git hook has these set, and they would name another repository.
_DROPPED = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_CONFIG_PARAMETERS",
        "GIT_DIFF_OPTS",
        "GIT_DIR",
        "GIT_EXTERNAL_DIFF",
        "GIT_GLOB_PATHSPECS",
        "GIT_GRAFT_FILE",
        "GIT_ICASE_PATHSPECS",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_INDEX_VERSION",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_LITERAL_PATHSPECS",
        "GIT_NAMESPACE",
        "GIT_NOGLOB_PATHSPECS",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_QUARANTINE_PATH",
        "GIT_REFLOG_ACTION",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
        "LANGUAGE",
    }
)

_SET = {
    "GCM_INTERACTIVE": "never",
    "GIT_ASKPASS": "",  # Empty, not absent: absent falls back to core.askPass and SSH_ASKPASS.
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",  # Messages are matched.
    "SSH_ASKPASS_REQUIRE": "never",
}

_SETTINGS = (
    ("branch.autoSetupMerge", "false"),  # Would write to the config, and fail while it is locked.
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("submodule.recurse", "false"),
    ("worktree.guessRemote", "false"),  # Would start from a remote's branch instead of HEAD.
)


@dataclass(frozen=True, slots=True)
class Output:
    """What a finished git left; ``stderr`` without what is no news."""

    returncode: int
    stdout: bytes
    stderr: str


class Git:
    """Git in one directory.

    :param cwd: where it runs.
    :param git_dir: the repository, where it is not to be found from *cwd*.
    :param work_tree: the checkout that belongs to *git_dir*.
    """

    def __init__(
        self, cwd: Path, *, git_dir: Path | None = None, work_tree: Path | None = None
    ) -> None:
        self._cwd = cwd
        self._options = []
        if git_dir is not None:
            self._options.append(f"--git-dir={git_dir}")
        if work_tree is not None:
            self._options.append(f"--work-tree={work_tree}")
        self._settings = list(_SETTINGS)

    async def disable_hooks(self) -> None:
        """Switch off the hooks that stand in the configuration (Git 2.54 and later)."""
        found = await self.run("config", "-z", "--name-only", "--get-regexp", r"^hook\..+\.")
        names = {os.fsdecode(key).rpartition(".")[0] for key in found.stdout.split(b"\0") if key}
        self._settings += [(f"{name}.enabled", "false") for name in sorted(names)]

    async def run(self, *args: str) -> Output:
        """Run git to its end and return what it left, whatever its exit code.

        Cancelled, it ends git and all that git started, and returns only then.

        :raises PluginNotSupportedError: git cannot be run at all.
        """
        program = _program()
        try:
            # Files, not pipes: a process that git leaves behind would hold a pipe open.
            with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
                # Shielded: cancelled half way, the started process would be nobody's.
                with anyio.CancelScope(shield=True):
                    process = await anyio.open_process(
                        [program, "--no-pager", *self._options, *args],
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        cwd=self._cwd,
                        env=self._environment(),
                        start_new_session=True,
                    )
                try:
                    returncode = await process.wait()
                except BaseException:
                    await _end(process)
                    raise
                stdout.seek(0)
                stderr.seek(0)
                return Output(returncode, stdout.read(), _message(stderr.read()))
        except OSError as error:
            raise PluginNotSupportedError(
                f"git cannot be run in {str(self._cwd)!r}: {error}; "
                f"check that this directory exists and that {program!r} works"
            ) from error

    async def read(self, *args: str) -> bytes:
        """Run git and return its stdout.

        :raises PluginNotSupportedError: it failed; git's own message is in the error.
        """
        output = await self.run(*args)
        if output.returncode:
            raise PluginNotSupportedError(
                f"git {args[0]} failed in {str(self._cwd)!r} (exit code {output.returncode}): "
                f"{output.stderr or 'git gave no message'}"
            )
        return output.stdout

    def _environment(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if name not in _DROPPED} | _SET
        # After the user's own, if there are any, so that ours win.
        count = env.get("GIT_CONFIG_COUNT", "")
        start = int(count) if count.isdecimal() else 0
        for number, (key, value) in enumerate(self._settings, start):
            env[f"GIT_CONFIG_KEY_{number}"] = key
            env[f"GIT_CONFIG_VALUE_{number}"] = value
        env["GIT_CONFIG_COUNT"] = str(start + len(self._settings))
        return env


def _program() -> str:
    program = shutil.which("git")
    if program is None:
        raise PluginNotSupportedError(
            "git was not found on PATH; worktrees need it: install git, or correct PATH"
        )
    return os.path.abspath(program)  # PATH may hold relative directories, and we run elsewhere.


async def _end(process: Process) -> None:
    """End the process and its group: softly first, since git then removes its lock files."""
    with anyio.CancelScope(shield=True):
        _signal(process, hard=False)
        with anyio.move_on_after(TERMINATE_SECONDS):
            await process.wait()
        _signal(process, hard=True)
        await process.wait()


def _signal(process: Process, *, hard: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL if hard else signal.SIGTERM)


def _message(stderr: bytes) -> str:
    lines = readable(stderr).splitlines()
    text = "\n".join(line for line in lines if not line.startswith("Preparing worktree"))
    return text.strip()[-4000:]


def readable(name: bytes | str) -> str:
    r"""Return a file name or message as text that JSON can hold; bytes not UTF-8 as ``\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@asynccontextmanager
async def directory_lock(directory: Path) -> AsyncGenerator[None, None]:
    """Hold *directory* against other processes that call this; nothing is written into it.

    Where the system or the file system has no such lock, git's own have to do.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise PluginNotSupportedError(
            f"the repository {str(directory)!r} cannot be read: {error}; check its permissions"
        ) from error
    try:
        while not _flock(descriptor):  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(LOCK_INTERVAL)
        yield
    finally:
        os.close(descriptor)


def _flock(descriptor: int) -> bool:
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
    return True
