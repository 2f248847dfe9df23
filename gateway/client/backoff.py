"""PURE. How long to wait: between two tries to connect, and after a message that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

Strategy: TypeAlias = Literal["exponential", "full_jitter"]

_HIGHEST_LEVEL = 62
"""Where durations of next to nothing stop to double."""


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


class BackoffLevels:
    """
    How far a consumer has backed off: up with a failure, down with a success, 0 is not at all.

    Level n lasts multiplier_s · 2^n; no level is reached whose duration is above *max_duration_s*.
    With the strategy full_jitter a period is drawn evenly from below that. Source: go-nsq,
    consumer.go, startStopContinueBackoff; there the draw, not the duration, is held against the
    maximum, so that a level has no certain end.
    """

    __slots__ = ("_highest", "_is_jittered", "_multiplier_s", "_random", "level")

    def __init__(
        self,
        random: Callable[[], float],
        *,
        multiplier_s: float = 1.0,
        max_duration_s: float = 120.0,
        strategy: Strategy = "exponential",
    ) -> None:
        self._random = random
        self._multiplier_s = multiplier_s
        self._is_jittered = strategy == "full_jitter"
        self._highest = _highest_level(multiplier_s, max_duration_s)
        self.level = 0

    def rise(self) -> None:
        """Go one level up, unless this is the highest."""
        self.level = min(self.level + 1, self._highest)

    def sink(self) -> None:
        """Go one level down, unless this is 0."""
        self.level = max(self.level - 1, 0)

    def next_duration_s(self) -> float:
        """Return how long to wait at this level, drawn anew each time where it is drawn."""
        full_s = self._multiplier_s * 2.0**self.level
        return full_s * self._random() if self._is_jittered else full_s


def _highest_level(multiplier_s: float, max_duration_s: float) -> int:
    """Return the last level whose duration is allowed; a maximum of 0 allows none."""
    level = 0
    if max_duration_s > 0:
        while level < _HIGHEST_LEVEL and multiplier_s * 2.0 ** (level + 1) <= max_duration_s:
            level += 1
    return level
