"""
Consume the messages of one stream, on an event loop in a thread of its own.

Spark keeps one process for each streaming source, from its first batch to its end. The connections
to nsqd are in that process, because executors and tasks do not last.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import msgspec
import uvloop

from gateway.aio import spawn
from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import Discovery, TopicWatch
from gateway.client.from_settings import NsqdAccess
from gateway.client.nsqd_http import NsqdHttp
from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.errors import BrokerUnreachable, GatewayError
from gateway.pipeline.backlog import (
    ArrivalDeadline,
    AvailableNowTarget,
    ChannelBacklog,
    depth_request,
    read_depth,
)
from gateway.pipeline.pending_batches import Chunk, PendingBatches
from gateway.pipeline.schema import now_us
from gateway.protocol.frames import ErrorFrame, Message, RawMessages
from gateway.protocol.identify import IdentifyResponse
from gateway.settings.pipeline import SourceSettings
from gateway.telemetry import get_logger

logger = get_logger()

T = TypeVar("T")

_MAX_CONNECTIONS = 64
"""Maximum connections to one nsqd for one topic; each has at most max_rdy_count in flight."""
_OUTPUT_BUFFER_BYTES = 65_536
"""Maximum that nsqd allows by default. Large buffers save a seventh of the CPU per message."""
_TOUCHES_PER_TIMEOUT = 3
"""Number of TOUCHes of a held message within its timeout."""
_BACKLOG_TIMEOUT_S = 1.0
"""Time that Spark's progress report waits for the event loop."""
_STOP_TIMEOUT_S = 8.0
"""Time that `SourceConsumer.stop` waits for the event loop, and again for its thread."""
_MAX_AGE_S = 1.0
"""Maximum age of the depth in Spark's progress report."""
_POLL_TIMEOUT_S = 0.5
"""Time that the progress report waits for nsqd, which answers /stats within milliseconds."""
_RECOUNT_DELAY_S = 0.1
"""
Time between two polls at the start. nsqd's /stats counts a message neither in the topic nor in the
channel while it moves between them; two polls this far apart do not both miss it.
"""


class DepthPoller:
    """
    Ask every nsqd for the backlog of the stream's channels, over HTTP.

    Call `start` first and `stop` last.
    """

    def __init__(self, settings: SourceSettings, discovery: Discovery) -> None:
        self._settings = settings
        self._discovery = discovery
        self._http = NsqdHttp(settings.nsqd_http_address, discovery)
        self._watch: TopicWatch | None = None
        self._poll: asyncio.Task[ChannelBacklog | None] | None = None
        self._polled_at = -_MAX_AGE_S
        self.last: ChannelBacklog | None = None
        """Result of the last poll; None unless every nsqd answered."""

    async def start(self) -> None:
        """Start discovery and the HTTP client."""
        self._watch = self._discovery.watch_nodes(lambda _addresses: None)
        await self._http.start()

    async def stop(self) -> None:
        """Cancel a poll in progress, and stop the HTTP client; idempotent."""
        if self._poll is not None:
            self._poll.cancel()
        if self._watch is not None:
            self._watch.close()
        await self._http.stop()

    async def recent(self) -> ChannelBacklog | None:
        """
        Return a backlog that is at most 1 s old; None unless every nsqd answers in time.

        An older backlog would still count messages as waiting that are now in batches here, and a
        caller that adds up both would count them twice.
        """
        now = asyncio.get_running_loop().time()
        if self._poll is None and now - self._polled_at >= _MAX_AGE_S:
            self._poll = spawn("poll depth", self.poll())
            self._poll.add_done_callback(self._on_polled)
        if self._poll is not None:
            await asyncio.wait({self._poll}, timeout=_POLL_TIMEOUT_S)
        return self.last if self._poll is None else None

    def _on_polled(self, task: asyncio.Task[ChannelBacklog | None]) -> None:
        del task
        self._poll = None

    async def poll(self) -> ChannelBacklog | None:
        """Return the current backlog; None unless every nsqd answers."""
        watch = self._watch
        assert watch is not None  # noqa: S101 - started before
        if self._discovery.has_lookups:
            await watch.first_answer()
        self._polled_at = asyncio.get_running_loop().time()
        self.last = await self._sum() if self._knows_all(watch) else None
        return self.last

    async def poll_at_start(self) -> ChannelBacklog | None:
        """Poll twice and return the larger backlog: one poll may miss a message that nsqd moves."""
        first = await self.poll()
        if first is None:
            return None
        await asyncio.sleep(_RECOUNT_DELAY_S)
        second = await self.poll()
        return None if second is None else max(first, second, key=lambda backlog: backlog.total)

    def _knows_all(self, watch: TopicWatch) -> bool:
        # An nsqd may have no known HTTP address; without its messages the sum would be too low.
        nodes = self._http.http_addresses
        return bool(nodes) and len(nodes) >= len(watch.addresses)

    async def _sum(self) -> ChannelBacklog | None:
        channel, backlogs = self._settings.channel, []
        for topic in self._settings.topic:
            try:
                answers = await self._http.request_all(depth_request(topic))
            except GatewayError:
                return None
            backlog = read_depth(answers, topic, channel)
            if backlog is None:
                return None
            backlogs.append(backlog)
        return ChannelBacklog(*map(sum, zip(*backlogs, strict=True)))


