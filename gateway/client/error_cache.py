"""
PURE. Cache recent refusals of nsqd for a moment.

Each refused secret costs nsqd a connection and a request to its auth server. Without the cache, a
client that retries in a loop would keep both busy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from gateway.errors import GatewayError, copy_error

KEEP_S = 1.0
MAX_ENTRIES = 10_000


class ErrorCache:
    """
    Errors by key, each kept for *keep_s*; beyond *max_entries* the oldest is dropped.

    A key is anything that distinguishes requests: (secret, topic), (secret, topic, channel).
    """

    def __init__(self, *, keep_s: float = KEEP_S, max_entries: int = MAX_ENTRIES) -> None:
        self._keep_s = keep_s
        self._max_entries = max_entries
        self._kept: dict[Hashable, tuple[float, GatewayError]] = {}
        """Expiry and error by key, the oldest first."""
        self.until = -math.inf
        """Expiry of the newest entry, monotonic seconds."""

    def __len__(self) -> int:
        """Return the number of entries, including expired ones not removed yet."""
        return len(self._kept)

    def remember(self, key: Hashable, error: GatewayError, now: float) -> None:
        """Keep a copy of *error* for *key*, for `keep_s` from *now* (monotonic seconds)."""
        # Reinserted at the end: the dict is in the order of expiry.
        self._kept.pop(key, None)
        self.until = now + self._keep_s
        self._kept[key] = (self.until, copy_error(error))
        while self._is_oldest_expired(now) or len(self._kept) > self._max_entries:
            del self._kept[next(iter(self._kept))]

    def find(self, key: Hashable, now: float) -> GatewayError | None:
        """Return a copy of the error kept for *key*, or None."""
        # Checked here too: an expired error stays until the next `remember`.
        kept = self._kept.get(key)
        return copy_error(kept[1]) if kept is not None and now < kept[0] else None

    def _is_oldest_expired(self, now: float) -> bool:
        return next(iter(self._kept.values()))[0] <= now
