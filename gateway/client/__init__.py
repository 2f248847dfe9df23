"""
The asyncio NSQ client, which publishes to nsqds and consumes from them.

This module is its public API; docs/client.md shows how to use it.
"""

from __future__ import annotations

from gateway.client.connection import ConnectionOptions
from gateway.client.consumer import Consumer, ConsumerOptions
from gateway.client.deliveries import Delivery, DeliveryOptions
from gateway.client.discovery import LookupOptions
from gateway.client.producer import Producer, ProducerOptions
from gateway.client.rdy import RdyOptions
from gateway.credentials import Secret
from gateway.errors import (
    AlreadyResponded,
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    InvalidRequest,
    LimitReached,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
    PublishError,
    SettingsError,
)
from gateway.protocol.identify import IdentifyRequest
from gateway.tls import TlsOptions

__all__ = [
    "AlreadyResponded",
    "AuthRequired",
    "BrokerRefused",
    "BrokerUnreachable",
    "ConnectionOptions",
    "Consumer",
    "ConsumerOptions",
    "Delivery",
    "DeliveryOptions",
    "GatewayError",
    "IdentifyRequest",
    "InvalidRequest",
    "LimitReached",
    "LookupOptions",
    "NoBroker",
    "OutcomeUnknown",
    "Overloaded",
    "Producer",
    "ProducerOptions",
    "PublishError",
    "RdyOptions",
    "Secret",
    "SettingsError",
    "TlsOptions",
]
