"""
PURE. Decide whether and when `nsq-gateway pub` retries a failed batch.

A batch that is certainly not published is retried. One with an unknown outcome is retried only with
--at-least-once, because that may duplicate messages. `web.errors` says which errors are retryable,
as it does for HTTP clients.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.client.backoff import BackoffLevel
from gateway.errors import GatewayError, NoBroker, OutcomeUnknown
from gateway.web.errors import error_response

_FIRST_DELAY_S = 0.25
_MAX_DELAY_S = 10.0


class RetryableRefusal(NoBroker):
    """A gateway published nothing, and a retry may succeed; *short* is for the progress line."""

    def __init__(self, text: str, *, short: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.short = short
        self.retry_after_s = retry_after_s


class Retries:
    """
    Compute the delays between the attempts to publish a batch; used for one batch after the other.

    Call `succeeded` after each published batch. A delay is the response's Retry-After, if there is
    one, plus an exponential backoff with full jitter. *random* returns numbers in [0, 1).
    """

    def __init__(
        self, random: Callable[[], float], *, retry_for_s: float, at_least_once: bool
    ) -> None:
        self.count = 0
        """Retries of all batches so far."""
        self._random = random
        self._retry_for_s = retry_for_s
        self._at_least_once = at_least_once
        self.succeeded()

    def succeeded(self) -> None:
        """Reset the retries after a batch is published: the next failure is of another batch."""
        self._first_failed_at: float | None = None
        self.count_of_batch = 0
        self._backoff = BackoffLevel(
            self._random,
            multiplier_s=_FIRST_DELAY_S,
            max_duration_s=_MAX_DELAY_S,
            strategy="full_jitter",
        )

    def next_delay_s(self, error: GatewayError, now: float) -> float | None:
        """
        Return the delay before the next attempt; the last one failed with *error* at *now*.

        Return None if there must be no retry: --retry-for-s is over, the Retry-After of *error* is
        longer than the rest of that time, or *error* permits no retry. *now* is monotonic time.
        """
        if not self.may_repeat(error):
            return None
        if self._first_failed_at is None:
            self._first_failed_at = now
        remaining_s = self._first_failed_at + self._retry_for_s - now
        min_s = error.retry_after_s if isinstance(error, RetryableRefusal) else 0.0
        if remaining_s <= 0 or min_s > remaining_s:
            return None
        # Shorten the last delay, so that the last attempt is at the end of --retry-for-s.
        delay_s = min(min_s + self._backoff.next_duration_s(), remaining_s)
        self._backoff.increase()
        self.count += 1
        self.count_of_batch += 1
        return delay_s

    def may_repeat(self, error: GatewayError) -> bool:
        """Return whether a retry after *error* may succeed without unwanted duplicates."""
        # The messages may be published already: a retry may duplicate them.
        if isinstance(error, OutcomeUnknown):
            return self._at_least_once
        return error_response(error).retryable


def delay_reason(error: GatewayError) -> str:
    """Return in a few words why *error* delays the next attempt, for the progress line."""
    if isinstance(error, RetryableRefusal):
        return error.short
    if isinstance(error, NoBroker):
        return "nsqd unreachable"
    if isinstance(error, OutcomeUnknown):
        return "no response"
    return "nsqd does not accept messages"
