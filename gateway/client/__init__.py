"""
The asyncio NSQ client: publish to brokers, consume from brokers.

Everything that a program needs is here; docs/client.md shows how to use it.
"""

from __future__ import annotations

from gateway.client.connection import ConnectionOptions
from gateway.client.consumption import ConsumptionOptions
from gateway.client.delivery import Delivery
from gateway.client.lookup import LookupOptions
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.client.ready import ReadyOptions
from gateway.client.subscriber import Subscriber, SubscriberOptions
from gateway.client.tls import TlsOptions
from gateway.protocol.identify import Offer
from gateway.secret import Secret

__all__ = [
    "ConnectionOptions",
    "ConsumptionOptions",
    "Delivery",
    "LookupOptions",
    "Offer",
    "Publisher",
    "PublisherOptions",
    "ReadyOptions",
    "Secret",
    "Subscriber",
    "SubscriberOptions",
    "TlsOptions",
]
