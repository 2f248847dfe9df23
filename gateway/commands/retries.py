"""
PURE. Whether to publish again what was not answered with OK, and when.

What is known not to be published is tried again; what may be published only by who takes doubled
messages for lost ones. Which error is which stands in web/faults.py, as for clients over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.client.backoff import BackoffLevels
from gateway.errors import GatewayError, NoBroker, OutcomeUnknown
from gateway.web.faults import fault_of

_FIRST_S = 0.25
_CEILING_S = 10.0


class TryLater(NoBroker):
    """A gateway has not published anything, and may do so later; *short* is for a status line."""

    def __init__(self, text: str, *, short: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.short = short
        self.retry_after_s = retry_after_s


class Retries:
    """
    The tries of one batch after the other; `succeeded` ends those of one.

    Delays grow from one to the next and are drawn anew each time, all of it (full jitter), above
    what the answer asks to wait. *random* gives numbers in [0, 1).
    """

    def __init__(
        self, random: Callable[[], float], *, retry_for_s: float, at_least_once: bool
    ) -> None:
        self.count = 0
        """Delays so far, over all batches."""
        self._random = random
        self._retry_for_s = retry_for_s
        self._at_least_once = at_least_once
        self.succeeded()

    def succeeded(self) -> None:
        """Begin anew: the next failure is the first of its batch."""
        self._first_failed_at: float | None = None
        self.count_of_batch = 0
        self._levels = BackoffLevels(
            self._random, multiplier_s=_FIRST_S, max_duration_s=_CEILING_S, strategy="full_jitter"
        )

    def next_delay_s(self, error: GatewayError, now: float) -> float | None:
        """
        Return how long to wait after *error*, which came at *now* (monotonic seconds).

        None: there is no other try, for its time is over or *error* allows none.
        """
        if not self.may_repeat(error):
            return None
        if self._first_failed_at is None:
            self._first_failed_at = now
        left_s = self._first_failed_at + self._retry_for_s - now
        least_s = error.retry_after_s if isinstance(error, TryLater) else 0.0
        if left_s <= 0 or least_s > left_s:
            return None
        # The last try comes when the time is over, and not some time before.
        delay_s = min(least_s + self._levels.next_duration_s(), left_s)
        self._levels.rise()
        self.count += 1
        self.count_of_batch += 1
        return delay_s

    def may_repeat(self, error: GatewayError) -> bool:
        """Tell whether another try may end better, and doubles nothing that must not be."""
        if isinstance(error, OutcomeUnknown):
            return self._at_least_once
        return fault_of(error).retryable


def in_short(error: GatewayError) -> str:
    """Return what there is to wait for, in a few words."""
    if isinstance(error, TryLater):
        return error.short
    if isinstance(error, NoBroker):
        return "nsqd unreachable"
    if isinstance(error, OutcomeUnknown):
        return "no answer"
    return "nsqd does not take it now"
