"""Files that an agent reads and writes through gofer: inside the roots, whatever it tries."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer_runners.acp import _files
from gofer_runners.acp._errors import INVALID_PARAMS, NOT_FOUND, Refused
from gofer_runners.acp._files import MAX_FILE, Files

pytestmark = pytest.mark.anyio

SECRET = "secret of somebody else"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET)
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "file").write_text("one\ntwo\nthree\n")
    (root / "sub" / "deep").write_text("deep")
    return root


@pytest.fixture
def files(root: Path) -> Files:
    return Files([root])


@contextmanager
def refused(text: str, code: int | None = None) -> Iterator[None]:
    with pytest.raises(Refused) as caught, anyio.fail_after(10):
        yield
    assert text in str(caught.value)
    assert code is None or caught.value.code == code


# Reading


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        (None, None, "one\ntwo\nthree\n"),
        (1, None, "one\ntwo\nthree\n"),
        (0, None, "one\ntwo\nthree\n"),
        (2, None, "two\nthree\n"),
        (2, 1, "two\n"),
        (3, 10, "three\n"),
        (4, None, ""),
        (10**20, 1, ""),
        (1, 0, ""),
        (2.0, 1.0, "two\n"),
    ],
)
async def test_a_file_or_some_lines_of_it(
    files: Files, root: Path, line: Any, limit: Any, expected: str
) -> None:
    assert await files.read(str(root / "file"), line, limit) == expected


@pytest.mark.parametrize("name", ["line", "limit"])
@pytest.mark.parametrize(
    ("count", "said"),
    [
        (-3, "-3"),
        (False, "false"),
        (True, "true"),
        ("2", '"2"'),
        (1.5, "1.5"),
        (float("inf"), "Infinity"),
        ({"a": 1}, '{"a": 1}'),
    ],
)
async def test_a_line_or_limit_that_is_no_count_is_refused(
    files: Files, root: Path, name: str, count: Any, said: str
) -> None:
    with refused(f"{name} must be a whole number, at least 0, not {said}", INVALID_PARAMS):
        await files.read(str(root / "file"), **{name: count})


async def test_lines_end_at_newlines_alone(files: Files, root: Path) -> None:
    (root / "odd").write_bytes("a\u2028b\rc\x0cd\ne".encode())
    assert await files.read(str(root / "odd"), 1, 1) == "a\u2028b\rc\x0cd\n"
    assert await files.read(str(root / "odd"), 2) == "e"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("relative", "is no absolute path"),
        ("", "is no absolute path"),
        ("~/file", "is no absolute path"),
        ("/etc/passwd", "is outside"),
        ("/", "is outside"),
        ("{root}", "is no regular file"),
        ("{root}/sub", "is no regular file"),
        ("{root}/../outside/secret", "is outside"),
        ("{root}/sub/../file", "is outside"),
        ("{root}/sub/../../outside/secret", "is outside"),
        ("{root}side/x", "is outside"),
        ("{root}/fi\0le", "is no absolute path"),
        ("/proc/self/root{root}/file", "is outside"),
        ("/proc/self/cwd/x", "is outside"),
        ("{root}/file/x", "leads through something that is no directory"),
        ("{root}/" + "x" * 300, "File name too long"),
    ],
)
async def test_what_is_no_file_inside_is_refused(
    files: Files, root: Path, path: str, text: str
) -> None:
    path = path.replace("{root}", str(root))
    with refused(text):
        await files.read(path)
    if path not in (str(root), str(root / "sub")):
        with refused(text):
            await files.write(path, "x")
    assert (root.parent / "outside" / "secret").read_text() == SECRET


async def test_what_does_not_exist_has_its_own_code(files: Files, root: Path) -> None:
    with refused("does not exist", NOT_FOUND):
        await files.read(str(root / "nothing"))
    with refused("does not exist", NOT_FOUND):
        await files.read(str(root / "no" / "thing"))


async def test_no_text_and_too_much_of_it_are_refused(files: Files, root: Path) -> None:
    (root / "binary").write_bytes(b"\xff\x00")
    with refused("is no UTF-8 text"):
        await files.read(str(root / "binary"))
    (root / "huge").touch()
    os.truncate(root / "huge", MAX_FILE + 1)
    with refused("over the limit"):
        await files.read(str(root / "huge"))
    with refused("has a line of more than"):
        await files.read(str(root / "huge"), 1, 1)
    with refused("has a line of more than"):
        await files.read(str(root / "huge"), 2, 1)
    os.truncate(root / "huge", MAX_FILE)
    assert len(await files.read(str(root / "huge"))) == MAX_FILE


async def test_parts_of_a_huge_file_can_be_read(
    files: Files, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_files, "MAX_FILE", 100)
    monkeypatch.setattr(_files, "_MOST_SKIPPED", 1000)
    (root / "long").write_text("".join(f"line {n:03}\n" for n in range(1, 301)))
    with refused("read it in parts"):
        await files.read(str(root / "long"))
    assert await files.read(str(root / "long"), 50, 2) == "line 050\nline 051\n"
    with refused("over the limit of 100"):
        await files.read(str(root / "long"), 50)
    with refused("is more than 1000 bytes in it"):
        await files.read(str(root / "long"), 200, 1)


async def test_a_file_that_is_longer_than_it_says_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_files, "MAX_FILE", 10)
    with refused("over the limit"):
        await Files([Path(f"/proc/{os.getpid()}")]).read(f"/proc/{os.getpid()}/stat")


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
async def test_what_is_no_regular_file_is_neither_opened_nor_replaced(
    files: Files, root: Path, kind: str
) -> None:
    path = root / kind
    listener = socket.socket(socket.AF_UNIX)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        listener.bind(str(path))
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("needs the right to make device files")
    with listener:
        with refused("is no regular file"):
            await files.read(str(path))
        with refused("is no regular file"):
            await files.write(str(path), "x")
    assert not stat.S_ISREG(os.lstat(path).st_mode)


# Links


@pytest.fixture
def links(root: Path) -> Path:
    for name, target in {
        "in": "file",
        "in-abs": str(root / "file"),
        "in-up": "sub/../file",
        "out": "../outside/secret",
        "out-abs": str(root.parent / "outside" / "secret"),
        "passwd": "/etc/passwd",
        "loop": "loop",
        "loop-a": "loop-b",
        "loop-b": "loop-a",
        "nowhere": "nothing",
        "dir-in": "sub",
        "dir-out": "../outside",
        "dir-up": "..",
        "dir-slash": "sub/",
        "sub/up": "../file",
        "sub/up-out": "../../outside/secret",
        "sub/up-dir": "..",
        "proc": "/proc/self/root/etc/passwd",
    }.items():
        os.symlink(target, root / name)
    return root


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("in", "one\ntwo\nthree\n"),
        ("in-abs", "one\ntwo\nthree\n"),
        ("dir-in/deep", "deep"),
        ("dir-slash/deep", "deep"),
        ("sub/up", "one\ntwo\nthree\n"),
        ("sub/up-dir/file", "one\ntwo\nthree\n"),
        ("sub/up-dir/dir-in/deep", "deep"),
    ],
)
async def test_links_that_stay_inside_are_followed_to_read(
    files: Files, links: Path, path: str, expected: str
) -> None:
    assert await files.read(str(links / path)) == expected


@pytest.mark.parametrize(
    "path",
    ["out", "out-abs", "passwd", "dir-out/secret", "dir-up/outside/secret", "sub/up-out", "proc",
     "in-up"],
)  # fmt: skip
async def test_links_that_lead_outside_are_not(files: Files, links: Path, path: str) -> None:
    with refused("leads outside"):
        await files.read(str(links / path))
    assert os.readlink(links / "out") == "../outside/secret"


@pytest.mark.parametrize("path", ["loop", "loop-a", "loop/x"])
async def test_links_in_a_circle_are_refused(files: Files, links: Path, path: str) -> None:
    with refused("more than 40 symbolic links"):
        await files.read(str(links / path))


async def test_many_links_in_a_row_are_followed(files: Files, root: Path) -> None:
    os.symlink("file", root / "l0")
    for number in range(1, 38):
        os.symlink(f"l{number - 1}", root / f"l{number}")
    assert (await files.read(str(root / "l37"))).startswith("one")


@pytest.mark.parametrize("path", ["in", "out", "passwd", "loop", "nowhere", "sub/up", "dir-in"])
async def test_nothing_is_written_through_a_link_at_the_end(
    files: Files, links: Path, path: str
) -> None:
    target = os.readlink(links / path)
    with refused("is a symbolic link"):
        await files.write(str(links / path), "x")
    assert os.readlink(links / path) == target
    assert (links / "file").read_text() == "one\ntwo\nthree\n"
    assert not (links / "nothing").exists()


async def test_what_is_written_below_a_link_stays_inside(files: Files, links: Path) -> None:
    await files.write(str(links / "dir-in" / "new"), "x")
    assert (links / "sub" / "new").read_text() == "x"
    for path in ("dir-out/new", "dir-out/a/b", "dir-up/new", "sub/up-dir/../new"):
        with refused("outside"):
            await files.write(str(links / path), "x")
    assert os.listdir(links.parent / "outside") == ["secret"]
    assert sorted(os.listdir(links.parent)) == ["outside", "root"]


async def test_the_root_may_be_named_by_a_link_or_be_moved_into_one(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "file").write_text("x")
    os.symlink(real, tmp_path / "name")
    files = Files([tmp_path / "name"])
    assert await files.read(str(tmp_path / "name" / "file")) == "x"
    assert await files.read(str(real / "file")) == "x"
    # A link in the root's place, put there later, is not the root.
    real.rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", real)
    with refused("leads through something that is no directory"):
        await files.read(str(real / "file"))


async def test_each_of_several_roots_can_be_used(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    os.symlink(tmp_path / "b" / "f", tmp_path / "a" / "link")
    files = Files([tmp_path / "a", tmp_path / "b"])
    assert await files.read(str(tmp_path / "b" / "f")) == "b"
    assert await files.read(str(tmp_path / "a" / "link")) == "b"
    with refused("leads outside"):
        await Files([tmp_path / "a"]).read(str(tmp_path / "a" / "link"))


# Writing


async def test_a_new_file_and_the_directories_above_it(files: Files, root: Path) -> None:
    await files.write(str(root / "a" / "b" / "new"), "é\n\ud800")
    assert (root / "a" / "b" / "new").read_bytes() == "é\n?".encode()
    assert stat.S_IMODE(os.stat(root / "a" / "b" / "new").st_mode) & 0o111 == 0


async def test_mode_and_owner_are_kept(files: Files, root: Path) -> None:
    path = root / "script"
    path.write_text("old")
    path.chmod(0o750)
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    before = os.stat(path)
    await files.write(str(path), "new")
    after = os.stat(path)
    assert path.read_text() == "new"
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip


async def test_a_name_of_the_greatest_length_can_be_written(files: Files, root: Path) -> None:
    name = "ü" * 127
    await files.write(str(root / name), "x")
    assert (root / name).read_text() == "x"


async def test_a_write_that_fails_leaves_the_file_as_it_was(
    files: Files, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with refused("No space left on device"):
        await files.write(str(root / "file"), "x")
    assert (root / "file").read_text() == "one\ntwo\nthree\n"
    assert sorted(os.listdir(root)) == ["file", "sub"]


async def test_too_much_is_not_written(files: Files, root: Path) -> None:
    with refused("over the limit"):
        await files.write(str(root / "new"), "x" * (MAX_FILE + 1))
    assert not (root / "new").exists()


async def test_a_reader_sees_the_old_or_the_new_file_whole(files: Files, root: Path) -> None:
    path = str(root / "shared")
    contents = ["a" * 200_000, "b" * 300_000]
    await files.write(path, contents[0])

    async def write() -> None:
        for number in range(30):
            await files.write(path, contents[number % 2])
        tasks.cancel_scope.cancel()

    seen = 0
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            while True:
                assert await files.read(path) in contents
                seen += 1
    assert seen


# Races between check and use


class Swapper:
    """Swaps two names, at one stroke each time, without a pause, in a thread of its own."""

    def __init__(self, one: Path, other: Path) -> None:
        self._names = os.fsencode(one), os.fsencode(other)
        self._exchange = ctypes.CDLL(None, use_errno=True).renameat2
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._swap)

    def __enter__(self) -> Swapper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _swap(self) -> None:
        one, other = self._names
        while not self._stop.is_set():
            if self._exchange(-100, one, -100, other, 2):
                raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.parametrize("what", ["file", "directory"])
async def test_a_link_that_is_swapped_in_between_leads_nowhere(
    files: Files, root: Path, what: str
) -> None:
    outside = root.parent / "outside"
    (root / "d").mkdir()
    (root / "d" / "secret").write_text("mine")
    if what == "file":
        one, other, path = root / "d" / "secret", root / "d" / "link", root / "d" / "secret"
        os.symlink(outside / "secret", other)
    else:
        one, other, path = root / "d", root / "e", root / "d" / "secret"
        os.symlink(outside, other)
    outcomes: set[str] = set()
    with Swapper(one, other), anyio.fail_after(30):
        while outcomes != {"read", "refused"}:
            try:
                assert await files.read(str(path)) == "mine"
                outcomes.add("read")
            except Refused:
                outcomes.add("refused")
        for _ in range(300):
            with suppress(Refused):
                await files.write(str(path), "written")
            assert (outside / "secret").read_text() == SECRET
    assert os.listdir(outside) == ["secret"]


async def test_no_descriptor_is_lost_whatever_happens(files: Files, links: Path) -> None:
    await files.read(str(links / "file"))
    before = len(os.listdir("/proc/self/fd"))
    for path in ("file", "in", "out", "loop", "nowhere", "sub", "sub/deep", "no/thing", "x" * 300):
        for action in (files.read(str(links / path)), files.write(str(links / path), "x")):
            try:
                await action
            except Refused:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


async def test_directories(files: Files, links: Path) -> None:
    assert await files.directory(str(links)) == links
    assert await files.directory(str(links / "sub")) == links / "sub"
    assert await files.directory(str(links / "dir-in")) == links / "sub"
    for path in ("file", "in", "nothing", "dir-out", "dir-up"):
        with refused(""):
            await files.directory(str(links / path))
