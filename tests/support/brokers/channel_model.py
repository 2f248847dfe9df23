"""
Reference model of one channel on one nsqd, and of a consumer of several nsqds.

It models what a session depends on: RDY, messages in flight, their timeouts, TOUCH up to
max-msg-timeout, deferred requeues, refusals, pauses, emptying, and a lost connection. Data
from nsqd stays in a stream until the gateway reads it.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from gateway.protocol.frames import ErrorFrame, Message

MAX_MSG_TIMEOUT_S = 70.0
TIMESTAMP_NS = 1_790_000_000_000_000_000


class State(enum.Enum):
    """The state of one sending; every other state follows IN_FLIGHT, once."""

    IN_FLIGHT = enum.auto()
    FINISHED = enum.auto()
    REQUEUED = enum.auto()
    TIMED_OUT = enum.auto()
    EMPTIED = enum.auto()
    LOST = enum.auto()
    """The connection of the sending was closed."""


@dataclass(eq=False, repr=False)
class Sending:
    """One delivery attempt of a message to the consumer."""

    serial: int
    """Prefix of the body, which identifies the sending in a client's delivery."""
    message: Message
    sent_at: float
    deadline: float
    """Message timeout by nsqd's clock, which may be slightly ahead of the consumer's."""
    ceiling: float
    consumer_deadline: float
    """Message timeout as the consumer computes it."""
    consumer_ceiling: float
    """The latest `consumer_deadline` that TOUCH can reach."""
    state: State = State.IN_FLIGHT
    is_read: bool = False
    """True once the gateway has read the message."""
    is_answered_unread: bool = False
    """True if an ack of an earlier sending was applied to this one."""

    def read(self, since: float, timeout_s: float) -> None:
        """
        Mark the message as read, together with others, the first of which was sent at *since*.

        The consumer gets one time for all messages of a read, so it assumes that of the first.
        """
        self.is_read = True
        self.consumer_ceiling = since + MAX_MSG_TIMEOUT_S
        self.consumer_deadline = min(since + timeout_s, self.consumer_ceiling)

    def __repr__(self) -> str:
        """Return a short form for a printed history."""
        return f"{self.serial}: {self.message.id.decode()} {self.state}"

    def end(self, state: State) -> None:
        """Leave the state IN_FLIGHT; only possible once."""
        assert self.state is State.IN_FLIGHT, (self.state, state)
        self.state = state


@dataclass(eq=False, repr=False)
class Channel:
    """A channel on one nsqd; *connection* is None while the consumer has none."""

    number: int
    timeout_s: float
    clock_ahead_s: float
    """Time by which a message times out earlier than the consumer expects."""
    scan_late_s: float
    """Delay of nsqd's scan for timed-out messages."""
    queue: deque[tuple[bytes, int, int]] = field(default_factory=deque)
    """Message id, attempts so far, and bytes of the body."""
    deferred: list[tuple[float, tuple[bytes, int, int]]] = field(default_factory=list)
    is_paused: bool = False
    connection: Connection | None = None
    published: int = 0

    def __repr__(self) -> str:
        """Return its number: a history prints it again and again."""
        return f"channel {self.number}"

    def publish(self, size: int, attempts: int) -> None:
        """Put a message at the end; the ids of every nsqd are the same."""
        self.published += 1
        self.queue.append((b"%016x" % self.published, attempts, size))

    def empty(self) -> list[Sending]:
        """Drop all messages; return those in flight."""
        self.queue.clear()
        self.deferred.clear()
        if self.connection is None:
            return []
        dropped = list(self.connection.in_flight.values())
        self.connection.in_flight.clear()
        for sending in dropped:
            sending.end(State.EMPTIED)
        return dropped

    def put_back(self, sending: Sending) -> None:
        """Queue the message of *sending* again."""
        message = sending.message
        self.queue.append((message.id, message.attempts, len(message.body)))


@dataclass(eq=False, repr=False)
class Connection:
    """One connection of the consumer to an nsqd."""

    source: int
    channel: Channel
    in_flight: dict[bytes, Sending] = field(default_factory=dict)
    last: dict[bytes, Sending] = field(default_factory=dict)
    """The last sending of each message."""
    stream: deque[tuple[float, Sending | ErrorFrame]] = field(default_factory=deque)
    """Data that nsqd wrote and the gateway has not read, with the time of each write."""

    def __repr__(self) -> str:
        """Return the number of the connection."""
        return f"source {self.source}"


