"""What is in the wheel and the sdist of gofer."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from .conftest import ROOT, Wheels


def test_the_wheel_is_this_checkout(wheels: Wheels) -> None:
    expected = wheels.sources
    assert sum(name.endswith(".in") for name in expected) >= 9
    with zipfile.ZipFile(wheels.of("gofer")) as wheel:
        found = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    assert found.keys() == expected.keys()
    assert [name for name, data in expected.items() if found[name] != data] == []


def test_the_sdist_has_the_templates_and_the_examples(wheels: Wheels) -> None:
    with tarfile.open(wheels.sdist) as sdist:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in sdist.getnames()}
    for folder in ("core/gofer/_scaffold/templates", "examples"):
        wanted = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file()
            and not any(part.startswith(".") or part == "__pycache__" for part in path.parts)
        }
        assert wanted
        assert wanted <= names
