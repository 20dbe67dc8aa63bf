"""Finding files and finding in files; the program that does it is also called here by itself."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer_runners.internal import _programs, _search

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(work: Path) -> Path:
    for path in (
        "a.py",
        "b.txt",
        "sub/c.py",
        "sub/deep/d.py",
        ".git/e.py",
        "sub/node_modules/f.py",
    ):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(f"import {Path(path).stem}\n")
    return work


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["a.py", "sub/c.py", "sub/deep/d.py"]),
        ("**/*.py", ["a.py", "sub/c.py", "sub/deep/d.py"]),
        ("./*.py", ["a.py"]),
        ("sub/*.py", ["sub/c.py"]),
        ("sub/**", ["sub/c.py", "sub/deep/d.py"]),
        ("**/deep/*", ["sub/deep/d.py"]),
        ("?.[pt]*", ["a.py", "b.txt", "sub/c.py", "sub/deep/d.py"]),
        ("[!a].py", ["sub/c.py", "sub/deep/d.py"]),
    ],
)
def test_globs(files: Path, pattern: str, found: list[str]) -> None:
    assert [path for path, _ in _search._files(str(files), pattern)] == found
    by_path = [path for path, _ in _search._walk_by_path(str(files))]
    assert sorted(by_path) == sorted(path for path, _ in _search._walk(str(files)))


@given(st.text(st.sampled_from("ab*?[]!-/.\\()+"), min_size=1, max_size=12))
def test_any_glob_is_a_pattern(glob: str) -> None:
    import re

    re.compile(_search._pattern(glob))


async def test_files_are_found(use: Any, files: Path) -> None:
    assert (await use("find_files", pattern="*.py")).output == "a.py\nsub/c.py\nsub/deep/d.py"
    assert (await use("find_files", pattern="*.py", path="sub/deep")).output == "d.py"
    none = await use("find_files", pattern="*.rs")
    assert (none.output, none.is_error) == ("(no file matches '*.rs')", False)


async def test_lines_are_found(use: Any, files: Path) -> None:
    (files / "c").write_bytes(b"x\x0by\r\nimport w\r\n")
    (files / "binary").write_bytes(b"import\0")
    found = await use("search_files", pattern=r"^import [cdw]$")
    assert found.output == "c:2: import w\nsub/c.py:1: import c\nsub/deep/d.py:1: import d"
    assert (await use("search_files", pattern="import", glob="*.txt")).output == "b.txt:1: import b"
    assert (await use("search_files", pattern="nowhere")).output == "(nothing matches 'nowhere')"
    wrong = await use("search_files", pattern="(")
    assert wrong.is_error
    assert "'(' is no regular expression" in wrong.output


async def test_names_that_are_no_text_are_shown(use: Any, work: Path) -> None:
    (work / os.fsdecode(b"caf\xe9")).write_text("word")
    assert "caf" in (await use("find_files", pattern="*")).output
    assert "caf" in (await use("search_files", pattern="word")).output


async def test_searching_has_limits(use: Any, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "a").write_text("word\n" * 300 + "w" * 5000)
    lines = (await use("search_files", pattern="w")).output.split("\n")
    assert len(lines) == 201
    assert lines[-1] == "[… more lines match: narrow the pattern or the glob …]"
    (work / "a").write_text("x" * 5000)
    assert len((await use("search_files", pattern="x")).output) < 500
    (work / "a").write_text("y" * (_search._FILE + 10))
    output = (await use("search_files", pattern="nothing")).output
    assert "a: only its first 4194304 bytes were searched" in output
    (work / "a").write_text("a" * 40)
    monkeypatch.setattr(_programs, "_SEARCH_SECONDS", 0.5)
    slow = await use("search_files", pattern="(a+)+b")
    assert slow.is_error
    assert "the search took over 0.5 s: use a simpler pattern" in slow.output


async def test_pipes_and_links_are_passed_over(use: Any, files: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("import secret")
    (files / "link.txt").symlink_to(tmp_path / "secret.txt")
    (files / "folder").symlink_to(tmp_path)
    os.mkfifo(files / "pipe.txt")
    found = await use("search_files", pattern="import", glob="*.txt")
    assert found.output == "b.txt:1: import b"


def test_too_deep_a_tree_is_no_failure(work: Path) -> None:
    deep = work
    for _ in range(110):
        deep = deep / "d"
        deep.mkdir()
    (deep / "f").touch()
    (work / "g").touch()
    assert [path for path, _ in _search._walk(str(work))] == ["g"]


def test_a_directory_that_is_swapped_for_a_link_meanwhile_is_not_searched(
    files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / "deep").mkdir(parents=True)
    for path in ("c.py", "deep/d.py", "secret.py"):
        (out / path).write_text("secret")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(files / "sub", files / "kept")
            os.symlink(out, files / "sub")
            os.unlink(files / "sub")
            os.rename(files / "kept", files / "sub")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = 0
    try:
        import re

        for _ in range(500):
            for root in (files, files / "sub"):
                try:
                    for path, opener in _search._files(str(root), "*.py"):
                        assert not list(_search._lines(path, opener, re.compile("secret")))
                        assert "secret" not in path
                        seen += "c.py" in path
                except OSError:
                    pass
    finally:
        done.set()
        thread.join()
    assert seen
