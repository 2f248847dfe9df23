"""
One TCP connection to nsqd: moves bytes, pairs replies with commands, and answers heartbeats.

All code runs in callbacks of the event loop. Each read of the socket gives one list of events;
consecutive messages are passed to the listener in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, cast
from weakref import ReferenceType, WeakKeyDictionary, ref

from gateway.aio import get_read_clock
from gateway.client.heartbeat import get_heartbeat_monitor
from gateway.client.metrics import ConnectionMetrics, connection_closed_error, count_error
from gateway.client.send_time import SendTime
from gateway.credentials import Secret
from gateway.errors import BrokerRefused, BrokerUnreachable, SettingsError, copy_error
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
    Codec,
    Event,
    HeartbeatReceived,
    Identified,
    MessagesReceived,
    Role,
    V2Connection,
    ViolationReceived,
)
from gateway.protocol.frames import OK, ErrorFrame, Message, RawMessages, Response
from gateway.protocol.identify import AuthResponse, IdentifyRequest, IdentifyResponse
from gateway.protocol.states import State
from gateway.tls import TlsOptions

DEFAULT_HEARTBEAT_MS = 30_000
_NEGOTIATING = IdentifyRequest(feature_negotiation=True)


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True)
class ConnectionOptions:
    """Options of a connection: IDENTIFY, time limits, TLS and the secret for AUTH."""

    offer: IdentifyRequest = _NEGOTIATING
    preferred_output_buffer_bytes: int = 0
    """
    output_buffer_size to request instead of the one in `offer`; 0: use `offer`.

    nsqd closes the connection if the size exceeds its --max-output-buffer-size. The client then
    connects again without this preference. A size in `offer` that is too large is an error.
    """
    connect_timeout_ms: int = 2_000
    """Time limit of each step: TCP, IDENTIFY, TLS and its OK, compression, AUTH, SUB."""
    close_timeout_ms: int = 2_000
    """Time limit for the answer to CLS."""
    tls: TlsOptions | None = None
    """Require TLS, with these options; None: clear text only."""
    secret: Secret | None = None
    """For AUTH, sent only to an nsqd that requires it."""

    def __post_init__(self) -> None:
        """Raise SettingsError if both kinds of compression are requested."""
        if self.offer.snappy and self.offer.deflate:
            raise SettingsError("deflate", value=True, allowed="one of snappy and deflate")

    @property
    def heartbeat_interval_s(self) -> float:
        """Interval of nsqd's heartbeats; infinite if they are disabled."""
        # In IDENTIFY, 0 means nsqd's default, and -1 disables heartbeats.
        interval_ms = self.offer.heartbeat_interval or DEFAULT_HEARTBEAT_MS
        return interval_ms / 1000 if interval_ms > 0 else math.inf


_interned: WeakKeyDictionary[ConnectionOptions, ReferenceType[ConnectionOptions]]
_interned = WeakKeyDictionary()


def intern_options(options: ConnectionOptions) -> ConnectionOptions:
    """
    Return one shared object for equal options, because thousands of subscriptions use them.

    Options with a secret are returned unchanged: they are seldom equal, and no table should hold
    a secret.
    """
    if options.secret is not None:
        return options
    kept = _interned.get(options)
    interned = None if kept is None else kept()
    if interned is None:
        # A weak value too: a strong one would keep its own key alive for ever.
        _interned[options] = ref(options)
        return options
    return interned


Reply: TypeAlias = Response | ErrorFrame | BrokerUnreachable
"""The answer to a command; BrokerUnreachable: the connection ended before nsqd answered."""


