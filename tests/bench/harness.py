"""Side by side: gofer and its floor, in turns, and the median of their ratios."""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gofer import Host

__all__ = ["Figure", "Pair", "Row", "new_host", "side_by_side"]

Figure = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Pair:
    """What two sides took, each as its median, and the median of the ratios of each round."""

    gofer: float
    floor: float
    ratio: float


@dataclass(frozen=True)
class Row:
    """One line of the table. Without an *aim* it is only told."""

    name: str
    pair: Pair
    unit: str
    aim: float | None = None
    at_least: bool = False

    @property
    def met(self) -> str:
        """Whether the ratio is on the right side of the aim."""
        if self.aim is None:
            return ""
        ratio = round(self.pair.ratio, 2)
        return "met" if (ratio >= self.aim if self.at_least else ratio <= self.aim) else "NOT MET"

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        aim = f"{sign} {self.aim:.2f}" if self.aim is not None else ""
        gofer, floor = (f"{value:,.4g} {self.unit}" for value in (self.pair.gofer, self.pair.floor))
        return f"{self.name:<58}{gofer:>16}{floor:>16}{self.pair.ratio:>8.2f}{aim:>9}  {self.met}"


HEAD = f"{'benchmark':<58}{'gofer':>16}{'floor':>16}{'ratio':>8}{'aim':>9}"


async def side_by_side(gofer: Figure, floor: Figure, rounds: int, *, warm_up: bool = True) -> Pair:
    """Run both *rounds* times, now one first and now the other, after one run to warm up."""
    if warm_up:
        await gofer()
        await floor()
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds):
        sides = [(gofer, ours), (floor, theirs)]
        for side, figures in sides if number % 2 == 0 else reversed(sides):
            gc.collect()
            figures.append(await side())
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Pair(statistics.median(ours), statistics.median(theirs), statistics.median(ratios))


def new_host(*plugins: object, config: Mapping[str, Any] | None = None) -> Host:
    """Return a Host of these plugins alone, away from any project's settings."""
    return Host(plugins, config, discover=False, cwd=tempfile.gettempdir())
