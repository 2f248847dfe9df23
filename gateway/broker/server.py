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
from typing import cast

from gateway.addresses import join_address
from gateway.aio import call_after_reads
from gateway.broker.channel import MAX_BATCH_BYTES
from gateway.broker.client import Client
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.handler import Disconnect, Effect, Handler, ResumeParsing, StepwisePublish
from gateway.broker.message import ClockReading, StoredMessage
from gateway.broker.topics import TopicRegistry
from gateway.listener import listen_tcp
from gateway.protocol.connection import Event, Role, V2Connection
from gateway.protocol.frames import HEARTBEAT_FRAME
from gateway.telemetry import get_logger

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


class ClientConnection(asyncio.Protocol):
    """
    The socket of one client.

    Reading the socket is paused for two reasons: too many unsent bytes, and commands that run in
    steps. Each has its flag; reading resumes when neither is set.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._handler = server.handler
        self._loop = asyncio.get_running_loop()
        self._protocol = V2Connection(Role.BROKER, server.limits)
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
        self._large_publish: StepwisePublish | None = None
        """The MPUB of this client that is being stored; None if there is none."""
        self._is_disconnecting = False

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
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        # nsqd waits for the magic without a timeout; here, missed heartbeats end the wait.
        self._last_command = self._loop.time()
        self._start_heartbeats()

    def data_received(self, data: bytes) -> None:
        """Execute the commands in *data*, and send all responses with one write."""
        self._process(self._protocol.receive_data(data))

    def eof_received(self) -> bool:
        """Send nsqd's error if the stream ends within a command's body; close the connection."""
        self._process(self._protocol.receive_eof())
        self.close()
        return False

    def _process(self, events: list[Event]) -> None:
        """Execute the commands *events*; if parsing has paused, schedule the rest as steps."""
        if events:
            self._handle(events)
        if self._protocol.is_paused and not self._is_in_steps and not self._transport.is_closing():
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
                        self._transport.write(self._protocol.send(answer))
                if self._transport.is_closing():
                    return
                events = self._protocol.resume()
                if events:
                    self._handle(events)
                yield
        except Exception:
            # Reading is paused and would stay so: the client would wait without end.
            self._transport.abort()
            raise
        self._is_in_steps = False
        # The socket was not read, so the time without commands does not count as silence.
        self._last_command, self._heartbeat_sent_at = self._loop.time(), math.inf
        self._arm_heartbeat_timer()
        if not self._is_backlogged and not self._transport.is_closing():
            self._transport.resume_reading()

    def _handle(self, events: list[Event]) -> None:
        """Execute the commands *events*, and send all responses with one write."""
        at = self._server.read_clocks()
        self._last_command = at.now
        self._heartbeat_sent_at = math.inf
        responses: list[bytes] = []
        # Again for the commands behind each IDENTIFY, which `_apply` returns.
        while events:
            effects = self._handler.handle(self._client, events, at)
            events = self._apply(effects, responses)
        if responses:
            self._transport.write(b"".join(responses))
        if self._is_disconnecting:
            self.close()
        elif self._transport.get_write_buffer_size() > STOP_READING_BYTES:
            self._is_backlogged = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """Stop deliveries; called when more than `HIGH_WATER_BYTES` are unsent."""
        self._handler.block(self._client)
        self._blocked_since = self._loop.time()
        self._arm_heartbeat_timer()

    def resume_writing(self) -> None:
        """Resume deliveries, and reading; called when unsent bytes fall to `LOW_WATER_BYTES`."""
        if self._transport.is_closing():
            return  # `close` has blocked deliveries for good
        self._handler.unblock(self._client)
        self._blocked_since = None
        if self._is_backlogged:
            self._is_backlogged = False
            if not self._is_in_steps:
                self._transport.resume_reading()
            # The socket was not read, so the time without commands does not count as silence.
            self._last_command = self._loop.time()
        self._arm_heartbeat_timer()
        self._server.schedule_delivery()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the client; its messages stay in flight until their timeout, as in nsqd."""
        del exc
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None
        if self._is_registered:
            self._server.unregister(self._client)
            self._server.schedule_delivery()

    # Called by the server

    def deliver(self, messages: Sequence[StoredMessage]) -> None:
        """Send *messages* to the client; its channel has already put them in flight."""
        # Unsent messages stay in flight; after their timeout, another consumer gets them.
        if not self._transport.is_closing():
            self._transport.write(self._protocol.send_messages(messages))

    def close(self) -> None:
        """Close once all bytes are sent; abort if that takes more than `CLOSE_TIMEOUT_S`."""
        self._handler.block(self._client)
        # In place of the heartbeat timer, so that `connection_lost` cancels it; a closing
        # connection sends no more heartbeats.
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self._heartbeat_timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
        self._transport.close()

    def abort(self) -> None:
        """Close now; unsent bytes are lost."""
        self._transport.abort()

    # Internal

    def _apply(self, effects: list[Effect], responses: list[bytes]) -> list[Event]:
        """
        Carry out *effects*: append frames to *responses*, and remember what to do after the write.

        Return the commands behind an IDENTIFY, which are parsed only now; else an empty list.
        """
        for effect in effects:
            if isinstance(effect, Disconnect):
                self._is_disconnecting = True
            elif isinstance(effect, StepwisePublish):
                self._large_publish = effect
            elif isinstance(effect, ResumeParsing):
                # A second IDENTIFY does not change the heartbeats, as in nsqd.
                if not self._is_identified:
                    self._is_identified = True
                    self._start_heartbeats()
                return self._protocol.upgrade(None)  # no codec: this broker has no compression
            else:
                responses.append(self._protocol.send(effect))
        return []

    def _start_heartbeats(self) -> None:
        """Start heartbeats at the negotiated interval, counted from the last command."""
        interval_ms = self._client.options.heartbeat_interval_ms
        self._heartbeat_interval_s = None if interval_ms is None else interval_ms / 1000
        self._next_heartbeat = self._last_command + (self._heartbeat_interval_s or 0)
        self._arm_heartbeat_timer()

    def _arm_heartbeat_timer(self) -> None:
        """Arm the timer for the next heartbeat or the timeout; no timer if heartbeats are off."""
        if self._transport.is_closing():
            return
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
        if self._is_in_steps:
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
                self._transport.write(self._protocol.send(HEARTBEAT_FRAME))
        self._arm_heartbeat_timer()

    def _abort_if_timed_out(self, interval_s: float) -> None:
        """Abort the client, unless a command or progress in reading has moved the timeout."""
        if self._loop.time() + _EARLY_S >= self._timeout_at(interval_s):
            self._transport.abort()
        else:
            self._arm_heartbeat_timer()


