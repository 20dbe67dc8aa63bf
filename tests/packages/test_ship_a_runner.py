"""The tutorial: each of its blocks, in its order, in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT, Wheels
from .venvs import Venv

PAGE = ROOT / "docs" / "ship-a-runner.md"
BLOCK = re.compile(
    r"^(?P<notes>(?:<!-- .+? -->\n+)*)^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
FILE = re.compile(r"<!-- file: (\S+) -->")


def steps() -> Iterator[tuple[str, str, str]]:
    """Yield what is to be done: ``write``, ``run`` or ``expect``, with its words."""
    ran = False
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        kind, text, notes = block["kind"], block["text"], block["notes"]
        file = FILE.search(notes)
        if file is not None:
            yield "write", file[1], text
        elif kind == "sh" and "not run:" not in notes:
            yield "run", "", text
        elif kind == "text" and ran:
            yield "expect", "", text
        # What is shown right after a command is what it prints.
        between = PAGE.read_text(encoding="utf-8")[block.end() :].lstrip()
        ran = kind == "sh" and between.startswith("```text")


def test_the_page_is_read_as_it_is_meant() -> None:
    found = list(steps())
    assert [step for step, _, _ in found].count("expect") == 2
    assert [file for step, file, _ in found if step == "write"] == [
        "src/gofer_parrot/runner.py", "tests/test_times.py",
    ]  # fmt: skip
    assert "gofer new-runner parrot\n" in [text for step, _, text in found if step == "run"]


@pytest.mark.skipif(os.name == "nt", reason="its commands are for a POSIX shell")
def test_every_block_of_the_tutorial_does_what_it_says(
    wheels: Wheels, place: Path, tmp_path: Path
) -> None:
    own = Venv(place / "tutorial", place / "tutorial-home", pip=True)
    own.run("python", "-m", "pip", "install", "-q", f"{wheels.of('gofer')}[testing]", cwd=place)
    shell = shutil.which("bash") or "/bin/sh"
    cwd, printed = tmp_path, ""
    # As the reader's shell, in which the environment is active; few cases, for they are many.
    own.environment["PYTEST_ADDOPTS"] = "--gofer-examples=2"
    for step, file, text in steps():
        if step == "write":
            (cwd / file).write_text(text, encoding="utf-8")
        elif step == "expect":
            for line in text.splitlines():
                assert line in printed.splitlines()
        else:
            # All rules, on both event loops, are the matter of the tests that follow it there.
            few = "gofer certify parrot --rule does_an_ordinary_task --rule cancelling_ends_it"
            script = text.replace("gofer certify parrot", few)
            where = tmp_path / "where"
            done = own.run(shell, "-ec", f'{script}\npwd > "{where}"', cwd=cwd)
            printed, cwd = done.stdout, Path(where.read_text().strip())
            if "an egg" in text:
                assert "RuntimeError: an egg" in printed
            if "pytest" in text:
                assert " passed" in printed
    listed = own.run("gofer", "plugins", cwd=tmp_path).stdout
    assert "parrot" not in listed
