"""
Publishing over several brokers: bounded, grouped, and with an answer that means something.

Each broker has a few lanes, and each lane one connection with one command in flight; what comes
meanwhile fills the lane's next batch (docs/decisions/0001-group-commit.md). A publish whose bytes
were not written moves to another lane when its own goes; one that was written never does, since
that could publish it twice: its outcome is unknown and says so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.client.backoff import Backoff
from gateway.client.batch import Batch, PendingPublish, PublishQueue, size_in_mpub
from gateway.client.choice import choose
from gateway.client.connection import (
    BrokerConnection,
    ConnectionOptions,
    Reply,
    open_connection,
)
from gateway.errors import (
    BrokerRefused,
    BrokerUnreachable,
    InvalidRequest,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
    PublishError,
)
from gateway.protocol.frames import ErrorFrame, Message, Response
from gateway.protocol.wire import Limits, is_valid_name
from gateway.telemetry import get_logger, spawn

logger = get_logger()

_SENT_ONE_BY_ONE = frozenset(
    {"E_BAD_TOPIC", "E_BAD_BODY", "E_BAD_MESSAGE", "E_AUTH_FAILED", "E_UNAUTHORIZED"}
)
"""Refusals of a batch that may be the fault of one publish in it."""

_SWEEP_INTERVAL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class PublisherOptions:
    """How much may wait, for how long, over how many connections."""

    connections_per_nsqd: int = 4
    timeout_ms: int = 5_000
    """Time from a publish to its answer."""
    buffer_bytes: int = 64 * 1_048_576
    """What may wait or be unanswered, over all brokers; above it publishes are refused."""
    limits: Limits = field(default_factory=Limits)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)


class _Lane:
    """One connection for publishing: at most one command in flight, the rest waits here."""

    def __init__(self, publisher: Publisher, address: str) -> None:
        self._publisher = publisher
        self.address = address
        self.queue = PublishQueue(publisher.options.limits)
        self.last_error = "not connected yet"
        self._in_flight: Batch | None = None
        self._in_flight_deadline = 0.0
        """When what is in flight must have been answered, monotonic seconds."""
        self._connection: BrokerConnection | None = None
        self._backoff = Backoff(random.random)
        self._retry: asyncio.Task[None] | None = None
        self._flush_is_due = False

    @property
    def is_open(self) -> bool:
        """Whether a command can be written now."""
        return self._connection is not None and self._connection.is_open

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
        timeout_s = self._publisher.options.timeout_ms / 1000
        self._in_flight_deadline = asyncio.get_running_loop().time() + timeout_s
        self._connection.ask(batch.command(), self._answered)

    def _answered(self, reply: Reply) -> None:
        batch, self._in_flight = self._in_flight, None
        assert batch is not None  # noqa: S101 - a reply answers what is in flight
        # Without those whose callers have been told already that their time is over.
        publishes = [publish for publish in batch.publishes if publish.is_held]
        if isinstance(reply, Response):
            self._publisher.settle(publishes, None)
        elif isinstance(reply, BrokerUnreachable):
            text = f"{reply}; it was written before, so it may or may not be published"
            self._publisher.settle(publishes, OutcomeUnknown(text))
        elif publishes and len(batch.publishes) > 1 and reply.code in _SENT_ONE_BY_ONE:
            for publish in publishes:
                publish.goes_alone = True
            self.queue.add_first(publishes)
        else:
            self._publisher.settle(publishes, _refusal(reply))
        self._flush()

    def give_up_overdue(self, now: float) -> None:
        """Answer what has passed its deadline, and cut a broker that answers nothing."""
        timeout_ms = self._publisher.options.timeout_ms
        text = f"no nsqd took it within {timeout_ms} ms; it was not published"
        self._publisher.settle(self.queue.take_overdue(now), NoBroker(text))
        if self._in_flight is None:
            return
        text = f"nsqd at {self.address} did not answer within {timeout_ms} ms"
        self._publisher.settle(
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

    async def connect_once(self) -> bool:
        """Try to connect; True when the lane is open, else `last_error` says why not."""
        try:
            connection = await open_connection(
                self.address, self._publisher.options.connection, self
            )
        except BrokerUnreachable as error:
            self.last_error = error.reason
            return False
        self._connection = connection
        self._flush()
        return True

    def reconnect(self) -> None:
        """Try in the background until the lane is open."""
        self._retry = spawn(f"connect publisher to {self.address}", self._connect_for_ever())

    async def _connect_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._backoff.next_delay_s())
            if await self.connect_once():
                logger.info("publisher connected", nsqd=self.address)
                return

    async def close(self) -> None:
        """Close the connection, or stop trying to get one."""
        if self._retry is not None:
            self._retry.cancel()
            await asyncio.wait({self._retry})
        if self._connection is not None:
            await self._connection.close()

    def messages_arrived(self, connection: BrokerConnection, messages: list[Message]) -> None:
        """Never happens: nobody subscribes here, so the connection cuts a broker that does it."""

    def command_refused(self, connection: BrokerConnection, frame: ErrorFrame) -> None:
        """Never happens: nobody finishes, requeues or touches here."""

    def connection_ended(self, connection: BrokerConnection, error: BrokerUnreachable) -> None:
        """Move what was not written to other lanes, and connect again."""
        publisher = self._publisher
        self._connection = None
        self.last_error = error.reason
        if publisher.is_stopping:
            return
        logger.warning("publisher disconnected", nsqd=self.address, reason=error.reason)
        for publish in self.queue.take_all():
            if publish.goes_alone and not publisher.has_open_lane:
                # The refusal of its batch closed this connection, which will be back at once.
                self.queue.add(publish)
            else:
                publisher.submit(publish)
        self._backoff.connection_held(asyncio.get_running_loop().time() - connection.opened_at)
        self.reconnect()


class Publisher:
    """Publishes to any of several brokers; `start` first, `stop` last."""

    def __init__(self, addresses: Sequence[str], options: PublisherOptions | None = None) -> None:
        self.options = options or PublisherOptions()
        self.is_stopping = False
        """Whether the connections are being closed."""
        self._lanes = [
            # Broker by broker within each round, so that lanes of equal load alternate.
            _Lane(self, address)
            for _ in range(self.options.connections_per_nsqd)
            for address in addresses
        ]
        self._turn = 0
        self._held_bytes = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._takes_no_more = False
        self._became_idle = asyncio.Event()

    async def start(self) -> list[str]:
        """
        Try each broker once and go on trying in the background.

        Returns one line for each broker that cannot be reached now.
        """
        opened = await asyncio.gather(*(lane.connect_once() for lane in self._lanes))
        unreachable = {}
        for lane, is_open in zip(self._lanes, opened, strict=True):
            if not is_open:
                unreachable[lane.address] = f"nsqd at {lane.address}: {lane.last_error}"
                lane.reconnect()
        return list(unreachable.values())

    async def publish(self, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        """
        Publish one message; a broker has answered OK when this returns.

        Raises:
            InvalidRequest: The name, the body or *defer_ms* is not allowed; nothing was written.
            Overloaded: Too much waits; nothing was written.
            NoBroker: No broker could take it; nothing was written.
            BrokerRefused: The broker said no.
            OutcomeUnknown: It was written and not answered in time.
        """
        limits = self.options.limits
        _check_topic(topic)
        self._check_body(body)
        if not 0 <= defer_ms <= limits.max_req_timeout_ms:
            text = f"defer of {defer_ms} ms, allowed: 0 to {limits.max_req_timeout_ms} ms"
            raise InvalidRequest("INVALID_DEFER", text)
        await self._put(topic, (body,), defer_ms)

    async def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish *bodies* with one command, all or none; raises as `publish` does."""
        _check_topic(topic)
        for body in bodies:
            self._check_body(body)
        size_bytes = 4 + size_in_mpub(bodies)
        limit_bytes = self.options.limits.max_body_size_bytes
        if size_bytes > limit_bytes:
            text = f"{len(bodies)} messages take {size_bytes} bytes, the limit is {limit_bytes}"
            raise InvalidRequest("BODY_TOO_BIG", f"{text} bytes")
        if bodies:
            await self._put(topic, bodies, 0)

    def _check_body(self, body: bytes) -> None:
        """Refuse what a broker would refuse by closing the connection behind it."""
        if not body:
            raise InvalidRequest("MSG_EMPTY", "the message is empty")
        limit_bytes = self.options.limits.max_msg_size_bytes
        if len(body) > limit_bytes:
            text = f"message of {len(body)} bytes, the limit is {limit_bytes} bytes"
            raise InvalidRequest("MSG_TOO_BIG", text)

    async def _put(self, topic: str, bodies: Sequence[bytes], defer_ms: int) -> None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()

        def done(error: PublishError | None) -> None:
            if answer.done():
                return  # the caller has gone
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.submit(
            PendingPublish(
                topic,
                bodies,
                defer_ms,
                size_in_mpub(bodies),
                loop.time() + self.options.timeout_ms / 1000,
                done,
            )
        )
        await answer

    def submit(self, publish: PendingPublish) -> None:
        """
        Queue *publish*, which has been checked; `PendingPublish.done` is called with the outcome.

        It may be called before this returns, when nothing can take the publish.
        """
        if not publish.is_held:
            if self._takes_no_more:
                publish.done(NoBroker("publishing has been stopped; nothing was published"))
                return
            held_bytes = self._held_bytes + publish.size_bytes
            if held_bytes > self.options.buffer_bytes:
                limit_bytes = self.options.buffer_bytes
                publish.done(Overloaded(waiting_bytes=held_bytes, limit_bytes=limit_bytes))
                return
            publish.is_held = True
            self._held_bytes = held_bytes
        self._turn += 1
        lane = choose(self._lanes, publish.topic, turn=self._turn)
        if lane is None:
            self.settle([publish], NoBroker(self._why_none()))
            return
        lane.add(publish)
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    @property
    def has_open_lane(self) -> bool:
        """Whether any connection can take a command now."""
        return any(lane.is_open for lane in self._lanes)

    def settle(self, publishes: Sequence[PendingPublish], error: PublishError | None) -> None:
        """Tell the callers of *publishes*, each once, and give their bytes free."""
        for publish in publishes:
            if publish.is_held:
                publish.is_held = False
                self._held_bytes -= publish.size_bytes
                publish.done(error)
        if not self._held_bytes:
            self._became_idle.set()

    def _on_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for lane in self._lanes:
            lane.give_up_overdue(now)
        is_idle = all(lane.is_idle for lane in self._lanes)
        self._sweep = None if is_idle else loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    def _why_none(self) -> str:
        reasons = {lane.address: f"{lane.address}: {lane.last_error}" for lane in self._lanes}
        text = "; ".join(reasons.values()) or "no address of an nsqd is known"
        return f"no nsqd can take it, nothing was published ({text})"

    async def stop(self) -> None:
        """Take no more, wait for what has been taken within the publish timeout, then close."""
        self._takes_no_more = True
        while self._held_bytes:
            self._became_idle.clear()
            await self._became_idle.wait()  # the sweep bounds it
        self.is_stopping = True
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.gather(*(lane.close() for lane in self._lanes))


def _check_topic(topic: str) -> None:
    if not is_valid_name(topic.encode("utf-8", "surrogatepass")):
        raise InvalidRequest("INVALID_TOPIC", f"{topic!r} is not a valid topic name")


def _refusal(frame: ErrorFrame) -> PublishError:
    """Return what *frame* means to the caller."""
    if frame.code == "E_MPUB_FAILED" and "exiting" not in frame.description:
        # nsqd writes the messages of an MPUB one by one: a disk error leaves a part stored.
        text = f"{frame.code} {frame.description}; a part may be published"
        return OutcomeUnknown(text)
    return BrokerRefused(frame.code, frame.description)
