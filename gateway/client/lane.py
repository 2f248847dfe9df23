"""
One connection for publishing, and what waits for it.

One command is in flight; what comes meanwhile fills the next one. What the answer means to each
caller is decided here, and who is told is the publisher's business.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from gateway.client.attempts import Attempts
from gateway.client.batch import Batch, PendingPublish, PublishQueue
from gateway.client.connection import BrokerConnection, ConnectionOptions, Reply
from gateway.client.connection_account import PUBLISHER
from gateway.client.mark import Mark
from gateway.client.node import Node
from gateway.client.opening import open_connection
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    NoBroker,
    OutcomeUnknown,
    PublishError,
)
from gateway.protocol.frames import OK, ErrorFrame, Message
from gateway.protocol.wire import Limits
from gateway.telemetry import SHORT_SECONDS_BUCKETS, get_logger, histogram

logger = get_logger()

_DURATION = histogram(
    "publish_duration_seconds",
    "From a publish that was written to nsqd to its answer.",
    buckets=SHORT_SECONDS_BUCKETS,
).labels()

TopicSeen: TypeAlias = Callable[[str, str], None]
"""Learns that the nsqd at an address has a topic: (topic, address)."""

Settle: TypeAlias = Callable[[Sequence[PendingPublish], int, GatewayError | None], None]
"""Tells the callers of these publishes, each once, and gives so many bytes free; None is OK."""

STALL_S = 0.5
"""
A command that is unanswered for so long makes its nsqd one to be avoided.

