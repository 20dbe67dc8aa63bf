"""What the tests of discovery share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .sites import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder of packages, on the path."""
    made = Site(tmp_path / "site")
    made.path.mkdir()
    monkeypatch.syspath_prepend(str(made.path))
    yield made
    made.clear()