def _set_reply(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():  # else the caller was cancelled
        future.set_result(reply)


_NO_ANSWER = IdentifyResponse()
_SHOWN_ERROR = 200
"""Characters of an error's description in a log event."""
_LATE_MESSAGES_S = 0.05
"""
Seconds to wait for messages after CLOSE_WAIT.

nsqd's messagePump may still send a message that it took from the channel before CLS was processed,
usually within 2 ms. Without the wait, that message would be delivered again only after its timeout.
"""
_FULL_READ_BYTES = 65_536
"""A read of this size may leave bytes in the socket; uvloop reads up to 256 000, less in TLS."""
_NOP = Nop()
_INIT = State.INIT

OnRawMessages: TypeAlias = "Callable[[BrokerConnection, RawMessages], None]"
"""Called with undecoded messages, instead of the listener's `on_messages`."""


class ConnectionListener(Protocol):
    """Callbacks of a connection."""

    def on_messages(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Called with consecutive *messages* of one read."""

    def on_ack_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Called when nsqd refused an earlier FIN, REQ or TOUCH; the connection stays open."""

    def on_connection_lost(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Called once at the end of an established connection, whichever side ended it."""


class BrokerConnection(asyncio.Protocol):
    """A connection to nsqd; `client.handshake.open_connection` opens one and negotiates."""

    __slots__ = (
        "_buffered_s",
        "_end",
        "_error",
        "_frame_since",
        "_listener",
        "_loop",
        "_max_ready",
        "_on_raw_messages",
        "_on_replies",
        "_protocol",
        "_read_clock",
        "_send_time",
        "_transport",
        "address",
        "answer",
        "authorization",
        "is_established",
        "is_open",
        "last_read",
        "metrics",
        "nop_due",
        "opened_at",
        "options",
        "sent_after",
    )

    def __init__(
        self,
        address: str,
        options: ConnectionOptions,
        listener: ConnectionListener,
        on_raw_messages: OnRawMessages | None = None,
    ) -> None:
        self.metrics = ConnectionMetrics()
        self.address = address
        self.options = options
        self.answer = _NO_ANSWER
        """nsqd's answer to IDENTIFY."""
        self.authorization: AuthResponse | None = None
        """nsqd's answer to AUTH; None if nsqd does not require AUTH."""
        self.is_open = False
        """True if commands can be written."""
        self.opened_at = 0.0
        """When the TCP connection was made, on the event loop's clock."""
        self.last_read = 0.0
        """When something was last received, on the event loop's clock."""
        self.sent_after = 0.0
        """The earliest time at which nsqd may have sent the messages received last."""
        self._send_time: SendTime | None = None
        """Set by `subscribe`; a producer needs no send times."""
        self._buffered_s = 0.0
        """Maximum time that a message stays in nsqd's output buffer, while its timeout runs."""
        self._frame_since = 0.0
        """Earliest send time of a frame that is still incomplete, without `_buffered_s`."""
        self._max_ready = 1
        """Highest RDY written so far, at least 1."""
        self._listener = listener
        self._on_raw_messages = on_raw_messages
        self._protocol = V2Connection(Role.CLIENT, is_raw=on_raw_messages is not None)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._read_clock = get_read_clock(self._loop)
        self._on_replies: list[Callable[[Reply], None]] = []
        """Callbacks for outstanding replies, in the order of the commands; at most a few."""
        self.nop_due: float | None = None
        """When the next NOP is due, while reading is paused; None while it is not."""
        self.is_established = False
        """
        True once the handshake is done.

        Before that, `open_connection` raises errors, and the listener is not called.
        """
        self._error: BrokerUnreachable | None = None
        self._end: asyncio.Future[None] | None = None
        """Done when the connection has ended; created by the first waiter."""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when TCP is connected, before IDENTIFY: start monitoring heartbeats."""
        # A cast: uvloop's transport has the methods of asyncio.Transport, but is no subclass.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self.opened_at = self.last_read = self._loop.time()
        get_heartbeat_monitor(self._loop).watch(self)

    def data_received(self, data: bytes) -> None:
        """Process the bytes of one read of the socket."""
        now = self.last_read = self._loop.time()
        self.metrics.bytes_in += len(data)
        if self._send_time is None:
            self._handle_all(self._protocol.receive_data(data))
        else:
            self._handle_timed(data, self._send_time, now)

    def _handle_timed(self, data: bytes, send_time: SendTime, now: float) -> None:
        """Process *data* of a subscription, after computing `sent_after` for its messages."""
        since = send_time.on_read(
            now,
            self._read_clock.polled_at,
            self._max_ready,
            is_full=len(data) >= _FULL_READ_BYTES,
        )
        was_whole = self._protocol.is_between_frames
        events = self._protocol.receive_data(data)
        if not was_whole:
            # The first message began in an earlier read, so nsqd sent it before that.
            first, since_now = self._frame_since, since
            since = min(since, first)
            self._frame_since = since_now if events else first
        else:
            self._frame_since = since
        # nsqd starts the timeout of a message before its output buffer is flushed.
        self.sent_after = since - self._buffered_s
        before = self.metrics.messages
        self._handle_all(events)
        send_time.count(self.metrics.messages - before)

    def _handle_all(self, events: list[Event]) -> None:
        has_heartbeat = False
        for event in events:
            if not self.is_open:
                # Aborted by a handler of an earlier event; the rest must not reach the listener.
                return
            if type(event) is MessagesReceived:
                if self._count_messages(len(event.messages)):
                    self._listener.on_messages(self, event.messages)
            elif type(event) is HeartbeatReceived:
                has_heartbeat = True
            else:
                self._handle(event)
        if has_heartbeat:
            # One NOP is enough for several heartbeats: nsqd only waits for any command.
            self.send(_NOP)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every command without a reply, then report the end to the listener."""
        self.is_open = False
        self._transport = None
        # Both are idempotent, because `abort` calls them too.
        get_heartbeat_monitor(self._loop).forget(self)
        self._release_read_clock()
        # The reason of `abort` or `close` comes first: the transport does not know it.
        reason = f"connection lost ({exc})" if exc else "nsqd closed the connection"
        error = self._error = self._error or BrokerUnreachable(self.address, reason)
        # Before `on_connection_lost`: a producer relies on having nothing in flight there. Popped
        # one by one, because a callback may use the connection, for example abort it.
        while self._on_replies:
            self._on_replies.pop(0)(error)
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        if self.is_established:
            self._listener.on_connection_lost(self, error)

    # Receiving

    def _count_messages(self, count: int) -> bool:
        """Count messages; without a subscription, abort the connection and return False."""
        if self._protocol.state is _INIT:
            self._fail("sent messages without a subscription")
            return False
        self.metrics.messages += count
        return True

    def _handle(self, event: Event) -> None:
        if isinstance(event, ErrorFrame):
            count_error(event.code)
        match event:
            case RawMessages(ids=ids):
                if self._on_raw_messages is not None and self._count_messages(len(ids)):
                    self._on_raw_messages(self, event)
            case Response():
                self._reply(event)
            case Identified(answer):
                self.answer = answer
                self._reply(Response(b"OK"))
            # FIN, REQ and TOUCH have no reply, so their errors must not be paired with a command
            # that awaits one.
            case ErrorFrame(is_fatal=False) if self._protocol.state is not State.INIT:
                self._listener.on_ack_refused(self, event)
            case ErrorFrame():
                text = f"{event.code} {event.description[:_SHOWN_ERROR]}".rstrip()
                self._fail(f"refused a command: {text}", event)
            case ViolationReceived(error):
                self._fail(f"does not speak NSQ V2: {error}")

    def _reply(self, reply: Response) -> None:
        if self._on_replies:
            self._on_replies.pop(0)(reply)
        else:
            self._fail(f"sent a response without a command: {reply.data[:64]!r}")

    def _fail(self, reason: str, frame: ErrorFrame | None = None) -> BrokerUnreachable:
        """
        Abort the connection for *reason*, and return that as an error.

        If *frame* is given, it is the reply to the oldest outstanding command.
        """
        # Before the callback, which must not write another command to this connection.
        self.abort(reason)
        # nsqd replies in order, so that its error belongs to the oldest outstanding command.
        if frame is not None and self._on_replies:
            self._on_replies.pop(0)(frame)
        return BrokerUnreachable(self.address, reason)

    # Called by the heartbeat monitor

    @property
    def heartbeat_interval_s(self) -> float:
        """See `ConnectionOptions.heartbeat_interval_s`."""
        return self.options.heartbeat_interval_s

    def send_nop(self) -> None:
        """Write a NOP: nsqd closes a connection that is silent for two heartbeat intervals."""
        self.send(_NOP)

    def on_silent(self, for_s: float) -> None:
        """Abort the connection: nsqd has been silent for two heartbeat intervals."""
        self._fail(f"silent for two heartbeats ({for_s:g} s)")

    # Sending

    def _write(self, data: bytes) -> None:
        assert self._transport is not None  # noqa: S101 - checked by the caller
        self.metrics.bytes_out += len(data)
        self._transport.write(data)

    def send(self, *commands: Command) -> None:
        """
        Write *commands* that nsqd does not answer; do nothing once the connection has ended.

        Raises:
            LocalProtocolError: V2 does not allow a command in the current state.
        """
        if self.is_open and self._transport is not None:
            self._write(b"".join(map(self._protocol.send, commands)))

    def send_request(self, command: Command, on_reply: Callable[[Reply], None]) -> None:
        """
        Write a command that nsqd answers; replies are passed to *on_reply* in order of commands.

        Raises:
            BrokerUnreachable: The connection has ended; nothing was written.
            LocalProtocolError: V2 does not allow the command in the current state.
        """
        if not self.is_open or self._transport is None:
            raise self._error or BrokerUnreachable(self.address, "not connected")
        data = self._protocol.send(command)
        # Registered before the write: a reply must always find its callback.
        self._on_replies.append(on_reply)
        self._write(data)

    async def request(self, command: Command, *, timeout_ms: int) -> Response:
        """
        Write a command and wait for its answer.

        Raises:
            BrokerRefused: The answer is an error frame.
            BrokerUnreachable: The connection ended first, or the answer took too long.
        """
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self.send_request(command, partial(_set_reply, reply))
        return await self._wait_for(command.verb.decode(), reply, timeout_ms)

    def _next_reply(self) -> asyncio.Future[Reply]:
        """Return a future for the next reply of nsqd that no earlier command waits for."""
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self._on_replies.append(partial(_set_reply, reply))
        return reply

    async def _wait_for(self, what: str, reply: asyncio.Future[Reply], timeout_ms: int) -> Response:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await reply
        except TimeoutError:
            # Replies come in order: while this one is missing, no later command gets its own.
            raise self._fail(f"no answer to {what} within {timeout_ms} ms") from None
        if isinstance(answer, ErrorFrame):
            raise BrokerRefused(answer.code, answer.description)
        if isinstance(answer, BrokerUnreachable):
            # A copy: all outstanding commands get this error, and each raise extends its traceback.
            raise copy_error(answer)
        return answer

    # Steps of the handshake; see client/handshake.py

    async def identify(self, offer: IdentifyRequest) -> IdentifyResponse:
        """Write the magic and IDENTIFY, and wait for the answer; raises as `request` does."""
        self._write(self._protocol.send_magic())
        await self.request(Identify(offer.to_json()), timeout_ms=self.options.connect_timeout_ms)
        return self.answer

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """
        Start TLS and wait for nsqd's OK over it; the certificate must name *host*.

        Raises:
            OSError: The TLS handshake failed; ssl.SSLError is one.
            BrokerRefused, BrokerUnreachable: As `request` raises them.
        """
        assert self._transport is not None  # noqa: S101 - connected before
        if self._protocol.take_unread():
            # An attacker on the network may have injected it before TLS (as with STARTTLS).
            raise self._fail("sent clear text after it agreed to TLS")
        # Before the handshake: nsqd's OK may arrive together with its last bytes.
        is_ok = self._next_reply()
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
        if secured is None:  # asyncio and uvloop: the socket closed meanwhile
            raise self._fail("ended during the TLS handshake")
        self._transport = secured
        # Without a codec: the transport decrypts, so that `data_received` gets clear bytes.
        self._handle_all(self._protocol.upgrade(None))
        await self._wait_for("the TLS handshake", is_ok, self.options.connect_timeout_ms)

    async def compress(self, layer: Codec) -> None:
        """Start compression with *layer*, and wait for nsqd's compressed OK."""
        # Before the upgrade: nsqd's OK may be among the bytes that were received already.
        is_ok = self._next_reply()
        self._handle_all(self._protocol.upgrade(layer))
        await self._wait_for("compression", is_ok, self.options.connect_timeout_ms)

    async def subscribe(self, topic: str, channel: str) -> None:
        """
        Send SUB for *channel* of *topic*, and wait for nsqd's OK.

        Raises:
            BrokerRefused: The answer is an error frame.
            BrokerUnreachable: The connection ended first, or there was no OK in time.
        """
        command = Subscribe(topic, channel)
        if self.is_open and self._send_time is None:
            # Before SUB: messages may arrive in the same read as its OK.
            self._send_time = SendTime(self._loop.time())
            answer = self.answer
            # -1 turns the buffer's timeout off, and counts as 0 here.
            lag_ms = min(max(0, answer.output_buffer_timeout), answer.msg_timeout // 2)
            self._buffered_s = lag_ms / 1000
            self._read_clock.add_user()
        reply = await self.request(command, timeout_ms=self.options.connect_timeout_ms)
        if reply != OK:
            raise self._fail(f"answered {reply.data[:64]!r} to SUB, which is not OK")

    def ready(self, count: int) -> None:
        """Write RDY *count*: nsqd may have that many messages in flight on this connection."""
        # The maximum: messages sent under an earlier, higher RDY may still be unread.
        self._max_ready = max(self._max_ready, count)
        self.send(Ready(count))
        self.metrics.ready(count)

    def finish(self, ids: Sequence[bytes]) -> None:
        """Write a FIN for each of *ids*, which must not be empty."""
        if self.is_open and self._transport is not None:
            self._write(self._protocol.send_finishes(ids))

    def requeue(self, ids: Sequence[bytes], *, delay_ms: int) -> None:
        """Write a REQ for each of *ids*."""
        self.send(*[Requeue(message_id, delay_ms) for message_id in ids])

    def touch(self, ids: Sequence[bytes]) -> None:
        """Write a TOUCH for each of *ids*."""
        self.send(*map(Touch, ids))

    def pause_reading(self) -> None:
        """
        Stop reading, so that TCP flow control slows nsqd down; do nothing if already paused.

        The heartbeat monitor writes NOPs meanwhile, so that nsqd keeps the connection open.
        """
        if self.nop_due is None and self._transport is not None and self.is_open:
            self._transport.pause_reading()
            if self._send_time is not None:
                self._send_time.pause(self._read_clock.polled_at)
            # Due at once: the time of the last write is not known here.
            self.nop_due = self._loop.time()
            get_heartbeat_monitor(self._loop).watch(self)

    def resume_reading(self) -> None:
        """Resume reading after `pause_reading`; do nothing if it is not paused."""
        if self.nop_due is not None and self._transport is not None and self.is_open:
            self._transport.resume_reading()
            self.nop_due = None
            # Silence counts from now: what arrived during the pause was not read.
            self.last_read = self._loop.time()
            if self._send_time is not None:
                self._send_time.on_reading_resumed(self.last_read, self._max_ready)
            get_heartbeat_monitor(self._loop).watch(self)

    # Closing

    async def close(self) -> None:
        """Close; if subscribed, first send CLS, and wait for CLOSE_WAIT and late messages."""
        try:
            if self.is_open and self._protocol.state is State.SUBSCRIBED:
                # Without reading, CLOSE_WAIT would never be seen.
                self.resume_reading()
                with contextlib.suppress(BrokerRefused, BrokerUnreachable):
                    await self.request(StartClose(), timeout_ms=self.options.close_timeout_ms)
                    # Without a RDY, nsqd has sent no message, so that none can be late.
                    if self.metrics.was_ready:
                        await self._wait_for_end(_LATE_MESSAGES_S)
            self.is_open = False
            self._error = self._error or connection_closed_error(self.address, None)
            if self._transport is not None:
                self._transport.close()
                await self._wait_for_end(self.options.close_timeout_ms / 1000)
        finally:
            # For cancellation, and for a peer that has not read the last bytes in time.
            self.abort()

    async def _wait_for_end(self, timeout_s: float) -> None:
        """Wait until the connection has ended, for *timeout_s* at most."""
        if self._transport is not None:
            self._end = self._end or self._loop.create_future()
            await asyncio.wait({self._end}, timeout=timeout_s)

    def abort(self, reason: str | None = None) -> None:
        """Close at once, losing unsent bytes; *reason* is the fault, None: closed on purpose."""
        self.is_open = False
        self._error = self._error or connection_closed_error(self.address, reason)
        # Not only in `connection_lost`: asyncio does not call it after a failed TLS handshake.
        get_heartbeat_monitor(self._loop).forget(self)
        self._release_read_clock()
        if self._transport is not None:
            self._transport.abort()

    def _release_read_clock(self) -> None:
        """Stop tracking send times, which need the read clock; idempotent."""
        if self._send_time is not None:
            self._send_time = None
            self._read_clock.remove_user()
