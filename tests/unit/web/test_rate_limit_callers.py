"""Whose publishes count together, and how many they may be."""

from __future__ import annotations

import pytest

from gateway.access.rights import Identity, Rights
from gateway.credentials import Secret
from gateway.errors import RateLimited
from gateway.web.auth import ANONYMOUS, AccessPolicy, Principal
from gateway.web.rate_limit import PublishBuckets, PublishRateLimiter

OUR_SECRET = Secret(b"ours")
ALICE, BOB, OURS = Principal(Secret(b"alice")), Principal(Secret(b"bob")), Principal(OUR_SECRET)
KNOWN, FRESHER, OTHER = (
    Principal(Secret(token), Identity("https://id", name, Rights()))
    for token, name in ((b"1", "carol"), (b"2", "carol"), (b"3", "dave"))
)
HERE, THERE = "192.0.2.1", "192.0.2.2"


def one_each(*, requires_auth: bool) -> PublishRateLimiter:
    """Return a quota of one message for each caller."""
    return PublishRateLimiter(
        PublishBuckets(0.001, burst=1),
        access=AccessPolicy(anonymous_secret=OUR_SECRET),
        requires_auth=lambda: requires_auth,
    )


@pytest.mark.parametrize(
    "first,second,requires_auth,are_one",
    [
        ((ANONYMOUS, HERE), (ANONYMOUS, HERE), True, True),
        ((ANONYMOUS, HERE), (ANONYMOUS, THERE), True, False),
        ((ALICE, HERE), (ALICE, THERE), True, True),
        ((ALICE, HERE), (BOB, HERE), True, False),
        ((ALICE, HERE), (BOB, HERE), False, True),
        ((OURS, HERE), (OURS, THERE), True, False),
        ((KNOWN, HERE), (FRESHER, THERE), False, True),
        ((KNOWN, HERE), (OTHER, HERE), False, False),
    ],
    ids=[
        *("address", "addresses", "secret", "secrets", "nobody asks", "lent"),
        *("identity", "identities"),
    ],
)
async def test_who_counts_as_one_caller(
    first: tuple[Principal, str],
    second: tuple[Principal, str],
    *,
    requires_auth: bool,
    are_one: bool,
) -> None:
    """A secret where nsqd asks for one and it was not lent, else the address."""
    callers = one_each(requires_auth=requires_auth)
    callers.charge(*first, messages=1)

    if are_one:
        with pytest.raises(RateLimited):
            callers.charge(*second, messages=1)
        with pytest.raises(RateLimited):
            callers.check(*second)
    else:
        callers.check(*second)
        callers.charge(*second, messages=1)


async def test_without_a_quota_everybody_may_publish_anything() -> None:
    callers = PublishRateLimiter(None, access=AccessPolicy(), requires_auth=lambda: True)
    callers.charge(ALICE, HERE, messages=10**9)
    callers.check(ALICE, HERE)

    assert not callers.is_bounded
    assert one_each(requires_auth=True).is_bounded
