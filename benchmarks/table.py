"""Alternating measurements, and the rows of the result table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of the table: the medians of ours and the peer's, and the range of the rounds."""

    name: str
    unit: str
    ours: float
    peers: float
    lowest: float
    """The lowest ratio of one round."""
    highest: float
    """The highest ratio of one round; if far from the lowest, the machine was busy."""
    note: str = ""

    @property
    def ratio(self) -> float:
        """Our median divided by the peer's."""
        return self.ours / self.peers

    def __str__(self) -> str:
        """Return the printed line."""
        figures = f"{_shown(self.ours)} ÷ {_shown(self.peers)} {self.unit}"
        note = f"; {self.note}" if self.note else ""
        rounds = f"{self.lowest:.2f}-{self.highest:.2f}"
        return f"{self.ratio:7.2f}  {rounds:>11}  {self.name}: {figures}{note}"

    def to_json(self) -> dict[str, object]:
        """Return the saved form."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True)
class Gap:
    """A line of the table without a comparison, and the reason."""

    name: str
    why: str

    def __str__(self) -> str:
        """Return the printed line."""
        return f"{'–':>7}  {'–':>11}  {self.name}: {self.why}"

    def to_json(self) -> dict[str, object]:
        """Return the saved form."""
        return {**asdict(self), "ratio": None}


HEAD = f"{'ratio':>7}  {'rounds':>11}  what: ours ÷ the peer's"


def _shown(value: float) -> str:
    """Format *value* with about four digits."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its description with sizes and counts, and its rows."""

    about: str
    rows: Iterator[Row] | Iterator[Row | Gap]


def in_turn(sides: Mapping[str, Callable[[], T]], *, rounds: int) -> dict[str, list[T]]:
    """Measure the sides alternately, A B, A B, …; return the rounds of each side."""
    measured: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            measured[name].append(measure())
    return measured


def compare(
    name: str, unit: str, ours: Sequence[float], peers: Sequence[float], note: str = ""
) -> Row:
    """Return the row of *ours* and the *peers* of the same rounds."""
    ratios = [our / peer for our, peer in zip(ours, peers, strict=True)]
    our_median, peer_median = statistics.median(ours), statistics.median(peers)
    return Row(name, unit, our_median, peer_median, min(ratios), max(ratios), note)
