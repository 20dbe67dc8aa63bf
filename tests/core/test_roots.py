"""Files below roots, and none outside, whoever puts which links where, and when."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gofer import roots as roots_module
from gofer.roots import MAX_FILE, OutsideError, Roots, RootsError

SECRET = b"secret"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a root beside which there is a secret."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"inside")
    (root / "sub" / "b.txt").write_bytes(b"below")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_bytes(SECRET)
    return root


def tree(path: Path) -> dict[str, bytes | str]:
    """Return all that is below a directory: contents of files, targets of links."""
    found: dict[str, bytes | str] = {}
    for folder, folders, names in os.walk(path):
        for name in [*names, *folders]:
            file = Path(folder, name)
            if name in folders and not file.is_symlink():
                continue
            found[str(file.relative_to(path))] = (
                os.readlink(file) if file.is_symlink() else file.read_bytes()
            )
    return found


# What is inside


def test_relative_and_absolute_paths_are_read(place: Path) -> None:
    files = Roots([place])
    assert files.first == place
    for path in ("a.txt", "./a.txt", "sub/../a.txt", "sub//../a.txt", str(place / "a.txt")):
        assert files.read(path) == b"inside", path
    assert files.entries(".") == [("a.txt", False), ("sub", True)]
    assert files.entries("sub") == [("b.txt", False)]
    assert files.directory("sub") == place / "sub"
    assert files.directory(".") == place


def test_a_root_may_be_spelt_through_a_link(place: Path) -> None:
    link = place.parent / "link"
    link.symlink_to(place)
    files = Roots([link])
    assert files.read(str(link / "a.txt")) == b"inside"
    assert files.read(str(place / "a.txt")) == b"inside"
    assert files.directory(str(link / "sub")) == place / "sub"


def test_further_roots(place: Path) -> None:
    other = place.parent / "out"
    files = Roots([place, other])
    assert files.read(str(other / "a.txt")) == SECRET
    (place / "link").symlink_to(other)
    assert files.read("link/a.txt") == SECRET
    with pytest.raises(OutsideError, match=r"outside of what may be used: .*root, .*out"):
        files.read(str(place.parent / "x"))


def test_a_file_is_written_as_a_whole_and_keeps_its_mode(place: Path) -> None:
    files = Roots([place])
    (place / "a.txt").chmod(0o755)
    files.write("a.txt", b"new")
    assert (place / "a.txt").read_bytes() == b"new"
    assert stat.S_IMODE((place / "a.txt").stat().st_mode) == 0o755
    old = os.umask(0o077)
    try:
        files.write("new/deep/c.txt", b"c")
    finally:
        os.umask(old)
    assert stat.S_IMODE((place / "new" / "deep" / "c.txt").stat().st_mode) == 0o644
    assert set(tree(place)) == {"a.txt", "sub/b.txt", "new/deep/c.txt"}


def test_a_write_that_fails_leaves_the_file_and_no_draft(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    before = tree(place)
    monkeypatch.setattr(roots_module.os, "replace", full)
    with pytest.raises(RootsError, match=r"'a.txt': No space left on device"):
        Roots([place]).write("a.txt", b"new")
    assert tree(place) == before


def test_links_that_stay_inside_are_followed_for_reading_only(place: Path) -> None:
    files = Roots([place])
    (place / "relative").symlink_to("sub/b.txt")
    (place / "absolute").symlink_to(place / "sub")
    (place / "sub" / "up").symlink_to("../a.txt")
    (place / "chain").symlink_to("absolute/up")
    assert files.read("relative") == b"below"
    assert files.read("absolute/b.txt") == b"below"
    assert files.read("chain") == b"inside"
    assert files.directory("absolute") == place / "sub"
    files.write("absolute/new.txt", b"x")
    assert (place / "sub" / "new.txt").read_bytes() == b"x"
    for path in ("relative", "chain", "sub/up"):
        with pytest.raises(RootsError, match="is a symbolic link: write to the file itself"):
            files.write(path, b"x")
    assert (place / "a.txt").read_bytes() == b"inside"


# What is outside


ESCAPES = ["../out/a.txt", "sub/../../out/a.txt", "/etc/passwd", "..", "/", "sub/../..",
           "../root2/a.txt"]  # fmt: skip


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leads_out(place: Path, path: str) -> None:
    (place.parent / "root2").mkdir()
    (place.parent / "root2" / "a.txt").write_bytes(SECRET)
    before = tree(place.parent)
    files = Roots([place])
    for use in (files.read, files.entries, files.directory, lambda path: files.write(path, b"x")):
        with pytest.raises(OutsideError, match="outside of what may be used") as caught:
            use(path)
        assert not caught.value.missing
    assert tree(place.parent) == before


@pytest.mark.parametrize("target", ["../out", "{out}", "sub/../../out", "../root/../out", "hop"])
def test_no_link_leads_out(place: Path, target: str) -> None:
    (place / "hop").symlink_to("../out")
    (place / "link").symlink_to(target.format(out=place.parent / "out"))
    (place / "file").symlink_to(place.parent / "out" / "a.txt")
    (place / "new").symlink_to(place.parent / "out" / "new.txt")
    before = tree(place.parent)
    files = Roots([place])
    for path in ("link/a.txt", "link/../link/a.txt", "file", "new"):
        with pytest.raises(OutsideError, match="leads outside, through a link to"):
            files.read(path)
    for use in (files.entries, files.directory):
        with pytest.raises(OutsideError):
            use("link")
    for path in ("link/a.txt", "link/new/deep.txt"):
        with pytest.raises(OutsideError):
            files.write(path, b"x")
    for path in ("file", "new"):
        with pytest.raises(RootsError, match="is a symbolic link"):
            files.write(path, b"x")
    assert tree(place.parent) == before


def test_links_in_a_circle_come_to_an_end(place: Path) -> None:
    (place / "one").symlink_to("two")
    (place / "two").symlink_to("one")
    (place / "self").symlink_to("self/self")
    for path in ("one", "one/x", "self"):
        with pytest.raises(RootsError, match="more than 40 symbolic links"):
            Roots([place]).read(path)


def test_a_root_that_became_a_link_is_no_root_any_more(place: Path) -> None:
    """A root below a directory that can be written to can be put elsewhere, whole."""
    files = Roots([place / "sub"])
    (place / "sub").rename(place / "gone")
    (place / "sub").symlink_to(place.parent / "out")
    with pytest.raises(RootsError, match="no directory"):
        files.read("a.txt")
    deep = place / "x" / "y"
    deep.mkdir(parents=True)
    files = Roots([deep])
    (place / "x").rename(place / "x2")
    (place.parent / "out" / "y").mkdir()
    (place.parent / "out" / "y" / "a.txt").write_bytes(SECRET)
    (place / "x").symlink_to(place.parent / "out")
    with pytest.raises(RootsError, match="no directory"):
        files.read("a.txt")


# What is no file


def test_each_reason_is_told(place: Path) -> None:
    os.mkfifo(place / "pipe")
    files = Roots([place])
    with pytest.raises(RootsError, match="'gone/x' does not exist") as caught:
        files.read("gone/x")
    assert caught.value.missing
    for path, use, why in [
        ("sub", files.read, "is no regular file"),
        ("pipe", files.read, "is no regular file"),
        ("pipe", lambda path: files.write(path, b""), "is no regular file"),
        ("sub", lambda path: files.write(path, b""), "is no regular file"),
        (".", lambda path: files.write(path, b""), "is no regular file"),
        ("a.txt/x", files.read, "leads through something that is no directory"),
        ("a.txt/x", lambda path: files.write(path, b""), "something that is no directory"),
        ("a.txt", files.entries, "no directory"),
        ("a.txt", files.directory, "no directory"),
        ("a\0b", files.read, "holds a NUL character"),
        ("\ud800", files.read, "is no name that a file can have"),
        ("x" * 300, files.read, "File name too long"),
    ]:
        with pytest.raises(RootsError, match=why) as caught:
            use(path)
        assert not caught.value.missing, path


def test_limits_of_size(place: Path) -> None:
    files = Roots([place])
    with open(place / "big", "wb") as file:
        file.truncate(MAX_FILE + 1)
    with pytest.raises(RootsError, match="'big' is over the limit of 16777216 bytes"):
        files.read("big")
    with files.opened("big") as opened:
        assert opened.read(2) == b"\0\0"
    with pytest.raises(RootsError, match="16777217 bytes are over the limit"):
        files.write("new", bytes(MAX_FILE + 1))
    assert not (place / "new").exists()


def test_a_directory_that_may_be_gone_through_but_not_listed(place: Path) -> None:
    (place / "sub").chmod(0o111)
    try:
        assert Roots([place]).read("sub/b.txt") == b"below"
    finally:
        (place / "sub").chmod(0o755)


def test_what_is_kept_cannot_be_written_to(place: Path) -> None:
    (place / ".git" / "hooks").mkdir(parents=True)
    (place / ".git" / "config").write_bytes(b"x")
    (place / "link").symlink_to(".git")
    files = Roots([place], kept={".git"})
    before = tree(place)
    for path in (".git/config", ".git/new/x", "sub/.git", "sub/.GIT/config", "link/config",
                 "link/hooks/x", "sub/../.git/config"):  # fmt: skip
        with pytest.raises(RootsError, match="cannot be written to"):
            files.write(path, b"evil")
    assert tree(place) == before
    assert not (place / "sub" / ".git").exists()
    assert files.read(".git/config") == b"x"
    files.write(".gitignore", b"ok")


# Any tree, any path

NAMES = ["a", "b", "c", "d"]
paths = st.lists(st.sampled_from([*NAMES, "..", "."]), min_size=1, max_size=5).map("/".join)
targets = st.one_of(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from(NAMES), max_size=3)).map(
        lambda pair: "../" * pair[0] + "/".join(pair[1]) or "."
    ),
    st.lists(st.sampled_from(NAMES), max_size=2).map(lambda names: "/".join(["{root}", *names])),
    st.just("{out}"),
)
entries = st.lists(
    st.tuples(
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join),
        st.one_of(st.just("file"), st.just("directory"), targets.map(lambda to: f"->{to}")),
    ),
    max_size=12,
)


@contextmanager
def built(plan: list[tuple[str, str]]) -> Iterator[Path]:
    base = Path(os.path.realpath(tempfile.mkdtemp()))
    try:
        root, out = base / "root", base / "out"
        for directory in (root, out, out / "a", base / "a"):
            directory.mkdir()
        for secret in (out / "b", out / "a" / "b", base / "b", base / "a" / "b"):
            secret.write_bytes(SECRET)
        for number, (path, kind) in enumerate(plan):
            place = root / path
            if os.path.realpath(place.parent) != str(place.parent):
                continue
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                if kind == "file":
                    place.write_bytes(b"inside %d" % number)
                elif kind == "directory":
                    place.mkdir(exist_ok=True)
                else:
                    place.symlink_to(kind[2:].format(root=root, out=out))
            except OSError:
                continue
        yield root
    finally:
        shutil.rmtree(base)


@settings(max_examples=100)
@given(entries, paths, st.booleans())
@example([("a", "->../out")], "a/b", False)
@example([("a", "->../a"), ("b", "->a")], "b/b", True)
def test_nothing_outside_is_read_or_written(
    plan: list[tuple[str, str]], path: str, absolute: bool
) -> None:
    with built(plan) as root:
        files = Roots([root])
        before = tree(root.parent)
        asked = str(root / path) if absolute else path
        uses: list[Callable[[str], Any]] = [
            files.read, files.entries, files.directory, lambda path: files.write(path, b"written"),
        ]  # fmt: skip
        really = Path(os.path.realpath(root / path))
        plain = ".." not in path
        for use in uses[:3]:
            try:
                answer = use(asked)
            except RootsError:
                # What the kernel finds inside is found here too.
                if plain and really.is_relative_to(root):
                    assert not (really.is_file() if use == files.read else really.is_dir())
            else:
                assert answer != SECRET
                if use == files.directory:
                    assert answer.is_relative_to(root)
        try:
            uses[3](asked)
        except RootsError:
            assert tree(root.parent) == before
            return
        after = tree(root.parent)
        changed = [name for name in after if after[name] != before.get(name)]
        assert len(changed) == 1
        assert changed[0].startswith("root/")
        assert not set(before) - set(after)


# While somebody swaps


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def swapped(place: Path, name: str, other: str) -> Iterator[None]:
    """Put a link in the place of *name* and take it away again, as fast as can be."""
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(place / name, place / "kept")
            for step in (lambda: os.symlink(other, place / name),
                         lambda: os.rename(place / "kept", place / name)):  # fmt: skip
                while True:
                    try:
                        step()
                        break
                    except OSError:  # a write has made it anew
                        remove(place / name)
                if (place / "kept").exists():
                    remove(place / name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_directory_that_is_swapped_for_a_link_meanwhile_leads_nowhere_else(place: Path) -> None:
    out = place.parent / "out"
    (out / "b.txt").write_bytes(SECRET)
    (out / "secret.txt").write_bytes(SECRET)
    before = tree(out)
    files = Roots([place])
    read = 0
    with swapped(place, "sub", str(out)):
        for _ in range(1500):
            try:
                assert files.read("sub/b.txt") != SECRET
                read += 1
            except RootsError:
                pass
            with suppress(RootsError):
                assert ("secret.txt", False) not in files.entries("sub")
            with suppress(RootsError):
                files.write("sub/b.txt", b"mine")
    assert tree(out) == before
    assert read


def test_a_file_that_is_swapped_for_a_link_meanwhile_is_not_read(place: Path) -> None:
    out = place.parent / "out" / "a.txt"
    files = Roots([place])
    with swapped(place, "a.txt", str(out)):
        for _ in range(1500):
            with suppress(RootsError):
                assert files.read("a.txt") != SECRET
    with swapped(place, "a.txt", str(out)):
        for _ in range(500):
            with suppress(RootsError):
                files.write("a.txt", b"mine")
    assert out.read_bytes() == SECRET