An nsqd answers within a millisecond, and where its disk is slow within some tens of them; one that
takes this long hangs, or nobody reaches it. The callers of what was written wait on; a tenth of the
time that they have is left to those behind them to go elsewhere.
"""

_SENT_ONE_BY_ONE = frozenset(
    {"E_BAD_TOPIC", "E_BAD_BODY", "E_BAD_MESSAGE", "E_AUTH_FAILED", "E_UNAUTHORIZED"}
)
"""Refusals of a batch that may be the fault of one publish in it."""

_REFUSALS = _SENT_ONE_BY_ONE | {
    "E_INVALID",
    "E_AUTH_FIRST",
    "E_PUB_FAILED",
    "E_DPUB_FAILED",
    "E_MPUB_FAILED",
}
"""What nsqd answers to a publish that it does not take (nsqd/protocol_v2.go, PUB, MPUB, DPUB)."""


@dataclass(frozen=True, kw_only=True)
class LaneOptions:
    """How to connect, what the broker takes, and how long it may take for it."""

    timeout_ms: int = 5_000
    """Time from a publish to its answer."""
    limits: Limits = field(default_factory=Limits)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)


class LaneOwner(Protocol):
    """The pool, as its lanes see it."""

    is_closing: bool

    settle: Settle

    topic_seen: TopicSeen

    @property
    def options(self) -> LaneOptions:
        """What holds for each lane."""

    def submit(self, publish: PendingPublish) -> None:
        """Find another lane for *publish*, or answer it."""

    def topic_ended(self, topic: str, lane: Lane) -> None:
        """Learn that *lane* has no more work for *topic*."""

    def topic_refused(self, topic: str, error: BrokerRefused) -> None:
        """Learn that the secret may not publish to *topic*."""

    def lane_opened(self) -> None:
        """Learn that a lane has a connection, which the broker has let in."""

    def lane_failed(self, lane: Lane) -> None:
        """Learn that *lane* could not be opened; `Lane.error` says why."""

    def lane_ended(self, lane: Lane) -> bool:
        """Learn that *lane* has lost its connection; tell whether it is to get another."""


class Lane:
    """One connection for publishing: at most one command in flight, the rest waits here."""

    def __init__(self, pool: LaneOwner, node: Node) -> None:
        self.node = node
        """The nsqd at the other end."""
        self.load_bytes = 0
        """What waits here, and what is written and not answered."""
        self.error: GatewayError | None = None
        """Why it could not be opened, or has ended; None before the first try."""
        self._pool = pool
        self._settle = pool.settle
        self._topic_seen = pool.topic_seen
        self._timeout_s = pool.options.timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._queue = PublishQueue(pool.options.limits)
        self._in_flight: Batch | None = None
        self._written_at = 0.0
        """When what is in flight was written, monotonic seconds."""
        self._asked_at = 0.0
        """The same on a clock that does not stand still during a turn."""
        self._is_shared = False
        """Whether more than one publish was written in it."""
        self._connection: BrokerConnection | None = None
        self._attempts = Attempts("connect publisher to", node.address)
        self._has_refused = False
        self._flush_is_due = False

    @property
    def is_open(self) -> bool:
        """Whether a command can be written now."""
        return self._connection is not None and self._connection.is_open

    @property
    def tried(self) -> Mark:
        """Set when a try has shown whether the lane opens; until then publishes wait for it."""
        return self._attempts.tried

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return self._in_flight is None and not self._queue

    # Work

    def add(self, publish: PendingPublish) -> None:
        """Queue *publish*; it is written in this turn of the event loop if nothing is in flight."""
        size_bytes = publish.size_bytes
        self.load_bytes += size_bytes
        self.node.held_bytes += size_bytes
        self._queue.add(publish)
        if self._in_flight is None and not self._flush_is_due:
            # Not at once: publishes that arrived in the same turn go together.
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        connection = self._connection
        if self._in_flight is not None or connection is None or not connection.is_open:
            return
        batch = self._in_flight = self._queue.take()
        if batch is not None:
            self._written_at = self._loop.time()
            self._asked_at = time.perf_counter()
            self._is_shared = len(batch.publishes) > 1
            connection.ask(batch.command(), self._answered)

    def _answered(self, reply: Reply) -> None:
        batch, self._in_flight = self._in_flight, None
        assert batch is not None  # noqa: S101 - a reply answers what is in flight
        error = None
        if not isinstance(reply, BrokerUnreachable):
            _DURATION.observe(time.perf_counter() - self._asked_at)
        if reply != OK:
            error = self._failed(batch, reply)
        else:
            if self._connection is not None:
                self._connection.account.published(batch)
            self._topic_seen(batch.topic, self.node.address)
            if self.node.is_doubted:
                self.node.heard(self._loop.time())
        if self._queue:
            # First: the broker works on it while the callers of this one are told.
            self._flush()
        if batch.topic not in self._queue and not self._has_in_flight(batch.topic):
            self._pool.topic_ended(batch.topic, self)
        self._answer(batch.publishes, batch.size_bytes, error)

    def _has_in_flight(self, topic: str) -> bool:
        return self._in_flight is not None and self._in_flight.topic == topic

    def _answer(
        self, publishes: Sequence[PendingPublish], size_bytes: int, error: GatewayError | None
    ) -> None:
        self.load_bytes -= size_bytes
        self.node.held_bytes -= size_bytes
        self._settle(publishes, size_bytes, error)

    def _failed(self, batch: Batch, reply: Reply) -> PublishError:
        """Return what the callers of *batch* hear of a *reply* that is not OK."""
        if isinstance(reply, BrokerUnreachable):
            text = f"{reply}; it was written before, so it may or may not be published"
            return OutcomeUnknown(text)
        if isinstance(reply, ErrorFrame):
            return self._refused(batch, reply)
        address = self.node.address
        text = f"nsqd at {address} answered {reply.data[:64]!r} to a publish, which is not OK"
        if self._connection is not None:
            # Whoever says anything else is not talked to any more.
            self._connection.abort(text)
        return OutcomeUnknown(f"{text}; it may or may not be published")

    def _refused(self, batch: Batch, frame: ErrorFrame) -> PublishError:
        """Return what callers hear of a refusal; those that go again are taken out of *batch*."""
        # The broker closes the connection behind a refusal; that is no sign that it is gone, so
        # where no other lane is open publishes wait for the next connection of this one.
        self._has_refused = True
        self.tried.clear()
        error = _refusal(frame)
        if self._is_shared and frame.code in _SENT_ONE_BY_ONE:
            # Each that is waited for gets an answer of its own.
            self._queue.add_first(batch.publishes)
            batch.publishes = []
            batch.size_bytes = 0
        elif isinstance(error, BrokerRefused) and error.is_about_access:
            self._pool.topic_refused(batch.topic, error)
        return error

    def sweep(self, now: float) -> None:
        """Answer what has passed its deadline, and cut or doubt a broker that does not answer."""
        timeout_ms = self._pool.options.timeout_ms
        overdue = self._queue.take_overdue(now)
        if overdue:
            for topic in {publish.topic for publish in overdue}:
                if topic not in self._queue and not self._has_in_flight(topic):
                    self._pool.topic_ended(topic, self)
            text = f"no nsqd took it within {timeout_ms} ms; it was not published"
            self._answer(overdue, _size_of(overdue), NoBroker(text))
        if self._in_flight is not None:
            self._sweep_in_flight(self._in_flight, now)
        elif self._connection is not None:
            self.node.heard(self._connection.last_read)

    def _sweep_in_flight(self, batch: Batch, now: float) -> None:
        timeout_ms = self._pool.options.timeout_ms
        waits_for_s = now - self._written_at
        if waits_for_s >= STALL_S:
            if not self.node.is_doubted:
                logger.warning("nsqd does not answer a publish", nsqd=self.node.address)
            self.node.doubt(now)
        overdue = batch.take_overdue(now)
        if overdue:
            text = f"nsqd at {self.node.address} did not answer within {timeout_ms} ms"
            error = OutcomeUnknown(f"{text}; it may or may not be published")
            self._answer(overdue, _size_of(overdue), error)
        # What had waited here is overdue sooner; that is no fault of the broker.
        if waits_for_s >= self._timeout_s and self._connection is not None:
            # Answers come in order: behind this one nothing could be answered either.
            self._connection.abort(f"no answer within {timeout_ms} ms")

    def move_waiting(self, max_bytes: float = math.inf) -> None:
        """
        Give what waits here to the pool, which finds another lane for it where there is one.

        With *max_bytes* only so much, rounded up to whole batches.
        """
        publishes = self._queue.take_up_to(max_bytes)
        size_bytes = _size_of(publishes)
        self.load_bytes -= size_bytes
        self.node.held_bytes -= size_bytes
        for publish in publishes:
            self._pool.submit(publish)

    # The connection

    def open(self) -> None:
        """Try to connect in the background, for ever; `tried` is set after the first try."""
        self._attempts.begin_now(self._connect)

    async def _connect(self) -> bool:
        """Try to connect; True when the lane is open, else `error` says why not."""
        node = self.node
        try:
            connection = await open_connection(node.address, self._pool.options.connection, self)
        except (BrokerUnreachable, AuthRequired, BrokerRefused) as error:
            self.error = error
            node.asks_for_auth |= not isinstance(error, BrokerUnreachable)
            self.tried.set()
            self.move_waiting()
            self._pool.lane_failed(self)
            return False
        self._connection = connection
        connection.account.opened(PUBLISHER, node.address)
        if self.error is not None:
            logger.info("publisher connected", nsqd=node.address)
        self.error = None
        node.asks_for_auth = connection.answer.auth_required
        node.heard(self._loop.time())
        self._pool.lane_opened()
        self.tried.set()
        self._flush()
        return True

    def cancel(self) -> None:
        """Try no more to connect; what waits here goes to other lanes."""
        self._attempts.cancel()
        self.tried.set()
        self.move_waiting()

    async def close(self) -> None:
        """Close the connection, or stop trying to get one."""
        await self._attempts.close()
        if self._connection is not None:
            await self._connection.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._connection is not None:
            self._connection.abort()

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Never happens: nobody subscribes here, so the connection cuts a broker that does it."""

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Never happens: nobody finishes, requeues or touches here."""

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Move what was not written to other lanes, and connect again."""
        self._connection = None
        self.error = error
        connection.account.ended(error)
        has_refused, self._has_refused = self._has_refused, False
        if not (has_refused or self._pool.is_closing):
            logger.warning("publisher disconnected", nsqd=self.node.address, reason=error.reason)
        is_kept = self._pool.lane_ended(self)
        self.move_waiting()
        held_s = self._loop.time() - connection.opened_at
        if is_kept and has_refused:
            self._attempts.begin_now(self._connect)
        elif is_kept:
            self._attempts.begin_later(self._connect, held_s=held_s)


def _size_of(publishes: Sequence[PendingPublish]) -> int:
    return sum(publish.size_bytes for publish in publishes)


def _refusal(frame: ErrorFrame) -> PublishError:
    """Return what *frame* means to the caller."""
    if frame.code not in _REFUSALS:
        # Of no publish: what the broker did with the message, nobody knows.
        text = f"{frame.code} {frame.description}".rstrip()
        return OutcomeUnknown(f"{text}; it may or may not be published")
    if frame.code == "E_MPUB_FAILED" and "exiting" not in frame.description:
        # nsqd writes the messages of an MPUB one by one: a disk error leaves a part stored.
        text = f"{frame.code} {frame.description}; a part may be published"
        return OutcomeUnknown(text)
    return BrokerRefused(frame.code, frame.description)
