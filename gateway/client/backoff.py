"""PURE. How long to wait between two tries to connect."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """
    Delays that double from *first_s* to *ceiling_s*, each drawn evenly from its upper half.

    *random* gives numbers in [0, 1). The jitter keeps the clients of a broker that came back from
    returning in one instant; the lower half stays out so that a try never follows at once.
    """

    __slots__ = ("_ceiling_s", "_first_s", "_random", "_tries")

    def __init__(
        self, random: Callable[[], float], *, first_s: float = 0.1, ceiling_s: float = 15.0
    ) -> None:
        self._random = random
        self._first_s = first_s
        self._ceiling_s = ceiling_s
        self._tries = 0

    def next_delay_s(self) -> float:
        """Return the delay before the next try, and double the one after it."""
        full_s = min(self._first_s * 2.0**self._tries, self._ceiling_s)
        if full_s < self._ceiling_s:
            self._tries += 1
        return full_s * (0.5 + self._random() / 2)

    def connection_held(self, held_s: float) -> None:
        """Start again from the first delay, if a connection has held longer than any delay."""
        if held_s >= self._ceiling_s:
            self._tries = 0
