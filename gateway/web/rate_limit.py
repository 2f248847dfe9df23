"""
Limit the publish rate of each caller, over HTTP and WebSockets together.

A request is admitted if its caller's bucket holds a token. Once the body has been read, and the
number of messages is known, the request takes one token per message. A large request may overdraw
the bucket; the caller's next request is refused until the bucket holds a token again.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from itertools import islice

from gateway.errors import RateLimited
from gateway.token_bucket import TokenBucket
from gateway.web.auth import AccessPolicy, Principal
from gateway.web.metrics import PUBLISH, RATE_LIMITED

MAX_DEBT_S = 60.0
"""
Maximum seconds for which an overdrawn bucket refuses its caller.

Without it, one /mpub of a million messages would block its sender, and all clients with the same
address, for hours. The price: a caller can exceed the rate with requests of more than a minute's
worth of messages each, but only one such request is admitted per minute.
"""

_EVICTION_CANDIDATES = 8
_TOLERANCE_S = 1e-8
"""Tolerance for rounding: a caller that waits for exactly its Retry-After is admitted."""

_IPV6_HOST_BITS = 64


@lru_cache(maxsize=1_024)
def address_key(host: str) -> str:
    """
    Return the key under which limits per address count the client address *host*.

    For IPv6, the key is the /64 network, which usually belongs to one customer. A *host* that is
    not an IP address is returned unchanged.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:  # an IPv4 client of a dual-stack socket
        return str(address.ipv4_mapped)
    prefix = int(address) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS
    return f"{ipaddress.IPv6Address(prefix)}/{_IPV6_HOST_BITS}"


class PublishBuckets:
    """
    The token buckets of all callers, one per caller.

    Args:
        rate_per_s: Messages per second that each caller may publish.
        burst: Capacity of a bucket in messages, at least 1; None for the messages of one second.
        max_callers: Maximum number of buckets. Another one replaces a full bucket among those of
            the `_EVICTION_CANDIDATES` callers that published least recently. If none of them is
            full, it replaces the least recent one, whose caller starts again with a full bucket.
    """

    def __init__(
        self, rate_per_s: float, *, burst: float | None = None, max_callers: int = 10_000
    ) -> None:
        self._rate_per_s = rate_per_s
        # At least one message: below a rate of 1 per second, no bucket would ever hold a token.
        self._burst_s = max(1.0, rate_per_s if burst is None else burst) / rate_per_s
        self._max_callers = max_callers
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        """By caller, least recent publish first; a caller without an entry has a full bucket."""

    def __len__(self) -> int:
        """Return the number of buckets kept."""
        return len(self._buckets)

    def check(self, caller: str, now: float, *, paid: int = 0) -> None:
        """
        Check that the bucket of *caller* holds a token, and take none.

        *paid* is the number of tokens that the same request has already taken; they count as still
        in the bucket.

        Raises:
            RateLimited: The bucket is empty; the error has the time until it holds a token.
        """
        bucket = self._buckets.get(caller)
        wait_s = 0.0 if bucket is None else bucket.wait_s(1 - paid, now)
        if wait_s > _TOLERANCE_S:
            raise RateLimited(limit_per_s=self._rate_per_s, retry_after_s=wait_s)

    def charge(self, caller: str, messages: int, now: float, *, paid: int = 0) -> None:
        """
        Take *messages* tokens for one request from the bucket of *caller*, even more than it holds.

        The request has already taken *paid* of them, by the size of its body.

        Raises:
            RateLimited: After `check`, concurrent requests have emptied the bucket; none is taken.
        """
        self.check(caller, now, paid=paid)
        bucket = self._buckets.pop(caller, None)  # inserted again below, as the most recent
        if bucket is None:
            bucket = TokenBucket(self._rate_per_s, burst_s=self._burst_s)
            if len(self._buckets) >= self._max_callers:
                self._evict(now)
        bucket.take(messages - paid, now)
        # Cancel what the caller owes beyond `MAX_DEBT_S`.
        bucket.empty_at = min(bucket.empty_at, now + MAX_DEBT_S)
        self._buckets[caller] = bucket

    def _evict(self, now: float) -> None:
        # Evicting a full bucket changes nothing: a caller without a bucket gets a full one. Search
        # only a few candidates, since every new caller beyond the maximum leads here.
        oldest = list(islice(self._buckets.items(), _EVICTION_CANDIDATES))
        full = (caller for caller, bucket in oldest if bucket.is_full(now))
        del self._buckets[next(full, oldest[0][0])]


class PublishRateLimiter:
    """
    Enforce the publish rate of each caller.

    Callers are identified by the access file, or by their secret where nsqd requires AUTH,
    otherwise by IP address.

    Args:
        buckets: The token buckets of all callers; None for no limit.
        access: Has the anonymous secret; its callers share it, so they are identified by address.
        requires_auth: Returns whether any nsqd requires AUTH.
    """

    def __init__(
        self,
        buckets: PublishBuckets | None,
        *,
        access: AccessPolicy,
        requires_auth: Callable[[], bool],
    ) -> None:
        self._buckets = buckets
        self._access = access
        self._requires_auth = requires_auth

    @property
    def is_bounded(self) -> bool:
        """True if the publish rate is limited."""
        return self._buckets is not None

    def check(self, principal: Principal, peer: str) -> None:
        """Check that the caller at the address *peer* may publish; raises RateLimited."""
        if self._buckets is None:
            return
        now = asyncio.get_running_loop().time()
        try:
            self._buckets.check(self._caller(principal, peer), now)
        except RateLimited:
            RATE_LIMITED.counts[PUBLISH,] += 1
            raise

    def charge(self, principal: Principal, peer: str, *, messages: int, paid: int = 0) -> None:
        """
        Take tokens of the caller's bucket for a request, as `PublishBuckets.charge` does.

        Raises:
            RateLimited: Concurrent requests have emptied the bucket.
        """
        if self._buckets is None:
            return
        now = asyncio.get_running_loop().time()
        try:
            self._buckets.charge(self._caller(principal, peer), messages, now, paid=paid)
        except RateLimited:
            RATE_LIMITED.counts[PUBLISH,] += 1
            raise

    def _caller(self, principal: Principal, peer: str) -> str:
        """
        Return the key of the caller's bucket: its identity, its secret's fingerprint, or its host.

        A secret counts only if somebody checks it. Otherwise a caller could get a full bucket with
        each request by sending a new, invented secret.
        """
        if principal.identity is not None:
            return " ".join(principal.identity.subject)
        secret = principal.secret
        if secret is None or secret is self._access.anonymous_secret or not self._requires_auth():
            return address_key(peer)
        return secret.fingerprint
