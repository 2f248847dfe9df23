"""
Connections for publishing, in one pool per secret.

A connection sends AUTH once, so that two secrets never share one. Each connection has one command
in flight; publishes that arrive meanwhile form the next one. While a topic has publishes on a
connection, new ones join them there, so that batches grow.

A connection and its pool are one module: an unwritten publish moves between connections, and every
move needs both.
"""

from __future__ import annotations

import asyncio
import enum
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gateway.client.batch import Batch, PendingPublish, PublishQueue
from gateway.client.connection import BrokerConnection, ConnectionOptions, Reply
from gateway.client.handshake import open_connection
from gateway.client.metrics import PUBLISHER, nsqd_label
from gateway.client.nsqd_node import NsqdNode
from gateway.client.reconnect import Reconnector
from gateway.credentials import Secret
from gateway.errors import (
    NOT_STORED_CODES,
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
    PublishError,
)
from gateway.protocol.frames import OK, ErrorFrame, Message
from gateway.protocol.wire import Limits
from gateway.telemetry import SHORT_SECONDS_BUCKETS, get_logger, histogram

logger = get_logger()

_DURATION = histogram(
    "publish_duration_seconds",
    "Time from writing a publish command to nsqd's response, by nsqd.",
    ("nsqd",),
    buckets=SHORT_SECONDS_BUCKETS,
)

STALL_S = 0.5
"""
Age in seconds at which an unanswered command makes its nsqd suspect.

nsqd answers within a millisecond, or within tens of them on a slow disk. After half a second it
hangs or the network is down. Callers of written publishes keep waiting; queued publishes move to
another nsqd, with nine tenths of the default timeout left.
"""

_RETRIED_ONE_BY_ONE = frozenset(
    {"E_BAD_TOPIC", "E_BAD_BODY", "E_BAD_MESSAGE", "E_AUTH_FAILED", "E_UNAUTHORIZED"}
)
"""Codes of nsqd that refuse a whole batch, possibly because of a single publish in it."""

_REFUSALS = _RETRIED_ONE_BY_ONE | NOT_STORED_CODES | {"E_INVALID", "E_AUTH_FIRST"}
"""Codes with which nsqd refuses a publish (nsqd/protocol_v2.go: PUB, MPUB, DPUB)."""

OnTopicSeen: TypeAlias = Callable[[str, str], None]
"""Called with a topic and the address of an nsqd that has accepted a publish to it."""

OnOutcome: TypeAlias = Callable[[Sequence[PendingPublish], int, GatewayError | None], None]
"""Called with publishes, the bytes that they free, and their common error; None: published."""


@dataclass(frozen=True, kw_only=True)
class ProducerPoolOptions:
    """Time limits, sizes and numbers of producer connections."""

    timeout_ms: int = 5_000
    """Maximum time from a publish to its outcome."""
    limits: Limits = field(default_factory=Limits)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    connections_per_nsqd: int = 4
    """Maximum connections to each nsqd, per secret; all but the first are opened under load."""
    buffer_per_nsqd_bytes: int = 32 * 1_048_576
    """Maximum bytes queued or unanswered for one nsqd. Beyond this, publishes go to others."""
    max_secrets: int = 256
    """
    Maximum number of accepted secrets with connections; a new one replaces the least recently used.

    In addition, a quarter as many secrets may wait for nsqd to accept or refuse them.
    """
    secret_idle_s: float = 60.0
    """Connections of a secret are closed once unused for this time, at most twice this time."""
    own_secret: Secret | None = None
    """
    The gateway's secret for monitoring nsqds that require AUTH; None: they are not monitored.

    It never publishes: at such an nsqd, a publish without a secret raises AuthRequired.
    """


class ProducerConnectionState(enum.Enum):
    """Lifecycle of a producer connection; see `ProducerConnection`."""

    CONNECTING = enum.auto()
    OPEN = enum.auto()
    MONITORING = enum.auto()
    REFUSED = enum.auto()
    RETRYING = enum.auto()
    CLOSED = enum.auto()


_CONNECTING, _OPEN, _MONITORING, _REFUSED, _RETRYING, _CLOSED = ProducerConnectionState

