"""
One TCP connection to a broker: pumps bytes, pairs replies with commands, answers heartbeats.

Everything here happens in the event loop's callbacks: one read of the socket gives one list of
events and at most one call of the listener for each row of messages. A peer that has been silent
for two heartbeats is dead (the client-library guide, section Heartbeats).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

from gateway.addresses import split_address
from gateway.errors import BrokerRefused, BrokerUnreachable
from gateway.protocol.commands import (
    Command,
    Identify,
    Nop,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.connection import (
    Event,
    HeartbeatArrived,
    Identified,
    MessagesArrived,
    PeerViolated,
    Role,
    V2Connection,
)
from gateway.protocol.frames import ErrorFrame, Message, Response
from gateway.protocol.identify import Answer, Offer
from gateway.protocol.states import State

DEFAULT_HEARTBEAT_MS = 30_000

Reply: TypeAlias = Response | ErrorFrame | BrokerUnreachable
"""What a command led to; BrokerUnreachable: the connection ended before the answer came."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """How to connect, and what to ask for in IDENTIFY."""

    offer: Offer = field(default_factory=lambda: Offer(feature_negotiation=True))
    connect_timeout_ms: int = 2_000
    """Time for the TCP connection, and again for the answer to IDENTIFY and to SUB."""
    close_timeout_ms: int = 2_000
    """Time for the answer to CLS."""

    @property
    def heartbeat_interval_s(self) -> float:
        """The interval that the broker keeps to after this offer; infinite where it is off."""
        interval_ms = self.offer.heartbeat_interval or DEFAULT_HEARTBEAT_MS
        return interval_ms / 1000 if interval_ms > 0 else math.inf


class ConnectionListener(Protocol):
    """Who is told what a connection brings."""

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Take *messages*, all that one read brought, in order."""

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Learn that an earlier FIN, REQ or TOUCH failed; the connection goes on."""

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Learn that nothing more comes; called once, and not when the opening failed."""


