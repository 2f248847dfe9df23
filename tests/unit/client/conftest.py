"""Fixtures with scripted brokers."""

from __future__ import annotations

from tests.support.brokers.fixtures import (
    broker,
    connection,
    listener,
    other,
    own_labels,
    peer,
    subscribed,
)

__all__ = ["broker", "connection", "listener", "other", "own_labels", "peer", "subscribed"]
