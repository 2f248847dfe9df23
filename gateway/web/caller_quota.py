"""Whose publishes count together, and how many they may be, however they come: POST or a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.errors import RateLimited
from gateway.secret import Secret
from gateway.web.credentials import AccessPolicy
from gateway.web.quota import PublishQuota, caller_at
from gateway.web.refusal_account import PUBLISH, RATE_LIMITED


class CallerQuota:
    """
    Holds each caller to its rate.

    Args:
        quota: The buckets of all callers; None: everybody may publish any amount.
        access: Who is lent a secret, which tells nobody apart.
        asks_for_auth: Tells whether a known nsqd asks for a secret.
    """

    def __init__(
        self,
        quota: PublishQuota | None,
        *,
        access: AccessPolicy,
        asks_for_auth: Callable[[], bool],
    ) -> None:
        self._quota = quota
        self._access = access
        self._asks_for_auth = asks_for_auth

    @property
    def is_bounded(self) -> bool:
        """Whether there is a rate to hold to."""
        return self._quota is not None

    def admit(self, secret: Secret | None, peer: str) -> None:
        """Let a caller in whose bucket holds a message; raises RateLimited where it does not."""
        if self._quota is None:
            return
        now = asyncio.get_running_loop().time()
        try:
            self._quota.admit(self._caller(secret, peer), now)
        except RateLimited:
            RATE_LIMITED.counts[PUBLISH,] += 1
            raise

    def charge(self, secret: Secret | None, peer: str, *, messages: int) -> None:
        """Take *messages* from the caller's bucket; raises RateLimited where it was empty."""
        if self._quota is None:
            return
        now = asyncio.get_running_loop().time()
        try:
            self._quota.charge(self._caller(secret, peer), messages, now)
        except RateLimited:
            RATE_LIMITED.counts[PUBLISH,] += 1
            raise

    def _caller(self, secret: Secret | None, peer: str) -> str:
        """
        Return whose publishes count together: those of a secret, else those of an address.

        A secret that nobody looks at may be made up: it counts only where an nsqd asks for one.
        """
        if secret is None or secret is self._access.anonymous_secret or not self._asks_for_auth():
            return caller_at(peer)
        return secret.fingerprint
