"""PURE. A token bucket, which limits the rates of commands, invalid input and publishes."""

from __future__ import annotations

import math


class TokenBucket:
    """
    A token bucket that may be overdrawn, after the generic cell rate algorithm.

    One number is the whole state: the time at which an overdrawn bucket is empty again. A new
    bucket is full.

    Args:
        rate_per_s: Tokens per second; 0 for no limit.
        burst_s: Seconds in which an empty bucket fills.
    """

    __slots__ = ("_burst_s", "_token_s", "empty_at")

    def __init__(self, rate_per_s: float, *, burst_s: float) -> None:
        self._token_s = 1 / rate_per_s if rate_per_s else 0.0
        self._burst_s = burst_s
        self.empty_at = -math.inf
        """The bucket is overdrawn until this monotonic time (seconds); then it starts to fill."""

    def take(self, tokens: int, now: float) -> None:
        """Take *tokens*, even if that overdraws the bucket."""
        # max(): a bucket never holds more than burst_s worth of tokens, however long it was idle.
        self.empty_at = max(self.empty_at, now - self._burst_s) + tokens * self._token_s

    def wait_s(self, tokens: int, now: float) -> float:
        """Return how long *tokens* must wait for their refill; 0 or less if the bucket has them."""
        return max(self.empty_at, now - self._burst_s) + tokens * self._token_s - now

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is full."""
        return self.empty_at <= now - self._burst_s
