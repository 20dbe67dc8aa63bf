"""Removing a worktree: what would be lost with it, and if nothing is, the removal."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ._checkout import names_in, real, registrations, status
from ._git import Git, readable
from ._worktree_attempt import branch_tip, drop_branch
from .errors import PluginNotSupportedError

if TYPE_CHECKING:
    from .worktree import Worktree

__all__ = ["Removal"]

#: How many things of one kind a refusal names.
NAMED = 20


class Removal:
    """The removal of one worktree, checked first and run then, under one lock."""

    def __init__(self, worktree: Worktree, *, delete_branch: bool) -> None:
        self._path = worktree.path
        self._branch = worktree.branch
        self._delete_branch = delete_branch
        self._repository = worktree.repository
        self._git = Git(worktree.repository, git_dir=worktree.repository)
        known = registrations(worktree.repository)
        self._mine = next((each for each in known if each.path == self._path), None)
        self._others = [each for each in known if each.path != self._path]
        self._exists = os.path.lexists(self._path)
        self._submodules = False
        self._tip = ""

    async def check(self) -> None:
        """Find out what stands in the way.

        :raises PluginNotSupportedError: something does; all of it is named.
        """
        if self._mine is None and self._exists:
            raise PluginNotSupportedError(
                f"{str(self._path)!r} is no longer a worktree of {str(self._repository)!r}; "
                "remove it by hand if nobody needs it"
            )
        losses: dict[str, list[str]] = {}
        if self._mine is not None:
            if self._exists:
                losses = await self._files(self._mine.git_dir)
            losses["unfinished"] = self._mine.unfinished
            if self._mine.locked is not None:
                losses["locked"] = [self._mine.locked or "no reason given"]
        self._tip = await branch_tip(self._git, self._branch)
        if self._tip and self._delete_branch:
            losses["branch checked out at"] = await self._checked_out()
        losses["commits that are nowhere else"] = await self._commits()
        if any(losses.values()):
            raise PluginNotSupportedError(self._refusal(losses))

    async def run(self) -> None:
        """Remove the files, the registration and the branch.

        :raises PluginNotSupportedError: git failed.
        """
        await self._git.disable_hooks()
        if self._mine is not None:
            # Submodules: git refuses without it, even where they are empty.
            force = ["--force"] if self._submodules else []
            await self._git.read("worktree", "remove", *force, str(self._path))
        if self._tip and self._delete_branch:
            await drop_branch(self._git, self._branch, self._tip)

    async def _files(self, git_dir: Path) -> dict[str, list[str]]:
        git = Git(self._path, git_dir=git_dir, work_tree=self._path)
        losses: dict[str, list[str]] = {}
        for state, name in await status(git, "--untracked-files=normal", "--ignored=traditional"):
            kind = {"??": "untracked", "!!": "ignored"}.get(state, "modified")
            losses.setdefault(kind, []).append(name)
        submodules = []
        hidden = []
        for entry in names_in(await git.read("ls-files", "-s", "-v", "-z")):
            head, _, name = entry.partition("\t")
            tag, mode = head.split()[:2]
            if mode == "160000":
                submodules.append(name)
            elif tag.islower() or tag == "S":  # assume-unchanged, skip-worktree: git does not look
                hidden.append(name)
        self._submodules = bool(submodules)
        losses["hidden from git status"] = [each for each in hidden if self._holds(each)]
        losses["in submodules"] = [each for each in submodules if self._holds(each)]
        with suppress(FileNotFoundError):
            losses["in submodules"] += os.listdir(git_dir / "modules")
        return losses

    def _holds(self, name: str) -> bool:
        """Return if there is a file of that name, or a directory with something in it."""
        try:
            return bool(os.listdir(self._path / name))
        except FileNotFoundError:
            return False
        except OSError:
            return True

    async def _checked_out(self) -> list[str]:
        """Return where else the branch is checked out."""
        found = await self._git.read(
            "for-each-ref", "--format=%(worktreepath)", f"refs/heads/{self._branch}"
        )
        path = os.fsdecode(found).removesuffix("\n")
        return [path] if path and real(Path(path)) != self._path else []

    async def _commits(self) -> list[str]:
        """Return the commits that no ref that stays and no other worktree's HEAD reaches."""
        tips = [self._tip] if self._tip else []
        if self._mine is not None:
            own = Git(self._repository, git_dir=self._mine.git_dir)
            head = await own.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
            tips += [os.fsdecode(head.stdout.strip())] if head.returncode == 0 else []
        if not tips:
            return []
        goes = [f"--exclude=refs/heads/{self._branch}"] if self._delete_branch else []
        heads = [each.detached_head for each in self._others if each.detached_head]
        lost = await self._git.read(
            "rev-list",
            "--abbrev-commit",
            "--single-worktree",
            *tips,
            "--not",
            *goes,
            "--all",
            *heads,
        )
        return os.fsdecode(lost).split()

    def _refusal(self, losses: dict[str, list[str]]) -> str:
        lines = [f"the worktree {str(self._path)!r} was not removed; in the way, or lost with it:"]
        for kind, names in losses.items():
            if names:
                more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
                lines.append(f"  {kind}: {', '.join(map(readable, names[:NAMED]))}{more}")
        lines.append(
            "Commit, merge, move or delete that (unlock it, finish it), then remove it again."
        )
        return "\n".join(lines)