def _format_address(peername: object) -> str:
    """Return *peername* as host:port; empty if the client has already disconnected."""
    if not isinstance(peername, tuple):
        return ""
    host, port = peername[:2]
    return join_address(host, port)


_BACKLOG = 1024
_MIN_WAIT_S = 0.001
_STOP_TIMEOUT_S = 1.0

_log = get_logger()


class Server:
    """Accept clients, deliver messages, requeue timed-out messages, and run long work in steps."""

    def __init__(self, registry: TopicRegistry, *, max_connections: int) -> None:
        self.registry = registry
        self.handler = Handler(registry)
        self.limits = registry.context.limits.protocol
        self._max_connections = max_connections
        self._connections: dict[int, ClientConnection] = {}  # by the id of their consumer
        self._listener: asyncio.Server | None = None
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
        Listen on *address*, host:port; return it with the actual port in place of 0.

        Raises:
            StartError: The address is in use, or not one of this machine.
        """
        listener = listen_tcp("broker TCP", address)
        host, port = listener.getsockname()[:2]
        self._listener = await self._loop.create_server(
            lambda: ClientConnection(self), sock=listener, backlog=_BACKLOG
        )
        return join_address(host, port)

    async def stop(self) -> None:
        """
        Close the listener, then every connection; a second call does nothing.

        A large MPUB that is being stored gets no response: its outcome is unknown to the client.
        """
        # First, so that `register` refuses connections that the system has already accepted.
        self._is_stopped = True
        if self._listener is not None:
            self._listener.close()
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

    def read_clocks(self) -> ClockReading:
        """Return the time by the monotonic clock and by the wall clock."""
        return ClockReading(self._loop.time(), time.time_ns())

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
