"""
What the broker has to do next: channels that can deliver, channels whose time comes.

A channel puts itself here when something changes, so nobody looks at all channels in turn.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.broker.consumer import Consumer
from gateway.broker.message import StoredMessage


class Delivery(NamedTuple):
    """Messages for one consumer, at least one, in order."""

    consumer: Consumer
    messages: Sequence[StoredMessage]


class Entry(Protocol):
    """What stands on the agenda: a channel."""

    next_moment: float
    """The one moment it is on the agenda for, monotonic seconds; infinite for none."""

    def deliver(self, now: float) -> list[Delivery]:
        """Send what can be sent now."""

    def expire(self, now: float) -> None:
        """Take back what has timed out, and let go what was deferred."""


class Agenda:
    """Which channels to look at, now and later."""

    __slots__ = ("_deliverable", "_moments", "_numbers")

    def __init__(self) -> None:
        self._deliverable: dict[Entry, None] = {}
        self._moments: list[tuple[float, int, Entry]] = []
        self._numbers = itertools.count()

    @property
    def has_deliverable(self) -> bool:
        """Whether a channel has messages for somebody who waits."""
        return bool(self._deliverable)

    def add_deliverable(self, entry: Entry) -> None:
        """Note that *entry* has messages and somebody who waits for them."""
        self._deliverable[entry] = None

    def take_deliverable(self) -> list[Entry]:
        """Return the channels that can deliver, and forget them."""
        entries = list(self._deliverable)
        self._deliverable.clear()
        return entries

    def schedule(self, entry: Entry, at: float) -> None:
        """Look at *entry* at this moment, unless an earlier one is noted already."""
        if at < entry.next_moment:
            entry.next_moment = at
            heapq.heappush(self._moments, (at, next(self._numbers), entry))

    @property
    def next_moment(self) -> float | None:
        """When a channel has to be looked at next, monotonic seconds; None for never."""
        self._drop_outdated()
        return self._moments[0][0] if self._moments else None

    def take_due(self, now: float) -> list[Entry]:
        """Return the channels whose moment has come, and forget that moment."""
        due = []
        self._drop_outdated()
        while self._moments and self._moments[0][0] <= now:
            entry = heapq.heappop(self._moments)[2]
            entry.next_moment = float("inf")
            due.append(entry)
            self._drop_outdated()
        return due

    def _drop_outdated(self) -> None:
        # An earlier moment leaves the later one in the heap; only the current one counts.
        while self._moments and self._moments[0][2].next_moment != self._moments[0][0]:
            heapq.heappop(self._moments)
