"""Reads what a repository knows of its worktrees, and what was changed in them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ._git import Git, readable
from .errors import PluginNotSupportedError

__all__ = [
    "Registration",
    "changed_files",
    "missing_files",
    "names_in",
    "pointed_to",
    "real",
    "registrations",
    "status",
]

_UNFINISHED = {
    "BISECT_LOG": "bisect",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "MERGE_HEAD": "merge",
    "REVERT_HEAD": "revert",
    "rebase-apply": "rebase or am",
    "rebase-merge": "rebase",
}


@dataclass(frozen=True, slots=True)
class Registration:
    """A worktree as its repository knows it; ``path`` is None where git has only begun."""

    git_dir: Path
    path: Path | None

    @property
    def locked(self) -> str | None:
        """Why it is locked ("" without a reason), or None if it is not."""
        try:
            return readable((self.git_dir / "locked").read_bytes()).strip()
        except OSError:
            return None

    @property
    def detached_head(self) -> str | None:
        """The commit of a HEAD that is on no branch."""
        try:
            head = readable((self.git_dir / "HEAD").read_bytes()).strip()
        except OSError:
            return None
        return None if head.startswith("ref:") else head or None

    @property
    def unfinished(self) -> list[str]:
        """The operations that were begun in it and not ended."""
        return [what for name, what in _UNFINISHED.items() if (self.git_dir / name).exists()]


def real(path: Path) -> Path:
    """Return *path* with every symbolic link followed, as git stores it."""
    return Path(os.path.realpath(path))


def registrations(repository: Path) -> list[Registration]:
    """Return the linked worktrees of a repository, by its common directory."""
    directory = repository / "worktrees"
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PluginNotSupportedError(
            f"the repository's worktrees cannot be read: {error}; check its permissions"
        ) from error
    pointers = {directory / name: pointed_to(directory / name / "gitdir") for name in names}
    return [Registration(each, path and real(path.parent)) for each, path in pointers.items()]


def pointed_to(file: Path) -> Path | None:
    """Return the path that a ``.git`` or ``gitdir`` file holds; it may be relative to the file."""
    try:
        content = file.read_bytes().removeprefix(b"gitdir: ").rstrip(b"\r\n")
    except OSError:
        return None
    return file.parent / os.fsdecode(content) if content else None


def names_in(output: bytes) -> list[str]:
    """Return the NUL-terminated names of git's output, fit for the file system's functions."""
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


async def status(git: Git, *options: str) -> list[tuple[str, str]]:
    """Return what ``git status`` lists: the two letters of the state, and the name."""
    entries = await git.read(
        "status", "--porcelain=v1", "-z", "--no-renames", "--ignore-submodules=none", *options
    )
    return [(entry[:2], entry[3:]) for entry in names_in(entries)]


async def changed_files(git: Git, base: str) -> list[str]:
    """Return the files that differ from *base*: committed, staged, modified, untracked.

    A renamed file is there under both names.
    """
    names = {name for _, name in await status(git, "--untracked-files=all")}
    head = (await git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")).stdout.strip()
    if head and head != base.encode():
        names.update(
            names_in(
                await git.read(
                    "diff-tree", "-r", "-z", "--name-only", "--no-renames", base, os.fsdecode(head)
                )
            )
        )
    return sorted(map(readable, names))


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


async def missing_files(git: Git, toplevel: Path, repository: Path) -> tuple[str, ...]:
    """Return what a new worktree will lack of the checkout at *toplevel*.

    Files that are modified, staged or untracked (deleted ones are not: there is nothing to lack),
    and the submodules that are checked out.
    """
    # A worktree inside the checkout is untracked there, but is nothing of the checkout's own.
    others = {registration.path for registration in registrations(repository)}
    names = {
        name.rstrip("/")
        for _, name in await status(git, "--untracked-files=all")
        if _exists(toplevel / name) and (name[-1] != "/" or real(toplevel / name) not in others)
    }
    if (toplevel / ".gitmodules").exists():
        paths = await git.run(
            "config", "-z", "-f", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$"
        )
        submodules = [entry.partition("\n")[2] for entry in names_in(paths.stdout)]
        names.update(name for name in submodules if (toplevel / name / ".git").exists())
    return tuple(sorted(map(readable, names)))
