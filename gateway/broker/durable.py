"""
Topics and channels whose messages are on disk before they are acknowledged.

A published message goes to the journal first, and to the channels once it is on disk. A channel has
at most mem_queue_size messages queued in memory, and reads on from the disk when they run low, so
the length of a backlog costs no memory. Ephemeral topics stay in memory; an ephemeral channel of a
durable topic reads as the others do, but nothing of it is written.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from itertools import islice

from gateway.broker.channel import Channel, MessageState, PeekedMessage
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.journal import Journal
from gateway.broker.message import ClockReading, StoredMessage
from gateway.broker.message_log import PAGE_BITS, ChannelLog, TopicLog, decode_chunk
from gateway.broker.scheduler import BrokerState
from gateway.broker.store import ChannelRow, Chunks
from gateway.broker.topics import Topic
from gateway.errors import StoreDamaged, StoreFailed
from gateway.protocol.wire import is_ephemeral
from gateway.telemetry import get_logger

READ_BYTES = 524_288
"""Bytes that one read of a channel takes from the disk."""
PEEKED_PAGES = 64
"""Pages that a peek looks through in one turn of the event loop, in 3 ms or less."""
_NS_PER_S = 1_000_000_000

_log = get_logger()


class DurableStorage:
    """Create durable topics, and restore those of the store."""

    def __init__(self, context: BrokerState, journal: Journal) -> None:
        self.journal = journal
        self.context = context

    @property
    def version(self) -> int:
        """Rises with each change whose response has to wait for the disk."""
        return self.journal.version

    def create_topic(self, name: str) -> DurableTopic:
        """Return a new topic whose messages are on disk."""
        return DurableTopic(name, self.context, self.journal, self.journal.create_topic(name))

    def load(self) -> dict[str, DurableTopic]:
        """
        Return the topics of the store by name, with their channels and messages.

        Raises:
            StartError: The store is damaged.
        """
        topics: dict[int, DurableTopic] = {}
        rows, channel_rows = self.journal.store.load()
        for row in rows:
            log = TopicLog(row.id, end_seq=row.end_seq)
            topic = DurableTopic(row.name, self.context, self.journal, log)
            topic.is_paused = row.is_paused
            if row.distributed_seq is not None:
                log.distributed_seq = row.distributed_seq
            topics[row.id] = topic
        for found in channel_rows:
            topics[found.topic].restore_channel(found)
        for topic in topics.values():
            topic.end_restore()
        return {topic.name: topic for topic in topics.values()}


class DurableTopic(Topic):
    """A topic whose messages are on disk: its backlog takes no memory."""

    is_durable = True

    def __init__(self, name: str, context: BrokerState, journal: Journal, log: TopicLog) -> None:
        super().__init__(name, context)
        self.log = log
        self.channels: dict[str, DurableChannel] = {}  # type: ignore[assignment]
        self._journal = journal

    @property
    def depth(self) -> int:
        """The number of messages that no channel has received yet."""
        return self.log.held_count

    @property
    def _copies(self) -> int:
        # A message waits for the disk once; channels reserve memory for what they hold afterwards.
        return 1

    def _accept(self, messages: list[StoredMessage], at: ClockReading) -> None:
        del at
        self._journal.append(self, messages)

    def on_stored(self, messages: list[StoredMessage]) -> None:
        """Give *messages*, which are on disk now, to the channels."""
        self._context.memory.free(messages)
        if self._is_deleted or not self._is_distributing:
            return
        self.log.distribute()
        now = self._journal.read_clocks().now
        is_original = True
        for channel in self.channels.values():
            channel.put_stored(messages, now, is_original=is_original)
            is_original = False

    def on_refused(self, messages: list[StoredMessage]) -> None:
        """Drop *messages*, which could not be written."""
        self.refused_count += len(messages)
        self._context.memory.free(messages)
        self.message_count -= len(messages)
        self.message_bytes -= sum([len(message.body) for message in messages])

    def get_channel(self, name: str, *, now: float) -> DurableChannel:
        """Return the channel; create it if necessary. The first channel gets the backlog."""
        del now
        channel = self.channels.get(name)
        if channel is None:
            log = self._journal.create_channel(self.log, name, is_saved=not is_ephemeral(name))
            channel = self.add_channel(name, log)
            self._distribute_held()
            self._context.announce(self.name, name)
        return channel

    def add_channel(self, name: str, log: ChannelLog) -> DurableChannel:
        """Return a new channel with the messages of *log*."""
        channel = self.channels[name] = DurableChannel(
            name, self, self._context, self._journal, log
        )
        self.log.channels[name] = log
        return channel

    def restore_channel(self, row: ChannelRow) -> None:
        """Add a channel of the store."""
        log = ChannelLog(row.id, row.first_page << PAGE_BITS, is_saved=True)
        log.restore(row.pages, self.log.distributed_seq)
        channel = self.add_channel(row.name, log)
        channel.is_paused = row.is_paused
        channel.restore()

    def end_restore(self) -> None:
        """Delete the messages that no channel needs any more: they may be left by a crash."""
        self._journal.delete_messages(self.log, self.log.release_all())
        if not self._is_distributing:
            # Without the ephemeral channels of before, the messages from now on are kept.
            self._save()
        elif self.log.held_count:
            # The process was killed while `is_held`.
            self._distribute_held()

    def delete_channel(self, name: str) -> list[ChannelConsumer]:
        """Delete an existing channel; the caller must disconnect the returned consumers."""
        channel = self.channels.pop(name)
        self.log.channels.pop(name)
        consumers = channel.delete()
        self._journal.delete_channel(channel.log)
        self._journal.delete_messages(self.log, self.log.release_all())
        self._save()
        self._context.announce(self.name, name, is_deleted=True)
        return consumers

    def pause(self) -> None:
        """Keep new messages from the channels, which still deliver the messages that they have."""
        self.is_paused = True
        self._save()

    def unpause(self, *, now: float) -> None:
        """Distribute held and new messages to the channels again."""
        del now
        self.is_paused = False
        self._distribute_held()

    def end_hold(self, *, now: float) -> None:
        """End `is_held`: distribute held messages to the channels that exist by now."""
        del now
        self.is_held = False
        self._distribute_held()

    def empty(self) -> None:
        """Remove the messages that no channel has received yet."""
        log = self.log
        first_seq, end_seq = log.distributed_seq, log.end_seq
        if first_seq == end_seq:
            return
        log.distributed_seq = end_seq
        if self.channels:
            for channel in self.channels.values():
                self.release(channel.log.exclude(first_seq, end_seq))
                self._journal.changed(channel.log)
        else:
            self._journal.delete_messages(log, [(first_seq, end_seq)])
        self._save()

    def delete(self) -> list[ChannelConsumer]:
        """Delete all channels and messages; the caller must disconnect the returned consumers."""
        self._is_deleted = True
        consumers = []
        for name in list(self.channels):
            channel = self.channels.pop(name)
            self.log.channels.pop(name)
            consumers += channel.delete()
            self._journal.delete_channel(channel.log)
            self._context.announce(self.name, name, is_deleted=True)
        self._journal.delete_topic(self.log)
        return consumers

    def release(self, pages: Sequence[int]) -> None:
        """Delete the messages of *pages*, which a channel has done, if no other one needs them."""
        self._journal.delete_messages(self.log, self.log.release(pages))

    def _distribute_held(self) -> None:
        """Distribute held messages, if there are channels and no pause; save what holds now."""
        if self._is_distributing:
            held_count = self.log.held_count
            self.log.distribute()
            for channel in self.channels.values():
                channel.on_extended(held_count)
        self._save()

    def _save(self) -> None:
        self._journal.save_topic(
            self.log, is_paused=self.is_paused, is_distributing=self._is_distributing
        )


class DurableChannel(Channel):
    """A channel of a durable topic: `log` says what becomes of each message."""

    def __init__(
        self,
        name: str,
        topic: DurableTopic,
        context: BrokerState,
        journal: Journal,
        log: ChannelLog,
    ) -> None:
        super().__init__(topic.name, name, context)
        self.log = log
        self._topic = topic
        self._journal = journal
        self._is_deleted = False
        self._is_reading = False
        self._behind_damage = -1
        """Where to read on behind a damaged chunk, whose messages nobody counts."""
        # Deferred messages without their bodies that are due, by number. Ordered, because the first
        # key of a dict takes long to find when many before it are gone.
        self._reloading: OrderedDict[int, StoredMessage] = OrderedDict()

    @property
    def depth(self) -> int:
        """The number of queued messages, in memory or not, without those in flight or deferred."""
        return self.log.unfinished_count - self.in_flight_count - self.deferred_count

    # Messages

    def put_stored(
        self, messages: Sequence[StoredMessage], now: float, *, is_original: bool
    ) -> None:
        """
        Take as many of *messages* into memory as it may hold; the others are read when they run up.

        *is_original* tells that no other channel uses the objects.
        """
        self.message_count += len(messages)
        log = self.log
        for message in messages:
            if message.defer_ms:
                self._take_deferred(message, now + message.defer_ms / 1000)
        if log.next_seq == messages[0].seq:
            count = max(0, self._limits.mem_queue_size - len(self._queue))
            taken = messages[: count if self._has_memory else min(count, 1)]
            log.next_seq += len(taken)
            self._take([_own(each, is_original=is_original) for each in taken if not each.defer_ms])
        if self.is_ephemeral and log.has_unread:
            # As in nsqd, an ephemeral channel drops what its queue in memory cannot hold.
            self._topic.release(log.skip_unread())
        self._schedule_delivery()

    def on_extended(self, count: int) -> None:
        """Called when *count* messages, which are on disk only, were added to `log`."""
        self.message_count += count
        self._schedule_delivery()

    def restore(self) -> None:
        """Schedule the deferred messages of `log`, after a start."""
        at = self._journal.read_clocks()
        for seq, due_ns in self.log.deferred():
            stub = StoredMessage(0, self.log.attempts(seq), b"%016x" % seq, b"", seq=seq)
            self._memory.take((stub,))
            super()._defer(stub, at.now + max(0, due_ns - at.wall_ns) / _NS_PER_S)

    def _take(self, messages: list[StoredMessage]) -> None:
        """Queue *messages*, which have not been in memory."""
        self._memory.take(messages)
        self._enqueue(messages)

    def _take_deferred(self, message: StoredMessage, until: float) -> None:
        """Defer a message that has not been in memory, or that another channel uses."""
        own = message.copy()
        own.attempts = message.attempts
        self._memory.take((own,))
        self._defer(own, until)

    def _defer(self, message: StoredMessage, until: float) -> None:
        # The body is read again when the message is due, if there are many.
        if message.body and not (
            len(self._deferred) < self._limits.mem_queue_size and self._has_memory
        ):
            self._memory.used_bytes -= len(message.body)
            message.body = b""
        at = self._journal.read_clocks()
        self.log.defer(message, at.wall_ns + int((until - at.now) * _NS_PER_S))
        self._journal.changed(self.log)
        super()._defer(message, until)

    def _end_deferral(self, messages: list[StoredMessage]) -> None:
        # A message without a body is read again; until then, it counts as queued.
        self._reloading.update((each.seq, each) for each in messages if not each.body)
        self._enqueue([message for message in messages if message.body])

    def _on_delivered(self, messages: Sequence[StoredMessage]) -> None:
        self.log.deliver(messages)
        self._journal.changed(self.log)

    def _on_finished(self, message: StoredMessage) -> None:
        done = self.log.finish(message.seq)
        self._journal.changed(self.log)
        if done is not None:
            self._topic.release((done,))

    # Reading on from the disk

    @property
    def _has_memory(self) -> bool:
        """False if messages beyond the next one had better stay on disk: publishes need memory."""
        return self._memory.used_bytes * 2 < self._memory.limit_bytes

    def _schedule_delivery(self) -> None:
        super()._schedule_delivery()
        queued = len(self._queue)
        if self._is_reading or self._is_deleted or not self._waiting:
            return
        if queued and (queued * 2 > self._limits.mem_queue_size or not self._has_memory):
            return
        if self._reloading:
            seq = next(iter(self._reloading))
            self._read(seq, seq + 1, 1)
        elif self.log.has_unread:
            max_bytes = READ_BYTES if self._has_memory else 1
            self._read(self.log.next_seq, self.log.end_seq, max_bytes)

    def _read(self, first_seq: int, end_seq: int, max_bytes: int) -> None:
        self._is_reading = True
        self._journal.read(
            self._topic.log,
            first_seq,
            end_seq,
            max_bytes=max_bytes,
            is_chunk_skipped=first_seq == self._behind_damage,
            on_read=partial(self._on_read, first_seq, end_seq),
        )

    def _on_read(self, first_seq: int, end_seq: int, found: Chunks | StoreFailed) -> None:
        self._is_reading = False
        if self._is_deleted:
            return
        if isinstance(found, StoreFailed):
            _log.error("broker store not readable", reason=str(found))
            self._journal.call_later(self._schedule_delivery)
            return
        is_reloading = first_seq in self._reloading
        messages = self._decode(found)
        queued = [self._reloaded(message) for message in messages if message.seq in self._reloading]
        if not is_reloading:
            queued += self._read_on(messages, self._end_of(found, messages, end_seq))
        elif (lost := self._reloading.pop(first_seq, None)) is not None:
            self._memory.free((lost,))  # its chunk is damaged, or missing
        self._take(queued)

    def _end_of(self, found: Chunks, messages: list[StoredMessage], end_seq: int) -> int:
        """Return where the next read begins: behind the last chunk, even if that is damaged."""
        last_seq = found[-1][0] if found else end_seq
        if not found or (messages and messages[-1].seq >= last_seq):
            return messages[-1].seq + 1 if messages else end_seq
        self._behind_damage = last_seq + 1
        return last_seq + 1

    def _read_on(self, messages: list[StoredMessage], end_seq: int) -> list[StoredMessage]:
        """Return those of *messages* that are to be queued; defer those that are to be deferred."""
        at = self._journal.read_clocks()
        queued: list[StoredMessage] = []
        for message in self.log.read_on(messages, end_seq):
            delay_s = self._delay_s(message, at)
            if delay_s > 0:
                self._take_deferred(message, at.now + delay_s)
            else:
                queued.append(message)
        return queued

    def _delay_s(self, message: StoredMessage, at: ClockReading) -> float:
        """Return how long a message that is being read is to be deferred; 0 or less: not at all."""
        if not message.defer_ms or message.attempts:
            return 0
        delay_s = message.defer_ms / 1000
        if message.seq < self.log.restored_seq:
            # The time before the start counts, so that a restart does not delay a message.
            delay_s -= (at.wall_ns - message.timestamp_ns) / _NS_PER_S
        return delay_s

    def _decode(self, chunks: Chunks, *, is_peek: bool = False) -> list[StoredMessage]:
        """Return the messages of *chunks*; log what is damaged, except in a peek."""
        messages: list[StoredMessage] = []
        for first_seq, content in chunks:
            try:
                messages += decode_chunk(first_seq, content)
            except StoreDamaged as error:
                if is_peek:
                    continue
                _log.error(
                    "messages lost: the broker store is damaged",
                    topic=self.topic_name,
                    channel=self.name,
                    reason=str(error),
                )
        return messages

    def _reloaded(self, message: StoredMessage) -> StoredMessage:
        stub = self._reloading.pop(message.seq)
        self._memory.free((stub,))
        message.attempts = stub.attempts
        return message

    # Peeking

    def _iter_queued(self) -> Iterator[PeekedMessage | None]:
        yield from super()._iter_queued()
        for stub in self._reloading.values():
            yield PeekedMessage(MessageState.QUEUED, copy(stub))
        pages = self.log.unread()
        for page in islice(pages, PEEKED_PAGES):
            for seq, attempts in page:
                stub = StoredMessage(0, attempts, b"", b"", seq=seq)
                yield PeekedMessage(MessageState.QUEUED, stub, is_unread=True)
        if next(pages, None) is not None:
            yield None

    async def _load_first(self, source: deque[PeekedMessage], later: deque[PeekedMessage]) -> None:
        run = _take_run(source)
        first_seq = run[0].message.seq
        # As the channel reads: on and on, or what was deferred by itself, with its whole chunk.
        end_seq = (run[-1].message.seq if run[0].is_unread else first_seq) + 1
        found = await self._read_chunks(first_seq, end_seq)
        at = self._journal.read_clocks()
        wanted = {each.message.seq: each for each in run}
        messages = self._decode(found, is_peek=True)
        loaded: list[PeekedMessage] = []
        for message in messages:
            each = wanted.pop(message.seq, None)
            if each is None or self._is_gone(message) or not message.body:
                continue
            message.attempts = each.message.attempts
            each = each._replace(message=message)
            if each.is_unread and (delay_s := self._delay_s(message, at)) > 0:
                state = MessageState.DEFERRED
                each = each._replace(state=state, due_at=at.now + delay_s)
                insort(later, each, key=lambda peeked: peeked.due_at)
            else:
                loaded.append(each)
        # A further read may find what is left, but not what was to be found in this one.
        wanted.pop(first_seq, None)
        if run[0].is_unread:
            last_seq = messages[-1].seq if messages else first_seq
            wanted = {seq: each for seq, each in wanted.items() if found and seq > last_seq}
        source.extendleft(reversed([*loaded, *wanted.values()]))

    async def _read_chunks(self, first_seq: int, end_seq: int) -> Chunks:
        """Read chunks as `Store.read` does, up to `READ_BYTES`. Raises StoreFailed."""
        read: asyncio.Future[Chunks] = asyncio.get_running_loop().create_future()

        def on_read(found: Chunks | StoreFailed) -> None:
            if read.done():
                return  # the request was cancelled
            if isinstance(found, StoreFailed):
                read.set_exception(found)
            else:
                read.set_result(found)

        self._journal.read(
            self._topic.log, first_seq, end_seq, max_bytes=READ_BYTES, on_read=on_read
        )
        return await read

    def _is_gone(self, message: StoredMessage) -> bool:
        return self._is_deleted or self.log.is_finished(message.seq)

    # Administration

    def pause(self) -> None:
        """Stop deliveries; published messages are still queued."""
        super().pause()
        self._journal.save_channel(self.log, is_paused=True)

    def unpause(self) -> None:
        """Resume deliveries."""
        super().unpause()
        self._journal.save_channel(self.log, is_paused=False)

    def empty(self) -> None:
        """Remove all messages: queued, deferred and in flight, in memory or not."""
        super().empty()
        self._memory.free(self._reloading.values())
        self._reloading.clear()
        if not self._is_deleted:
            done = self.log.skip(self.log.end_seq)
            self._journal.changed(self.log, is_awaited=True)
            self._topic.release(done)

    def delete(self) -> list[ChannelConsumer]:
        """Remove all messages and consumers; the caller must disconnect the returned consumers."""
        self._is_deleted = True
        return super().delete()


def _own(message: StoredMessage, *, is_original: bool) -> StoredMessage:
    """Return *message* or, if another channel uses it, a copy."""
    return message if is_original else message.copy()


def _take_run(source: deque[PeekedMessage]) -> list[PeekedMessage]:
    """
    Remove from *source* the first message and others that one read may find; return them.

    These are the unread ones of its page; of queued ones that were deferred, all; else none.
    """
    run = [source.popleft()]
    first = run[0]
    page = first.message.seq >> PAGE_BITS
    while source and first.state is MessageState.QUEUED:
        other = source[0]
        if other.is_unread != first.is_unread:
            break
        if first.is_unread and other.message.seq >> PAGE_BITS != page:
            break
        run.append(source.popleft())
    return run
