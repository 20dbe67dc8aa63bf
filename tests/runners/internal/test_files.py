"""The tools for files: what they give, their limits, and what a model gets wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gofer_runners.internal import _files

pytestmark = pytest.mark.anyio

OUTSIDE = "outside of what may be used"


async def test_a_file_is_read(use: Any, work: Path) -> None:
    (work / "a.txt").write_text("one\ntwo\nthree")
    (work / "empty").touch()
    assert (await use("read_file", path="a.txt")).output == "one\ntwo\nthree"
    assert (await use("read_file", path=str(work / "a.txt"))).output == "one\ntwo\nthree"
    two = await use("read_file", path="a.txt", line=2, limit=1)
    assert two.output == "two\n[… more follows: go on with line 3 …]"
    assert (await use("read_file", path="a.txt", line=9)).output == "(there is no line 9)"
    assert (await use("read_file", path="empty")).output == "(the file is empty)"


async def test_reading_has_limits(use: Any, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "long").write_text("x\n" * 5000)
    output = (await use("read_file", path="long")).output
    assert output == "x\n" * 2000 + "[… more follows: go on with line 2001 …]"
    (work / "wide").write_text("y" * 300_000)
    output = (await use("read_file", path="wide")).output
    assert len(output) < 200_000
    assert output.endswith("go on with line 3 …]")
    (work / "binary").write_bytes(b"\x7fELF\0\0")
    assert (await use("read_file", path="binary")).output == "'binary' is no text file"
    monkeypatch.setattr(_files, "_SKIPPED", 5000)
    far = await use("read_file", path="long", line=4000)
    assert far.is_error
    assert "'long' is too long to be read this far" in far.output


async def test_bytes_that_are_no_text_are_shown_as_such(use: Any, work: Path) -> None:
    (work / "latin").write_bytes(b"caf\xe9\n")
    assert (await use("read_file", path="latin")).output == "caf\ufffd\n"
    refused = await use("edit_file", path="latin", old="caf", new="tea")
    assert refused.is_error
    assert refused.output == "'latin' is no UTF-8 text"


async def test_a_directory_is_listed(use: Any, work: Path) -> None:
    assert (await use("list_directory")).output == "(the directory is empty)"
    (work / "sub").mkdir()
    (work / "a").touch()
    os.symlink("sub", work / "link")
    assert (await use("list_directory", path=".")).output == "a\nlink\nsub/"
    for number in range(1100):
        (work / "sub" / f"{number:04}").touch()
    listed = (await use("list_directory", path="sub")).output.split("\n")
    assert listed[999:] == ["0999", "[… 100 more …]"]


async def test_a_file_is_written(use: Any, work: Path) -> None:
    result = await use("write_file", path="new/a.txt", content="é\r\n")
    assert result.output == "wrote 4 bytes to new/a.txt"
    assert (work / "new" / "a.txt").read_bytes() == "é\r\n".encode()


async def test_a_text_is_replaced(use: Any, work: Path) -> None:
    path = work / "a.txt"
    path.write_text("one two two")
    assert (await use("edit_file", path="a.txt", old="one", new="1")).output == (
        "replaced 1 place in a.txt"
    )
    twice = await use("edit_file", path="a.txt", old="two", new="2")
    assert twice.is_error
    assert "stands 2 times in 'a.txt'" in twice.output
    assert path.read_text() == "1 two two"
    every = await use("edit_file", path="a.txt", old="two", new="2", every=True)
    assert every.output == "replaced 2 places in a.txt"
    assert path.read_text() == "1 2 2"
    missing = await use("edit_file", path="a.txt", old="gone", new="")
    assert missing.is_error
    assert "does not stand in 'a.txt': read the file" in missing.output


async def test_lines_with_the_ends_of_windows_can_be_edited(use: Any, work: Path) -> None:
    (work / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert not (await use("edit_file", path="a.txt", old="one\ntwo", new="1\n2")).is_error
    assert (work / "a.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("edit_file", {"old": "secret", "new": "x"}),
        ("list_directory", {}),
        ("find_files", {"pattern": "*"}),
        ("search_files", {"pattern": "secret"}),
    ],
)
async def test_no_tool_leads_out(
    use: Any, work: Path, tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_text("secret")
    (work / "link").symlink_to(out)
    (work / "file").symlink_to("../out/a.txt")
    folders = name in ("list_directory", "find_files", "search_files")
    for path in ("../out", "link", str(out), "x/../../out", "link/../../out"):
        result = await use(name, path=path if folders else f"{path}/a.txt", **arguments)
        assert result.is_error
        assert "outside" in result.output
    if not folders:
        result = await use(name, path="file", **arguments)
        assert result.is_error
        assert "outside" in result.output or "is a symbolic link" in result.output
    assert (out / "a.txt").read_text() == "secret"
    assert [entry.name for entry in out.iterdir()] == ["a.txt"]


async def test_further_roots_are_open_where_they_are_configured(
    play: Any, call: Any, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("more")
    turns = ([call("read_file", path=str(tmp_path / "data" / "a.txt"))], "Done.")
    assert OUTSIDE in (await play(*turns)).results[0].output
    assert (await play(*turns, roots=[Path("../data")])).results[0].output == "more"


async def test_what_git_reads_cannot_be_written(use: Any, work: Path) -> None:
    (work / ".git").write_text("gitdir: elsewhere")
    for path in (".git", "sub/.git/hooks/post-checkout"):
        result = await use("write_file", path=path, content="x")
        assert result.is_error
        assert "'.git' and what is in it cannot be written to" in result.output
    assert (await use("read_file", path=".git")).output == "gitdir: elsewhere"
