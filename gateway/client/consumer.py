"""
The public consumer: receive messages as deliveries, one by one or in lists.

`Consumer.run` calls a handler, a coroutine function, with each delivery. If the handler returns,
the delivery is finished. If it raises, the delivery is requeued and the whole consumer slows down
(backoff), as in go-nsq. For speed, `batches` yields lists, and `Consumer.finish` takes lists. The
FINs of all deliveries that are finished in one turn of the event loop are sent in one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from gateway.aio import spawn
from gateway.client.connection import ConnectionOptions
from gateway.client.deliveries import (
    Action,
    Delivery,
    DeliveryOptions,
    DeliveryTracker,
    SendFin,
    SendRdy,
    SendReq,
    SendTouch,
    claim,
)
from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.rdy import RdyOptions
from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.errors import BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyRequest, IdentifyResponse
from gateway.telemetry import get_logger

_MAX_UNWRITTEN = 1_000
"""Number of finished deliveries that are written without waiting for the end of the turn."""


class AckWriter:
    """Write the answers to claimed deliveries to nsqd, all FINs of an event-loop turn at once."""

    def __init__(self, subscription: Subscription, options: DeliveryOptions) -> None:
        self._subscription = subscription
        names = subscription.options
        self.tracker = DeliveryTracker(
            options, subscription.rdy, self, topic=names.topic, channel=names.channel
        )
        """The unanswered deliveries."""
        self._finished: list[Delivery] = []

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Write FIN at the end of this turn of the event loop, or sooner if there are many."""
        if not self._finished:
            asyncio.get_running_loop().call_soon(self.flush)
        self._finished += deliveries
        if len(self._finished) >= _MAX_UNWRITTEN:
            self.flush()

    def requeue(
        self, deliveries: Sequence[Delivery], *, delay_ms: int | None, backoff: bool
    ) -> None:
        """Write the pending FINs, then REQ for *deliveries*."""
        self.flush()
        self.carry_out(
            self.tracker.requeued(deliveries, self._now(), delay_ms=delay_ms, backoff=backoff)
        )

    def touch(self, deliveries: Sequence[Delivery]) -> None:
        """Write TOUCH for *deliveries*."""
        self.carry_out(self.tracker.touched(deliveries, self._now()))

    def flush(self) -> None:
        """Write the pending FINs."""
        if not self._finished:
            return
        finished, self._finished = self._finished, []
        self.carry_out(self.tracker.finished(finished, self._now()))

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Write the commands *actions* to nsqd in order, and update the RDY timer."""
        subscription = self._subscription
        # In order: a RDY that a FIN or REQ caused must reach nsqd before it, or nsqd would send
        # more messages under the old RDY.
        for action in actions:
            match action:
                case SendRdy(source, count):
                    subscription.write_ready([(source, count)])
                case SendFin(source, ids):
                    subscription.finish(source, ids)
                case SendReq(source, ids, delay_ms):
                    subscription.requeue(source, ids, delay_ms=delay_ms)
                case SendTouch(source, ids):
                    subscription.touch(source, ids)
        subscription.update_timer()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


logger = get_logger()

Handler: TypeAlias = Callable[[Delivery], Awaitable[object]]

_HANDLERS_PER_TURN = 64
"""Handlers that a worker runs before it yields to the event loop, for heartbeats and FINs."""


def _low_latency() -> ConnectionOptions:
    """Return options that make nsqd buffer a lone message for 25 ms instead of 250 ms."""
    return ConnectionOptions(
        offer=IdentifyRequest(feature_negotiation=True, output_buffer_timeout=25)
    )


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Options of a consumer."""

    max_in_flight: int = 10
    """Maximum messages in flight over all nsqds; 0 pauses."""
    stop_timeout_s: float = 30.0
    """Maximum time for which `stop` waits for running handlers."""
    on_give_up: Callable[[Delivery], None] | None = None
    """Called with a delivery above `max_attempts`, which is then finished unhandled."""
    connection: ConnectionOptions = field(default_factory=_low_latency)
    delivery: DeliveryOptions = field(default_factory=DeliveryOptions)
    rdy: RdyOptions = field(default_factory=RdyOptions)


