"""
The broker's TCP server: connections, heartbeats, deliveries and deadlines.

One read of a socket yields one list of commands and at most one write. A connection has no task,
and its only timer is for heartbeats. Large MPUBs are parsed and stored over several turns of the
event loop; until then, the socket is not read. Source: nsqd/protocol_v2.go, IOLoop and messagePump.

However many connections there are, the server has one timer, for the earliest deadline of all
channels, and one callback per turn of the event loop for deliveries. Work that is too long for one
turn is a generator: each `next()` runs one step. The server runs one step per turn, round robin.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, cast

from gateway.addresses import join_address
from gateway.aio import call_after_reads, spawn
from gateway.broker.auth import AuthClient, AuthFailed, Question
from gateway.broker.channel import MAX_BATCH_BYTES
from gateway.broker.client import Client
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.handler import (
    AskAuthServer,
    AwaitCommit,
    Disconnect,
    Effect,
    Handler,
    ResumeParsing,
    StepwisePublish,
)
from gateway.broker.journal import Journal
from gateway.broker.message import ClockReading, StoredMessage
from gateway.broker.tls_layer import HANDSHAKE_TIMEOUT_S, TlsLayer
from gateway.broker.topics import TopicRegistry
from gateway.errors import LocalProtocolError, StoreFailed
from gateway.listener import bound_address, listen, remove_socket_file, start_server
from gateway.protocol.connection import Codec, Event, Role, V2Connection
from gateway.protocol.frames import (
    HEARTBEAT_FRAME,
    OK,
    ErrorFrame,
    Response,
    encode_messages,
)
from gateway.telemetry import get_logger
from gateway.tls import Certificate

HIGH_WATER_BYTES = 2 * MAX_BATCH_BYTES
"""Unsent bytes above which a client gets no more messages."""
LOW_WATER_BYTES = MAX_BATCH_BYTES // 2
"""Unsent bytes below which the client gets messages again."""
STOP_READING_BYTES = 2 * HIGH_WATER_BYTES
"""Unsent bytes above which commands are not read, since responses fill the buffer, too."""

CLOSE_TIMEOUT_S = 5.0
"""Time for a client to read the last bytes before the connection is aborted."""

_EARLY_S = 0.002
"""Maximum time by which an event loop calls a timer early: uvloop rounds to milliseconds."""


Frame: TypeAlias = Response | ErrorFrame | AwaitCommit
"""What a client gets, now or once it is on disk."""


class ClientConnection(asyncio.Protocol):
    """
    The socket of one client.

    Reading the socket is paused for four reasons: too many unsent bytes, commands that run in
    steps, commands that wait for an auth server, and publishes that wait for the disk. Each has its
    flag; reading resumes when none is set.

    As in nsqd, frames of messages are held until they fill the client's output buffer, another
    frame is sent, the client has no RDY left, or its output buffer timeout is over.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._handler = server.handler
        self._loop = asyncio.get_running_loop()
        self._protocol = V2Connection(Role.BROKER, server.limits, announces_mpub=True)
        if server.is_tls_required:
            self._protocol.require_tls(is_due=True)
        self._transport: asyncio.Transport
        self._client: Client
        self._is_registered = False
        self._last_command = 0.0
        self._heartbeat_interval_s: float | None = None
        self._next_heartbeat = 0.0
        self._heartbeat_sent_at = math.inf
        """When the first heartbeat after the last command was sent; infinite if none was."""
        self._blocked_since: float | None = None
        """When deliveries stopped because the client does not read; None while they go on."""
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._is_identified = False
        self._is_backlogged = False
        """True while reading is paused because of unsent responses."""
        self._is_in_steps = False
        """True while reading is paused because commands run in steps."""
        self._tls: TlsLayer | None = None
        """TLS, from IDENTIFY on; None without it."""
        self._upgrade_due: ResumeParsing | None = None
        """The upgrade that waits for the end of the TLS handshake; None if none does."""
        self._auth_task: asyncio.Task[None] | None = None
        """Waits for an auth server; reading is paused. None if nothing waits."""
        self._held: list[bytes] = []
        """Frames of messages in the output buffer."""
        self._held_bytes = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._next_flush = 0.0
        """When held frames are due, if none were sent because of time before."""
        self._large_publish: StepwisePublish | None = None
        """The MPUB of this client that is being stored; None if there is none."""
        self._is_disconnecting = False
        # The frames of each read whose publishes are not on disk yet, and of those after it.
        self._unconfirmed: deque[list[Frame]] = deque()
        self._is_waiting_for_disk = False
        """True while reading is paused because of publishes that are not on disk yet."""
        self._is_sub_unconfirmed = False
        """True while the client gets no messages, because its SUB is not on disk yet."""
        self._held_upgrade: ResumeParsing | None = None
        """The end of an IDENTIFY behind such publishes: it changes how responses are sent."""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the client; abort the connection if the server is full or has stopped."""
        # A cast, because uvloop's transports do not derive from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        client = self._server.register(
            self, _format_address(self._transport.get_extra_info("peername"))
        )
        if client is None:
            # `_client` stays unset; `_is_registered` keeps `connection_lost` from using it.
            self._transport.abort()
            return
        self._client = client
        self._is_registered = True
        self._set_output_buffer()
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        # nsqd waits for the magic without a timeout; here, missed heartbeats end the wait.
        self._last_command = self._loop.time()
        self._start_heartbeats()

    def data_received(self, data: bytes) -> None:
        """Execute the commands in *data*, and send all responses with one write."""
        if self._tls is not None:
            self._receive_encrypted(self._tls, data)
        else:
            self._process(self._protocol.receive_data(data))

    def eof_received(self) -> bool:
        """Send nsqd's error if the stream ends within a command's body; close the connection."""
        if self._upgrade_due is not None:
            self._fail_handshake("the client closed the connection")
        else:
            self._process(self._protocol.receive_eof())
            if self._unconfirmed:
                # The client may still read: responses follow once its publishes are on disk.
                self._is_disconnecting = True
                return True
            self.close()
        return False

    def _process(self, events: list[Event]) -> None:
        """Execute the commands *events*; if parsing has paused, schedule the rest as steps."""
        if events:
            self._handle(events)
        if (
            self._protocol.is_paused
            and not self._is_waiting
            and not self._is_in_steps
            and not self._transport.is_closing()
        ):
            self._is_in_steps = True
            self._transport.pause_reading()
            self._server.run_in_steps(self._process_in_steps())
        if events:
            self._server.schedule_delivery()

    def _process_in_steps(self) -> Iterator[None]:
        """
        Generator: execute the rest of a read, a step per `next()`; then resume reading the socket.

        An MPUB that is being stored is stored to the end, even if its client has disconnected. The
        commands behind a response that cannot be sent are dropped, as by nsqd.
        """
        try:
            while self._protocol.is_paused:
                if self._large_publish is not None:
                    answer = yield from self._large_publish.steps
                    self._large_publish = None
                    if not self._transport.is_closing():
                        self._respond([answer])
                if self._transport.is_closing():
                    return
                events = self._protocol.resume()
                if events:
                    self._handle(events)
                    if self._is_waiting:
                        break
                yield
        except Exception:
            # Reading is paused and would stay so: the client would wait without end.
            self._transport.abort()
            raise
        self._is_in_steps = False
        self._resume_reading()

    @property
    def _is_waiting(self) -> bool:
        """True while commands wait for an auth server, or those behind IDENTIFY for its upgrade."""
        return (
            self._auth_task is not None
            or self._held_upgrade is not None
            or self._upgrade_due is not None
        )

    def _handle(self, events: list[Event]) -> None:
        """Execute the commands *events*, and send all responses with one write."""
        at = self._server.read_clocks()
        self._last_command = at.now
        self._heartbeat_sent_at = math.inf
        self._carry_out(self._handler.handle(self._client, events, at), at)

    def _carry_out(self, effects: list[Effect], at: ClockReading) -> None:
        """Carry out *effects*, and send all responses with one write."""
        frames: list[Frame] = []
        self._go_on(self._apply(effects, frames), frames, at)

    def _go_on(self, events: list[Event], frames: list[Frame], at: ClockReading) -> None:
        """Execute *events*, and send *frames* and all further responses with one write."""
        # Again for the commands behind each IDENTIFY, which `_apply` returns.
        while events:
            events = self._apply(self._handler.handle(self._client, events, at), frames)
        self._respond(frames)
        if self._held and self._client.consumer.capacity <= 0:
            self._write(self._take_held())  # a RDY that leaves no room
        if self._is_disconnecting and not self._unconfirmed:
            self.close()
        elif self._upgrade_due is not None:
            self._start_handshake()
        elif self._transport.get_write_buffer_size() > STOP_READING_BYTES:
            self._is_backlogged = True
            self._transport.pause_reading()
        elif self._unconfirmed and (self._held_upgrade or self._server.is_disk_behind):
            self._is_waiting_for_disk = True
            self._transport.pause_reading()

    def _respond(self, frames: list[Frame]) -> None:
        """Send *frames* with one write, or once the publishes among and before them are on disk."""
        awaited = [frame for frame in frames if type(frame) is AwaitCommit]
        if any(frame.verb == "SUB" for frame in awaited):
            # No message may precede the response to SUB.
            self._is_sub_unconfirmed = True
            self._handler.block(self._client)
        if self._unconfirmed or awaited:
            self._unconfirmed.append(frames)
            self._server.disk.when_committed(self._on_commit)
        elif frames:
            self._write_frames(cast("list[Response | ErrorFrame]", frames))

    def _write_frames(self, frames: list[Response | ErrorFrame]) -> None:
        self._write(b"".join([self._encode(frame) for frame in frames]))

    def _on_commit(self, error: StoreFailed | None) -> None:
        """Send the responses of the oldest read that waits; close after one that failed."""
        sent: list[Response | ErrorFrame] = []
        is_refused = False
        for frame in self._unconfirmed.popleft():
            sent.append(frame.resolve(error) if isinstance(frame, AwaitCommit) else frame)
            if isinstance(sent[-1], ErrorFrame) and sent[-1].is_fatal:
                is_refused = True
                break
        if self._transport.is_closing():
            return
        if sent:
            self._write_frames(sent)
        if is_refused or (self._is_disconnecting and not self._unconfirmed):
            self.close()
        elif not self._unconfirmed:
            self._on_all_confirmed()

    def _on_all_confirmed(self) -> None:
        """Go on with what waited for the last of the responses."""
        if self._is_sub_unconfirmed:
            self._is_sub_unconfirmed = False
            if self._blocked_since is None:
                self._handler.unblock(self._client)
                self._server.schedule_delivery()
        if self._held_upgrade is not None:
            effect, self._held_upgrade = self._held_upgrade, None
            frames: list[Frame] = []
            events = self._resume_parsing(effect, frames)
            self._go_on(events, frames, self._server.read_clocks())
        if self._is_waiting_for_disk and not self._unconfirmed:
            self._is_waiting_for_disk = False
            self._process([])
            self._resume_reading()

    def _resume_reading(self) -> None:
        """Read the socket again, unless there is another reason not to."""
        # The socket was not read, so the time without commands does not count as silence.
        self._last_command, self._heartbeat_sent_at = self._loop.time(), math.inf
        self._arm_heartbeat_timer()
        is_paused = (
            self._is_backlogged
            or self._is_in_steps
            or self._is_waiting_for_disk
            or self._auth_task is not None
        )
        if not is_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Stop deliveries; called when more than `HIGH_WATER_BYTES` are unsent."""
        self._handler.block(self._client)
        self._blocked_since = self._loop.time()
        self._arm_heartbeat_timer()

    def resume_writing(self) -> None:
        """Resume deliveries, and reading; called when unsent bytes fall to `LOW_WATER_BYTES`."""
        if self._transport.is_closing():
            return  # `close` has blocked deliveries for good
        if not self._is_sub_unconfirmed:
            self._handler.unblock(self._client)
        self._blocked_since = None
        if self._is_backlogged:
            self._is_backlogged = False
            self._resume_reading()
        else:
            self._arm_heartbeat_timer()
        self._server.schedule_delivery()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the client; its messages stay in flight until their timeout, as in nsqd."""
        del exc
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self._auth_task is not None:
            self._auth_task.cancel()
        if self._is_registered:
            self._server.unregister(self._client)
            self._server.schedule_delivery()

    # Called by the server

    def deliver(self, messages: Sequence[StoredMessage]) -> None:
        """Send *messages* to the client; its channel has already put them in flight."""
        # Unsent messages stay in flight; after their timeout, another consumer gets them.
        if self._transport.is_closing():
            return
        frames = encode_messages(messages)
        size_bytes = self._held_bytes + len(frames)
        options = self._client.options
        if (
            size_bytes < options.output_buffer_size_bytes
            and self._client.consumer.capacity > 0
            and not self._is_flush_due(options.output_buffer_timeout_ms)
        ):
            self._held.append(frames)
            self._held_bytes = size_bytes
        elif self._held:
            self._held.append(frames)
            self._write(self._take_held())
        else:
            self._write(self._protocol.send_encoded(frames))

    def close(self) -> None:
        """Close once all bytes are sent; abort if that takes more than `CLOSE_TIMEOUT_S`."""
        self._handler.block(self._client)
        # In place of the heartbeat timer, so that `connection_lost` cancels it; a closing
        # connection sends no more heartbeats.
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self._heartbeat_timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
        if self._tls is not None and not self._transport.is_closing():
            self._transport.write(self._tls.close())
        self._transport.close()

    def abort(self) -> None:
        """Close now; unsent bytes are lost."""
        self._transport.abort()

    # Internal

    def _apply(self, effects: list[Effect], frames: list[Frame]) -> list[Event]:
        """
        Carry out *effects*: append frames to *frames*, and remember what to do after the write.

        Return the commands behind an IDENTIFY, which are parsed only now; else an empty list.
        """
        for effect in effects:
            if isinstance(effect, Disconnect):
                self._is_disconnecting = True
            elif isinstance(effect, StepwisePublish):
                self._large_publish = effect
            elif isinstance(effect, AskAuthServer):
                self._ask_auth_server(effect)
            elif isinstance(effect, ResumeParsing):
                frames.append(effect.response)
                # In front of the upgrade, which changes how frames are sent.
                self._respond(list(frames))
                frames.clear()
                if self._unconfirmed:
                    self._held_upgrade = effect
                    return []
                return self._resume_parsing(effect, frames)
            else:
                frames.append(effect)
        return []

    def _resume_parsing(self, effect: ResumeParsing, frames: list[Frame]) -> list[Event]:
        """Apply an IDENTIFY; return the commands behind it, none if these wait for TLS."""
        # A second IDENTIFY does not change the heartbeats, as in nsqd.
        if not self._is_identified:
            self._is_identified = True
            self._set_output_buffer()
            self._start_heartbeats()
        if effect.has_tls:
            self._upgrade_due = effect
            return []
        return self._upgrade(effect.codec, frames)

    def _upgrade(self, codec: Codec | None, frames: list[Frame]) -> list[Event]:
        """Start *codec*, if there is one, and confirm it; return the commands received so far."""
        events = self._protocol.upgrade(codec)
        if codec is not None:
            frames.append(OK)
        return events

    # TLS

    def _start_handshake(self) -> None:
        """Begin the TLS handshake, in place of heartbeats; the response to IDENTIFY is sent."""
        self._tls = self._server.new_tls_layer()
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self._heartbeat_timer = self._loop.call_later(
            HANDSHAKE_TIMEOUT_S, self._fail_handshake, f"no end within {HANDSHAKE_TIMEOUT_S:g} s"
        )
        self._receive_encrypted(self._tls, self._protocol.take_unread())

    def _receive_encrypted(self, tls: TlsLayer, data: bytes) -> None:
        """Continue the handshake, or execute the commands in *data*."""
        clear = tls.receive(data)
        if outgoing := tls.take_outgoing():
            self._transport.write(outgoing)
        if self._upgrade_due is not None:
            if tls.is_established:
                self._finish_handshake(self._upgrade_due.codec, tls)
            elif tls.error is not None:
                self._fail_handshake(tls.error.reason or str(tls.error))
        if clear and not self._transport.is_closing():
            self._process(self._protocol.receive_data(clear))
        if self._transport.is_closing():
            return
        if tls.error is not None:
            self.close()
        elif tls.is_at_end:
            self.eof_received()

    def _finish_handshake(self, codec: Codec | None, tls: TlsLayer) -> None:
        """Confirm TLS, then start *codec*; the client's commands are read again."""
        self._upgrade_due = None
        self._client.tls = tls.state()
        self._protocol.require_tls(is_due=False)
        self._start_heartbeats()
        self._write_frames([OK])
        frames: list[Frame] = []
        self._upgrade(codec, frames)  # nothing was received: `take_unread` has left nothing
        self._respond(frames)

    def _fail_handshake(self, reason: str) -> None:
        """Tell the client in clear text, behind the alert, that TLS failed; close."""
        # Without the layer, so that the frame is not encrypted, as in nsqd.
        self._tls = self._upgrade_due = None
        text = f"IDENTIFY failed TLS handshake: {reason}"
        self._write(self._protocol.send(ErrorFrame("E_IDENTIFY_FAILED", text)))
        self.close()

    # AUTH

    def _ask_auth_server(self, effect: AskAuthServer) -> None:
        """Ask an auth server; until it answers, no command of this client is read."""
        client, tls = self._client, self._client.tls
        question = Question(
            secret=client.secret,
            remote_ip=client.remote_address.rpartition(":")[0].strip("[]"),
            is_tls=tls is not None,
            common_name=tls.common_name if tls is not None else "",
        )
        self._transport.pause_reading()
        self._auth_task = spawn("ask an auth server", self._authorize(question, effect.events))

    async def _authorize(self, question: Question, events: Sequence[Event]) -> None:
        """Wait for the answer to *question*, and execute *events*, which need it."""
        assert self._server.auth is not None  # noqa: S101 - the handler asks only if there is one
        answer = None
        try:
            answer = await self._server.auth.ask(question)
        except AuthFailed as error:
            _log.warning("AUTH failed", address=self._client.remote_address, reason=str(error))
        self._auth_task = None
        if self._transport.is_closing():
            return
        at = self._server.read_clocks()
        self._carry_out(self._handler.go_on(self._client, events, answer, at), at)
        self._process([])
        self._resume_reading()
        self._server.schedule_delivery()

    # Output buffer

    def _encode(self, frame: Response | ErrorFrame) -> bytes:
        """Return *frame* encoded, behind the messages that are held: it flushes them."""
        if self._held:
            return self._take_held() + self._protocol.send(frame)
        return self._protocol.send(frame)

    def _write(self, data: bytes) -> None:
        self._transport.write(data if self._tls is None else self._tls.encrypt(data))

    def _set_output_buffer(self) -> None:
        """Apply the client's output buffer timeout; time counts from here, as nsqd's ticker."""
        timeout_ms = self._client.options.output_buffer_timeout_ms
        self._next_flush = self._loop.time() + (timeout_ms or 0) / 1000

    def _is_flush_due(self, timeout_ms: int | None) -> bool:
        """
        Return whether messages must be sent now because of time; if not, arm the timer for them.

        A tick that found nothing to send counts for the next message, as in nsqd: a lone message
        is not delayed.
        """
        if timeout_ms is None or self._flush_timer is not None:
            return False
        now = self._loop.time()
        if now < self._next_flush:
            self._flush_timer = self._loop.call_at(self._next_flush, self._flush)
            return False
        self._next_flush = now + timeout_ms / 1000
        return True

    def _flush(self) -> None:
        """Send what is held; called by the timer."""
        self._flush_timer = None
        if self._held and not self._transport.is_closing():
            self._set_output_buffer()
            self._write(self._take_held())

    def _take_held(self) -> bytes:
        """Remove the held frames from the output buffer, and return them encoded."""
        frames = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return self._protocol.send_encoded(frames)

    # Heartbeats

    def _start_heartbeats(self) -> None:
        """Start heartbeats at the negotiated interval, counted from the last command."""
        interval_ms = self._client.options.heartbeat_interval_ms
        self._heartbeat_interval_s = None if interval_ms is None else interval_ms / 1000
        self._next_heartbeat = self._last_command + (self._heartbeat_interval_s or 0)
        self._arm_heartbeat_timer()

    def _arm_heartbeat_timer(self) -> None:
        """Arm the timer for the next heartbeat or the timeout; no timer if heartbeats are off."""
        if self._transport.is_closing() or self._upgrade_due is not None:
            return  # `close` and `_start_handshake` have armed it
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None
        interval_s = self._heartbeat_interval_s
        if interval_s is not None:
            when = min(self._next_heartbeat, self._timeout_at(interval_s))
            self._heartbeat_timer = self._loop.call_at(when, self._on_heartbeat_timer, interval_s)

    def _timeout_at(self, interval_s: float) -> float:
        """Return when to abort the client, if it sends nothing and reads nothing until then."""
        # Two intervals, as nsqd's read deadline (nsqd/protocol_v2.go, IOLoop).
        # A heartbeat that was sent late still gives the client a whole interval to answer.
        timeout_at = max(self._last_command + 2 * interval_s, self._heartbeat_sent_at + interval_s)
        if self._is_in_steps or self._is_waiting_for_disk or self._auth_task is not None:
            timeout_at = math.inf  # the socket is not read now, so an answer would go unnoticed
        if self._blocked_since is not None:
            # One interval, as nsqd's write deadline (nsqd/protocol_v2.go, Send).
            timeout_at = min(timeout_at, self._blocked_since + interval_s)
        return timeout_at

    def _on_heartbeat_timer(self, interval_s: float) -> None:
        """Abort a client that has timed out; otherwise send it a heartbeat if one is due."""
        self._heartbeat_timer = None
        now = self._loop.time()
        if now + _EARLY_S >= self._timeout_at(interval_s):
            # The answer may already be in the socket buffer: after a long turn of the event loop,
            # timers run before reads.
            call_after_reads(self._abort_if_timed_out, interval_s)
            return
        if now + _EARLY_S >= self._next_heartbeat:
            self._next_heartbeat = now + interval_s
            if self._blocked_since is None:
                # The first one since the last command: later ones must not extend the timeout.
                self._heartbeat_sent_at = min(self._heartbeat_sent_at, now)
                self._write(self._encode(HEARTBEAT_FRAME))
        self._arm_heartbeat_timer()

    def _abort_if_timed_out(self, interval_s: float) -> None:
        """Abort the client, unless a command or progress in reading has moved the timeout."""
        if self._loop.time() + _EARLY_S >= self._timeout_at(interval_s):
            self._transport.abort()
        else:
            self._arm_heartbeat_timer()


