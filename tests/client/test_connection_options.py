"""What a connection is asked to be: once in memory for all who ask the same."""

from __future__ import annotations

import gc

from gateway.client import connection_options
from gateway.client.connection import ConnectionOptions
from gateway.client.connection_options import share
from gateway.client.subscription import SubscriptionOptions
from gateway.protocol.identify import Offer
from gateway.secret import Secret


def options(msg_timeout: int, secret: Secret | None = None) -> ConnectionOptions:
    """Return options of their own."""
    offer = Offer(feature_negotiation=True, msg_timeout=msg_timeout)
    return ConnectionOptions(offer=offer, secret=secret)


def test_options_that_are_alike_are_one() -> None:
    """Whoever subscribes need not know it."""
    first = SubscriptionOptions(topic="a", channel="c", connection=options(1_234))
    second = SubscriptionOptions(topic="b", channel="c", connection=options(1_234))
    third = SubscriptionOptions(topic="b", channel="c", connection=options(1_235))

    assert first.connection is second.connection
    assert first.connection is not third.connection
    assert options(1_235) == third.connection


def test_options_that_nobody_has_any_more_are_not_kept() -> None:
    """Callers choose some of their values: there are as many as there are callers."""
    gc.collect()  # of what other tests had
    before = len(connection_options._shared)
    for msg_timeout in range(5_000, 5_100):
        share(options(msg_timeout))
    gc.collect()

    assert before == len(connection_options._shared)


def test_options_with_a_secret_are_nobody_elses() -> None:
    """Equal ones are equal, and no table has them."""
    one, other = options(1_000, Secret(b"s")), options(1_000, Secret(b"s"))
    before = len(connection_options._shared)

    assert (one, other) == (share(one), share(other))
    assert share(one) is one
    assert share(other) is other
    assert before == len(connection_options._shared)