@dataclass(frozen=True, eq=False)
class NsqdSubscription:
    """One connection to an nsqd, subscribed to one topic."""

    consumer: TopicConsumer
    number: int
    """Number of the connection in its `Subscription`."""
    topic: str
    nsqd: str
    """Address of the nsqd, host:port."""
    answer: IdentifyResponse


class TopicConsumer:
    """
    Receive the messages of one topic's channel from several nsqds, through one `Subscription`.

    The messages are added to the stream's `PendingBatches`.
    """

    def __init__(
        self,
        pending: PendingBatches[NsqdSubscription],
        discovery: Discovery,
        names: tuple[str, str],
        connection: ConnectionOptions,
        stream: SourceConsumer,
    ) -> None:
        self.topic, channel = names
        self.is_requeuing = False
        """True if every message that arrives is requeued."""
        self.refused = 0
        """Number of FIN, REQ and TOUCH that nsqd refused because they came too late."""
        self.sources: dict[int, NsqdSubscription] = {}
        """Open connections by number."""
        self._pending = pending
        self._stream = stream
        self.subscription = Subscription(
            discovery,
            SubscriptionOptions(
                topic=self.topic,
                channel=channel,
                connection=connection,
                on_raw_messages=self._on_raw_messages,
            ),
            self,
        )

    def _on_raw_messages(self, number: int, messages: RawMessages, sent_after: float) -> None:
        if self.is_requeuing:
            self.subscription.requeue(number, messages.ids, delay_ms=0)
            return
        now = asyncio.get_running_loop().time()
        if sent_after + self.sources[number].answer.msg_timeout / 1000 <= now:
            return  # their timeout may be over: nsqd then sends them again
        if self._stream.target is not None:
            belongs, rest = self._stream.target.admit(messages)
            self._stream.pause_at_target()  # RDY 0 before REQ, or nsqd sends the rest again
            if rest is not None:
                self.subscription.requeue(number, rest.ids, delay_ms=0)
            if belongs is None:
                return
            messages = belongs
        source = self.sources[number]
        self._pending.add(source, messages, sent_after=sent_after, received_us=now_us())
        self._stream.on_messages_added()

    # Callbacks of the subscription

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Called when a connection has subscribed: log it, and distribute RDY again."""
        nsqd = self.subscription.address_of(source)
        # A large window opens up to 64 connections to one nsqd: log only the first at info.
        is_first = all(each.nsqd != nsqd for each in self.sources.values())
        self.sources[source] = NsqdSubscription(self, source, self.topic, nsqd, answer)
        log = logger.info if is_first else logger.debug
        log("subscribed", nsqd=nsqd, topic=self.topic)
        self._stream.on_sources_changed()

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """
        Called when a connection is lost: drop those of its messages that wait for a batch.

        nsqd sends all messages of the connection again. Messages in batches stay there.
        """
        lost = self.sources.pop(source)
        # Counted before they are dropped. Those in batches arrive again too, so they count.
        if self._stream.target is not None:
            self._stream.target.expect_again(self._pending.count_of(lost))
        forgotten = self._pending.drop_unbatched(lost)
        logger.warning(
            "subscription lost", nsqd=error.address, reason=error.reason, in_flight=forgotten
        )
        self._stream.on_sources_changed()

    def on_messages(self, source: int, messages: list[Message], sent_after: float) -> None:
        """Never called: `on_raw_messages` takes the messages undecoded."""
        raise AssertionError((source, messages, sent_after))

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return how many messages of each open connection are held here, without FIN or REQ."""
        held = self._pending.held_by_source()
        return {number: held[source] for number, source in self.sources.items()}

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """
        Called when nsqd refused a FIN, REQ or TOUCH, because it came too late: count it.

        nsqd has requeued the message and delivers it again.
        """
        self.refused += 1
        logger.debug(
            "nsqd refused FIN, REQ or TOUCH",
            source=source,
            code=frame.code,
            reason=frame.description,
        )

    def on_channel_gone(self, address: str) -> None:
        """Never called, without `is_gone`: on reconnection, SUB creates a deleted channel again."""

    def on_secret_missing(self) -> None:
        """Called when an nsqd found later requires a secret and none is configured: log it."""
        logger.warning("nsqd requires AUTH and no secret is configured")


