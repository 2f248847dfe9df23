"""Fixtures: a gateway in front of both brokers, and visitors with both browsers."""

from __future__ import annotations

from tests.support.browser.fixtures import (
    allowing,
    auths,
    browser_name,
    guarded,
    pages,
    running_browsers,
    visitor,
    visits,
)
from tests.support.gateways.fixtures import broker, gateway, kind, shared_broker, topic, warm_topic

__all__ = [
    "allowing",
    "auths",
    "broker",
    "browser_name",
    "gateway",
    "guarded",
    "kind",
    "pages",
    "running_browsers",
    "shared_broker",
    "topic",
    "visitor",
    "visits",
    "warm_topic",
]
