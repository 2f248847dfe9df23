"""Fixtures: a gateway in front of both brokers."""

from __future__ import annotations

from tests.support.gateways.fixtures import broker, gateway, kind, shared_broker, topic, warm_topic

__all__ = ["broker", "gateway", "kind", "shared_broker", "topic", "warm_topic"]