class StreamBacklog(NamedTuple):
    """Messages of a stream, counted by state."""

    buffered: int
    in_batches: int
    refused: int
    """Number of FIN, REQ and TOUCH that nsqd refused because they came too late."""
    sources: int
    """Number of open connections."""
    depth: int | None
    """Messages waiting in the channels at all nsqds; None unless every nsqd answers."""
    oldest_s: float
    """Age of the oldest held message in seconds; 0 if none is held."""


class SourceConsumer:
    """
    Base class of the consumers of a stream, which subscribe to all its topics.

    Call `start` first and `stop` last, all from one thread.
    """

    def __init__(self, settings: SourceSettings, access: NsqdAccess) -> None:
        self.settings = settings
        self.pending: PendingBatches[NsqdSubscription] = PendingBatches()
        self.target: AvailableNowTarget | None = None
        """Messages of an available-now run; None for an endless stream."""
        self._discovery = Discovery(settings.nsqd_tcp_address, access.lookup)
        self._depth = DepthPoller(settings, self._discovery)
        offer = msgspec.structs.replace(
            access.connection.offer,
            msg_timeout=settings.msg_timeout_ms,
            output_buffer_timeout=25,
        )
        self._connection = replace(
            access.connection,
            offer=offer,
            preferred_output_buffer_bytes=_OUTPUT_BUFFER_BYTES,
            secret=access.secret,
        )
        self.window = settings.window
        """Maximum number of messages in flight, over all topics."""
        self.capacity = self.window
        """Number of messages that can be in flight over the open and planned connections."""
        self.max_window = self.window
        """Largest useful `window`: the limit of all connections that could be opened."""
        self._consumers: list[TopicConsumer] = []
        self._is_connection_refused = False
        """True if nsqd refused the last additional connection."""
        self._growing: set[asyncio.Task[None]] = set()
        """Tasks that open additional connections."""
        self._deadline = ArrivalDeadline(settings.idle_s, settings.msg_timeout_ms / 1_000)
        self._is_reading = True
        """False while reading is paused because the buffer is full."""
        self._is_near_timeout = False
        """True once the oldest waiting message has used half of nsqd's max_msg_timeout."""
        self._pause_reasons: dict[str, bool] = {}
        """Reasons for RDY 0; the value is True if messages that still arrive are requeued."""
        self._is_stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="nsq source", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run *work* on the event loop and return its result; blocks the calling thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    # Called by Spark's thread

    def start(self, *, available_now: bool = False) -> None:
        """
        Start the thread, and subscribe to every topic at the nsqds that have it.

        Return once each topic is subscribed to. A topic that no nsqd has yet does not delay that;
        it is subscribed to when it appears. With *available_now*, receive only the messages that
        are present now.

        Raises:
            AuthRequired, BrokerRefused, NoBroker: As raised by `Subscription.start`.
        """
        self._thread.start()
        self.call(self._start(available_now=available_now))

    def is_exhausted(self) -> bool:
        """
        Return True if an available-now run can end.

        That is the case when the messages present at the start have arrived and are in batches, or
        when no more are expected. An endless stream is never exhausted.
        """
        return self.call(self._is_exhausted())

    def is_batch_ready(self, count: int, size_bytes: int) -> bool:
        """
        Return True if a batch should be cut without further waiting.

        That is the case if *count* messages or *size_bytes* are waiting, if the buffer is full, or
        if the oldest message is near its timeout.
        """
        is_large = self.pending.buffered >= count or self.pending.waiting_bytes >= size_bytes
        return is_large or not self._is_reading or self._is_near_timeout

    @property
    def waiting(self) -> int:
        """Number of messages without a batch, here and in nsqd's queues as of the last poll."""
        backlog = self._depth.last
        return self.pending.buffered + (0 if backlog is None else backlog.waiting)

    def set_window(self, count: int) -> None:
        """Set the maximum number of messages in flight, over all topics, to *count*."""
        self.loop.call_soon_threadsafe(self._set_window, count)

    def backlog(self) -> StreamBacklog | None:
        """Return the backlog; None if it is not available in time."""
        try:
            return self.call(self._backlog(), _BACKLOG_TIMEOUT_S)
        except TimeoutError:
            return None

    def stop(self) -> None:
        """Requeue unfinished messages, close the connections and end the thread; idempotent."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if not self._thread.is_alive():
            return
        try:
            with contextlib.suppress(TimeoutError):
                self.call(self._stop(), _STOP_TIMEOUT_S)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)
            if not self._thread.is_alive():
                self.loop.close()

    # On the event loop

    async def _start(self, *, available_now: bool) -> None:
        await self._discovery.start()
        await self._depth.start()
        if available_now:
            started_ns = now_us() * 1_000
            backlog = await self._depth.poll_at_start()
            self.target = AvailableNowTarget(None if backlog is None else backlog.total, started_ns)
        # The time without arrivals counts from here.
        self._deadline.on_messages(self.loop.time())
        for topic in self.settings.topic:
            await self._add_consumer(topic)
        self.pause_at_target()  # a target of 0 messages is reached already
        self._distribute_window()
        self._schedule_touch()

    async def _add_consumer(self, topic: str) -> None:
        names = topic, self.settings.channel
        consumer = TopicConsumer(self.pending, self._discovery, names, self._connection, self)
        # Both before the start, during which messages may arrive.
        consumer.is_requeuing = any(self._pause_reasons.values())
        if not self._is_reading:
            consumer.subscription.pause_reading()
        await consumer.subscription.start()
        if not consumer.sources:
            # The topic may appear later. A misspelled name never does, and nothing else reports it.
            advice = "nsqlookupd is polled until one has it; check the name"
            logger.warning("no nsqd has the topic yet", topic=topic, advice=advice)
        self._consumers.append(consumer)
        if self._is_reading:  # this may have changed while the subscription started
            consumer.subscription.resume_reading()
        else:
            consumer.subscription.pause_reading()

    # Messages in flight

    def pause(self, reason: str, *, requeue: bool) -> None:
        """
        Set RDY to 0 on all connections, until `resume` is called for the same *reason*.

        With *requeue*, send REQ for messages that still arrive.
        """
        self._pause_reasons[reason] = requeue
        self._distribute_window()

    def resume(self, reason: str) -> None:
        """Remove *reason*, and restore RDY if no other reason to pause is left."""
        if self._pause_reasons.pop(reason, None) is not None and not self._is_stopping:
            self._distribute_window()

    def _set_window(self, count: int) -> None:
        self.window = count
        if not self._is_stopping:
            self._distribute_window()

    def _distribute_window(self) -> None:
        """
        Set RDY so that the window is divided evenly over topics and their subscriptions.

        Open more connections if nsqd's max_rdy_count keeps RDY below that.
        """
        window = 0 if self._pause_reasons else self.window // len(self.settings.topic)
        for consumer in self._consumers:
            consumer.is_requeuing = any(self._pause_reasons.values())
        for topic in self.settings.topic:
            consumers = [consumer for consumer in self._consumers if consumer.topic == topic]
            if not consumers:
                continue  # during start, earlier consumers already get sources
            for consumer in consumers:
                # At least 1: with RDY 0 a subscription would never receive.
                share = max(1, window // len(consumers)) if window else 0
                consumer.subscription.set_window(share)
            # One at a time: once it is open, this method is called again for the next one.
            if len(consumers) < self._wanted(consumers[0], window) and not self._growing:
                task = spawn("open more connections", self._add_connection(topic))
                self._growing.add(task)
                task.add_done_callback(self._growing.discard)
        self._update_capacity()

    def _update_capacity(self) -> None:
        """Update `capacity` and `max_window` from max_rdy_count, the limit of one connection."""
        open_now, limits = Counter[str](), Counter[str]()
        for consumer in self._consumers:
            rdy = sum(source.answer.max_rdy_count for source in consumer.sources.values())
            open_now[consumer.topic] += rdy
            limits[consumer.topic] = max(limits[consumer.topic], rdy * _MAX_CONNECTIONS)
        topics = self.settings.topic
        if self._growing or not all(open_now[topic] for topic in topics):
            self.capacity = self.window  # not all connections are open yet
        else:
            share = self.window // len(topics)
            self.capacity = sum(min(share, open_now[topic]) for topic in topics)
        if self.settings.max_in_flight:
            self.max_window = self.window
        else:
            self.max_window = self.capacity if self._is_connection_refused else limits.total()

    @staticmethod
    def _wanted(consumer: TopicConsumer, window: int) -> int:
        """Return the number of subscriptions that *window* needs, given max_rdy_count."""
        capacity = sum(source.answer.max_rdy_count for source in consumer.sources.values())
        return min(_MAX_CONNECTIONS, -(-window // capacity)) if capacity else 1

    async def _add_connection(self, topic: str) -> None:
        try:
            await self._add_consumer(topic)
        except GatewayError as error:
            logger.warning("additional nsqd connection failed", topic=topic, reason=str(error))
            self._is_connection_refused = True
            # This task is still in the set; cleared now, so that the update sees it as done.
            self._growing.clear()
            self._update_capacity()
            return
        self._is_connection_refused = False
        self._growing.clear()
        if not self._is_stopping:
            self._distribute_window()

    def on_messages_added(self) -> None:
        """Called when messages have been added; stop reading sockets if too many bytes are held."""
        self._deadline.on_messages(self.loop.time())
        self.on_buffer_limit()

    def pause_at_target(self) -> None:
        """Set RDY to 0 once the target is reached; restore RDY if messages are missing again."""
        if self.target is None:
            return
        if not self.target.is_reached:
            self.resume("goal")  # a connection was lost, so nsqd delivers its messages again
        elif "goal" not in self._pause_reasons:
            self.pause("goal", requeue=False)  # the target requeues surplus messages itself

    def on_sources_changed(self) -> None:
        """Called when a connection has opened or is lost; distribute RDY again."""
        self.pause_at_target()
        if not self._is_stopping:
            self._distribute_window()
        self.on_buffer_limit()

    def on_buffer_limit(self) -> None:
        """
        Stop reading sockets above max_buffer_bytes of held messages.

        Resume at half of that, to avoid oscillation.
        """
        size_bytes, limit_bytes = self.pending.size_bytes, self.settings.max_buffer_bytes
        if size_bytes > limit_bytes and self._is_reading:
            # RDY 0 alone is not enough: frames that nsqd has already sent would fill the buffer.
            self._is_reading = False
            for consumer in self._consumers:
                consumer.subscription.pause_reading()
        elif not self._is_reading and size_bytes <= limit_bytes // 2:
            self._is_reading = True
            for consumer in self._consumers:
                consumer.subscription.resume_reading()

    # FIN and REQ

    def finish_batches(self, up_to: int) -> None:
        """Send FIN for the messages of the batches up to number *up_to*, and forget them."""
        for source, ids in self.pending.take_up_to(up_to).items():
            source.consumer.subscription.finish(source.number, ids)
        self.on_buffer_limit()

    def requeue_all(self) -> None:
        """Send REQ for every held message, also for those in batches, and forget them."""
        # Before `clear`. Messages of lost connections were expected again when they were lost.
        self._expect_again(self.pending.in_flight)
        for source, ids in self.pending.clear().items():
            source.consumer.subscription.requeue(source.number, ids, delay_ms=0)
        self.on_buffer_limit()

    def _expect_again(self, count: int) -> None:
        """Tell the target that *count* messages are no longer held and will arrive again."""
        if self.target is not None:
            self.target.expect_again(count)
            self.pause_at_target()

    async def _is_exhausted(self) -> bool:
        if self.target is None or self.pending.buffered:
            return False
        now = self.loop.time()
        if self.target.is_reached:
            return self._deadline.is_quiet(now)
        if self._deadline.is_poll_due(now):
            # Counted before the poll: a message that arrives during it must not hide another one
            # that is still at nsqd.
            held, backlog = self.pending.in_flight, await self._depth.poll()
            self._deadline.on_backlog(backlog, held, self.loop.time())
        # Messages may have arrived during the poll.
        return self._deadline.has_passed(self.loop.time()) and self.pending.buffered == 0

    async def _backlog(self) -> StreamBacklog:
        backlog = await self._depth.recent()
        oldest = self.pending.oldest_at
        return StreamBacklog(
            buffered=self.pending.buffered,
            in_batches=self.pending.in_batches,
            refused=sum(consumer.refused for consumer in self._consumers),
            sources=len(self._sources()),
            depth=None if backlog is None else backlog.waiting,
            oldest_s=0.0 if oldest is None else self.loop.time() - oldest,
        )

    def _schedule_touch(self) -> None:
        # Half of the interval: a message that is too young for a TOUCH in one round gets it in the
        # next one, before the interval has passed.
        interval_s = self.settings.msg_timeout_ms / 1_000 / _TOUCHES_PER_TIMEOUT
        self._timer = self.loop.call_later(interval_s / 2, self._touch, interval_s)

    def _touch(self, interval_s: float) -> None:
        """
        Send TOUCH for held messages, so that nsqd does not requeue them.

        Drop those that wait for a batch past max_msg_timeout: nsqd has requeued them all the same.
        """
        self._schedule_touch()
        now = self.loop.time()
        for source, ids in self.pending.due_touches(now, interval_s / 2).items():
            source.consumer.subscription.touch(source.number, ids)
        # nsqd allows TOUCH to extend a timeout up to max_msg_timeout after delivery, not beyond.
        ceilings = [source.answer.max_msg_timeout for source in self._sources()]
        if not ceilings:
            return
        # The lowest of all nsqds, because messages are dropped by age, from whatever nsqd.
        ceiling_s = min(ceilings) / 1_000
        if dropped := self.pending.drop_older_than(now - ceiling_s):
            self._expect_again(dropped)
            self.on_buffer_limit()
        since = self.pending.waiting_since
        self._is_near_timeout = since is not None and now - since >= ceiling_s / 2

    def _sources(self) -> Sequence[NsqdSubscription]:
        return [source for consumer in self._consumers for source in consumer.sources.values()]

    # The end

    async def _stop(self) -> None:
        """
        Requeue all held messages, then close the connections.

        nsqd would otherwise send the messages to other consumers only after their timeout.
        """
        if self._timer is not None:
            self._timer.cancel()
        # First, because a connection that opens now would receive messages again.
        growing = tuple(self._growing)
        for task in growing:
            task.cancel()
        # RDY 0 before the REQs, or nsqd sends the messages again at once.
        self.pause("stop", requeue=True)
        self.requeue_all()
        await asyncio.gather(
            *growing,
            *(consumer.subscription.close() for consumer in self._consumers),
            return_exceptions=True,  # spawn has logged the errors of these tasks
        )
        await self._depth.stop()
        await self._discovery.stop()


class CommitConsumer(SourceConsumer):
    """Consume for `ackMode=commit`: finish messages once Spark has committed their batch."""

    def __init__(self, settings: SourceSettings, access: NsqdAccess) -> None:
        super().__init__(settings, access)
        self._message_arrived = asyncio.Event()

    def on_messages_added(self) -> None:
        """Called when messages have been added; wake a waiting `cut_batch`."""
        super().on_messages_added()
        self._message_arrived.set()

    # Called by Spark's thread

    def cut_batch(self, limit: int, target_bytes: int) -> int | None:
        """
        Cut a batch of at most *limit* messages and about *target_bytes*; return its number.

        Return None if no message arrives within poll_ms.
        """
        return self.call(self._cut_batch(limit, target_bytes))

    def finish(self, up_to: int) -> None:
        """Send FIN for the messages of the batches up to number *up_to*; idempotent."""
        self.call(self._finish(up_to))

    def chunks(self, after: int, up_to: int) -> list[Chunk[NsqdSubscription]]:
        """Return the chunks of the batches numbered above *after*, up to *up_to*."""
        return self.call(self._chunks(after, up_to))

    # On the event loop

    async def _cut_batch(self, limit: int, target_bytes: int) -> int | None:
        if not self.pending.buffered:
            self._message_arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.poll_ms / 1_000):
                    # A loop: a lost connection may have taken its messages away again.
                    while not self.pending.buffered:
                        await self._message_arrived.wait()
                        self._message_arrived.clear()
        return self.pending.cut_batch(limit, target_bytes=target_bytes)

    async def _finish(self, up_to: int) -> None:
        self.finish_batches(up_to)

    async def _chunks(self, after: int, up_to: int) -> list[Chunk[NsqdSubscription]]:
        return self.pending.chunks(after, up_to)
