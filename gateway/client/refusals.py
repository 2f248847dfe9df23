"""
What a broker has refused a moment ago: who asks for the same again is answered from here.

A secret that is refused costs NSQ a connection and a question to its auth server each time, and a
client that tries in a loop would ask for nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from gateway.errors import GatewayError, alike

KEEP_S = 1.0
MAX_ENTRIES = 10_000


class Refusals:
    """
    Refusals by what was asked for, for *keep_s*; of more than *max_entries* the oldest goes.

    A key is whatever tells requests apart: (secret, topic), (secret, topic, channel).
    """

    def __init__(self, *, keep_s: float = KEEP_S, max_entries: int = MAX_ENTRIES) -> None:
        self._keep_s = keep_s
        self._max_entries = max_entries
        self._kept: dict[Hashable, tuple[float, GatewayError]] = {}
        """Until when, and what was said; what was remembered first stands first."""
        self.until = -math.inf
        """When the last of them is over, monotonic seconds: from then on `find` has nothing."""

    def __len__(self) -> int:
        """Return how many are kept, those that are over included until the next `remember`."""
        return len(self._kept)

    def remember(self, key: Hashable, error: GatewayError, now: float) -> None:
        """Keep *error* for who asks for *key* within `keep_s` from *now* (monotonic seconds)."""
        self._kept.pop(key, None)
        self.until = now + self._keep_s
        self._kept[key] = (self.until, alike(error))
        while self._is_first_over(now) or len(self._kept) > self._max_entries:
            del self._kept[next(iter(self._kept))]

    def find(self, key: Hashable, now: float) -> GatewayError | None:
        """Return a new error like the one that is kept for *key*, None when there is none."""
        kept = self._kept.get(key)
        return alike(kept[1]) if kept is not None and now < kept[0] else None

    def _is_first_over(self, now: float) -> bool:
        return next(iter(self._kept.values()))[0] <= now
