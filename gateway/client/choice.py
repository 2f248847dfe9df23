"""PURE. Which connection takes the next publish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Lane(Protocol):
    """What the choice looks at: one connection for publishing."""

    @property
    def is_open(self) -> bool:
        """Whether a command can be written now."""

    @property
    def load_bytes(self) -> int:
        """What waits and what is written and not answered."""

    def works_on(self, topic: str) -> bool:
        """Tell whether something of *topic* waits or is in flight here."""


LaneT = TypeVar("LaneT", bound=Lane)


def choose(lanes: Sequence[LaneT], topic: str, *, turn: int) -> LaneT | None:
    """
    Return the lane for a publish to *topic*; None when no lane is open.

    A topic stays where it has work, since its next batch fills there. Otherwise the least loaded
    takes it, and among equals the one whose *turn* it is.
    """
    best: LaneT | None = None
    count = len(lanes)
    for step in range(count):
        lane = lanes[(turn + step) % count]
        if not lane.is_open:
            continue
        if lane.works_on(topic):
            return lane
        if best is None or lane.load_bytes < best.load_bytes:
            best = lane
    return best
