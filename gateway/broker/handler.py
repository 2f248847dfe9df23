"""
Execute the commands of clients.

`CommandParser` has already checked names, sizes, numbers and the state of the connection; the
checks here depend on the broker's state. Texts and order: nsqd/protocol_v2.go.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeAlias

import msgspec

from gateway.broker.authorization import Authorization
from gateway.broker.channel import AckFailure, Channel
from gateway.broker.client import Client
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.message import ClockReading
from gateway.broker.topics import Topic, TopicRegistry
from gateway.errors import LocalProtocolError, RemoteProtocolError, StoreFailed
from gateway.protocol import identify
from gateway.protocol.commands import (
    Auth,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    MultiPublishStart,
    Nop,
    PackedBodies,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.compression import DeflateCodec, SnappyCodec
from gateway.protocol.connection import Codec, Event, ViolationReceived
from gateway.protocol.frames import CLOSE_WAIT, OK, ErrorFrame, Response


class ResumeParsing(msgspec.Struct, frozen=True):
    """
    Send the *response* to IDENTIFY, then parse the bytes after it, which are held back until now.

    First come TLS and then the *codec*, if there are any; each is confirmed with an OK.
    """

    response: Response
    has_tls: bool = False
    codec: Codec | None = None


class StepwisePublish(msgspec.Struct, frozen=True):
    """
    A large MPUB: run the generator *steps*, which stores it and returns its response.

    It is the last effect of a read, because the connection parses nothing more until it is stored.
    """

    steps: Generator[None, None, Response | AwaitCommit]


class AwaitCommit(msgspec.Struct, frozen=True):
    """
    OK once everything until now is on disk; an error frame if it cannot be written.

    *is_partly* tells whether a part of the messages was refused before the last one.
    """

    verb: str
    is_partly: Callable[[], bool] = lambda: False

    def resolve(self, error: StoreFailed | None) -> Response | ErrorFrame:
        """Return the response, given the *error* of the transaction; None if there was none."""
        if self.is_partly():
            return ErrorFrame(f"E_{self.verb}_FAILED", f"{self.verb} failed: only a part is stored")
        if error is not None:
            # After "exiting", nothing is stored and a retry is safe: clients know this text.
            return ErrorFrame(f"E_{self.verb}_FAILED", f"{self.verb} failed exiting: {error}")
        return OK


class AskAuthServer(msgspec.Struct, frozen=True):
    """
    Ask an auth server what the client's secret allows; then go on with `Handler.go_on`.

    It is the last effect of a read, because the commands *events* wait for the answer: the first
    of them is AUTH, or one whose permission has expired.
    """

    events: Sequence[Event]


class Disconnect(msgspec.Struct, frozen=True):
    """Close the connection after the preceding responses are written."""


Effect: TypeAlias = (
    Response
    | ErrorFrame
    | AwaitCommit
    | ResumeParsing
    | StepwisePublish
    | AskAuthServer
    | Disconnect
)
"""What the server does after a command: send the frame to the client, or act as stated above."""

_Answer: TypeAlias = (
    Response | ErrorFrame | AwaitCommit | ResumeParsing | StepwisePublish | AskAuthServer
)


_NO_HEARTBEATS = ErrorFrame("E_INVALID", "cannot SUB with heartbeats disabled")


class Handler:
    """Execute the commands of all clients, on the topics and channels of the broker."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry = registry
        self._limits = registry.context.limits.protocol
        self._features = registry.context.limits.features
        self._last_id = 0
        # By type of command; a table is faster than a chain of twelve comparisons.
        self._methods: dict[type, Callable[..., _Answer | None]] = {
            Finish: self._finish,
            Publish: self._publish,
            MultiPublishStart: self._start_multi_publish,
            MultiPublish: self._multi_publish,
            DeferredPublish: self._deferred_publish,
            Ready: self._ready,
            Requeue: self._requeue,
            Touch: self._touch,
            Nop: lambda _client, _command, _at: None,
            Subscribe: self._subscribe,
            StartClose: self._start_close,
            Identify: self._identify,
            Auth: self._auth,
            ViolationReceived: self._violation,
        }
        if self._features.auth:
            # Only here, so that brokers without AUTH do not check each command.
            self._methods[Subscribe] = self._if_allowed(self._subscribe)
            self._methods[Publish] = self._if_allowed(self._publish)
            self._methods[DeferredPublish] = self._if_allowed(self._deferred_publish)
            # In place of MultiPublish: nsqd checks before it reads the body.
            self._methods[MultiPublishStart] = self._if_allowed(self._start_multi_publish)

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
        left = iter(events)
        for event in left:
            frame = self._methods[type(event)](client, event, at)
            if frame is None:
                continue
            if type(frame) is AskAuthServer:
                effects.append(AskAuthServer([event, *left]))
                break
            if type(frame) is ErrorFrame and frame.is_fatal:
                # An error without a code is one for which nsqd closes without an error frame.
                effects += [frame, Disconnect()] if frame.code else [Disconnect()]
                break
            effects.append(frame)
        return effects

    def go_on(
        self,
        client: Client,
        events: Sequence[Event],
        answer: Authorization | None,
        at: ClockReading,
    ) -> list[Effect]:
        """Execute *events*, which waited for the *answer* of an auth server; None: it failed."""
        if answer is None:
            # The client is not told why: that would say something about the auth server.
            return [ErrorFrame("E_AUTH_FAILED", "AUTH failed"), Disconnect()]
        client.authorization = answer
        if not isinstance(events[0], Auth):
            return self.handle(client, events, at)
        if not answer.grants:
            return [ErrorFrame("E_UNAUTHORIZED", "AUTH no authorizations found"), Disconnect()]
        granted = identify.AuthResponse(
            identity=answer.identity,
            identity_url=answer.identity_url,
            permission_count=len(answer.grants),
        )
        return [Response(granted.to_json()), *self.handle(client, events[1:], at)]

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

    def _violation(
        self, client: Client, violated: ViolationReceived, _at: ClockReading
    ) -> ErrorFrame:
        error = violated.error
        if client.options.heartbeat_interval_ms is None and error.description.startswith("SUB "):
            return _NO_HEARTBEATS  # nsqd checks this before the parameters of SUB
        return ErrorFrame(error.code, error.description)

    def _identify(
        self, client: Client, command: Identify, _at: ClockReading
    ) -> ResumeParsing | ErrorFrame:
        try:
            request = identify.parse_identify_request(command.body)
            options = identify.negotiate(request, self._limits, client.options)
            client.identify(request, options)
            if not request.feature_negotiation:
                return ResumeParsing(OK)  # as in nsqd, the options apply all the same
            response = identify.identify_response(options, self._limits, request, self._features)
        except RemoteProtocolError as error:
            return ErrorFrame(error.code, error.description)
        has_codec = client.is_snappy or client.is_deflate
        if (response.tls_v1 and (client.tls or has_codec)) or (
            has_codec and (response.snappy or response.deflate)
        ):
            # nsqd would start the new layer beside the old one; no client speaks that.
            text = "IDENTIFY failed TLS and compression start once, TLS first"
            return ErrorFrame("E_IDENTIFY_FAILED", text)
        client.is_snappy |= response.snappy
        client.is_deflate |= response.deflate
        codec: Codec | None = SnappyCodec() if response.snappy else None
        if response.deflate:
            codec = DeflateCodec(response.deflate_level)
        return ResumeParsing(Response(response.to_json()), has_tls=response.tls_v1, codec=codec)

    def _auth(self, client: Client, command: Auth, _at: ClockReading) -> _Answer:
        if client.authorization is not None:
            return ErrorFrame("E_INVALID", "AUTH already set")
        if not self._features.auth:
            return ErrorFrame("E_AUTH_DISABLED", "AUTH disabled")
        client.secret = command.secret
        return AskAuthServer(())

    def _if_allowed(self, method: Callable[..., _Answer | None]) -> Callable[..., _Answer | None]:
        """Return *method* behind a check of the client's permission."""

        def checked(
            client: Client,
            command: Publish | DeferredPublish | MultiPublishStart | Subscribe,
            at: ClockReading,
        ) -> _Answer | None:
            verb, channel = command.verb.decode(), ""
            if isinstance(command, Subscribe):
                if client.options.heartbeat_interval_ms is None:
                    return method(client, command, at)  # nsqd refuses this first
                channel = command.channel
            if client.authorization is None:
                return ErrorFrame("E_AUTH_FIRST", f"AUTH required before {verb}")
            if client.authorization.expires_at < at.now:
                return AskAuthServer(())
            if client.authorization.allows(command.topic, channel):
                return method(client, command, at)
            where = f'"{command.topic}" "{channel}"'
            return ErrorFrame("E_UNAUTHORIZED", f"AUTH failed for {verb} on {where}")

        return checked

    def _subscribe(
        self, client: Client, command: Subscribe, at: ClockReading
    ) -> Response | ErrorFrame | AwaitCommit:
        if client.options.heartbeat_interval_ms is None:
            return _NO_HEARTBEATS
        # As in nsqd, a refused SUB has created the topic and the channel.
        before = self._registry.version
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
        return OK if self._registry.version == before else AwaitCommit("SUB")

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

    def _publish(
        self, client: Client, command: Publish, at: ClockReading
    ) -> Response | ErrorFrame | AwaitCommit:
        topic = self._registry.get_topic(command.topic)
        if not topic.publish((command.body,), at):
            return self._memory_full("PUB")
        client.count_published(command.topic, 1)
        return AwaitCommit("PUB") if topic.is_durable else OK

    def _deferred_publish(
        self, client: Client, command: DeferredPublish, at: ClockReading
    ) -> Response | ErrorFrame | AwaitCommit:
        topic = self._registry.get_topic(command.topic)
        if not topic.publish((command.body,), at, defer_ms=command.defer_ms):
            return self._memory_full("DPUB")
        client.count_published(command.topic, 1)
        return AwaitCommit("DPUB") if topic.is_durable else OK

    def _start_multi_publish(
        self, _client: Client, command: MultiPublishStart, _at: ClockReading
    ) -> None:
        # As in nsqd: the topic is there even if the body never comes, or is refused.
        self._registry.get_topic(command.topic)

    def _multi_publish(
        self, client: Client, command: MultiPublish, at: ClockReading
    ) -> Response | ErrorFrame | AwaitCommit | StepwisePublish:
        topic, bodies = self._registry.get_topic(command.topic), command.bodies
        if isinstance(bodies, PackedBodies):
            steps = topic.publish_steps(bodies, at)
            if steps is not None:
                return StepwisePublish(_multi_publish_in_steps(client, command, topic, steps))
        elif topic.publish(bodies, at):
            client.count_published(command.topic, len(bodies))
            return AwaitCommit("MPUB") if topic.is_durable else OK
        return self._memory_full("MPUB")

    def _memory_full(self, verb: str) -> ErrorFrame:
        # nsqd would write to disk instead. Clients know its error "exiting", after which nothing
        # is stored and a retry is safe.
        limit_bytes = self._registry.context.memory.limit_bytes
        description = f"{verb} failed exiting: the memory limit of {limit_bytes} bytes is reached"
        return ErrorFrame(f"E_{verb}_FAILED", description)


def _multi_publish_in_steps(
    client: Client, command: MultiPublish, topic: Topic, steps: Iterator[None]
) -> Generator[None, None, Response | AwaitCommit]:
    """Generator: store the messages, even if the client disconnects; return OK."""
    refused_count = topic.refused_count
    yield from steps
    client.count_published(command.topic, len(command.bodies))
    if not topic.is_durable:
        return OK
    return AwaitCommit("MPUB", lambda: topic.refused_count != refused_count)


def _subscribed(client: Client) -> Channel:
    """Return the channel of a subscribed client."""
    if client.channel is None:
        msg = f"{client.remote_address} is not subscribed; the parser must refuse this command"
        raise LocalProtocolError(msg)
    return client.channel


def _ack_error(verb: str, message_id: bytes, failure: AckFailure) -> ErrorFrame:
    text = message_id.decode("utf-8", "surrogateescape")
    return ErrorFrame(f"E_{verb}_FAILED", f"{verb} {text} failed {failure}")
