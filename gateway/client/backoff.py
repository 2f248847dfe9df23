"""PURE. Compute delays between attempts to connect, and levels of a consumer's backoff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

Strategy: TypeAlias = Literal["exponential", "full_jitter"]

_HIGHEST_LEVEL = 62
"""Limit on the highest level: with a multiplier of 0, no duration exceeds the maximum."""


class Backoff:
    """
    Delays that double from *initial_delay_s* to *max_delay_s*, shortened at random by up to half.

    *random* returns numbers in [0, 1). Without jitter, all clients of a restarted nsqd would
    reconnect in the same instant. Half of each delay is fixed, so that none is close to 0.
    """

    __slots__ = ("_attempts", "_initial_delay_s", "_max_delay_s", "_random")

    def __init__(
        self,
        random: Callable[[], float],
        *,
        initial_delay_s: float = 0.1,
        max_delay_s: float = 15.0,
    ) -> None:
        self._random = random
        self._initial_delay_s = initial_delay_s
        self._max_delay_s = max_delay_s
        self._attempts = 0

    def next_delay_s(self) -> float:
        """Return the delay before the next attempt; each call doubles it, up to the maximum."""
        full_s = min(self._initial_delay_s * 2.0**self._attempts, self._max_delay_s)
        # Not counted beyond the maximum: 2.0**1024 raises OverflowError.
        if full_s < self._max_delay_s:
            self._attempts += 1
        return full_s * (0.5 + self._random() / 2)

    def reset_after(self, uptime_s: float) -> None:
        """Restart from the initial delay if the connection was up for the maximum delay."""
        # A connection that is lost at once must not reset the delay.
        if uptime_s >= self._max_delay_s:
            self._attempts = 0


class BackoffLevel:
    """
    The level of a consumer's backoff: failures raise it, successes lower it; 0: no backoff.

    A period of level n lasts multiplier_s · 2^n, or with full_jitter a uniformly random part of
    that. The highest level is the last whose full duration is at most *max_duration_s*. Source:
    go-nsq, consumer.go, startStopContinueBackoff. go-nsq compares the random duration with the
    maximum, so that its highest level varies.
    """

    __slots__ = ("_highest", "_is_jittered", "_multiplier_s", "_random", "value")

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
        self.value = 0

    def increase(self) -> None:
        """Raise the level by one, up to the highest."""
        self.value = min(self.value + 1, self._highest)

    def decrease(self) -> None:
        """Lower the level by one, down to 0."""
        self.value = max(self.value - 1, 0)

    def next_duration_s(self) -> float:
        """Return how long the next period of backoff lasts; with full_jitter, a random time."""
        full_s = self._multiplier_s * 2.0**self.value
        return full_s * self._random() if self._is_jittered else full_s


def _highest_level(multiplier_s: float, max_duration_s: float) -> int:
    """Return the highest level whose duration is at most *max_duration_s*; 0 disables backoff."""
    level = 0
    if max_duration_s > 0:
        while level < _HIGHEST_LEVEL and multiplier_s * 2.0 ** (level + 1) <= max_duration_s:
            level += 1
    return level
