"""One connection as the core of the broker sees it; what /stats shows of it."""

from __future__ import annotations

from gateway.broker.channel import Channel
from gateway.broker.consumer import Consumer
from gateway.protocol.identify import Effective, Offer
from gateway.protocol.states import State


class Client:
    """Who is connected, what was agreed with it, and what it does: consume, publish, both."""

    def __init__(
        self, consumer: Consumer, holds: Effective, *, remote_address: str, connect_ts: int
    ) -> None:
        self.consumer = consumer
        self.holds = holds
        """What its last IDENTIFY agreed, or the defaults."""
        self.is_identified = False
        self.channel: Channel | None = None
        """What it is subscribed to."""
        self.is_closing = False
        """Whether it said CLS."""
        self.remote_address = remote_address
        """host:port"""
        self.connect_ts = connect_ts
        """Seconds since 1970."""
        host = remote_address.rpartition(":")[0].strip("[]")
        self.client_id = host
        self.hostname = host
        self.user_agent = ""
        self.publish_counts: dict[str, int] = {}
        """Messages published over this connection, by topic."""

    @property
    def state(self) -> State:
        """Where the connection stands."""
        if self.channel is None:
            return State.INIT
        return State.CLOSING if self.is_closing else State.SUBSCRIBED

    def identify(self, offer: Offer, holds: Effective) -> None:
        """Take over what IDENTIFY said; deliveries follow the first one only, as in nsqd."""
        self.client_id = offer.client_id
        self.hostname = offer.hostname
        self.user_agent = offer.user_agent
        self.holds = holds
        if not self.is_identified:
            self.is_identified = True
            self.consumer.msg_timeout_s = holds.msg_timeout_ms / 1000
            self.consumer.sample_rate = holds.sample_rate

    def count_published(self, topic: str, count: int) -> None:
        """Note *count* messages for *topic*; from the first on the client is a producer."""
        self.publish_counts[topic] = self.publish_counts.get(topic, 0) + count
