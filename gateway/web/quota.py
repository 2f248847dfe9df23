"""
How fast one caller may publish: a bucket of messages for each, which fills again at a rate.

A request is let in while its caller's bucket holds a message, and then takes all of its own: how
many those are is known only once its body has been read. What it took too much has to fill up
first. PURE: the time comes as ``now``, in monotonic seconds.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from functools import lru_cache
from itertools import islice

from gateway.errors import RateLimited

MAX_DEBT_S = 60.0
"""
The longest that a caller is kept out; what it owes beyond that is forgiven.

One /mpub of a million messages would keep its sender out for hours, and everybody behind the same
address. So who sends a minute's worth of messages in one request gets more than the rate: one
such request a minute.
"""

_LOOKED_AT = 8
_TOLERANCE_S = 1e-8
"""Who waits exactly as long as told is let in, whatever the rounding of floating point."""

_IPV6_HOST_BITS = 64


@lru_cache(maxsize=1_024)
def caller_at(host: str) -> str:
    """
    Return who publishes from the address *host*: for IPv6 its /64, which has one owner.

    What is no address stays as it is.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    prefix = int(address) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS
    return f"{ipaddress.IPv6Address(prefix)}/{_IPV6_HOST_BITS}"


class PublishQuota:
    """
    The buckets of all callers; that of a new one is full.

    Args:
        rate_per_s: Messages a second by which a bucket fills.
        burst: What a full bucket holds, in messages, at least 1; None is one second's worth.
        max_callers: Buckets that are kept. A further one makes room by forgetting one that is
            full again, where one is among those of the `_LOOKED_AT` callers that published least
            recently; else the first of these, who starts afresh.
    """

    def __init__(
        self, rate_per_s: float, *, burst: float | None = None, max_callers: int = 10_000
    ) -> None:
        self._rate_per_s = rate_per_s
        burst = max(1.0, rate_per_s if burst is None else burst)
        self._lead_s = (burst - 1) / rate_per_s
        """How far from full a bucket may be that holds a message."""
        self._max_full_in_s = burst / rate_per_s + MAX_DEBT_S
        self._max_callers = max_callers
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When each bucket is full, least recent publish first; it is, where there is no entry."""

    def __len__(self) -> int:
        """Return how many callers are remembered."""
        return len(self._full_at)

    def admit(self, caller: str, now: float) -> None:
        """
        Let a request of *caller* in when its bucket holds a message; nothing is taken yet.

        Raises:
            RateLimited: It does not; the error says when it will.
        """
        wait_s = self._full_at.get(caller, -math.inf) - self._lead_s - now
        if wait_s > _TOLERANCE_S:
            raise RateLimited(limit_per_s=self._rate_per_s, retry_after_s=wait_s)

    def charge(self, caller: str, messages: int, now: float) -> None:
        """
        Take *messages* from the bucket of *caller*, which may fall below 0 by one request.

        Raises:
            RateLimited: Other requests, that came in at the same time, have emptied it.
        """
        self.admit(caller, now)
        # Taken out and put in again, so that it comes last.
        full_at = max(self._full_at.pop(caller, now), now) + messages / self._rate_per_s
        if len(self._full_at) >= self._max_callers:
            self._make_room(now)
        self._full_at[caller] = min(full_at, now + self._max_full_in_s)

    def _make_room(self, now: float) -> None:
        """Forget a caller."""
        oldest = list(islice(self._full_at.items(), _LOOKED_AT))
        full = (caller for caller, full_at in oldest if full_at <= now)
        del self._full_at[next(full, oldest[0][0])]
