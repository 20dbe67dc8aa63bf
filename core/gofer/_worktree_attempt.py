"""One attempt at making a worktree, and how it is taken back."""

from __future__ import annotations

import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import anyio
from anyio import to_thread

from ._checkout import pointed_to, real, registrations
from ._git import Git, Output
from .errors import PluginNotSupportedError

__all__ = ["Attempt", "branch_tip", "drop_branch", "failed"]

logger = logging.getLogger(__name__)

#: How long taking back may hold up a caller that failed or was cancelled.
UNDO_SECONDS = 60.0

#: Pauses before another try, where somebody else's git was at work at that very moment.
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)

_BUSY = (
    r"Unable to create '.*\.lock': File exists"
    r"|could not lock config file .*: File exists"
    r"|failed to read '?.*/commondir"
)

_TAKEN = r"a branch named .* already exists"

_ADVICE = (
    (r"not a git repository", "run in a repository (git init makes one), or ask for no worktree"),
    (r"dubious ownership", "make the directory yours, or add it to safe.directory as git says"),
    (_BUSY, "another git holds that lock: wait for it, or delete the file if none runs"),
    (r"not a valid branch name|cannot lock ref", "give another worktree.branch"),
    (r"but locked", "run git worktree unlock first, or give another worktree.path"),
    (r"already registered", "run git worktree prune first, or give another worktree.path"),
    (_TAKEN, "give another worktree.branch"),
    (r"already exists", "give a worktree.path that does not exist yet"),
    (r"No space left", "free some space on that disk, or give another worktree.path"),
)


def failed(what: str, output: Output) -> PluginNotSupportedError:
    """Return the error for a git that failed: what was tried, git's own words, what to do."""
    advice = next(
        (advice for pattern, advice in _ADVICE if re.search(pattern, output.stderr)),
        "correct that, give another worktree.path or worktree.branch, or ask for no worktree",
    )
    message = output.stderr or "git gave no message"
    return PluginNotSupportedError(
        f"{what} (git's exit code: {output.returncode}): {message}\n{advice}"
    )


async def branch_tip(git: Git, branch: str) -> str:
    """Return the commit of a branch, or "" if there is no such branch."""
    found = await git.run("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
    return os.fsdecode(found.stdout.strip()) if found.returncode == 0 else ""


async def drop_branch(git: Git, branch: str, tip: str) -> None:
    """Delete a branch, if it still points to *tip*, and its settings."""
    await git.read("update-ref", "-d", f"refs/heads/{branch}", tip)
    await git.run("config", "--remove-section", f"branch.{branch}")


class Attempt:
    """Git's ``worktree add``, and the knowledge of what was there before.

    :param git: runs where the arguments' path starts from.
    :param args: the arguments.
    :param path: the path in them, absolute.
    :param what: what cannot be done if this fails, for the message.
    :param branch: the branch that is to be made; it does not exist yet.
    """

    def __init__(
        self, git: Git, args: list[str], path: Path, what: str, repository: Path, branch: str
    ) -> None:
        self._git = git
        self._args = args
        self._path = path
        self._what = what
        self._repository = repository
        self._branch = branch
        self._known = {each.git_dir.name for each in registrations(repository)}
        try:
            self._mode = path.stat().st_mode if path.is_dir() else None
        except OSError as error:
            raise PluginNotSupportedError(
                f"{self._what}: {error}; give another worktree.path"
            ) from error
        self._new_parents = [each for each in path.parents if not os.path.lexists(each)]

    async def run(self) -> None:
        """Make it; try again where another process's lock was in the way.

        :raises PluginNotSupportedError: it cannot be made; :meth:`undo` is the caller's to call.
        """
        await self._git.disable_hooks()
        for pause in (*RETRY_SECONDS, None):
            output = await self._git.run(*self._args)
            if output.returncode == 0:
                return
            if re.search(_TAKEN, output.stderr):
                self._branch = ""  # Somebody else made it a moment ago.
            if pause is None or not re.search(_BUSY, output.stderr):
                raise failed(self._what, output)
            await self.undo()
            await anyio.sleep(pause)

    async def undo(self) -> None:
        """Take back what was made, and nothing else; also under cancellation, in bounded time."""
        with anyio.move_on_after(UNDO_SECONDS, shield=True) as scope:
            try:
                await to_thread.run_sync(self._remove_files, abandon_on_cancel=True)
                tip = await branch_tip(self._git, self._branch) if self._branch else ""
                # HEAD is where git made it; anything else would be somebody's work.
                head = await self._git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
                if tip and tip == os.fsdecode(head.stdout.strip()):
                    await drop_branch(self._git, self._branch, tip)
            except (OSError, PluginNotSupportedError) as error:
                logger.warning("%s, and not all of it could be taken back: %s", self._what, error)
        if scope.cancelled_caught:
            logger.warning("%s, and taking it back took too long", self._what)

    def _remove_files(self) -> None:
        target = real(self._path)
        worktrees = real(self._repository / "worktrees")
        pointer = pointed_to(target / ".git")
        ours = (
            pointer is not None
            and real(pointer).parent == worktrees
            and pointer.name not in self._known
        )
        for each in registrations(self._repository):
            if each.git_dir.name in self._known:
                continue
            if each.path == target:
                ours = True
                shutil.rmtree(each.git_dir)
            elif each.path is None and each.git_dir.name.startswith(self._path.name):
                shutil.rmtree(each.git_dir)  # git was killed before it wrote the path
        with suppress(OSError):
            worktrees.rmdir()
        if ours and target.is_dir():
            shutil.rmtree(target)
        elif self._mode is None:
            with suppress(OSError):
                target.rmdir()
        if self._mode is not None and not target.exists():  # git itself removes it when it fails
            target.mkdir()
            target.chmod(self._mode & 0o7777)
        for parent in self._new_parents:
            with suppress(OSError):
                parent.rmdir()