def _format_address(peername: object) -> str:
    """Return *peername* as host:port; empty if the client has already disconnected."""
    if isinstance(peername, str):
        return "@"  # a Unix socket, in Go's words
    if not isinstance(peername, tuple):
        return ""
    host, port = peername[:2]
    return join_address(host, port)


_MIN_WAIT_S = 0.001
_STOP_TIMEOUT_S = 1.0

_log = get_logger()


class Server:
    """Accept clients, deliver messages, requeue timed-out messages, and run long work in steps."""

    def __init__(
        self,
        registry: TopicRegistry,
        *,
        max_connections: int,
        certificate: Certificate | None = None,
        auth: AuthClient | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.registry = registry
        self.auth = auth
        """The client of the auth servers; None if there are none."""
        self.journal = journal
        """None keeps all messages in memory."""
        if journal is not None:
            journal.on_progress = self.schedule_delivery
        self.is_tls_required = registry.context.limits.is_tls_required
        self._certificate = certificate
        self.handler = Handler(registry)
        self.limits = registry.context.limits.protocol
        self._max_connections = max_connections
        self._connections: dict[int, ClientConnection] = {}  # by the id of their consumer
        self._listener: asyncio.Server | None = None
        self._address = ""
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._delivery_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._pending_steps: deque[Iterator[None]] = deque()
        self._step_handle: asyncio.Handle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self, address: str) -> str:
        """
        Listen on *address*, host:port or the path of a Unix socket.

        Return it with the actual port in place of 0.

        Raises:
            StartError: The address is in use, or not one of this machine.
        """
        listener = listen("broker TCP", address)
        self._address = bound_address(listener)
        self._listener = await start_server(listener, lambda: ClientConnection(self))
        return self._address

    async def stop(self) -> None:
        """
        Close the listener, then every connection; a second call does nothing.

        A large MPUB that is being stored gets no response: its outcome is unknown to the client.
        """
        # First, so that `register` refuses connections that the system has already accepted.
        self._is_stopped = True
        if self._listener is not None:
            self._listener.close()
            remove_socket_file(self._address)
        for connection in list(self._connections.values()):
            connection.close()
        try:
            await asyncio.wait_for(self._idle.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            # A client that does not read must not delay the stop.
            for connection in list(self._connections.values()):
                connection.abort()
            await self._idle.wait()
        for handle in (self._delivery_handle, self._timer, self._step_handle):
            if handle is not None:
                handle.cancel()
        self._delivery_handle = self._timer = self._step_handle = None
        self._pending_steps.clear()

    # Called by connections and the HTTP API

    def new_tls_layer(self) -> TlsLayer:
        """Return the TLS layer of a new handshake, with the newest certificate."""
        assert self._certificate is not None  # noqa: S101 - IDENTIFY agrees to TLS only with one
        return TlsLayer(self._certificate.context)

    def read_clocks(self) -> ClockReading:
        """Return the time by the monotonic clock and by the wall clock."""
        return ClockReading(self._loop.time(), time.time_ns())

    @property
    def is_disk_behind(self) -> bool:
        """True if so many publishes wait for the disk that publishers should not be read."""
        return self.journal is not None and self.journal.is_backlogged

    @property
    def disk(self) -> Journal:
        """The journal, for those who wait for a change of a durable topic."""
        if self.journal is None:
            msg = "only changes of durable topics wait for the disk"
            raise LocalProtocolError(msg)
        return self.journal

    def schedule_delivery(self) -> None:
        """
        Schedule deliveries and the deadline timer; call this after each change of the registry.

        The memory of removed messages is released in steps.
        """
        steps = self.registry.context.discard_queue.take_steps()
        if steps is not None:
            self.run_in_steps(steps)
        if self._delivery_handle is None and self.registry.has_deliverable:
            # In the next turn, so that the reads of other sockets in this one join the batch.
            self._delivery_handle = self._loop.call_soon(self._deliver)
        self._arm_timer()

    def run_in_steps(self, steps: Iterator[None]) -> None:
        """Schedule the generator *steps*: the event loop runs it to the end, a step per turn."""
        self._pending_steps.append(steps)
        if self._step_handle is None:
            self._step_handle = self._loop.call_soon(self._run_step)

    def disconnect(self, consumers: Iterable[ChannelConsumer]) -> None:
        """Close the connections of *consumers*, without a frame, as nsqd does."""
        for consumer in consumers:
            connection = self._connections.get(consumer.id)
            if connection is not None:
                connection.close()

    def register(self, connection: ClientConnection, remote_address: str) -> Client | None:
        """Return a new client for *connection*; None if the server is full or has stopped."""
        if self._is_stopped:
            return None
        if len(self._connections) >= self._max_connections:
            _log.warning(
                "client refused: connection limit reached",
                address=remote_address,
                limit=self._max_connections,
            )
            return None
        client = self.handler.connect(remote_address=remote_address, at=self.read_clocks())
        self._connections[client.consumer.id] = connection
        self._idle.clear()
        _log.debug("client connected", address=remote_address)
        return client

    def unregister(self, client: Client) -> None:
        """Remove *client*, whose connection is lost."""
        self.handler.disconnect(client)
        del self._connections[client.consumer.id]
        if not self._connections:
            self._idle.set()
        _log.debug("client disconnected", address=client.remote_address)

    # Called by the event loop

    def _run_step(self) -> None:
        """
        Run one step of the first generator in the queue, and move it to the end of the queue.

        One step per turn for all generators together: their number does not lengthen a turn.
        """
        steps = self._pending_steps.popleft()
        try:
            next(steps)
        except StopIteration:
            pass
        else:
            self._pending_steps.append(steps)
        finally:
            # Also after an error in a step: the other generators must go on.
            self._step_handle = (
                self._loop.call_soon(self._run_step) if self._pending_steps else None
            )
            self.schedule_delivery()

    def _deliver(self) -> None:
        self._delivery_handle = None
        # No connection can be missing: `unregister` removes the consumer from its channel first.
        for consumer, messages in self.registry.deliver(self._loop.time()):
            self._connections[consumer.id].deliver(messages)
        self.schedule_delivery()

    def _arm_timer(self) -> None:
        """Call `_expire` at the earliest deadline."""
        due = self.registry.next_due
        if due is None or due >= self._timer_due:
            return  # an earlier timer arms the next one when it fires
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(max(due, self._loop.time() + _MIN_WAIT_S), self._expire)

    def _expire(self) -> None:
        # First, or `_arm_timer` would take this timer, which has fired, for a pending one.
        self._timer, self._timer_due = None, math.inf
        self.registry.expire(self._loop.time())
        self.schedule_delivery()
