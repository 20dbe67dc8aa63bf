"""Git worktrees for children: made, reported on, and removed only when nothing would be lost."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import anyio

from ._checkout import changed_files, missing_files, real, registrations
from ._git import Git, directory_lock, readable
from ._worktree_attempt import Attempt, branch_tip, failed
from ._worktree_removal import Removal
from .errors import PluginNotSupportedError, PluginValidationError
from .subagents import WorktreeConfig, WorktreeReport

__all__ = ["Worktree", "Worktrees", "worktree_args"]

_GITS_OWN = frozenset({"hooks", "info", "logs", "modules", "objects", "refs", "worktrees"})

#: How long removing waits for git once it has begun: half removed would be worst.
REMOVE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Worktree:
    """A worktree that was made.

    :param path: where it is: absolute, without symbolic links.
    :param base_commit: the commit that it started from.
    :param branch: the branch that was made for it.
    :param repository: the repository's common git directory, shared by all its worktrees.
    :param git_dir: this worktree's own part of it.
    :param parent: the top of the checkout it was made from; None for a bare repository.
    :param missing_files: what that checkout had then and this one does not: files modified,
        staged or untracked (not ignored), and the submodules checked out. Relative to *parent*.
    """

    path: Path
    base_commit: str
    branch: str
    repository: Path
    git_dir: Path
    parent: Path | None
    missing_files: tuple[str, ...] = ()


def worktree_args(config: WorktreeConfig) -> list[str]:
    """Return the arguments that git is given to make this worktree; nothing is run.

    :raises PluginValidationError: a path or branch that is empty, begins with ``-``, or holds
        NUL or a line break; a path that begins with ``~``.
    """
    _check("worktree.path", config.path)
    if re.match(r"~(/|$)", config.path):
        raise PluginValidationError(
            "worktree.path",
            f"{config.path!r} begins with '~', which is not expanded here; give the whole path",
        )
    path = config.path.rstrip("/") or "/"  # git would make the slash a part of the branch's name
    if config.branch is not None:
        _check("worktree.branch", config.branch)
        return ["worktree", "add", "-b", config.branch, path]
    if _branch(config).startswith("-"):
        raise PluginValidationError(
            "worktree.path",
            f"{config.path!r} would name the branch {_branch(config)!r}, which cannot begin with "
            "'-'; give worktree.branch as well",
        )
    return ["worktree", "add", path]


def _check(schema: str, value: str) -> None:
    if not value.strip():
        wrong = "is empty"
    elif value.startswith("-"):
        wrong = "begins with '-', which git would take for an option"
    elif re.search(r"[\0\r\n]", value):
        wrong = "holds NUL or a line break"
    else:
        return
    raise PluginValidationError(schema, f"{value!r} {wrong}; give another one")


def _branch(config: WorktreeConfig) -> str:
    if config.branch is not None:
        return config.branch
    return config.path.rstrip("/").rpartition("/")[2]


class Worktrees:
    """Makes, reports on and removes worktrees, one at a time in each repository.

    That holds for other processes too, as far as they use this class. Keep one per event loop;
    it needs no closing.
    """

    def __init__(self) -> None:
        # Weak: a lock lives while somebody holds it or waits for it.
        self._locks: WeakValueDictionary[Path, anyio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def _alone(self, repository: Path) -> AsyncGenerator[None, None]:
        lock = self._locks.setdefault(repository, anyio.Lock())
        async with lock, directory_lock(repository):
            yield

    async def make(self, config: WorktreeConfig, cwd: Path) -> Worktree:
        """Make a worktree at HEAD, on a new branch, and return it.

        Without ``config.branch`` the branch is named after the last part of the path. A branch
        that exists is refused in both cases. (Git by itself would check it out, and the child
        would work from another commit than its parent.) An empty directory may exist at the
        path. Submodules stay empty. No hook runs; the user's filters (such as Git LFS) do.

        It takes as long as git's checkout takes; put it in a cancel scope to limit it. If it fails
        or is cancelled, nothing is left: no file, no branch, no registration.

        :param config: where, and on which branch; a relative path is relative to *cwd*.
        :param cwd: a directory in a checkout, or a bare repository.
        :raises PluginValidationError: see :func:`worktree_args`.
        :raises PluginNotSupportedError: git cannot make it here; its own message is in the error.
        """
        args = worktree_args(config)
        branch = _branch(config)
        git = Git(cwd)
        what = f"worktree {config.path!r} cannot be made from {str(cwd)!r}"
        repository, parent = await _discover(git, what)
        if _is_gits_own(real(cwd / args[-1]), repository, bare=parent is None):
            raise PluginNotSupportedError(
                f"{what}: the path is in the repository's own directory, {str(repository)!r}; "
                "give a worktree.path outside of it"
            )
        async with self._alone(repository):
            head = await git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
            if head.returncode:
                raise PluginNotSupportedError(
                    f"{what}: there is no commit yet for it to start from; commit something first"
                )
            if await branch_tip(git, branch):
                raise PluginNotSupportedError(
                    f"{what}: a branch named {branch!r} already exists; "
                    "give another worktree.branch"
                )
            missing: tuple[str, ...] = ()
            if parent is not None:
                missing = await missing_files(Git(parent), parent, repository)
            attempt = Attempt(git, args, cwd / args[-1], what, repository, branch)
            try:
                await attempt.run()
                return await _made(cwd / args[-1], branch, repository, parent, missing)
            except BaseException:
                await attempt.undo()
                raise

    async def report(self, worktree: Worktree) -> WorktreeReport:
        r"""Return what became of a worktree, against the commit it started from.

        Changed files are those committed, staged, modified, deleted and untracked (not ignored);
        a renamed one is there under both names. Bytes that are not UTF-8 appear as ``\xff``.
        ``branch`` is the one that is checked out there now, or None.

        :raises PluginNotSupportedError: it is gone, or git cannot read it.
        """
        # Named outright: a child may have done anything to the .git file.
        git = Git(worktree.path, git_dir=worktree.git_dir, work_tree=worktree.path)
        name = await git.run("symbolic-ref", "--quiet", "--short", "HEAD")
        return WorktreeReport(
            path=readable(str(worktree.path)),
            base_commit=worktree.base_commit,
            branch=readable(name.stdout.strip()) or None,
            changed_files=await changed_files(git, worktree.base_commit),
            missing_files=list(worktree.missing_files),
        )

    async def remove(self, worktree: Worktree, *, delete_branch: bool = True) -> None:
        """Remove a worktree, and by default its branch, if nothing at all would be lost.

        One that is already gone is fine. Once git has begun to remove, cancelling waits for it.

        :param delete_branch: delete the branch too. If it is kept, the commits on it are safe,
            and do not stand in the way.
        :raises PluginNotSupportedError: something would be lost, and the message says what: files
            that are modified, untracked or ignored, content of submodules, commits that no other
            branch, tag or worktree has, an unfinished merge or rebase. Or it is locked, its
            branch is checked out elsewhere, or git failed.
        """
        async with self._alone(worktree.repository):
            removal = Removal(worktree, delete_branch=delete_branch)
            await removal.check()
            with anyio.fail_after(REMOVE_SECONDS, shield=True):
                await removal.run()


async def _discover(git: Git, what: str) -> tuple[Path, Path | None]:
    """Return the common directory, and the top of the checkout unless the repository is bare."""
    found = await git.run(
        "rev-parse",
        "--is-bare-repository",
        "--is-inside-work-tree",
        "--path-format=absolute",
        "--git-common-dir",
    )
    if found.returncode:
        raise failed(what, found)
    bare, inside, common = os.fsdecode(found.stdout).split("\n", 2)
    repository = real(Path(common.removesuffix("\n")))
    if inside == "true":
        top = os.fsdecode(await git.read("rev-parse", "--show-toplevel")).removesuffix("\n")
        return repository, Path(top)
    if bare == "true":
        return repository, None
    raise PluginNotSupportedError(
        f"{what}: that is inside a repository's own directory, not in its checkout; "
        "run in the checkout"
    )


def _is_gits_own(path: Path, repository: Path, *, bare: bool) -> bool:
    """Return if git keeps its own files at *path*; many have worktrees inside a bare repository."""
    if not path.is_relative_to(repository):
        return False
    return not bare or path == repository or path.relative_to(repository).parts[0] in _GITS_OWN


async def _made(
    path: Path, branch: str, repository: Path, parent: Path | None, missing: tuple[str, ...]
) -> Worktree:
    path = real(path)
    git_dir = next((each.git_dir for each in registrations(repository) if each.path == path), None)
    if git_dir is None:
        raise PluginNotSupportedError(
            f"git made the worktree {str(path)!r} but did not register it in "
            f"{str(repository)!r}; check the permissions there"
        )
    git = Git(path, git_dir=git_dir, work_tree=path)
    head, name = os.fsdecode(
        await git.read("rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
    ).split()
    if name != f"refs/heads/{branch}":
        raise PluginNotSupportedError(
            f"git made the worktree {str(path)!r} on {name!r} instead of the branch {branch!r}; "
            "give worktree.branch"
        )
    return Worktree(path, head, branch, repository, git_dir, parent, missing)
