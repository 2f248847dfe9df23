"""
The asyncio NSQ client, which publishes to nsqds and consumes from them.

This module is its public API; docs/client.md shows how to use it.
"""

from __future__ import annotations

from gateway.client.channel_monitor import ChannelMonitor, ChannelMonitorOptions
from gateway.client.connection import ConnectionOptions
from gateway.client.consumer import Consumer, ConsumerOptions
from gateway.client.deliveries import Delivery, DeliveryOptions
from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from gateway.client.producer import Producer, ProducerOptions
from gateway.client.rdy import RdyOptions
from gateway.client.subscription import (
    Subscription,
    SubscriptionListener,
    SubscriptionOptions,
)
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
    NoNsqdHttpAddress,
    OutcomeUnknown,
    Overloaded,
    PublishError,
    SettingsError,
)
from gateway.protocol.identify import IdentifyRequest
from gateway.protocol.wire import Limits
from gateway.tls import TlsOptions

__all__ = [
    "AlreadyResponded",
    "AuthRequired",
    "BrokerRefused",
    "BrokerUnreachable",
    "ChannelMonitor",
    "ChannelMonitorOptions",
    "ConnectionOptions",
    "Consumer",
    "ConsumerOptions",
    "Delivery",
    "DeliveryOptions",
    "Discovery",
    "GatewayError",
    "IdentifyRequest",
    "InvalidRequest",
    "LimitReached",
    "Limits",
    "LookupOptions",
    "NoBroker",
    "NoNsqdHttpAddress",
    "NsqdHttp",
    "NsqdHttpOptions",
    "OutcomeUnknown",
    "Overloaded",
    "Producer",
    "ProducerOptions",
    "PublishError",
    "RdyOptions",
    "Secret",
    "SettingsError",
    "Subscription",
    "SubscriptionListener",
    "SubscriptionOptions",
    "TlsOptions",
]
