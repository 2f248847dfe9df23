"""
One TCP connection to a broker: pumps bytes, pairs replies with commands, answers heartbeats.

Everything here happens in the event loop's callbacks: one read of the socket gives one list of
events and at most one call of the listener for each row of messages. A peer that has been silent
for two heartbeats is dead (the client-library guide, section Heartbeats).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast

from gateway.client.connection_account import ConnectionAccount, count_error, end_of
from gateway.client.connection_options import ConnectionOptions
from gateway.client.pulse import pulse_of
from gateway.client.replies import Replies, Reply, putter, response_of
from gateway.errors import BrokerRefused, BrokerUnreachable
from gateway.protocol.authorization import Authorization
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
    Filter,
    HeartbeatArrived,
    Identified,
    MessagesArrived,
    PeerViolated,
    Role,
    V2Connection,
)
from gateway.protocol.frames import OK, ErrorFrame, Message, Response
from gateway.protocol.identify import Answer, Offer
from gateway.protocol.raw_messages import RawMessages
from gateway.protocol.states import State

__all__ = ["BrokerConnection", "ConnectionListener", "ConnectionOptions", "Reply", "TakeRaw"]

_NO_ANSWER = Answer()
_STRAGGLERS_S = 0.05
"""
How long messages may come behind CLOSE_WAIT: nsqd's messagePump sends what it had taken before
CLS was handled, 2 ms later as a rule. Who has closed by then leaves them to their timeout.
"""
_NOP = Nop()
_INIT = State.INIT

TakeRaw: TypeAlias = "Callable[[BrokerConnection, RawMessages], None]"
"""Takes messages as they came; who gives one to a connection gets none decoded."""


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

    __slots__ = (
        "_end",
        "_error",
        "_listener",
        "_loop",
        "_protocol",
        "_replies",
        "_take_raw",
        "_transport",
        "account",
        "address",
        "answer",
        "authorization",
        "is_in_use",
        "is_open",
        "last_read",
        "opened_at",
        "options",
        "sign_due",
    )

    def __init__(
        self,
        address: str,
        options: ConnectionOptions,
        listener: ConnectionListener,
        take_raw: TakeRaw | None = None,
    ) -> None:
        self.account = ConnectionAccount()
        self.address = address
        self.options = options
        self.answer = _NO_ANSWER
        """What the broker said to IDENTIFY."""
        self.authorization: Authorization | None = None
        """What the broker said to AUTH; None where it does not ask for it."""
        self.is_open = False
        """Whether commands can be sent."""
        self.opened_at = 0.0
        """When the TCP connection was there, on the event loop's clock."""
        self.last_read = 0.0
        """When something came last, on the event loop's clock."""
        self._listener = listener
        self._take_raw = take_raw
        self._protocol = V2Connection(Role.CLIENT, is_raw=take_raw is not None)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._replies = Replies()
        self.sign_due: float | None = None
        """When the next sign of life is due, while nothing is read; None: something is."""
        self.is_in_use = False
        """Whether the listener is told of the end: an opening that fails tells of it itself."""
        self._error: BrokerUnreachable | None = None
        self._end: asyncio.Future[None] | None = None
        """Made when somebody waits for the end."""

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock of the peer's silence."""
        # TCP gives no other; uvloop's is one by its methods, not by its class.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self.opened_at = self.last_read = self._loop.time()
        pulse_of(self._loop).watch(self)

    def data_received(self, data: bytes) -> None:
        """Hand on what one read of the socket says."""
        self.last_read = self._loop.time()
        self.account.bytes_in += len(data)
        self._take_all(self._protocol.receive_data(data))

    def _take_all(self, events: list[Event]) -> None:
        has_heartbeat = False
        for event in events:
            if not self.is_open:
                return
            if type(event) is MessagesArrived:
                if self._expects_messages(len(event.messages)):
                    self._listener.messages_arrived(self, event.messages)
            elif type(event) is HeartbeatArrived:
                has_heartbeat = True
            else:
                self._take(event)
        if has_heartbeat:
            # One sign of life answers all that one read brought.
            self.send(_NOP)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: every command without an answer learns it, then the listener does."""
        self.is_open = False
        self._transport = None
        pulse_of(self._loop).forget(self)
        reason = f"connection lost ({exc})" if exc else "the broker closed the connection"
        error = self._error = self._error or BrokerUnreachable(self.address, reason)
        self._replies.end(error)
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        if self.is_in_use:
            self._listener.connection_ended(self, error)

    # In

    def _expects_messages(self, count: int) -> bool:
        """Count *count* messages; False where nobody has subscribed, which is the end."""
        if self._protocol.state is _INIT:
            self._fail("sent messages, and nobody has subscribed")
            return False
        self.account.messages += count
        return True

    def _take(self, event: Event) -> None:
        if isinstance(event, ErrorFrame):
            count_error(event.code)
        match event:
            case RawMessages(ids=ids):
                if self._take_raw is not None and self._expects_messages(len(ids)):
                    self._take_raw(self, event)
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
        if not self._replies.take(reply):
            self._fail(f"sent a response that no command asked for: {reply.data[:64]!r}")

    def _fail(self, reason: str, frame: ErrorFrame | None = None) -> BrokerUnreachable:
        """Close for *reason*, and return it; *frame* answers the oldest command, no other is."""
        self.abort(reason)
        if frame is not None:
            self._replies.take(frame)
        return BrokerUnreachable(self.address, reason)

    # What the pulse tells

    @property
    def heartbeat_interval_s(self) -> float:
        """See `ConnectionOptions`."""
        return self.options.heartbeat_interval_s

    def give_sign(self) -> None:
        """Let the broker see that we live, where heartbeats are not read."""
        self.send(_NOP)

    def peer_is_silent(self, for_s: float) -> None:
        """Count the broker as dead."""
        self._fail(f"silent for two heartbeats ({for_s:g} s)")

    # Out

    def send(self, *commands: Command) -> None:
        """
        Write *commands* that have no answer; does nothing once the connection has ended.

        Raises:
            LocalProtocolError: V2 does not allow it now.
        """
        if self.is_open and self._transport is not None:
            self._transport.write(b"".join(map(self._protocol.send, commands)))

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
        self._replies.expect(answered)
        self._transport.write(data)

    async def request(self, command: Command, *, timeout_ms: int) -> Response:
        """
        Write a command and wait for its answer.

        Raises:
            BrokerRefused: The answer is an error frame.
            BrokerUnreachable: The connection ended, or *timeout_ms* passed, before it came.
        """
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self.ask(command, putter(reply))
        return await self._response_of(command.verb.decode(), reply, timeout_ms)

    async def _response_of(
        self, what: str, reply: asyncio.Future[Reply], timeout_ms: int
    ) -> Response:
        try:
            return await response_of(reply, timeout_ms)
        except TimeoutError:
            raise self._fail(f"no answer to {what} within {timeout_ms} ms") from None

    # The opening, step by step; see client/opening.py

    async def identify(self, offer: Offer) -> Answer:
        """Open the protocol: magic, IDENTIFY, its answer; raises as `request` does."""
        assert self._transport is not None  # noqa: S101 - connected before
        self._transport.write(self._protocol.send_magic())
        await self.request(Identify(offer.to_json()), timeout_ms=self.options.connect_timeout_ms)
        return self.answer

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """
        Put TLS below V2 and wait for the broker's OK over it; the certificate names *host*.

        Raises:
            OSError: There is no agreement; ssl.SSLError among them.
            BrokerRefused, BrokerUnreachable: As `request` raises them.
        """
        assert self._transport is not None  # noqa: S101 - connected before
        if self._protocol.take_unread():
            # TLS would not have protected it, whoever wrote it.
            reason = "sent clear text behind its agreement to TLS"
            raise self._fail(reason)
        is_ok = self._replies.next(self._loop)
        clear = self._transport
        try:
            secured = await self._loop.start_tls(
                clear,
                self,
                context,
                server_hostname=host,
                ssl_handshake_timeout=self.options.connect_timeout_ms / 1000,
            )
        except BaseException:
            clear.abort()
            raise
        if secured is None:  # uvloop and asyncio: the socket ended meanwhile
            raise self._fail("ended during the TLS handshake")
        self._transport = secured
        self._take_all(self._protocol.upgrade(None))
        await self._response_of("the TLS handshake", is_ok, self.options.connect_timeout_ms)

    async def compress(self, layer: Filter) -> None:
        """Read and write through *layer* from here on, and wait for the broker's OK in it."""
        is_ok = self._replies.next(self._loop)
        self._take_all(self._protocol.upgrade(layer))
        await self._response_of("compression", is_ok, self.options.connect_timeout_ms)

    async def subscribe(self, topic: str, channel: str) -> None:
        """Join *channel* of *topic*; raises as `request` does, for an answer other than OK too."""
        command = Subscribe(topic, channel)
        reply = await self.request(command, timeout_ms=self.options.connect_timeout_ms)
        if reply != OK:
            raise self._fail(f"answered {reply.data[:64]!r} to SUB, which is not OK")

    def ready(self, count: int) -> None:
        """Let at most *count* messages be in flight here."""
        self.send(Ready(count))
        self.account.ready(count)

    def finish(self, ids: Sequence[bytes]) -> None:
        """Write FIN for *ids*, which are not empty."""
        if self.is_open and self._transport is not None:
            self._transport.write(self._protocol.send_finishes(ids))

    def requeue(self, ids: Sequence[bytes], *, delay_ms: int) -> None:
        """Write REQ for *ids*."""
        self.send(*[Requeue(message_id, delay_ms) for message_id in ids])

    def touch(self, ids: Sequence[bytes]) -> None:
        """Write TOUCH for *ids*."""
        self.send(*map(Touch, ids))

    def pause_reading(self) -> None:
        """Leave what comes in the socket, so that the broker feels it; NOPs keep it alive."""
        if self.sign_due is None and self._transport is not None and self.is_open:
            self._transport.pause_reading()
            self.sign_due = self._loop.time()
            pulse_of(self._loop).watch(self)

    def resume_reading(self) -> None:
        """Read again."""
        if self.sign_due is not None and self._transport is not None and self.is_open:
            self._transport.resume_reading()
            self.sign_due = None
            self.last_read = self._loop.time()
            pulse_of(self._loop).watch(self)

    # The end

    async def close(self) -> None:
        """Say CLS where subscribed, wait for CLOSE_WAIT and what comes behind it, and close."""
        try:
            if self.is_open and self._protocol.state is State.SUBSCRIBED:
                self.resume_reading()
                with contextlib.suppress(BrokerRefused, BrokerUnreachable):
                    await self.request(StartClose(), timeout_ms=self.options.close_timeout_ms)
                    if self.account.was_ready:
                        await self._wait_for_end(_STRAGGLERS_S)
            self.is_open = False
            self._error = self._error or end_of(self.address, None)
            if self._transport is not None:
                self._transport.close()
                await self._wait_for_end(self.options.close_timeout_ms / 1000)
        finally:
            self.abort()

    async def _wait_for_end(self, timeout_s: float) -> None:
        """Wait until the transport has ended, or *timeout_s* have passed."""
        if self._transport is not None:
            self._end = self._end or self._loop.create_future()
            await asyncio.wait({self._end}, timeout=timeout_s)

    def abort(self, reason: str | None = None) -> None:
        """Close at once for *reason*, None for none; what is written and not yet sent is lost."""
        self.is_open = False
        self._error = self._error or end_of(self.address, reason)
        # Here too: asyncio does not tell the end of a transport whose TLS handshake failed.
        pulse_of(self._loop).forget(self)
        if self._transport is not None:
            self._transport.abort()
