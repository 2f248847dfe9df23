"""PURE. Which connection takes the first publish of a topic that has no work anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Node(Protocol):
    """The nsqd at the other end, as the choice sees it."""

    @property
    def is_doubted(self) -> bool:
        """Whether it owes an answer for long."""

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether *size_bytes* more may wait for it."""


NodeT_co = TypeVar("NodeT_co", bound=Node, covariant=True)


class Lane(Protocol[NodeT_co]):
    """What the choice looks at: one connection for publishing."""

    load_bytes: int
    """What waits and what is written and not answered."""

    @property
    def node(self) -> NodeT_co:
        """The nsqd it goes to."""

    @property
    def is_open(self) -> bool:
        """Whether a command can be written now."""


LaneT = TypeVar("LaneT", bound=Lane[Node])


def choose(lanes: Sequence[LaneT], size_bytes: int, *, turn: int) -> LaneT | None:
    """
    Return the lane for *size_bytes*; None when none is open or all nsqds have reached their bound.

    The least loaded takes them, and among equals the one whose *turn* it is. One whose nsqd owes
    an answer for long is taken only where there is no other.
    """
    best: LaneT | None = None
    doubted: LaneT | None = None
    count = len(lanes)
    for step in range(count):
        lane = lanes[(turn + step) % count]
        if not lane.is_open or not lane.node.has_room(size_bytes):
            continue
        if lane.node.is_doubted:
            if doubted is None or lane.load_bytes < doubted.load_bytes:
                doubted = lane
        elif not lane.load_bytes:
            return lane  # none can be less loaded
        elif best is None or lane.load_bytes < best.load_bytes:
            best = lane
    return best or doubted
