"""
One client's TCP connection: bytes to commands, effects to bytes, heartbeats and deadlines.

One read of the socket is one list of commands and at most one write; no task, and no timer but
the pulse, belongs to a connection. Source: nsqd/protocol_v2.go, IOLoop and messagePump.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol, cast

from gateway.addresses import join_address
from gateway.after_reads import call_after_reads
from gateway.broker.channel import MAX_BATCH_BYTES
from gateway.broker.client import Client
from gateway.broker.handler import Disconnect, Effect, Handler, Resume
from gateway.broker.message import Moment, StoredMessage
from gateway.protocol.connection import Event, Role, V2Connection
from gateway.protocol.frames import HEARTBEAT_FRAME
from gateway.protocol.wire import Limits

HIGH_WATER_BYTES = 2 * MAX_BATCH_BYTES
"""Unsent bytes above which a client gets no more messages."""
LOW_WATER_BYTES = MAX_BATCH_BYTES // 2
"""Unsent bytes below which it gets messages again."""
STOP_READING_BYTES = 2 * HIGH_WATER_BYTES
"""Unsent bytes above which its commands are not read any more, as their answers have no place."""

CLOSE_TIMEOUT_S = 5.0
"""Time for a peer to take what was written before a close."""

_EARLY_S = 0.002
"""How much too early an event loop may call a timer (uvloop counts milliseconds)."""


class Host(Protocol):
    """The server, as its connections see it."""

    handler: Handler
    limits: Limits

    def moment(self) -> Moment:
        """Return the time on both clocks."""

    def open(self, connection: ClientConnection, remote_address: str) -> Client | None:
        """Return the client behind *connection*; None when there are too many."""

    def changed(self) -> None:
        """Deliver what can be delivered now."""

    def close(self, client: Client) -> None:
        """Forget *client*, whose connection has ended."""


class ClientConnection(asyncio.Protocol):
    """The socket of one client."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._handler = host.handler
        self._loop = asyncio.get_running_loop()
        self._protocol = V2Connection(Role.BROKER, host.limits)
        self._transport: asyncio.Transport
        self._client: Client
        self._is_admitted = False
        self._last_command = 0.0
        self._heartbeat_interval_s: float | None = None
        self._next_heartbeat = 0.0
        self._asked_at = math.inf
        """When the first heartbeat since its last command was written; infinite: none was."""
        self._blocked_since: float | None = None
        self._pulse: asyncio.TimerHandle | None = None
        self._is_identified = False
        self._is_reading = True
        self._ends = False

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the client in, or close at once when there are too many."""
        # TCP gives no other; uvloop's is one by its methods, not by its class.
        self._transport = cast("asyncio.Transport", transport)
        client = self._host.open(self, _shown(self._transport.get_extra_info("peername")))
        if client is None:
            self._transport.abort()
            return
        self._client = client
        self._is_admitted = True
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        # nsqd gives the first four bytes any time; a peer that never speaks is not worth a place.
        self._last_command = self._loop.time()
        self._start_heartbeats()

    def data_received(self, data: bytes) -> None:
        """Carry out what one read of the socket says, and answer it with one write."""
        self._take(self._protocol.receive_data(data))

    def eof_received(self) -> bool:
        """Refuse a command that ends in the middle of its body, in nsqd's words; then close."""
        self._take(self._protocol.receive_eof())
        self.close()
        return False

    def _take(self, events: list[Event]) -> None:
        if not events:
            return
        at = self._host.moment()
        self._last_command = at.now
        self._asked_at = math.inf
        answers: list[bytes] = []
        while events:
            effects = self._handler.handle(self._client, events, at)
            events = self._carry_out(effects, answers)
        if answers:
            self._transport.write(b"".join(answers))
        if self._ends:
            self.close()
        elif self._transport.get_write_buffer_size() > STOP_READING_BYTES:
            self._is_reading = False
            self._transport.pause_reading()
        self._host.changed()

    def pause_writing(self) -> None:
        """Deliver nothing while the peer does not read what was written."""
        self._handler.block(self._client)
        self._blocked_since = self._loop.time()
        self._schedule_pulse()

    def resume_writing(self) -> None:
        """Deliver again."""
        if self._transport.is_closing():
            return
        self._handler.unblock(self._client)
        self._blocked_since = None
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
            # What it said meanwhile could not be read.
            self._last_command = self._loop.time()
        self._schedule_pulse()
        self._host.changed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client; what it had in flight waits for its timeout, as in nsqd."""
        del exc
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        if self._is_admitted:
            self._host.close(self._client)
            self._host.changed()

    # What the server calls

    def deliver(self, messages: Sequence[StoredMessage]) -> None:
        """Send *messages*, which are in flight here from now on."""
        if not self._transport.is_closing():
            self._transport.write(self._protocol.send_messages(messages))

    def close(self) -> None:
        """Close once everything is written, or when the peer does not take it."""
        self._handler.block(self._client)
        if self._pulse is not None:
            self._pulse.cancel()
        self._pulse = self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
        self._transport.close()

    def abort(self) -> None:
        """Close now; what is not written yet is lost."""
        self._transport.abort()

    # Inside

    def _carry_out(self, effects: list[Effect], answers: list[bytes]) -> list[Event]:
        """Add the bytes of *effects* to *answers*; return what came behind an IDENTIFY."""
        for effect in effects:
            if isinstance(effect, Disconnect):
                self._ends = True
            elif isinstance(effect, Resume):
                # A second IDENTIFY changes nothing of the heartbeats, as in nsqd.
                if not self._is_identified:
                    self._is_identified = True
                    self._start_heartbeats()
                return self._protocol.upgrade(None)
            else:
                answers.append(self._protocol.send(effect))
        return []

    def _start_heartbeats(self) -> None:
        """Beat as agreed, from the last command on."""
        interval_ms = self._client.holds.heartbeat_interval_ms
        self._heartbeat_interval_s = None if interval_ms is None else interval_ms / 1000
        self._next_heartbeat = self._last_command + (self._heartbeat_interval_s or 0)
        self._schedule_pulse()

    def _schedule_pulse(self) -> None:
        """Have `_beat` called at the next moment that matters; never when heartbeats are off."""
        if self._transport.is_closing():
            return
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        interval_s = self._heartbeat_interval_s
        if interval_s is not None:
            moment = min(self._next_heartbeat, self._dead_at(interval_s))
            self._pulse = self._loop.call_at(moment, self._beat, interval_s)

    def _dead_at(self, interval_s: float) -> float:
        """Return when the peer counts as dead, if it goes on as now: silent, or not reading."""
        # A heartbeat may be late, and gives its whole interval for the answer all the same.
        dead_at = max(self._last_command + 2 * interval_s, self._asked_at + interval_s)
        if self._blocked_since is not None:
            dead_at = min(dead_at, self._blocked_since + interval_s)
        return dead_at

    def _beat(self, interval_s: float) -> None:
        """Cut a peer that is silent or does not read; else send a heartbeat when it is time."""
        self._pulse = None
        now = self._loop.time()
        if now + _EARLY_S >= self._dead_at(interval_s):
            call_after_reads(self._cut_if_dead, interval_s)
            return
        if now + _EARLY_S >= self._next_heartbeat:
            self._next_heartbeat = now + interval_s
            if self._blocked_since is None:
                self._asked_at = min(self._asked_at, now)
                self._transport.write(self._protocol.send(HEARTBEAT_FRAME))
        self._schedule_pulse()

    def _cut_if_dead(self, interval_s: float) -> None:
        """Cut the peer, unless it has said something by now, or begun to read."""
        if self._loop.time() + _EARLY_S >= self._dead_at(interval_s):
            self._transport.abort()
        else:
            self._schedule_pulse()


def _shown(peername: object) -> str:
    """Return host:port of a socket's address; empty when the peer has gone already."""
    if not isinstance(peername, tuple):
        return ""
    host, port = peername[:2]
    return join_address(host, port)
