"""What the tests of whole packages share: wheels, built once, and an environment that has all.

They need a package index. Without one they are skipped; on CI they fail.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .venvs import Venv

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"core": "gofer", "runners": "gofer_runners", "plugins": "gofer_plugins"}
EXAMPLES = ("gofer-command", "gofer-journal", "gofer-pydantic-ai")


@dataclass(frozen=True)
class Wheels:
    """Built packages, and the environment that builds more and installs them."""

    builder: Venv
    folder: Path
    sdist: Path
    sources: dict[str, bytes]

    def of(self, package: str) -> Path:
        """Return the wheel of *package*."""
        (found,) = self.folder.glob(f"{package.replace('-', '_')}-*.whl")
        return found

    def build(self, *sources: Path) -> None:
        """Build wheels of source folders or sdists, as they are."""
        self.builder.pip(
            "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", self.folder, *sources,
            cwd=self.folder,
        )  # fmt: skip


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder for environments, wheels, and what their programs write: it takes much room."""
    place = tmp_path_factory.mktemp("packages")
    (place / "home").mkdir()
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def builder(place: Path) -> Venv:
    """Return an environment that builds wheels, and whose pip installs into others."""
    made = Venv(place / "builder", place / "home", pip=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    done = made.run(
        "python", "-m", "pip", "install", "--quiet", *project["build-system"]["requires"],
        cwd=place, code=None,
    )  # fmt: skip
    if done.returncode:
        lacking = f"no package index can be reached: {done.stderr.strip()[-300:]}"
        if os.environ.get("CI") == "true":
            pytest.fail(lacking)
        pytest.skip(lacking)
    return made


@pytest.fixture(scope="session")
def wheels(builder: Venv, place: Path) -> Wheels:
    """Build gofer from this checkout, by way of its sdist, and the packages in examples/."""
    folder = place / "wheels"
    folder.mkdir()
    sources = _sources()
    builder.run(
        "python", "-m", "hatchling", "build", "-t", "sdist", "-d", place / "sdist", cwd=ROOT
    )
    (sdist,) = (place / "sdist").iterdir()
    made = Wheels(builder, folder, sdist, sources)
    made.build(sdist, *(ROOT / "examples" / name for name in EXAMPLES))
    return made


def _sources() -> dict[str, bytes]:
    """Return gofer's files, by their names in the wheel."""
    return {
        path.relative_to(ROOT / folder).as_posix(): path.read_bytes()
        for folder, package in PACKAGES.items()
        for path in (ROOT / folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="session")
def shared(wheels: Wheels, place: Path) -> Venv:
    """Return an environment with gofer, its kit, and the packages in examples/, from wheels."""
    made = Venv(place / "shared", place / "home", pip=False)
    wheels.builder.pip(
        "install", f"{wheels.of('gofer')}[testing]", *map(wheels.of, EXAMPLES),
        cwd=place, into=made,
    )  # fmt: skip
    return made


@pytest.fixture
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a copy of an example's tests and settings, without its sources."""
    source = ROOT / "examples" / request.param
    shutil.copytree(source / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__*__"))
    shutil.copy(source / "pyproject.toml", tmp_path)
    return tmp_path
