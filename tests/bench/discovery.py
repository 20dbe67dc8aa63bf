"""What a Host takes to find, check and register installed plugins, beyond their own import."""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Pair, Row, side_by_side

from gofer import Host

SOURCE = """
from gofer import hookimpl

class Plugin:
    @hookimpl
    def on_stream_chunk(self, chunk):
        pass
"""
METADATA = "Metadata-Version: 2.1\nName: trivial-{0}\nVersion: 1.0\n\n" + "A readme.\n" * 300
ALLOWED = 1.0  # ms a plugin


async def rows(quick: bool) -> AsyncIterator[Row]:
    """Yield a row that sets them beside what they may take, and one beside the bare imports."""
    number = 100
    with packages(number):
        pair = await _compare(number, 5 if quick else 15)
    floor = pair.floor + number * ALLOWED
    allowed = Pair(pair.gofer, floor, pair.gofer / floor)
    yield Row(f"a Host with {number} plugins, against 1 ms each and imports", allowed, "ms", 1.0)
    yield Row(f"a Host with {number} plugins, against their imports alone", pair, "ms")


@contextmanager
def packages(number: int) -> Iterator[None]:
    """Install so many packages with a plugin each."""
    with tempfile.TemporaryDirectory() as folder:
        for key in range(number):
            (Path(folder) / f"trivial_{key}.py").write_text(SOURCE)
            info = Path(folder) / f"trivial_{key}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(METADATA.format(key))
            (info / "entry_points.txt").write_text(
                f"[gofer.plugins]\ntrivial-{key} = trivial_{key}:Plugin\n"
            )
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


async def _compare(number: int, rounds: int) -> Pair:
    names = [f"trivial_{key}" for key in range(number)]

    def forget() -> None:
        for name in names:
            sys.modules.pop(name, None)

    async def opening() -> float:
        forget()
        started = time.process_time()
        async with Host(cwd=tempfile.gettempdir()) as host:
            taken = time.process_time() - started
            loaded = [info for info in host.plugins if info.status == "loaded"]
        if len(loaded) < number:
            raise RuntimeError(f"only {len(loaded)} plugins were loaded")
        return taken * 1000

    async def importing() -> float:
        forget()
        started = time.process_time()
        for name in names:
            importlib.import_module(name)
        return (time.process_time() - started) * 1000

    return await side_by_side(opening, importing, rounds)
