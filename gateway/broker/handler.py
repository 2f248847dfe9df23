"""
Execute the commands of clients.

`CommandParser` has already checked names, sizes, numbers and the state of the connection; the
checks here depend on the broker's state. Texts and order: nsqd/protocol_v2.go.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeAlias

import msgspec

from gateway.broker.channel import AckFailure, Channel
from gateway.broker.client import Client
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.message import ClockReading
from gateway.broker.topics import TopicRegistry
from gateway.errors import LocalProtocolError, RemoteProtocolError
from gateway.protocol import identify
from gateway.protocol.commands import (
    Auth,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    Nop,
    PackedBodies,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.connection import Event, ViolationReceived
from gateway.protocol.frames import CLOSE_WAIT, OK, ErrorFrame, Response


class ResumeParsing(msgspec.Struct, frozen=True):
    """
    Let the connection parse the bytes after an IDENTIFY, which it has held back.

    Follows the response to IDENTIFY, so that this is sent before the response to a later command.
    """


class StepwisePublish(msgspec.Struct, frozen=True):
    """
    A large MPUB: run the generator *steps*, which stores it and returns its response.

    It is the last effect of a read, because the connection parses nothing more until it is stored.
    """

    steps: Generator[None, None, Response]


class Disconnect(msgspec.Struct, frozen=True):
    """Close the connection after the preceding responses are written."""


Effect: TypeAlias = Response | ErrorFrame | ResumeParsing | StepwisePublish | Disconnect
"""What the server does after a command: send the frame to the client, or act as stated above."""


class Handler:
    """Execute the commands of all clients, on the topics and channels of the broker."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry = registry
        self._limits = registry.context.limits.protocol
        self._last_id = 0
        # By type of command; a table is faster than a chain of twelve comparisons.
        self._methods: dict[type, Callable[..., Response | ErrorFrame | StepwisePublish | None]] = {
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
            ViolationReceived: lambda _client, violated, _at: ErrorFrame(
                violated.error.code, violated.error.description
            ),
        }

    def connect(self, *, remote_address: str, at: ClockReading) -> Client:
        """Register and return a client that connects from *remote_address*, host:port."""
        self._last_id += 1
        options = identify.default_options(self._limits)
        consumer = ChannelConsumer(self._last_id, msg_timeout_s=options.msg_timeout_ms / 1000)
        connect_ts = at.wall_ns // 1_000_000_000
        client = Client(consumer, options, remote_address=remote_address, connect_ts=connect_ts)
        self._registry.clients[consumer.id] = client
        return client

    def handle(self, client: Client, events: Sequence[Event], at: ClockReading) -> list[Effect]:
        """
        Execute the commands of one read; return the effects, for the server to carry out in order.

        After a fatal error, no further command is executed, and `Disconnect` is the last effect.
        """
        effects: list[Effect] = []
        for event in events:
            frame = self._methods[type(event)](client, event, at)
            if frame is None:
                continue
            if type(frame) is ErrorFrame and frame.is_fatal:
                # An error without a code is one for which nsqd closes without an error frame.
                effects += [frame, Disconnect()] if frame.code else [Disconnect()]
                break
            effects.append(frame)
            # After a later IDENTIFY, too: the connection pauses after each one.
            if type(event) is Identify:
                effects.append(ResumeParsing())
        return effects

    def disconnect(self, client: Client) -> None:
        """Remove a client whose connection is lost."""
        self._registry.remove_client(client)

    def block(self, client: Client) -> None:
        """Stop deliveries to *client* until `unblock`: it does not read, or is being closed."""
        client.consumer.is_blocked = True

    def unblock(self, client: Client) -> None:
        """Resume deliveries to *client*."""
        client.consumer.is_blocked = False
        if client.channel is not None:
            client.channel.add_waiting(client.consumer)

    # One method per command; None means no response.

    def _identify(
        self, client: Client, command: Identify, _at: ClockReading
    ) -> Response | ErrorFrame:
        try:
            request = identify.parse_identify_request(command.body)
            options = identify.negotiate(request, self._limits)
        except RemoteProtocolError as error:
            return ErrorFrame(error.code, error.description)
        client.identify(request, options)
        if not request.feature_negotiation:
            return OK  # as in nsqd, the options apply all the same
        return Response(identify.identify_response(options, self._limits).to_json())

    def _subscribe(
        self, client: Client, command: Subscribe, at: ClockReading
    ) -> Response | ErrorFrame:
        if client.options.heartbeat_interval_ms is None:
            return ErrorFrame("E_INVALID", "cannot SUB with heartbeats disabled")
        # As in nsqd, a refused SUB has created the topic and the channel.
        topic = self._registry.get_topic(command.topic)
        channel = topic.get_channel(command.channel, now=at.now)
        if not channel.subscribe(client.consumer):
            limit = self._registry.context.limits.max_channel_consumers
            return ErrorFrame(
                "E_SUB_FAILED",
                f"SUB failed consumers for {command.topic}:{command.channel} "
                f"exceeds limit of {limit}",
            )
        client.channel = channel
        return OK

    def _ready(self, client: Client, command: Ready, _at: ClockReading) -> None:
        _subscribed(client).ready(client.consumer, command.count)

    def _finish(self, client: Client, command: Finish, _at: ClockReading) -> ErrorFrame | None:
        failure = _subscribed(client).finish(client.consumer, command.id)
        return None if failure is None else _ack_error("FIN", command.id, failure)

    def _requeue(self, client: Client, command: Requeue, at: ClockReading) -> ErrorFrame | None:
        channel = _subscribed(client)
        failure = channel.requeue(
            client.consumer, command.id, delay_ms=command.delay_ms, now=at.now
        )
        return None if failure is None else _ack_error("REQ", command.id, failure)

    def _touch(self, client: Client, command: Touch, at: ClockReading) -> ErrorFrame | None:
        failure = _subscribed(client).touch(client.consumer, command.id, now=at.now)
        return None if failure is None else _ack_error("TOUCH", command.id, failure)

    def _start_close(self, client: Client, _command: StartClose, _at: ClockReading) -> Response:
        # Messages in flight stay: FIN, REQ and TOUCH are still allowed after CLS.
        _subscribed(client).ready(client.consumer, 0)
        client.is_closing = True
        return CLOSE_WAIT

    def _publish(self, client: Client, command: Publish, at: ClockReading) -> Response | ErrorFrame:
        if not self._registry.get_topic(command.topic).publish((command.body,), at):
            return self._memory_full("PUB")
        client.count_published(command.topic, 1)
        return OK

    def _deferred_publish(
        self, client: Client, command: DeferredPublish, at: ClockReading
    ) -> Response | ErrorFrame:
        topic = self._registry.get_topic(command.topic)
        if not topic.publish((command.body,), at, defer_ms=command.defer_ms):
            return self._memory_full("DPUB")
        client.count_published(command.topic, 1)
        return OK

    def _multi_publish(
        self, client: Client, command: MultiPublish, at: ClockReading
    ) -> Response | ErrorFrame | StepwisePublish:
        topic, bodies = self._registry.get_topic(command.topic), command.bodies
        if isinstance(bodies, PackedBodies):
            steps = topic.publish_steps(bodies, at)
            if steps is not None:
                return StepwisePublish(_multi_publish_in_steps(client, command, steps))
        elif topic.publish(bodies, at):
            client.count_published(command.topic, len(bodies))
            return OK
        return self._memory_full("MPUB")

    def _memory_full(self, verb: str) -> ErrorFrame:
        # nsqd would write to disk instead. Clients know its error "exiting", after which nothing
        # is stored and a retry is safe.
        limit_bytes = self._registry.context.memory.limit_bytes
        description = f"{verb} failed exiting: the memory limit of {limit_bytes} bytes is reached"
        return ErrorFrame(f"E_{verb}_FAILED", description)


def _multi_publish_in_steps(
    client: Client, command: MultiPublish, steps: Iterator[None]
) -> Generator[None, None, Response]:
    """Generator: store the messages, even if the client disconnects; return OK."""
    yield from steps
    client.count_published(command.topic, len(command.bodies))
    return OK


def _subscribed(client: Client) -> Channel:
    """Return the channel of a subscribed client."""
    if client.channel is None:
        msg = f"{client.remote_address} is not subscribed; the parser must refuse this command"
        raise LocalProtocolError(msg)
    return client.channel


def _ack_error(verb: str, message_id: bytes, failure: AckFailure) -> ErrorFrame:
    text = message_id.decode("utf-8", "surrogateescape")
    return ErrorFrame(f"E_{verb}_FAILED", f"{verb} {text} failed {failure}")
