"""Tests of `intern_options`: equal connection options share one object."""

from __future__ import annotations

import gc

from gateway.client import connection as connection_options
from gateway.client.connection import ConnectionOptions, intern_options
from gateway.client.subscription import SubscriptionOptions
from gateway.credentials import Secret
from gateway.protocol.identify import IdentifyRequest


def options(msg_timeout: int, secret: Secret | None = None) -> ConnectionOptions:
    offer = IdentifyRequest(feature_negotiation=True, msg_timeout=msg_timeout)
    return ConnectionOptions(offer=offer, secret=secret)


def test_options_that_are_alike_are_one() -> None:
    """Subscriptions share them without doing anything."""
    first = SubscriptionOptions(topic="a", channel="c", connection=options(1_234))
    second = SubscriptionOptions(topic="b", channel="c", connection=options(1_234))
    third = SubscriptionOptions(topic="b", channel="c", connection=options(1_235))

    assert first.connection is second.connection
    assert first.connection is not third.connection
    assert options(1_235) == third.connection


def test_options_that_nobody_has_any_more_are_not_kept() -> None:
    """Callers choose some values, so their number is unlimited."""
    gc.collect()  # of what other tests had
    before = len(connection_options._interned)
    for msg_timeout in range(5_000, 5_100):
        intern_options(options(msg_timeout))
    gc.collect()

    assert before == len(connection_options._interned)


def test_options_with_a_secret_are_nobody_elses() -> None:
    """Equal ones stay separate objects, and no table holds a secret."""
    one, other = options(1_000, Secret(b"s")), options(1_000, Secret(b"s"))
    before = len(connection_options._interned)

    assert (one, other) == (intern_options(one), intern_options(other))
    assert intern_options(one) is one
    assert intern_options(other) is other
    assert before == len(connection_options._interned)