class BrokerConnection(asyncio.Protocol):
    """A connection that has been identified; make one with `open_connection`."""

    def __init__(
        self, address: str, options: ConnectionOptions, listener: ConnectionListener
    ) -> None:
        self.address = address
        self.answer = Answer()
        """What the broker said to IDENTIFY."""
        self.is_open = False
        """Whether commands can be sent."""
        self.opened_at = 0.0
        """When the TCP connection was there, on the event loop's clock."""
        self._options = options
        self._listener = listener
        self._protocol = V2Connection(Role.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._replies: deque[Callable[[Reply], None]] = deque()
        self._last_read = 0.0
        self._is_reading = True
        self._pulse: asyncio.TimerHandle | None = None
        self._is_identified = False
        self._error: BrokerUnreachable | None = None
        self._ended = asyncio.Event()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock of the peer's silence."""
        # TCP gives no other; uvloop's is one by its methods, not by its class.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self.opened_at = self._last_read = self._loop.time()
        self._schedule_pulse()

    def data_received(self, data: bytes) -> None:
        """Hand on what one read of the socket says."""
        self._last_read = self._loop.time()
        for event in self._protocol.receive_data(data):
            if not self.is_open:
                return
            if type(event) is not MessagesArrived:
                self._take(event)
            elif self._protocol.state is State.INIT:
                self._fail("sent messages, and nobody has subscribed")
            else:
                self._listener.messages_arrived(self, event.messages)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: every command without an answer learns it, then the listener does."""
        self.is_open = False
        self._transport = None
        if self._pulse is not None:
            self._pulse.cancel()
        reason = f"connection lost ({exc})" if exc else "the broker closed the connection"
        error = self._error or BrokerUnreachable(self.address, reason)
        self._error = error
        while self._replies:
            self._replies.popleft()(error)
        self._ended.set()
        if self._is_identified:
            self._listener.connection_ended(self, error)

    # In

    def _take(self, event: Event) -> None:
        match event:
            case HeartbeatArrived():
                self.send(Nop())
            case Response():
                self._reply(event)
            case Identified(answer):
                self.answer = answer
                self._reply(Response(b"OK"))
            case ErrorFrame(is_fatal=False) if self._protocol.state is not State.INIT:
                self._listener.command_refused(self, event)
            case ErrorFrame():
                self._fail(f"refused a command: {event.code} {event.description}".rstrip(), event)
            case PeerViolated(error):
                self._fail(f"does not speak NSQ V2: {error}")

    def _reply(self, reply: Response) -> None:
        if not self._replies:
            self._fail(f"sent a response that no command asked for: {reply.data[:64]!r}")
            return
        self._replies.popleft()(reply)

    def _fail(self, reason: str, frame: ErrorFrame | None = None) -> None:
        """Close for *reason*; *frame* answers the oldest command, the others get no answer."""
        self.abort(reason)
        if frame is not None and self._replies:
            self._replies.popleft()(frame)

    # The peer's silence

    def _schedule_pulse(self) -> None:
        """Look again when the peer has been silent too long, or needs a sign that we live."""
        if self._pulse is not None:
            self._pulse.cancel()
        interval_s = self._options.heartbeat_interval_s
        if math.isfinite(interval_s):
            due = self._last_read + 2 * interval_s
            if not self._is_reading:
                due = self._loop.time() + interval_s
            self._pulse = self._loop.call_at(due, self._on_pulse)

    def _on_pulse(self) -> None:
        limit_s = 2 * self._options.heartbeat_interval_s
        if not self._is_reading:
            # Heartbeats lie unread in the socket; the broker must see that we live all the same.
            self.send(Nop())
        elif self._loop.time() >= self._last_read + limit_s:
            self._fail(f"silent for two heartbeats ({limit_s:g} s)")
            return
        self._schedule_pulse()

    # Out

    def send(self, command: Command) -> None:
        """
        Write a command that has no answer; does nothing once the connection has ended.

        Raises:
            LocalProtocolError: V2 does not allow it now.
        """
        if self.is_open and self._transport is not None:
            self._transport.write(self._protocol.send(command))

    def ask(self, command: Command, answered: Callable[[Reply], None]) -> None:
        """
        Write a command that has an answer, and call *answered* with it, in order.

        Raises:
            BrokerUnreachable: The connection has ended; nothing was written.
            LocalProtocolError: V2 does not allow it now.
        """
        if not self.is_open or self._transport is None:
            raise self._error or BrokerUnreachable(self.address, "not connected")
        data = self._protocol.send(command)
        self._replies.append(answered)
        self._transport.write(data)

    async def request(self, command: Command, *, timeout_ms: int) -> Response:
        """
        Write a command and wait for its answer.

        Raises:
            BrokerRefused: The answer is an error frame.
            BrokerUnreachable: The connection ended, or *timeout_ms* passed, before it came.
        """
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self.ask(command, lambda reply: None if answer.done() else answer.set_result(reply))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                reply = await answer
        except TimeoutError:
            reason = f"no answer to {command.verb.decode()} within {timeout_ms} ms"
            self._fail(reason)
            raise BrokerUnreachable(self.address, reason) from None
        if isinstance(reply, ErrorFrame):
            raise BrokerRefused(reply.code, reply.description)
        if isinstance(reply, BrokerUnreachable):
            raise reply
        return reply

    async def identify(self) -> None:
        """
        Open the protocol: magic, IDENTIFY, its answer.

        Raises:
            BrokerRefused: The broker does not take the offer.
            BrokerUnreachable: No answer, or one that this client cannot go on with.
        """
        assert self._transport is not None  # noqa: S101 - connected before
        self._transport.write(self._protocol.send_magic())
        offer = Identify(self._options.offer.to_json())
        await self.request(offer, timeout_ms=self._options.connect_timeout_ms)
        wanted = "AUTH" if self.answer.auth_required else "TLS or compression"
        if self.answer.auth_required or self.answer.upgrades:
            reason = f"asks for {wanted}, which this version does not speak yet"
            self._fail(reason)
            raise BrokerUnreachable(self.address, reason)
        self._is_identified = True

    async def subscribe(self, topic: str, channel: str) -> None:
        """Join *channel* of *topic*; raises as `request` does."""
        await self.request(Subscribe(topic, channel), timeout_ms=self._options.connect_timeout_ms)

    def ready(self, count: int) -> None:
        """Let at most *count* messages be in flight here."""
        self.send(Ready(count))

    def finish(self, ids: Sequence[bytes]) -> None:
        """Write FIN for *ids*, which are not empty."""
        if self.is_open and self._transport is not None:
            self._transport.write(self._protocol.send_finishes(ids))

    def requeue(self, ids: Sequence[bytes], *, delay_ms: int) -> None:
        """Write REQ for *ids*."""
        self._send_all([Requeue(message_id, delay_ms) for message_id in ids])

    def touch(self, ids: Sequence[bytes]) -> None:
        """Write TOUCH for *ids*."""
        self._send_all([Touch(message_id) for message_id in ids])

    def _send_all(self, commands: Sequence[Command]) -> None:
        if self.is_open and self._transport is not None:
            self._transport.write(b"".join(map(self._protocol.send, commands)))

    def pause_reading(self) -> None:
        """Leave what comes in the socket, so that the broker feels it; NOPs keep it alive."""
        if self._is_reading and self._transport is not None and self.is_open:
            self._is_reading = False
            self._transport.pause_reading()
            self.send(Nop())
            self._schedule_pulse()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._is_reading and self._transport is not None and self.is_open:
            self._is_reading = True
            self._last_read = self._loop.time()
            self._transport.resume_reading()
            self._schedule_pulse()

    # The end

    async def close(self) -> None:
        """Say CLS where subscribed, wait for CLOSE_WAIT within the limit, and close."""
        try:
            if self.is_open and self._protocol.state is State.SUBSCRIBED:
                self.resume_reading()
                with contextlib.suppress(BrokerRefused, BrokerUnreachable):
                    await self.request(StartClose(), timeout_ms=self._options.close_timeout_ms)
            self.is_open = False
            if self._transport is not None:
                self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.close_timeout_ms / 1000):
                    await self._ended.wait()
        finally:
            self.abort()

    def abort(self, reason: str = "closed from this side") -> None:
        """Close at once for *reason*; what is written and not yet sent is lost."""
        self.is_open = False
        self._error = self._error or BrokerUnreachable(self.address, reason)
        if self._transport is not None:
            self._transport.abort()


async def open_connection(
    address: str, options: ConnectionOptions, listener: ConnectionListener
) -> BrokerConnection:
    """
    Connect to the broker at *address* (host:port) and identify.

    Raises:
        BrokerUnreachable: Nothing answers there in time, or it is no broker we can talk to.
    """
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(options.connect_timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: BrokerConnection(address, options, listener), host, port
            )
    except TimeoutError:
        reason = f"no TCP connection within {options.connect_timeout_ms} ms"
        raise BrokerUnreachable(address, reason) from None
    except OSError as error:
        raise BrokerUnreachable(address, _what_happened(error)) from error
    except ValueError as error:
        raise BrokerUnreachable(address, str(error)) from error
    try:
        await connection.identify()
    except BrokerRefused as error:
        raise BrokerUnreachable(address, f"refused IDENTIFY: {error}") from error
    except BaseException:
        connection.abort()
        raise
    return connection


def _what_happened(error: OSError) -> str:
    """Return the system's words; asyncio puts its own in their place."""
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return error.strerror or str(error)