_NEXT_STATES: Mapping[ProducerConnectionState, frozenset[ProducerConnectionState]] = {
    _CONNECTING: frozenset({_OPEN, _MONITORING, _RETRYING, _CLOSED}),
    _OPEN: frozenset({_REFUSED, _RETRYING, _CLOSED}),
    _MONITORING: frozenset({_RETRYING, _CLOSED}),
    _REFUSED: frozenset({_CONNECTING, _CLOSED}),
    _RETRYING: frozenset({_OPEN, _MONITORING, _RETRYING, _CLOSED}),
    _CLOSED: frozenset({_CLOSED}),
}
_PENDING = frozenset({_CONNECTING, _REFUSED})
"""States in which publishes may wait for the connection."""


class ProducerConnection:
    """
    A connection for publishing, with at most one command in flight and a queue.

    ::

        CONNECTING ── connected ─▶ OPEN ── refused a publish ─▶ REFUSED ── lost ─▶ CONNECTING
        CONNECTING ── failed ─▶ RETRYING ── connected ─▶ OPEN ── lost ─▶ RETRYING
        CONNECTING, RETRYING ── connected, for monitoring only ─▶ MONITORING ── lost ─▶ RETRYING
        any ── unexpected exception in `_connect` ─▶ RETRYING
        any ── nsqd no longer found, or pool closing ─▶ CLOSED

    nsqd closes the connection after refusing a publish. This is no outage, so the connection is
    reopened at once, and publishes wait for it if no other one is open. In RETRYING attempts
    follow with growing delays, and publishes do not wait for them.
    """

    def __init__(self, pool: ProducerPool, node: NsqdNode) -> None:
        self.node = node
        """The nsqd at the other end."""
        self.load_bytes = 0
        """Bytes of publishes that are queued here, or written and unanswered."""
        self.error: GatewayError | None = None
        """Why the connection is not open; None while it is, or before the first attempt ended."""
        self._pool = pool
        self._on_outcome = pool.on_outcome
        self._on_topic_seen = pool.on_topic_seen
        self._timeout_s = pool.options.timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._queue = PublishQueue(pool.options.limits)
        self._duration = _DURATION.labels(nsqd_label(node.address))
        self._in_flight: Batch | None = None
        self._written_at = 0.0
        """When the batch in flight was written, monotonic seconds."""
        self._clock_at_write = 0.0
        """The same by `time.perf_counter`: the event loop's clock stands still within a turn."""
        self._is_shared = False
        """True if the batch in flight was written with several publishes."""
        self._state = _CONNECTING
        self._broker: BrokerConnection | None = None
        self._reconnector = Reconnector("connect publisher to", node.address)
        self._is_flush_scheduled = False

    def _enter(self, state: ProducerConnectionState) -> None:
        assert state in _NEXT_STATES[self._state]  # noqa: S101 - the table is complete
        self._state = state
        # `wait_attempted` waits exactly while publishes may wait for this connection.
        if state in _PENDING:
            self._reconnector.attempted.clear()
        else:
            self._reconnector.attempted.set()

    @property
    def can_publish(self) -> bool:
        """True if a publish can be written now."""
        broker = self._broker
        return broker is not None and broker.is_open and self._state is _OPEN

    @property
    def is_connected(self) -> bool:
        """True if a connection exists, for publishes or for monitoring."""
        return self._broker is not None and self._broker.is_open

    @property
    def is_pending(self) -> bool:
        """True while it is not open yet, but a publish may be queued until it opens."""
        return self._state in _PENDING

    @property
    def is_idle(self) -> bool:
        """True if nothing is queued or in flight."""
        return self._in_flight is None and not self._queue

    async def wait_attempted(self) -> None:
        """Wait until the connection is no longer pending; see `is_pending`."""
        await self._reconnector.attempted.wait()

    # Publishing

    def add(self, publish: PendingPublish) -> None:
        """Queue *publish*, to be written after this turn if nothing is in flight."""
        size_bytes = publish.size_bytes
        self.load_bytes += size_bytes
        self.node.held_bytes += size_bytes
        self._queue.add(publish)
        if self._in_flight is None and not self._is_flush_scheduled:
            # Not at once, so that all publishes of this turn share a command.
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write the next batch, if the connection is open and no command is in flight."""
        self._is_flush_scheduled = False
        broker = self._broker
        if self._in_flight is not None or broker is None or not broker.is_open:
            return
        batch = self._in_flight = self._queue.take()
        if batch is not None:
            self._written_at = self._loop.time()
            self._clock_at_write = time.perf_counter()
            self._is_shared = len(batch.publishes) > 1
            try:
                broker.send_request(batch.command(), self._on_reply)
            except Exception as error:
                # A bug. Without an answer to the batch, nothing would be written any more.
                logger.exception("publish not encoded", nsqd=self.node.address, topic=batch.topic)
                self._on_not_encoded(batch, error)

    def _on_not_encoded(self, batch: Batch, error: Exception) -> None:
        """Fail *batch*, of which nothing was written, and go on with the next one."""
        self._in_flight = None
        if self._queue and not self._is_flush_scheduled:
            # Not at once: each of many batches might fail, and this would recurse.
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
        if not self._has_work_for(batch.topic):
            self._pool.release_topic(batch.topic, self)
        text = f"unexpected {type(error).__name__} while encoding, which is in the log"
        text = f"{text}; the message was not published"
        self._answer(batch.publishes, batch.size_bytes, PublishError(text))

    def _on_reply(self, reply: Reply) -> None:
        batch, self._in_flight = self._in_flight, None
        assert batch is not None  # noqa: S101 - a reply answers what is in flight
        error = None
        if not isinstance(reply, BrokerUnreachable):
            self._duration.observe(time.perf_counter() - self._clock_at_write)
        if reply != OK:
            error = self._on_failure(batch, reply)
        else:
            if self._broker is not None:
                self._broker.metrics.messages += batch.message_count
            self._on_topic_seen(batch.topic, self.node.address)
            # Without a suspicion, the common case, the clock need not be read.
            if self.node.is_suspect:
                self.node.mark_alive(self._loop.time())
        if self._queue:
            # Before the callbacks: nsqd works on the next batch while they run.
            self._flush()
        if not self._has_work_for(batch.topic):
            self._pool.release_topic(batch.topic, self)
        self._answer(batch.publishes, batch.size_bytes, error)

    def _has_work_for(self, topic: str) -> bool:
        in_flight = self._in_flight
        return topic in self._queue or (in_flight is not None and in_flight.topic == topic)

    def _answer(
        self, publishes: Sequence[PendingPublish], size_bytes: int, error: GatewayError | None
    ) -> None:
        """Stop counting *size_bytes* here, and report the common *error* of *publishes*."""
        self.load_bytes -= size_bytes
        self.node.held_bytes -= size_bytes
        self._on_outcome(publishes, size_bytes, error)

    def _on_failure(self, batch: Batch, reply: Reply) -> PublishError:
        """Return the error for the callers of *batch*, whose *reply* is not OK."""
        if isinstance(reply, BrokerUnreachable):
            return OutcomeUnknown(f"{reply}; the message may or may not be published")
        if isinstance(reply, ErrorFrame):
            return self._on_refusal(batch, reply)
        address = self.node.address
        text = f"nsqd at {address} answered {reply.data[:64]!r} to a publish, which is not OK"
        if self._broker is not None:
            # V2 knows only OK and error frames here: later replies may be misplaced as well.
            self._broker.abort(text)
        return OutcomeUnknown(f"{text}; the message may or may not be published")

    def _on_refusal(self, batch: Batch, frame: ErrorFrame) -> PublishError:
        """Return the error for nsqd's *frame*; remove publishes that are retried from *batch*."""
        if self._state is _OPEN:
            self._enter(_REFUSED)
        error = _refusal(frame)
        # Those not in the table are left out: "nsqd not storing messages" is their log line.
        if frame.code not in NOT_STORED_CODES and self.node.should_log_refusal(
            frame.code, self._loop.time()
        ):
            logger.info(
                "nsqd refused a publish",
                nsqd=self.node.address,
                code=frame.code,
                reason=frame.description,
            )
        if self._is_shared and frame.code in _RETRIED_ONE_BY_ONE:
            # One bad publish makes nsqd refuse the whole MPUB: retry each one alone, so that only
            # the bad one fails.
            self._queue.add_first(batch.publishes)
            batch.publishes = []
            batch.size_bytes = 0
        elif isinstance(error, BrokerRefused) and error.is_auth_error:
            self._pool.on_topic_refused(batch.topic, error)
        elif frame.code in NOT_STORED_CODES:
            if not self.node.is_suspect:
                logger.warning(
                    "nsqd not storing messages",
                    nsqd=self.node.address,
                    code=frame.code,
                    reason=frame.description,
                )
            self.node.mark_refusing(self._loop.time())
            if isinstance(error, BrokerRefused) and self._pool.reroute_topics(self):
                # nsqd stored nothing, so another nsqd may take the batch without duplicates.
                publishes, batch.publishes, batch.size_bytes = batch.publishes, [], 0
                self._resubmit(publishes)
        return error

    def sweep(self, now: float) -> None:
        """Fail overdue publishes; suspect an nsqd that does not answer, and abort at last."""
        overdue = self._queue.take_overdue(now)
        if overdue:
            for topic in {publish.topic for publish in overdue}:
                if not self._has_work_for(topic):
                    self._pool.release_topic(topic, self)
            timeout_ms = self._pool.options.timeout_ms
            text = f"no nsqd accepted the message within {timeout_ms} ms; it was not published"
            self._answer(overdue, _size_of(overdue), NoBroker(text))
        if self._in_flight is not None:
            self._sweep_in_flight(self._in_flight, now)
        elif self._broker is not None:
            # With nothing in flight, heartbeats prove that nsqd is alive.
            self.node.mark_alive(self._broker.last_read)

    def _sweep_in_flight(self, batch: Batch, now: float) -> None:
        timeout_ms = self._pool.options.timeout_ms
        waiting_s = now - self._written_at
        if waiting_s >= STALL_S:
            if not self.node.is_suspect:
                logger.warning("nsqd not answering publishes", nsqd=self.node.address)
            self.node.mark_suspect(now)
        overdue = batch.take_overdue(now)
        if overdue:
            text = f"nsqd at {self.node.address} did not answer within {timeout_ms} ms"
            error = OutcomeUnknown(f"{text}; the message may or may not be published")
            self._answer(overdue, _size_of(overdue), error)
        # Measured from the write: a publish may be overdue because it was queued for long.
        if waiting_s >= self._timeout_s and self._broker is not None:
            # Replies come in order: without this one, no later command can be answered.
            self._broker.abort(f"no answer within {timeout_ms} ms")

    def move_queued(self, max_bytes: float = math.inf) -> None:
        """
        Submit queued publishes to the pool again, which may choose another connection.

        *max_bytes* limits how much moves, rounded up to whole batches.
        """
        self._resubmit(self._queue.take_up_to(max_bytes))

    def _resubmit(self, publishes: Sequence[PendingPublish]) -> None:
        size_bytes = _size_of(publishes)
        self.load_bytes -= size_bytes
        self.node.held_bytes -= size_bytes
        for publish in publishes:
            self._pool.submit(publish)

    # Connecting

    def open(self) -> None:
        """Connect in the background, with retries for ever."""
        self._reconnector.start_now(self._connect)

    async def _connect(self) -> bool:
        """Try to connect; return False after setting `error`."""
        node = self.node
        try:
            broker = await open_connection(node.address, self._pool.options.connection, self)
        except (BrokerUnreachable, AuthRequired, BrokerRefused) as error:
            # The other two errors come from AUTH, which only an nsqd that requires it gets.
            node.requires_auth |= not isinstance(error, BrokerUnreachable)
            self._reconnector.is_auth_missing = isinstance(error, AuthRequired)
            if isinstance(error, BrokerRefused) and self._pool.is_for_monitoring:
                self._on_own_secret_refused(error)
            else:
                self._on_connect_failed(error)
            return False
        except Exception as error:
            self._on_unexpected(error)
            raise
        try:
            self._on_opened(broker)
        except Exception as error:
            # None before the abort: its end is no loss, and starts no second reconnect.
            self._broker = None
            broker.abort()
            self._on_unexpected(error)
            raise
        return True

    def _on_opened(self, broker: BrokerConnection) -> None:
        node = self.node
        self._broker = broker
        broker.metrics.opened(PUBLISHER, node.address)
        node.requires_auth = broker.answer.auth_required
        node.mark_alive(self._loop.time())
        node.on_connected()
        if self._pool.is_for_monitoring and node.requires_auth:
            # nsqd accepted the gateway's own secret, which must not publish for callers without.
            self._enter(_MONITORING)
            self._reject_queued(AuthRequired(_auth_required(node.address)))
            self._pool.on_connected(self)
            return
        self.error = None
        self._enter(_OPEN)
        self._pool.on_connected(self)
        self._flush()

    def _on_unexpected(self, error: Exception) -> None:
        """Abandon an attempt that failed by a bug, which the reconnector logs before the next."""
        self._enter(_RETRYING)
        text = f"unexpected {type(error).__name__} while connecting, which is in the log"
        self.error = BrokerUnreachable(self.node.address, text)
        # Publishes must not wait here for ever.
        self.move_queued()

    def _on_connect_failed(self, error: GatewayError) -> None:
        if isinstance(error, BrokerUnreachable) and self.node.should_log(error.reason):
            logger.warning("nsqd unreachable", nsqd=self.node.address, reason=error.reason)
        self._enter(_RETRYING)
        self._reject_queued(error)

    def _reject_queued(self, error: GatewayError) -> None:
        """Set `error`, and submit queued publishes to the pool again: none can be written here."""
        self.error = error
        self.move_queued()
        self._pool.report_if_secret_refused(self)

    def _on_own_secret_refused(self, error: BrokerRefused) -> None:
        """Log the first of consecutive refusals; publishes without a secret raise AuthRequired."""
        if not isinstance(self.error, AuthRequired):
            logger.warning(
                "nsqd refused the gateway's own secret",
                nsqd=self.node.address,
                reason=str(error),
                advice="correct --auth-secret or --auth-secret-file, or let nsqd's auth server "
                "know it",
            )
        self._on_connect_failed(AuthRequired(_auth_required(self.node.address)))

    # Closing

    def cancel(self) -> None:
        """Stop connecting, and submit queued publishes to the pool again; close no connection."""
        self._reconnector.cancel()
        if not self.is_connected:
            self._enter(_CLOSED)
        self.move_queued()

    async def close(self) -> None:
        """Stop connecting, and close the connection."""
        await self._reconnector.close()
        if self._broker is not None:
            await self._broker.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._broker is not None:
            self._broker.abort()

    # Called by the connection

    def on_messages(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Never called: without a subscription, a message aborts the connection."""

    def on_ack_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Never called: a producer sends no FIN, REQ or TOUCH."""

    def on_connection_lost(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Move unwritten publishes to other connections, and reconnect."""
        connection.metrics.ended(error)
        if connection is not self._broker:
            # Its attempt failed after the handshake; the reconnector has gone on.
            return
        self._broker = None
        self.error = error
        # Callbacks of commands in flight have run before this, so nothing is in flight here.
        was_refused = self._state is _REFUSED
        if not (was_refused or self._pool.is_closing):
            self._pool.on_connection_lost(self, error.reason)
        is_kept = self._pool.unbind_lost(self) and self._state is not _CLOSED
        # Before the move: in CONNECTING this connection may get its publishes back.
        self._enter(_CLOSED if not is_kept else _CONNECTING if was_refused else _RETRYING)
        self.move_queued()
        if not is_kept:
            return
        if was_refused:
            self._reconnector.start_now(self._connect)
        else:
            uptime_s = self._loop.time() - connection.opened_at
            self._reconnector.start_later(self._connect, uptime_s=uptime_s)


def _auth_required(address: str) -> str:
    return f"nsqd at {address} requires AUTH and there is no secret"


def _size_of(publishes: Sequence[PendingPublish]) -> int:
    return sum(publish.size_bytes for publish in publishes)


def _refusal(frame: ErrorFrame) -> PublishError:
    """Return the caller's error for nsqd's error *frame*."""
    if frame.code not in _REFUSALS:
        # No code that nsqd has for a publish, so the message may have been stored.
        text = f"{frame.code} {frame.description}".rstrip()
        return OutcomeUnknown(f"{text}; the message may or may not be published")
    if frame.code == "E_MPUB_FAILED" and "exiting" not in frame.description:
        # nsqd stores the messages of an MPUB one by one, so a disk error leaves a part stored.
        text = f"{frame.code} {frame.description}; some of the messages may be published"
        return OutcomeUnknown(text)
    return BrokerRefused(frame.code, frame.description)


@dataclass(frozen=True, kw_only=True)
class PoolContext:
    """Options and callbacks that all pools share."""

    options: ProducerPoolOptions
    node: Callable[[str], NsqdNode]
    """Returns the state of the nsqd at an address, the same for all pools."""
    on_outcome: OnOutcome
    on_topic_seen: OnTopicSeen
    on_secret_refused: Callable[[ProducerPool, str | None, GatewayError], None]
    """Called when nsqd refuses a pool's secret for a topic, or for all topics (None)."""


class ProducerPool:
    """The producer connections of one secret, or of all callers without a secret."""

    def __init__(self, context: PoolContext, *, secret: Secret | None) -> None:
        own_secret = context.options.own_secret if secret is None else None
        self.secret = secret
        self.options = context.options
        if used := secret or own_secret:
            connection = replace(self.options.connection, secret=used)
            self.options = replace(self.options, connection=connection)
        self.is_for_monitoring = own_secret is not None
        """True with the gateway's own secret: connections that needed it take no publishes."""
        self.is_closing = False
        self.is_proven = False
        """True if an nsqd has accepted the secret."""
        self.used_at = 0.0
        """Time of the last publish, monotonic seconds."""
        self.on_outcome = context.on_outcome
        self.on_topic_seen = context.on_topic_seen
        self._context = context
        # The pool without a secret serves many callers, so it opens all connections at once. A
        # secret may publish just once, and monitoring needs one connection.
        has_secret = secret is not None or own_secret is not None
        self._initial_count = 1 if has_secret else self.options.connections_per_nsqd
        self._addresses: Sequence[str] = ()
        self._connections: list[ProducerConnection] = []
        self._by_topic: dict[str, ProducerConnection] = {}
        """By topic, the connection where its publishes are queued, so that its batches grow."""
        self._turn = 0
        """Number of choices so far; `least_loaded` rotates by it among equals."""
        self._logged_counts: dict[str, int] = {}
        """By nsqd with connections, the number of them that was logged last."""
        self._unlogged: dict[str, str] = {}
        """By nsqd whose connections changed in this turn, why one was lost (empty: none)."""

    # Addresses

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """
        Connect to new *addresses*.

        A working connection is kept even if its nsqd is missing in *addresses*.
        """
        self._addresses = addresses
        known = self.addresses_in_use
        for _ in range(self._initial_count):
            # One per nsqd and round, so that `least_loaded` alternates between nsqds.
            for address in addresses:
                if address not in known:
                    self._add_connection(address)
        for connection in self._connections[:]:
            if not (connection.is_connected or connection.node.address in addresses):
                self._remove(connection)

    @property
    def addresses_in_use(self) -> set[str]:
        """Addresses of all connections, including nsqds that discovery no longer returns."""
        return {connection.node.address for connection in self._connections}

    def _add_connection(self, address: str) -> None:
        connection = ProducerConnection(self, self._context.node(address))
        self._connections.append(connection)
        connection.open()

    def _remove(self, connection: ProducerConnection) -> None:
        self._connections.remove(connection)
        self._log_soon(connection.node.address, "")
        self._forget_topics(connection)
        connection.cancel()

    async def first_attempts(self) -> list[str]:
        """
        Wait for the first attempt of each connection; return one line per unreachable nsqd.

        nsqds that require AUTH are left out, because callers bring their secrets.
        """
        # A copy: discovery may add and remove connections meanwhile.
        for connection in self._connections[:]:
            await connection.wait_attempted()
        errors = {
            each.node.address: each.error for each in self._connections if not each.can_publish
        }
        return [str(error) for error in errors.values() if not isinstance(error, AuthRequired)]

    @property
    def nsqds_requiring_auth(self) -> int:
        """Number of nsqds without a connection because they require a secret."""
        return len(
            {
                connection.node.address
                for connection in self._connections
                if isinstance(connection.error, AuthRequired) and not connection.is_connected
            }
        )

    @property
    def has_open_connection(self) -> bool:
        """True if any connection can take a publish now."""
        return any(connection.can_publish for connection in self._connections)

    # Publishing

    def submit(self, publish: PendingPublish) -> None:
        """
        Queue *publish* on an open or pending connection; without one, report its error.

        A topic stays on a connection that has publishes of it while the nsqd has room.
        """
        connection = self._by_topic.get(publish.topic)
        if connection is None or not connection.node.has_room(publish.size_bytes):
            connection = self._choose(publish)
            if connection is None:
                return
        connection.add(publish)

    def _choose(self, publish: PendingPublish) -> ProducerConnection | None:
        """Choose a connection for *publish*, bind the topic to it; None: an error was reported."""
        if self.is_closing:
            text = "the connections of this secret are being closed; nothing was published"
            self.on_outcome([publish], publish.size_bytes, NoBroker(f"{text}, try again"))
            return None
        self._turn += 1
        usable = self._usable()
        chosen = least_loaded(usable, publish.size_bytes, turn=self._turn)
        if chosen is not None:
            # No idle connection has room, so that one more is of use.
            if chosen.load_bytes:
                self._grow(chosen.node.address)
            # Not bound to a draining nsqd: the next publish goes elsewhere if it can by then.
            if not chosen.node.is_draining:
                self._by_topic[publish.topic] = chosen
            return chosen
        candidates = [each for each in usable if each.can_publish]
        if not candidates:
            # Not bound in `_by_topic`: later publishes may use another one that opens sooner.
            candidates = [each for each in usable if each.is_pending]
            with_room = [each for each in candidates if each.node.has_room(publish.size_bytes)]
            if with_room:
                return min(with_room, key=lambda each: each.load_bytes)
        error = self._overloaded(publish, candidates) if candidates else self._unavailable()
        self.on_outcome([publish], publish.size_bytes, error)
        return None

    def _usable(self) -> Sequence[ProducerConnection]:
        """Return the connections to choose from: to draining nsqds only if there are no others."""
        others = [each for each in self._connections if not each.node.is_draining]
        can_avoid = any(each.can_publish or each.is_pending for each in others)
        return others if can_avoid else self._connections

    def _grow(self, address: str) -> None:
        """Open one more connection to *address*, up to the limit, unless one is being opened."""
        connections = [each for each in self._connections if each.node.address == address]
        if len(connections) < self.options.connections_per_nsqd and not any(
            each.is_pending for each in connections
        ):
            self._add_connection(address)

    @staticmethod
    def _overloaded(
        publish: PendingPublish, candidates: Sequence[ProducerConnection]
    ) -> Overloaded:
        """Return the error for *publish* if no candidate's nsqd has room for it."""
        node = min((each.node for each in candidates), key=lambda node: node.held_bytes)
        return Overloaded(
            waiting_bytes=node.held_bytes,
            size_bytes=publish.size_bytes,
            limit_bytes=node.limit_bytes,
            where="queued for each connected nsqd",
        )

    def _unavailable(self) -> GatewayError:
        """Return why no connection is open; prefer a refusal to an unreachable nsqd."""
        for connection in self._connections:
            if isinstance(connection.error, AuthRequired | BrokerRefused):
                return connection.error
        errors = {each.node.address: each.error for each in self._connections if each.error}
        text = "; ".join(map(str, errors.values())) or "no address of an nsqd is known"
        return NoBroker(f"no nsqd can take the message; nothing was published ({text})")

    def sweep(self, now: float) -> None:
        """Fail overdue publishes, and move queues from nsqds that are avoided to others."""
        for connection in self._connections[:]:
            connection.sweep(now)
        avoided = [each for each in self._connections if each.node.is_avoided and not each.is_idle]
        if avoided:
            self._move_queues(avoided)

    def _move_queues(self, avoided: Sequence[ProducerConnection]) -> None:
        """Move publishes queued on *avoided* connections, as far as other nsqds have room."""
        open_connections = [each for each in self._connections if each.can_publish]
        nodes = {each.node for each in open_connections if not each.node.is_avoided}
        for connection in avoided:
            # No more than fits: `submit` would return the rest to this queue at each sweep.
            room_bytes = sum(node.limit_bytes - node.held_bytes for node in nodes)
            if room_bytes > 0:
                self._forget_topics(connection)
                connection.move_queued(room_bytes)

    def _forget_topics(self, connection: ProducerConnection) -> None:
        """Unbind all topics of *connection*, so that any connection may take them."""
        self._by_topic = {
            topic: other for topic, other in self._by_topic.items() if other is not connection
        }

    @property
    def is_idle(self) -> bool:
        """True if nothing is queued or in flight."""
        return all(connection.is_idle for connection in self._connections)

    # Called by the connections

    def release_topic(self, topic: str, connection: ProducerConnection) -> None:
        """Unbind *topic* from *connection*, which has no more publishes of it."""
        # After a move, the topic may already be bound to another connection.
        if self._by_topic.get(topic) is connection:
            del self._by_topic[topic]

    def reroute_topics(self, connection: ProducerConnection) -> bool:
        """Unbind the topics of *connection*; return True if another nsqd can take publishes."""
        self._forget_topics(connection)
        return any(
            other.can_publish and other.node is not connection.node and not other.node.is_avoided
            for other in self._connections
        )

    def on_topic_refused(self, topic: str, error: BrokerRefused) -> None:
        """Report that the secret may not publish to *topic*."""
        self._context.on_secret_refused(self, topic, error)

    def on_connected(self, connection: ProducerConnection) -> None:
        """Mark the secret as accepted, and log the new number of connections."""
        self.is_proven = True
        self._log_soon(connection.node.address, "")
        self._add_missing(connection.node.address)

    def on_connection_lost(self, connection: ProducerConnection, reason: str) -> None:
        """Log a lost connection, with others of this turn; not called after a refused publish."""
        self._log_soon(connection.node.address, reason)

    def report_if_secret_refused(self, connection: ProducerConnection) -> None:
        """Report that the secret is refused, if no other connection is open or pending."""
        error = connection.error
        if isinstance(error, AuthRequired):
            self._keep_only(connection)
        if isinstance(error, AuthRequired | BrokerRefused) and not any(
            other.can_publish or other.is_pending for other in self._connections
        ):
            self._context.on_secret_refused(self, None, error)

    def unbind_lost(self, connection: ProducerConnection) -> bool:
        """Unbind the topics of a lost *connection*; return False if it was removed for good."""
        self._forget_topics(connection)
        is_kept = connection.node.address in self._addresses and not self.is_closing
        if not is_kept and connection in self._connections:
            self._connections.remove(connection)
            self._log_soon(connection.node.address, "")
        return is_kept

    def _keep_only(self, connection: ProducerConnection) -> None:
        """Remove the nsqd's other unconnected connections: AUTH is required of them as well."""
        siblings = [each for each in self._connections if each.node is connection.node]
        for sibling in siblings:
            if sibling is not connection and not sibling.is_connected:
                self._remove(sibling)

    def _add_missing(self, address: str) -> None:
        """Open again the connections to *address* that `_keep_only` has removed."""
        if self.is_closing or address not in self._addresses:
            return
        count = sum(each.node.address == address for each in self._connections)
        for _ in range(count, self._initial_count):
            self._add_connection(address)

    # Logging: one line per nsqd for all its connections that changed in one event-loop turn

    def _log_soon(self, address: str, reason: str) -> None:
        if address not in self._unlogged:
            asyncio.get_running_loop().call_soon(self._log_count, address)
        self._unlogged[address] = reason or self._unlogged.get(address, "")

    def _log_count(self, address: str) -> None:
        """Log the number of connections: if it fell, if it rose from 0, or if all are connected."""
        reason = self._unlogged.pop(address)
        connections = [each for each in self._connections if each.node.address == address]
        if self.is_closing:
            return
        count = sum(each.is_connected for each in connections)
        before = self._logged_counts.get(address, 0)
        if not connections:
            # Removed, because discovery no longer returns the nsqd. It may come back later.
            self._logged_counts.pop(address, None)
            reason = reason or "discovery no longer returns the nsqd"
        is_settled = all(each.is_connected or not each.is_pending for each in connections)
        fields = {"nsqd": address, "connections": f"{count}/{len(connections)}"}
        if self.secret is not None:
            fields["secret"] = self.secret.fingerprint
        if count < before:
            if not reason:
                # nsqd closes a connection after refusing a publish; it is reopened at once.
                return
            if connections:
                self._logged_counts[address] = count
            logger.warning("publisher disconnected", reason=reason, **fields)
        elif count > before and (count == len(connections) or not before) and is_settled:
            self._logged_counts[address] = count
            logger.info("publisher connected", **fields)

    # Closing

    async def close(self) -> None:
        """Close every connection; queued publishes fail with NoBroker."""
        self.is_closing = True
        self._by_topic.clear()
        connections = self._connections[:]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*(connection.close() for connection in connections))

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in self._connections[:]:
            connection.abort()


def least_loaded(
    connections: Sequence[ProducerConnection], size_bytes: int, *, turn: int
) -> ProducerConnection | None:
    """
    Return the least loaded open connection whose nsqd has room for *size_bytes*, or None.

    *turn* rotates the choice among equals. A suspect nsqd is used only if no other one has room.
    """
    best: ProducerConnection | None = None
    suspect: ProducerConnection | None = None
    for at in range(turn, turn + len(connections)):
        connection = connections[at % len(connections)]
        if not connection.can_publish or not connection.node.has_room(size_bytes):
            continue
        if connection.node.is_suspect:
            if suspect is None or connection.load_bytes < suspect.load_bytes:
                suspect = connection
        elif not connection.load_bytes:
            return connection  # none can be less loaded
        elif best is None or connection.load_bytes < best.load_bytes:
            best = connection
    return best or suspect
