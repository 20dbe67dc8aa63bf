"""Install the agents of the recipes: ``python -m tests.agents.install [NAME ...]``.

Each gets a folder of its own outside the repository, and keeps it until its pinned versions change.
Packages of npm are installed one after another, since each keeps all cores busy, and those of PyPI
beside them.
"""

# A program that tells its user what it does.
# ruff: noqa: T201

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.abc

from .recipes import FOLDER, Recipe, chosen

__all__ = ["install", "main"]


class InstallError(Exception):
    """An agent cannot be installed here."""


async def install(recipes: Sequence[Recipe], limit: float) -> dict[str, str]:
    """Install what is missing, within *limit* seconds for all; return what failed, and why."""
    failed: dict[str, str] = {}
    done: set[str] = set()
    wanted = [recipe for recipe in recipes if not recipe.installed]
    with anyio.move_on_after(limit) as scope:
        async with anyio.create_task_group() as group:
            for lane in (
                [recipe for recipe in wanted if recipe.npm],
                [recipe for recipe in wanted if not recipe.npm],
            ):
                group.start_soon(_install_all, lane, failed, done)
    if scope.cancelled_caught:
        for recipe in wanted:
            if recipe.name not in done | failed.keys():
                failed[recipe.name] = f"not installed within {limit:g} s for all"
    return failed


async def _install_all(recipes: Sequence[Recipe], failed: dict[str, str], done: set[str]) -> None:
    for recipe in recipes:
        begin = time.monotonic()
        try:
            try:
                await _install(recipe)
            except InstallError:  # once more: a registry may have had a bad moment
                await _install(recipe)
        except InstallError as error:
            failed[recipe.name] = str(error)
            continue
        done.add(recipe.name)
        seconds, megabytes = time.monotonic() - begin, _size(recipe.folder) / 1e6
        packages = list(recipe.packages)
        record = {"packages": packages, "seconds": round(seconds, 1), "MB": round(megabytes)}
        # Last of all: a folder without it counts as not installed.
        (recipe.folder / "installed.json").write_text(json.dumps(record), encoding="utf-8")
        print(f"{recipe.name} {recipe.version}: {seconds:.0f} s, {megabytes:.0f} MB", flush=True)


async def _install(recipe: Recipe) -> None:
    shutil.rmtree(recipe.folder, ignore_errors=True)
    recipe.folder.mkdir(parents=True)
    if recipe.npm:
        npm = shutil.which("npm")
        if npm is None:
            raise InstallError("npm is not on PATH: install Node.js 20 or newer")
        quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        await _run([npm, "install", "--prefix", str(recipe.folder), *quiet, *recipe.npm])
    else:
        python = _interpreter(recipe.python)
        await _run([python, "-m", "venv", str(recipe.folder)])
        pip = [str(recipe.bin / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
        await _run([*pip, "install", *recipe.pypi])


def _interpreter(oldest: str) -> str:
    """Return a Python that is no older, this one if it will do."""
    version = tuple(map(int, oldest.split(".")))
    if sys.version_info >= version:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(version[1], 15):
        name = f"python3.{minor}"
        found = [shutil.which(name), *pyenv.glob(f"3.{minor}.*/bin/python")]
        for path in found:
            # What is on PATH may be a shim of a version that is not there.
            if path and not subprocess.run([path, "-c", ""], capture_output=True).returncode:
                return str(path)
    raise InstallError(f"needs Python {oldest} or newer, and there is none here")


async def _run(command: Sequence[str]) -> None:
    """Run *command* and all that it starts to its end; cancelled, end all of it.

    :raises InstallError: it failed; with the end of what it said.
    """
    said = b""
    process = await anyio.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        cwd=FOLDER,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        async for piece in process.stdout:
            said = (said + piece)[-4096:]
        code = await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if code:
        text = said.decode(errors="replace").strip()
        raise InstallError(f"{Path(command[0]).name} failed with exit code {code}: {text}")


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink())


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until nobody else installs into the same folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the agents that are named, or those for here."""
    parser = argparse.ArgumentParser(prog="python -m tests.agents.install", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="by default GOFER_AGENTS",
    )
    parser.add_argument("--within", type=float, default=1800, metavar="SECONDS", help="for all")
    parsed = parser.parse_args(arguments)
    try:
        recipes = chosen(parsed.names) if parsed.names else chosen()
    except ValueError as error:
        parser.error(str(error))
    with _alone():
        failed = anyio.run(partial(install, recipes, parsed.within))
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