class Consumer:
    """
    Consume *channel* of *topic*. Use it as a context manager, or `start` it and `stop` it.

    The nsqds are *nsqd_tcp_addresses* and those found by the nsqlookupds of *lookup*.

    Raises:
        InvalidRequest: *topic* or *channel* is invalid.
        SettingsError: *nsqd_tcp_addresses* is a string and not a list.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd_tcp_addresses: Sequence[str] = (),
        options: ConsumerOptions | None = None,
        *,
        lookup: LookupOptions | None = None,
    ) -> None:
        self.options = options = options or ConsumerOptions()
        self._discovery = Discovery(nsqd_tcp_addresses, lookup)
        subscription_options = SubscriptionOptions(
            topic=topic, channel=channel, connection=options.connection, rdy=options.rdy
        )
        self._subscription = Subscription(self._discovery, subscription_options, self)
        self._ack_writer = AckWriter(self._subscription, options.delivery)
        self._tracker = self._ack_writer.tracker
        self._batches: deque[list[Delivery]] = deque()
        """Deliveries not taken yet, one list per read."""
        self._rest: deque[Delivery] = deque()
        """The rest of a list whose deliveries are taken one by one."""
        self._has_arrived = asyncio.Event()
        self._overdue_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._stopping: asyncio.Task[None] | None = None
        self._workers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Call `start`, and return this object."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Call `stop`."""
        await self.stop()

    async def start(self) -> None:
        """
        Subscribe; return after the first nsqd's OK, or if nsqlookupd knows no nsqd of the topic.

        Other nsqds, and those found later, are subscribed in the background.

        Raises:
            AuthRequired: The nsqds require a secret, and there is none.
            BrokerRefused: The nsqds refuse the secret, or the subscription.
            NoBroker: No nsqd can be reached now.
        """
        await self._discovery.start()
        try:
            await self._subscription.start()
        except BaseException:
            await self._discovery.stop()
            raise
        self._subscription.set_window(self.options.max_in_flight)

    def set_max_in_flight(self, count: int) -> None:
        """Limit the messages in flight over all nsqds to *count*; 0 pauses."""
        self._subscription.set_window(count)

    @property
    def in_flight(self) -> int:
        """Number of unanswered deliveries, including those that no caller has received yet."""
        return self._tracker.in_flight

    @property
    def is_starved(self) -> bool:
        """True if most of an nsqd's RDY is in flight, so that a batch should be answered now."""
        return self._tracker.is_starved

    # Receiving

    async def batches(self) -> AsyncIterator[list[Delivery]]:
        """Yield the deliveries of each read of a socket as a list, until the consumer stops."""
        while await self._wait():
            while self._batches:
                yield self._batches.popleft()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Yield deliveries one by one, until the consumer stops."""
        while (delivery := await self._next()) is not None:
            yield delivery

    async def _wait(self) -> bool:
        """Wait for deliveries; return False once the consumer stops."""
        while not self._batches and not self._is_stopping:
            self._has_arrived.clear()
            await self._has_arrived.wait()
        return not self._is_stopping

    async def _next(self) -> Delivery | None:
        """Return the next delivery; None once the consumer stops."""
        while not self._rest and not self._is_stopping:
            if self._batches:
                self._rest.extend(self._batches.popleft())
                # For other waiters: each may take one of these deliveries.
                self._has_arrived.set()
            else:
                self._has_arrived.clear()
                await self._has_arrived.wait()
        return None if self._is_stopping else self._rest.popleft()

    def _drop_overdue(self) -> None:
        """
        Drop deliveries that were not taken before their deadline; nsqd delivers them again.

        Otherwise they would be handled twice, and while a handler hangs, another window of messages
        would be queued at every message timeout.
        """
        self._overdue_timer = None
        overdue = set(self._tracker.overdue(self._now()))
        if overdue:
            # Drops only those not taken yet: nsqd may still accept answers to the others.
            self._forget(overdue.__contains__)
            # Overdue deliveries no longer count as in flight, so that a RDY may rise.
            self._subscription.rebalance()
        self._schedule_overdue()

    def _forget(self, is_gone: Callable[[Delivery], bool]) -> None:
        """Drop deliveries that are not taken yet and for which *is_gone* returns True."""
        waiting = [delivery for batch in (self._rest, *self._batches) for delivery in batch]
        gone = [delivery for delivery in waiting if is_gone(delivery)]
        if not gone:
            return
        self._tracker.dropped(gone)
        self._rest = deque(delivery for delivery in self._rest if not is_gone(delivery))
        lists = ([each for each in batch if not is_gone(each)] for batch in self._batches)
        self._batches = deque(batch for batch in lists if batch)

    def _schedule_overdue(self) -> None:
        """Set the timer to the earliest deadline, unless it is set already."""
        due = self._tracker.next_deadline()
        if self._overdue_timer is None and due is not None and not self._is_stopping:
            loop = asyncio.get_running_loop()
            self._overdue_timer = loop.call_at(due, self._drop_overdue)

    async def run(self, handle: Handler, *, concurrency: int = 1) -> None:
        """
        Call *handle* for each delivery, *concurrency* at a time, until the consumer stops.

        A delivery that *handle* has not answered itself is finished when *handle* returns, and
        requeued when it raises. When `run` is cancelled, unanswered deliveries being handled are
        requeued at once (REQ 0) and without backoff.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                worker = group.create_task(self._work(handle))
                self._workers.add(worker)
                worker.add_done_callback(self._workers.discard)

    async def _work(self, handle: Handler) -> None:
        count = 0
        while (delivery := await self._next()) is not None:
            try:
                await handle(delivery)
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    if not delivery.is_answered:
                        delivery.requeue(0, backoff=False)
                    raise
                # Not this task, but something that the handler awaited was cancelled.
                self._failed(delivery, error)
            except Exception as error:  # noqa: BLE001 - logged, and the message is requeued
                self._failed(delivery, error)
            else:
                if not delivery.is_answered:
                    delivery.finish()
            count += 1
            if count % _HANDLERS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _failed(self, delivery: Delivery, error: BaseException) -> None:
        """Log the exception of the handler, and requeue the delivery."""
        message_id = delivery.id.decode("latin-1")
        logger.error("handler failed", id=message_id, attempts=delivery.attempts, exc_info=error)
        if not delivery.is_answered:
            delivery.requeue()

    # Answering lists; a single delivery has its own methods

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Finish all *deliveries*, or none and raise AlreadyResponded if one was answered."""
        claim(deliveries)
        self._ack_writer.finish(deliveries)

    def requeue(
        self, deliveries: Sequence[Delivery], delay_ms: int | None = None, *, backoff: bool = True
    ) -> None:
        """Requeue all *deliveries* as `Delivery.requeue` does; raise as `finish` does."""
        claim(deliveries)
        self._ack_writer.requeue(deliveries, delay_ms=delay_ms, backoff=backoff)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # Called by the subscription

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return by source the number of deliveries that are neither answered nor timed out."""
        return self._tracker.in_flight_by_source()

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Accept deliveries of *source*, and log the new subscription."""
        nsqd = self._subscription.address_of(source)
        self._tracker.add_source(source, nsqd, answer)
        logger.info("subscribed", nsqd=nsqd)

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Drop the deliveries of *source*; nsqd delivers them again."""
        lost = self._tracker.remove_source(source)
        self._forget(lambda delivery: not delivery.is_in_flight)
        if not self._is_stopping:
            logger.warning(
                "subscription lost", nsqd=error.address, reason=error.reason, in_flight=len(lost)
            )

    def on_messages(self, source: int, messages: list[Message], sent_after: float) -> None:
        """Queue new deliveries, and give up those above `max_attempts`."""
        if self._is_stopping:
            # They were sent before nsqd processed RDY 0, and no handler will take them any more.
            ids = [message.id for message in messages]
            self._subscription.requeue(source, ids, delay_ms=0)
            return
        deliveries, given_up = self._tracker.arrived(
            source, messages, self._now(), sent_after=sent_after
        )
        for delivery in given_up:
            self._give_up(delivery)
        if deliveries:
            self._batches.append(deliveries)
            self._has_arrived.set()
            self._schedule_overdue()

    def _give_up(self, delivery: Delivery) -> None:
        message_id = delivery.id.decode("latin-1")
        logger.warning("message given up", id=message_id, attempts=delivery.attempts)
        if self.options.on_give_up is not None:
            try:
                self.options.on_give_up(delivery)
            except Exception:
                logger.exception("give-up callback failed", id=message_id)
        if not delivery.is_answered:
            delivery.finish()

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """Log a FIN, REQ or TOUCH that nsqd refused, usually because it was too late."""
        verb, _, rest = frame.description.partition(" ")
        message_id = rest.partition(" ")[0].encode("latin-1", "replace")
        refused = self._tracker.refused(source, message_id, verb)
        nsqd = refused.nsqd if refused is not None else None
        logger.warning(
            "nsqd refused FIN, REQ or TOUCH", nsqd=nsqd, code=frame.code, reason=frame.description
        )

    def on_channel_gone(self, address: str) -> None:
        """
        Never called, because a consumer does not set the option `is_gone`.

        After a deletion it reconnects, and SUB creates the channel again, as in go-nsq.
        """

    def on_secret_missing(self) -> None:
        """Log that an nsqd found after `start` requires AUTH and no secret is configured."""
        logger.warning("nsqd requires AUTH and no secret is configured")

    # Closing

    async def stop(self) -> None:
        """
        Drain the consumer and close its connections; idempotent.

        Write RDY 0 to every nsqd, requeue deliveries that no caller has received, wait up to
        `stop_timeout_s` for running handlers, requeue the deliveries that are still unanswered
        (REQ 0), and close each connection with CLS.
        """
        if self._stopping is None:
            self._stopping = spawn("stop a consumer", self._stop(asyncio.current_task()))
        # Shielded, so that the drain continues if the caller is cancelled.
        await asyncio.shield(self._stopping)

    async def _stop(self, caller: asyncio.Task[object] | None) -> None:
        self._is_stopping = True
        if self._overdue_timer is not None:
            self._overdue_timer.cancel()
        self._has_arrived.set()
        try:
            # First, so that nsqd sends nothing more while handlers finish their deliveries.
            self._subscription.set_window(0)
            waiting = [delivery for batch in (*self._batches, self._rest) for delivery in batch]
            self._batches.clear()
            self._rest.clear()
            if waiting:
                self.requeue(waiting, 0, backoff=False)
            # A handler may stop its own consumer: waiting for its worker would be a deadlock.
            workers = {worker for worker in self._workers if worker is not caller}
            if workers:
                await asyncio.wait(workers, timeout=self.options.stop_timeout_s)
            # Now: once `close` has begun, the subscription has no source that could write them.
            self._ack_writer.flush()
            # nsqd gives messages of a closed connection to others only after their timeout.
            self._ack_writer.carry_out(self._tracker.hand_back(self._now()))
        finally:
            # Even after an error or a cancel: no connection may outlive the consumer.
            await self._subscription.close()
            await self._discovery.stop()


def _is_cancelled() -> bool:
    """Return True if the current task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
