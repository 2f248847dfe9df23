"""
A consumer for programs: messages as deliveries, one by one or in lists, each answered once.

What go-nsq's Consumer does with a handler, `Subscriber.run` does with a coroutine: what returns is
finished, what raises is requeued and slows the whole consumer down (backoff). Who wants speed
takes lists with `batches` and finishes them as lists. Nothing is awaited for a message by itself:
what one turn of the event loop finishes goes out in one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from gateway.client.answer_writer import AnswerWriter
from gateway.client.connection import ConnectionOptions
from gateway.client.consumption import ConsumptionOptions, Delivery, claim
from gateway.client.lookup import Discovery, LookupOptions
from gateway.client.ready import ReadyOptions
from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.errors import BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer, Offer
from gateway.telemetry import get_logger, spawn

logger = get_logger()

Handler: TypeAlias = Callable[[Delivery], Awaitable[object]]

_HANDLED_A_TURN = 64
"""After so many handlers that never waited the event loop gets a turn: heartbeats, FINs."""


def _prompt() -> ConnectionOptions:
    """Return options under which nsqd does not hold a lone message back for 250 ms."""
    return ConnectionOptions(offer=Offer(feature_negotiation=True, output_buffer_timeout=25))


@dataclass(frozen=True, kw_only=True)
class SubscriberOptions:
    """How much at a time, and what becomes of what fails."""

    max_in_flight: int = 10
    """Messages that may be unanswered at a time, over all brokers; 0 is a pause."""
    stop_timeout_s: float = 30.0
    """What handlers that run get to end when the subscriber stops."""
    gave_up: Callable[[Delivery], None] | None = None
    """Called with what has used up its attempts, before it is finished unhandled."""
    connection: ConnectionOptions = field(default_factory=_prompt)
    consumption: ConsumptionOptions = field(default_factory=ConsumptionOptions)
    ready: ReadyOptions = field(default_factory=ReadyOptions)


class Subscriber:
    """
    Consumes *channel* of *topic*; `start` first, `stop` last, or as an asynchronous context.

    The brokers are those of *nsqd_tcp_addresses* and those that the lookupds of *lookup* name.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd_tcp_addresses: Sequence[str] = (),
        options: SubscriberOptions | None = None,
        *,
        lookup: LookupOptions | None = None,
    ) -> None:
        self.options = options = options or SubscriberOptions()
        self._discovery = Discovery(nsqd_tcp_addresses, lookup)
        wanted = SubscriptionOptions(
            topic=topic, channel=channel, connection=options.connection, ready=options.ready
        )
        self._subscription = Subscription(self._discovery, wanted, self)
        self._answers = AnswerWriter(self._subscription, options.consumption)
        self._consumption = self._answers.consumption
        self._lists: deque[list[Delivery]] = deque()
        """What came and nobody has taken yet."""
        self._rest: deque[Delivery] = deque()
        """What is left of a list that is handed out one by one."""
        self._something_came = asyncio.Event()
        self._overdue_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._stopping: asyncio.Task[None] | None = None
        self._workers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """
        Subscribe; return once one broker said OK, or the lookups answered and none is known yet.

        Raises:
            AuthRequired: Brokers ask for a secret, and there is none.
            BrokerRefused: Brokers refuse the secret, or the subscription.
            NoBroker: None of them can be reached now.
        """
        await self._discovery.start()
        try:
            await self._subscription.start()
        except BaseException:
            await self._discovery.stop()
            raise
        self._subscription.set_window(self.options.max_in_flight)

    def set_max_in_flight(self, count: int) -> None:
        """Let at most *count* messages be unanswered at a time; 0 is a pause."""
        self._subscription.set_window(count)

    @property
    def in_flight(self) -> int:
        """How many deliveries are not answered, those included that nobody has taken yet."""
        return self._consumption.in_flight

    @property
    def is_starved(self) -> bool:
        """Whether some broker sends no more before answers come; a batch had better end now."""
        return self._consumption.is_starved

    # Taking

    async def batches(self) -> AsyncIterator[list[Delivery]]:
        """Give all that each read of a socket brings, as a list, until the subscriber stops."""
        while await self._wait():
            while self._lists:
                yield self._lists.popleft()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Give one delivery after the other, until the subscriber stops."""
        while (delivery := await self._next()) is not None:
            yield delivery

    async def _wait(self) -> bool:
        """Wait until something is there to take; False once the subscriber stops."""
        while not self._lists and not self._is_stopping:
            self._something_came.clear()
            await self._something_came.wait()
        return not self._is_stopping

    async def _next(self) -> Delivery | None:
        """Return the next delivery; None once the subscriber stops."""
        while not self._rest and not self._is_stopping:
            if self._lists:
                self._rest.extend(self._lists.popleft())
                # Those who wait as well may each take one of them.
                self._something_came.set()
            else:
                self._something_came.clear()
                await self._something_came.wait()
        return None if self._is_stopping else self._rest.popleft()

    def _drop_overdue(self) -> None:
        """
        Forget what nobody took in time; the broker delivers it again.

        Kept, it would be handled twice, and a handler that hangs would gather a window more at
        each message timeout.
        """
        self._overdue_timer = None
        overdue = set(self._consumption.overdue(self._now()))
        if overdue:
            self._forget(overdue.__contains__)
        self._watch_overdue()

    def _forget(self, is_gone: Callable[[Delivery], bool]) -> None:
        """Take out of what waits to be taken all that *is_gone*, and hold it no more."""
        waiting = [delivery for batch in (self._rest, *self._lists) for delivery in batch]
        gone = [delivery for delivery in waiting if is_gone(delivery)]
        if not gone:
            return
        self._consumption.dropped(gone)
        self._rest = deque(delivery for delivery in self._rest if not is_gone(delivery))
        lists = ([each for each in batch if not is_gone(each)] for batch in self._lists)
        self._lists = deque(batch for batch in lists if batch)

    def _watch_overdue(self) -> None:
        """Keep one timer, for the first deadline of what is held."""
        due = self._consumption.next_overdue()
        if self._overdue_timer is None and due is not None and not self._is_stopping:
            loop = asyncio.get_running_loop()
            self._overdue_timer = loop.call_at(due, self._drop_overdue)

    async def run(self, handle: Handler, *, concurrency: int = 1) -> None:
        """
        Call *handle* for each delivery, *concurrency* at a time, until the subscriber stops.

        What returns is finished and what raises is requeued, unless the handler has answered
        itself. Cancelled, it hands back what is being handled, at once and without backoff.
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
                # What the handler waited for was cancelled, not the handler.
                self._failed(delivery, error)
            except Exception as error:  # noqa: BLE001 - it is logged, and the message goes back
                self._failed(delivery, error)
            else:
                if not delivery.is_answered:
                    delivery.finish()
            count += 1
            if count % _HANDLED_A_TURN == 0:
                await asyncio.sleep(0)

    def _failed(self, delivery: Delivery, error: BaseException) -> None:
        """Log what the handler raised, and requeue."""
        message_id = delivery.id.decode("latin-1")
        logger.error("handler failed", id=message_id, attempts=delivery.attempts, exc_info=error)
        if not delivery.is_answered:
            delivery.requeue()

    # Answering lists; one delivery is answered by its own methods

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Finish *deliveries*, or none: raises AlreadyAnswered when one was answered before."""
        claim(deliveries)
        self._answers.finish(deliveries)

    def requeue(
        self, deliveries: Sequence[Delivery], delay_ms: int | None = None, *, backoff: bool = True
    ) -> None:
        """Give *deliveries* back, as `Delivery.requeue` does; raises as `finish` does."""
        claim(deliveries)
        self._answers.requeue(deliveries, delay_ms=delay_ms, backoff=backoff)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # What the subscription tells

    def source_opened(self, source: int, answer: Answer) -> None:
        """Count on a new source."""
        nsqd = self._subscription.address_of(source)
        self._consumption.source_opened(source, nsqd, answer)
        logger.info("subscribed", nsqd=nsqd)

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Forget what it delivered: it will be delivered again."""
        lost = self._consumption.source_lost(source)
        self._forget(lambda delivery: not delivery.is_in_flight)
        if not self._is_stopping:
            logger.warning(
                "subscription lost", nsqd=error.address, reason=error.reason, in_flight=len(lost)
            )

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Hand out what came, and give up what has been tried too often."""
        if self._is_stopping:
            ids = [message.id for message in messages]
            self._subscription.requeue(source, ids, delay_ms=0)
            return
        deliveries, given_up = self._consumption.arrived(source, messages, self._now())
        for delivery in given_up:
            self._give_up(delivery)
        if deliveries:
            self._lists.append(deliveries)
            self._something_came.set()
            self._watch_overdue()

    def _give_up(self, delivery: Delivery) -> None:
        message_id = delivery.id.decode("latin-1")
        logger.warning("gave up", id=message_id, attempts=delivery.attempts)
        if self.options.gave_up is not None:
            try:
                self.options.gave_up(delivery)
            except Exception:
                logger.exception("gave_up failed", id=message_id)
        if not delivery.is_answered:
            delivery.finish()

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Say that an answer came too late."""
        verb, _, rest = frame.description.partition(" ")
        message_id = rest.partition(" ")[0].encode("latin-1", "replace")
        refused = self._consumption.refused(source, message_id, verb)
        nsqd = refused.nsqd if refused is not None else None
        logger.warning("answer refused", nsqd=nsqd, code=frame.code, reason=frame.description)

    def channel_gone(self, address: str) -> None:
        """Pass it over; it is never told, for nobody is asked: a channel is made anew, as ever."""

    def auth_required(self) -> None:
        """Say that a broker that came later cannot be subscribed on."""
        logger.warning("a broker asks for AUTH and there is no secret")

    # The end

    async def stop(self) -> None:
        """
        Stop in good order; idempotent.

        RDY 0, what nobody took goes back at once, handlers that run get `stop_timeout_s`, what
        is then unanswered goes back (REQ 0), and each broker is left with CLS.
        """
        if self._stopping is None:
            self._stopping = spawn("stop a subscriber", self._stop(asyncio.current_task()))
        # A caller that is cancelled, or goes, leaves the work to go on.
        await asyncio.shield(self._stopping)

    async def _stop(self, caller: asyncio.Task[object] | None) -> None:
        self._is_stopping = True
        if self._overdue_timer is not None:
            self._overdue_timer.cancel()
        self._something_came.set()
        try:
            self._subscription.set_window(0)
            waiting = [delivery for batch in (*self._lists, self._rest) for delivery in batch]
            self._lists.clear()
            self._rest.clear()
            if waiting:
                self.requeue(waiting, 0, backoff=False)
            # A handler may stop its own subscriber: it is not waited for.
            workers = {worker for worker in self._workers if worker is not caller}
            if workers:
                await asyncio.wait(workers, timeout=self.options.stop_timeout_s)
            self._answers.flush()
            self._answers.carry_out(self._consumption.hand_back(self._now()))
        finally:
            await self._subscription.close()
            await self._discovery.stop()


def _is_cancelled() -> bool:
    """Tell whether somebody wants the task that runs to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
