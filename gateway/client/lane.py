"""
One connection for publishing, and what waits for it.

One command is in flight; what comes meanwhile fills the next one. What the answer means to each
caller is decided here, and who is told is the publisher's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.client.attempts import Attempts
from gateway.client.batch import Batch, PendingPublish, PublishQueue
from gateway.client.connection import (
    BrokerConnection,
    ConnectionOptions,
    Reply,
)
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
from gateway.protocol.frames import OK, ErrorFrame, Message, Response
from gateway.protocol.wire import Limits
from gateway.telemetry import get_logger

logger = get_logger()

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

    @property
    def options(self) -> LaneOptions:
        """What holds for each lane."""

    def submit(self, publish: PendingPublish) -> None:
        """Find another lane for *publish*, or answer it."""

    def settle(self, publishes: Sequence[PendingPublish], error: GatewayError | None) -> None:
        """Tell the callers of *publishes*, each once."""

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

    def __init__(self, pool: LaneOwner, address: str) -> None:
        self._pool = pool
        self.address = address
        self.queue = PublishQueue(pool.options.limits)
        self.error: GatewayError | None = None
        """Why it could not be opened, or has ended; None before the first try."""
        self._in_flight: Batch | None = None
        self._in_flight_deadline = 0.0
        """When what is in flight must have been answered, monotonic seconds."""
        self._connection: BrokerConnection | None = None
        self._attempts = Attempts(f"connect publisher to {address}", self._connect)
        self._has_refused = False
        self._flush_is_due = False

    @property
    def is_open(self) -> bool:
        """Whether a command can be written now."""
        return self._connection is not None and self._connection.is_open

    @property
    def tried(self) -> asyncio.Event:
        """Set when a try has shown whether the lane opens; until then publishes wait for it."""
        return self._attempts.tried

    @property
    def load_bytes(self) -> int:
        """What waits and what is written and not answered."""
        in_flight = self._in_flight
        return self.queue.waiting_bytes + (in_flight.size_bytes if in_flight else 0)

    def works_on(self, topic: str) -> bool:
        """Tell whether something of *topic* waits or is in flight here."""
        in_flight = self._in_flight
        return topic in self.queue or (
            in_flight is not None and in_flight.publishes[0].topic == topic
        )

    # Work

    def add(self, publish: PendingPublish) -> None:
        """Queue *publish*; it is written in this turn of the event loop if nothing is in flight."""
        self.queue.add(publish)
        if self._in_flight is None and not self._flush_is_due:
            # Not at once: publishes that arrived in the same turn go together.
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._in_flight is not None or not self.is_open:
            return
        assert self._connection is not None  # noqa: S101 - is_open says so
        batch = self.queue.take()
        if batch is None:
            return
        self._in_flight = batch
        timeout_s = self._pool.options.timeout_ms / 1000
        self._in_flight_deadline = asyncio.get_running_loop().time() + timeout_s
        self._connection.ask(batch.command(), self._answered)

    def _answered(self, reply: Reply) -> None:
        batch, self._in_flight = self._in_flight, None
        assert batch is not None  # noqa: S101 - a reply answers what is in flight
        # Without those whose callers have been told already that their time is over.
        publishes = [publish for publish in batch.publishes if publish.is_held]
        if isinstance(reply, Response):
            self._pool.settle(publishes, self._understood(reply))
        elif isinstance(reply, BrokerUnreachable):
            text = f"{reply}; it was written before, so it may or may not be published"
            self._pool.settle(publishes, OutcomeUnknown(text))
        else:
            self._refused(batch, publishes, reply)
        self._flush()

    def _understood(self, reply: Response) -> OutcomeUnknown | None:
        """Return None for OK; a broker that says anything else is not talked to any more."""
        if reply == OK:
            return None
        text = f"nsqd at {self.address} answered {reply.data[:64]!r} to a publish, which is not OK"
        if self._connection is not None:
            self._connection.abort(text)
        return OutcomeUnknown(f"{text}; it may or may not be published")

    def _refused(self, batch: Batch, publishes: list[PendingPublish], frame: ErrorFrame) -> None:
        """Give each of *publishes*, those of *batch* that are waited for, an answer of its own."""
        # The broker closes the connection behind a refusal; that is no sign that it is gone, so
        # where no other lane is open publishes wait for the next connection of this one.
        self._has_refused = True
        self.tried.clear()
        if publishes and len(batch.publishes) > 1 and frame.code in _SENT_ONE_BY_ONE:
            for publish in publishes:
                publish.goes_alone = True
            self.queue.add_first(publishes)
            return
        error = _refusal(frame)
        if isinstance(error, BrokerRefused) and error.is_about_access:
            self._pool.topic_refused(batch.publishes[0].topic, error)
        self._pool.settle(publishes, error)

    def give_up_overdue(self, now: float) -> None:
        """Answer what has passed its deadline, and cut a broker that answers nothing."""
        timeout_ms = self._pool.options.timeout_ms
        text = f"no nsqd took it within {timeout_ms} ms; it was not published"
        self._pool.settle(self.queue.take_overdue(now), NoBroker(text))
        if self._in_flight is None:
            return
        text = f"nsqd at {self.address} did not answer within {timeout_ms} ms"
        self._pool.settle(
            [publish for publish in self._in_flight.publishes if publish.deadline <= now],
            OutcomeUnknown(f"{text}; it may or may not be published"),
        )
        # What had waited here is overdue sooner; that is no fault of the broker.
        if self._in_flight_deadline <= now and self._connection is not None:
            # Answers come in order: behind this one nothing could be answered either.
            self._connection.abort(f"no answer within {timeout_ms} ms")

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return self._in_flight is None and not len(self.queue)

    # The connection

    def open(self) -> None:
        """Try to connect in the background, for ever; `tried` is set after the first try."""
        self._attempts.begin_now()

    async def _connect(self) -> bool:
        """Try to connect; True when the lane is open, else `error` says why not."""
        try:
            connection = await open_connection(self.address, self._pool.options.connection, self)
        except (BrokerUnreachable, AuthRequired, BrokerRefused) as error:
            self.error = error
            self.tried.set()
            for publish in self.queue.take_all():
                self._pool.submit(publish)
            self._pool.lane_failed(self)
            return False
        self._connection = connection
        if self.error is not None:
            logger.info("publisher connected", nsqd=self.address)
        self.error = None
        self._pool.lane_opened()
        self.tried.set()
        self._flush()
        return True

    def cancel(self) -> None:
        """Try no more to connect; what waits here goes to other lanes."""
        self._attempts.cancel()
        self.tried.set()
        for publish in self.queue.take_all():
            self._pool.submit(publish)

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
        has_refused, self._has_refused = self._has_refused, False
        if not (has_refused or self._pool.is_closing):
            logger.warning("publisher disconnected", nsqd=self.address, reason=error.reason)
        is_kept = self._pool.lane_ended(self)
        for publish in self.queue.take_all():
            self._pool.submit(publish)
        held_s = asyncio.get_running_loop().time() - connection.opened_at
        if is_kept and has_refused:
            self._attempts.begin_now()
        elif is_kept:
            self._attempts.begin_later(held_s=held_s)


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
