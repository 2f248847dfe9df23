"""PURE. What all connections for publishing to one nsqd share, whosever secret they serve."""

from __future__ import annotations


class Node:
    """One nsqd: how much waits for it, and whether it answers."""

    __slots__ = ("address", "asks_for_auth", "doubted_since", "held_bytes", "limit_bytes")

    def __init__(self, address: str, *, limit_bytes: int) -> None:
        self.address = address
        """Its host:port for V2."""
        self.limit_bytes = limit_bytes
        """What may be held for it; above it publishes go to others."""
        self.held_bytes = 0
        """What waits for it and what is written and not answered, as `lane.Lane` counts it."""
        self.asks_for_auth = False
        """Whether it has last said that it wants a secret."""
        self.doubted_since: float | None = None
        """When it was last seen to owe an answer for long, monotonic seconds; None: trusted."""

    @property
    def is_doubted(self) -> bool:
        """Whether another nsqd is to be preferred."""
        return self.doubted_since is not None

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether *size_bytes* more are within the limit."""
        return self.held_bytes + size_bytes <= self.limit_bytes

    def doubt(self, now: float) -> None:
        """Count as one that may not answer, until something is heard from it."""
        self.doubted_since = now

    def heard(self, at: float) -> None:
        """Trust it again if what was heard *at* this moment is not older than the doubt."""
        if self.doubted_since is not None and at >= self.doubted_since:
            self.doubted_since = None
