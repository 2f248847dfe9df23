"""
What the broker does at each command of a client, and what it answers.

The reader of commands has refused already what is wrong in itself: names, sizes, numbers, the
state of the connection. Here is what depends on the broker. Texts and order: nsqd/protocol_v2.go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from gateway.broker.catalog import Catalog
from gateway.broker.channel import Channel, Refusal
from gateway.broker.client import Client
from gateway.broker.consumer import Consumer
from gateway.broker.message import Moment
from gateway.errors import LocalProtocolError, RemoteProtocolError
from gateway.protocol import identify
from gateway.protocol.commands import (
    Auth,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    Nop,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.connection import Event, PeerViolated
from gateway.protocol.frames import CLOSE_WAIT, OK, ErrorFrame, Response


class Resume(msgspec.Struct, frozen=True):
    """IDENTIFY is answered: what came behind it can be read."""


class Disconnect(msgspec.Struct, frozen=True):
    """Close the connection once what was answered so far is written."""


Effect: TypeAlias = Response | ErrorFrame | Resume | Disconnect
"""What the server does for one client; a frame is sent to it."""


class Handler:
    """One command of one client after the other, in the order in which they came."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._limits = catalog.common.rules.limits
        self._last_number = 0
        # The key says what each method takes; one table is faster than twelve comparisons.
        self._rows: dict[type, Callable[..., Response | ErrorFrame | None]] = {
            Finish: self._finish,
            Publish: self._publish,
            MultiPublish: self._multi_publish,
            DeferredPublish: self._deferred_publish,
            Ready: self._ready,
            Requeue: self._requeue,
            Touch: self._touch,
            Nop: lambda _client, _command, _at: None,
            Subscribe: self._subscribe,
            StartClose: self._start_close,
            Identify: self._identify,
            Auth: lambda _client, _command, _at: ErrorFrame("E_AUTH_DISABLED", "AUTH disabled"),
            PeerViolated: lambda _client, violated, _at: ErrorFrame(
                violated.error.code, violated.error.description
            ),
        }

    def connect(self, *, remote_address: str, at: Moment) -> Client:
        """Return the client of a new connection from *remote_address*, host:port."""
        self._last_number += 1
        holds = identify.defaults(self._limits)
        consumer = Consumer(self._last_number, msg_timeout_s=holds.msg_timeout_ms / 1000)
        connect_ts = at.wall_ns // 1_000_000_000
        client = Client(consumer, holds, remote_address=remote_address, connect_ts=connect_ts)
        self._catalog.clients[consumer.id] = client
        return client

    def handle(self, client: Client, events: Sequence[Event], at: Moment) -> list[Effect]:
        """
        Carry out what a client said in one read, and return what it is answered, in order.

        Nothing behind a fatal error is carried out; `Disconnect` is the last effect then.
        """
        effects: list[Effect] = []
        for event in events:
            frame = self._rows[type(event)](client, event, at)
            if frame is None:
                continue
            if type(frame) is ErrorFrame and frame.is_fatal:
                # An error without a code is nsqd closing without a word.
                effects += [frame, Disconnect()] if frame.code else [Disconnect()]
                break
            effects.append(frame)
            if type(event) is Identify:
                effects.append(Resume())
        return effects

    def disconnect(self, client: Client) -> None:
        """Forget a client whose connection has ended."""
        self._catalog.leave(client)

    def block(self, client: Client) -> None:
        """Send *client* nothing more: it does not read what it has."""
        client.consumer.is_blocked = True

    def unblock(self, client: Client) -> None:
        """Send again."""
        client.consumer.is_blocked = False
        if client.channel is not None:
            client.channel.offer(client.consumer)

    # One method for each command; None is no answer.

    def _identify(self, client: Client, command: Identify, _at: Moment) -> Response | ErrorFrame:
        try:
            offer = identify.parse_offer(command.body)
            holds = identify.effective(offer, self._limits)
        except RemoteProtocolError as error:
            return ErrorFrame(error.code, error.description)
        client.identify(offer, holds)
        if not offer.feature_negotiation:
            return OK
        return Response(identify.answer_to(holds, self._limits).to_json())

    def _subscribe(self, client: Client, command: Subscribe, at: Moment) -> Response | ErrorFrame:
        if client.holds.heartbeat_interval_ms is None:
            return ErrorFrame("E_INVALID", "cannot SUB with heartbeats disabled")
        topic = self._catalog.topic(command.topic)
        channel = topic.channel(command.channel, now=at.now)
        if not channel.subscribe(client.consumer):
            most = self._catalog.common.rules.max_channel_consumers
            return ErrorFrame(
                "E_SUB_FAILED",
                f"SUB failed consumers for {command.topic}:{command.channel} "
                f"exceeds limit of {most}",
            )
        client.channel = channel
        return OK

    def _ready(self, client: Client, command: Ready, _at: Moment) -> None:
        _subscribed(client).ready(client.consumer, command.count)

    def _finish(self, client: Client, command: Finish, _at: Moment) -> ErrorFrame | None:
        refusal = _subscribed(client).finish(client.consumer, command.id)
        return None if refusal is None else _refused("FIN", command.id, refusal)

    def _requeue(self, client: Client, command: Requeue, at: Moment) -> ErrorFrame | None:
        channel = _subscribed(client)
        refusal = channel.requeue(
            client.consumer, command.id, delay_ms=command.delay_ms, now=at.now
        )
        return None if refusal is None else _refused("REQ", command.id, refusal)

    def _touch(self, client: Client, command: Touch, at: Moment) -> ErrorFrame | None:
        refusal = _subscribed(client).touch(client.consumer, command.id, now=at.now)
        return None if refusal is None else _refused("TOUCH", command.id, refusal)

    def _start_close(self, client: Client, _command: StartClose, _at: Moment) -> Response:
        _subscribed(client).ready(client.consumer, 0)
        client.is_closing = True
        return CLOSE_WAIT

    def _publish(self, client: Client, command: Publish, at: Moment) -> Response | ErrorFrame:
        if not self._catalog.topic(command.topic).publish((command.body,), at):
            return self._full("PUB")
        client.count_published(command.topic, 1)
        return OK

    def _deferred_publish(
        self, client: Client, command: DeferredPublish, at: Moment
    ) -> Response | ErrorFrame:
        topic = self._catalog.topic(command.topic)
        if not topic.publish((command.body,), at, defer_ms=command.defer_ms):
            return self._full("DPUB")
        client.count_published(command.topic, 1)
        return OK

    def _multi_publish(
        self, client: Client, command: MultiPublish, at: Moment
    ) -> Response | ErrorFrame:
        if not self._catalog.topic(command.topic).publish(command.bodies, at):
            return self._full("MPUB")
        client.count_published(command.topic, len(command.bodies))
        return OK

    def _full(self, verb: str) -> ErrorFrame:
        # nsqd has a disk and never says this. "exiting" tells a client that nothing was stored.
        limit_bytes = self._catalog.common.memory.limit_bytes
        description = f"{verb} failed exiting: the messages take all of {limit_bytes} bytes"
        return ErrorFrame(f"E_{verb}_FAILED", description)


def _subscribed(client: Client) -> Channel:
    """Return the channel of a client whose state allows FIN."""
    if client.channel is None:
        msg = f"{client.remote_address} is not subscribed, and a command that needs it was let in"
        raise LocalProtocolError(msg)
    return client.channel


def _refused(verb: str, message_id: bytes, refusal: Refusal) -> ErrorFrame:
    shown = message_id.decode("utf-8", "surrogateescape")
    return ErrorFrame(f"E_{verb}_FAILED", f"{verb} {shown} failed {refusal}")
