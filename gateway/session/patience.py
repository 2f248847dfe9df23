"""How much that is no command a client may send."""

from __future__ import annotations

MAX_MISUSES = 100
"""This many unreadable or impossible commands are answered, then the socket is closed;"""
MISUSES_FORGIVEN_PER_S = 1.0
"""one is forgiven each second."""


class Patience:
    """Counts misuses, and forgets them with time."""

    __slots__ = ("_counted_at", "_misuses")

    def __init__(self, *, now: float) -> None:
        self._misuses = 0.0
        self._counted_at = now

    def count(self, now: float) -> None:
        """Count one misuse."""
        forgiven = (now - self._counted_at) * MISUSES_FORGIVEN_PER_S
        self._misuses = max(0.0, self._misuses - forgiven) + 1
        self._counted_at = now

    @property
    def is_lost(self) -> bool:
        """Whether the last misuse was one too many."""
        return self._misuses > MAX_MISUSES
