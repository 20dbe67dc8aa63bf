"""``gofer new-runner``: a whole package for a runner of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ._cli_output import write

__all__ = ["new_runner"]

_GIT_SECONDS = 10.0


def new_runner(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The runner's name: small letters, digits, single hyphens."
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write it; by default ./gofer-NAME."),
    ] = None,
) -> None:
    """Write a package with a runner that works: gofer-NAME, with its tests, and what CI needs.

    It is yours to change and to publish. Nothing that is there is overwritten.
    """
    from datetime import date
    from importlib.metadata import version

    from ._scaffold import check_name, render, write_package

    names = check_name(name)
    target = directory if directory is not None else Path(names.package)
    package = render(
        names,
        author=_git_user(target) or f"The authors of {names.package}",
        year=date.today().year,
        version=version("gofer").partition("+")[0],
    )
    write_package(target, package)
    write(f"{names.package}: {len(package)} files in {target}. Next:\n")
    write(f"  cd {shlex.quote(str(target))} && python -m pip install -e '.[test]'")
    write(f"  gofer certify {name}")
    write(f'  gofer run --runner {name} "Hello"')


def _git_user(target: Path) -> str | None:
    """Return the name that Git has of its user, in a line; None without one."""
    import subprocess

    place = target.absolute()
    while not place.is_dir():
        place = place.parent
    try:
        said = subprocess.run(
            ["git", "config", "--get", "user.name"],
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    # «…» is what the templates' own places are marked with.
    line = "".join(c for c in " ".join(said.split()) if c.isprintable() and c not in "«»")
    return line[:200].strip() or None