class Nsqds:
    """Several channels with the consumer's connections; *ready* is the sum over all."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.connections: dict[int, Connection] = {}
        self.ready = 0
        self.serials: dict[int, Sending] = {}
        self._sources = 0
        self._next = 0

    @property
    def in_flight(self) -> int:
        """Messages that are in flight, over all connections."""
        return sum(len(each.in_flight) for each in self.connections.values())

    @property
    def depth(self) -> int:
        """Messages that could be sent to the consumer now, if RDY allowed it."""
        return sum(
            len(each.channel.queue)
            for each in self.connections.values()
            if not each.channel.is_paused
        )

    def connect(self, channel: Channel) -> Connection:
        """Subscribe to *channel*."""
        self._sources += 1
        connection = channel.connection = Connection(self._sources, channel)
        self.connections[connection.source] = connection
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Close a connection, and requeue its messages in flight."""
        del self.connections[connection.source]
        connection.channel.connection = None
        for sending in connection.in_flight.values():
            sending.end(State.LOST)
            connection.channel.put_back(sending)
        connection.in_flight.clear()

    def pump(self, now: float) -> None:
        """Send messages up to RDY, to connections in turn."""
        while self.in_flight < self.ready:
            able = [
                each
                for each in self.connections.values()
                if each.channel.queue and not each.channel.is_paused
            ]
            if not able:
                return
            self._next += 1
            self._send(able[self._next % len(able)], now)

    def _send(self, connection: Connection, now: float) -> None:
        channel = connection.channel
        message_id, attempts, size = channel.queue.popleft()
        serial = len(self.serials) + 1
        body = (b"%d:" % serial).ljust(size, b"x")
        sending = Sending(
            serial,
            Message(TIMESTAMP_NS, attempts + 1, message_id, body),
            sent_at=now,
            deadline=now + channel.timeout_s - channel.clock_ahead_s,
            ceiling=now + MAX_MSG_TIMEOUT_S - channel.clock_ahead_s,
            consumer_deadline=now + channel.timeout_s,
            consumer_ceiling=now + MAX_MSG_TIMEOUT_S,
        )
        self.serials[serial] = connection.in_flight[message_id] = sending
        connection.last[message_id] = sending
        connection.stream.append((now, sending))

    # Time

    def next_event(self) -> float:
        """Return when a message times out or is not deferred any more."""
        moments = [at for channel in self.channels for at, _ in channel.deferred]
        for connection in self.connections.values():
            late_s = connection.channel.scan_late_s
            moments += [each.deadline + late_s for each in connection.in_flight.values()]
        return min(moments, default=float("inf"))

    def tick(self, now: float) -> None:
        """Requeue timed-out messages, and queue due deferred ones."""
        for channel in self.channels:
            for deferred in [each for each in channel.deferred if each[0] <= now]:
                channel.deferred.remove(deferred)
                channel.queue.append(deferred[1])
        for connection in self.connections.values():
            late_s = connection.channel.scan_late_s
            for sending in list(connection.in_flight.values()):
                if sending.deadline + late_s <= now:
                    del connection.in_flight[sending.message.id]
                    sending.end(State.TIMED_OUT)
                    connection.channel.put_back(sending)
        self.pump(now)

    # Commands

    def finish(self, source: int, message_id: bytes, now: float) -> Sending | None:
        """Execute FIN; return the finished message, or None if nsqd refuses it."""
        return self._answer("FIN", source, message_id, now)

    def requeue(self, source: int, message_id: bytes, delay_s: float, now: float) -> Sending | None:
        """Execute REQ; return as `finish`."""
        sending = self._answer("REQ", source, message_id, now)
        if sending is not None:
            channel = self.connections[source].channel
            message = sending.message
            entry = (message.id, message.attempts, len(message.body))
            if delay_s > 0:
                channel.deferred.append((now + delay_s, entry))
            else:
                channel.queue.append(entry)
        return sending

    def touch(self, source: int, message_id: bytes, now: float) -> None:
        """Execute TOUCH."""
        connection = self.connections.get(source)
        if connection is None:
            return
        sending = connection.in_flight.get(message_id)
        if sending is None:
            self._refuse(connection, "TOUCH", message_id, now)
            return
        sending.deadline = min(now + connection.channel.timeout_s, sending.ceiling)
        sending.consumer_deadline = min(
            now + connection.channel.timeout_s, sending.consumer_ceiling
        )

    def _answer(self, verb: str, source: int, message_id: bytes, now: float) -> Sending | None:
        connection = self.connections.get(source)
        if connection is None:
            return None
        sending = connection.in_flight.pop(message_id, None)
        if sending is None:
            last = connection.last[message_id]
            # Never for an answer that was given before: that is up to the session.
            assert last.state in {State.TIMED_OUT, State.EMPTIED} or last.is_answered_unread, (
                f"{verb} of a message that is {last.state}"
            )
            self._refuse(connection, verb, message_id, now)
            return None
        sending.is_answered_unread = not sending.is_read
        sending.end(State.FINISHED if verb == "FIN" else State.REQUEUED)
        return sending

    def _refuse(self, connection: Connection, verb: str, message_id: bytes, now: float) -> None:
        text = f"{verb} {message_id.decode()} failed ID not in flight"
        connection.stream.append((now, ErrorFrame(f"E_{verb}_FAILED", text)))
