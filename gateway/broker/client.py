"""The state of one client connection, for the command handler and /stats."""

from __future__ import annotations

import msgspec

from gateway.broker.authorization import Authorization
from gateway.broker.channel import Channel
from gateway.broker.consumer import ChannelConsumer
from gateway.protocol.identify import IdentifyRequest, NegotiatedOptions
from gateway.protocol.states import State


class TlsState(msgspec.Struct, frozen=True, kw_only=True):
    """The TLS of a connection, in nsqd's words."""

    version: str
    cipher_suite: str
    common_name: str
    """Common name of the client certificate; empty if there is none."""


class Client:
    """One connected client: its identity, negotiated options, subscription and publish counts."""

    def __init__(
        self,
        consumer: ChannelConsumer,
        options: NegotiatedOptions,
        *,
        remote_address: str,
        connect_ts: int,
    ) -> None:
        self.consumer = consumer
        self.options = options
        """The options of the last IDENTIFY, or the defaults."""
        self.is_identified = False
        self.channel: Channel | None = None
        """The subscribed channel, if any."""
        self.is_closing = False
        """True after the client has sent CLS."""
        self.remote_address = remote_address
        """Address of the client as host:port."""
        self.connect_ts = connect_ts
        """Time of the connection, in seconds since 1970."""
        # As in nsqd, the identity of a client that has not sent IDENTIFY is its host.
        host = remote_address.rpartition(":")[0].strip("[]")
        self.client_id = host
        self.hostname = host
        self.user_agent = ""
        self.tls: TlsState | None = None
        """None without TLS."""
        self.is_snappy = False
        self.is_deflate = False
        self.secret = b""
        """The secret of AUTH, with which the auth server is asked again after the ttl."""
        self.authorization: Authorization | None = None
        """What the auth server granted; None before AUTH."""
        self.publish_counts: dict[str, int] = {}
        """Messages published on this connection, by topic."""

    @property
    def state(self) -> State:
        """The state of the connection, for /stats."""
        if self.channel is None:
            return State.INIT
        return State.CLOSING if self.is_closing else State.SUBSCRIBED

    def identify(self, request: IdentifyRequest, options: NegotiatedOptions) -> None:
        """
        Apply an IDENTIFY of the client.

        As in nsqd, only the first one sets the message timeout and the sample rate.
        """
        self.client_id = request.client_id
        self.hostname = request.hostname
        self.user_agent = request.user_agent
        self.options = options
        if not self.is_identified:
            self.is_identified = True
            # Never later: `ChannelConsumer.in_flight` is ordered because the timeout is constant.
            self.consumer.msg_timeout_s = options.msg_timeout_ms / 1000
            self.consumer.sample_rate = options.sample_rate

    def count_published(self, topic: str, count: int) -> None:
        """Add *count* messages published to *topic*; /stats lists the client as a producer."""
        self.publish_counts[topic] = self.publish_counts.get(topic, 0) + count
