from __future__ import annotations

import pytest

from .support import bench, say, turn

pytestmark = pytest.mark.anyio


async def test_plain() -> None:
    async with bench(turn(say("hello"))) as b:
        assert (await b.run()).summary == "hello"
