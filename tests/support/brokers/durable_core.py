"""A broker's topics on a store, without sockets, that a test can kill and start again."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gateway.broker.channel import Channel
from gateway.broker.durable import DurableChannel, DurableStorage, DurableTopic
from gateway.broker.journal import Journal
from gateway.broker.message import ClockReading, StoredMessage
from gateway.broker.message_log import PAGE_MESSAGES
from gateway.broker.scheduler import BrokerLimits
from gateway.broker.store import Store
from gateway.broker.topics import Topic, TopicRegistry
from tests.support.brokers.broker_core import context, moment_at

T = TypeVar("T")


class DurableCore:
    """One life of a broker's core at a time, on an event loop of its own and a moved clock."""

    def __init__(self, path: Path, *, mem_queue_size: int = 20) -> None:
        self.path = path
        self.now = 0.0
        self._limits = BrokerLimits(mem_queue_size=mem_queue_size)
        self.start()

    def start(self) -> None:
        """Begin a life with what the store has."""
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.journal = Journal(Store(self.path, is_synced=False), read_clocks=self.clocks)
        storage = DurableStorage(context(self._limits), self.journal)
        self.registry = TopicRegistry(storage.context, storage)
        self.registry.topics.update(storage.load())

    def clocks(self) -> ClockReading:
        """Return the moved time."""
        return moment_at(self.now)

    def topic(self, name: str) -> DurableTopic:
        """Return the topic; create it if necessary."""
        return durable(self.registry.get_topic(name))

    def backlog(self, count: int) -> DurableChannel:
        """Return a channel that was created after *count* messages, which it has not begun with."""
        topic = self.topic("t")
        for number in range(count):
            assert topic.publish([b"%d" % number], self.clocks())
            if count <= PAGE_MESSAGES or not number % PAGE_MESSAGES:
                self.commit()
        self.commit()
        return topic.get_channel("c", now=self.now)

    def commit(self) -> None:
        """Wait until all that has happened is on disk."""
        self.loop.run_until_complete(self._commit())

    async def _commit(self) -> None:
        for log in list(self.journal._changed):
            self.journal.changed(log, is_awaited=True)
        assert await self.journal.committed() is None

    @property
    def used_bytes(self) -> int:
        """Memory that messages take by the count of the broker."""
        return self.registry.context.memory.used_bytes

    def run(self, awaitable: Awaitable[T]) -> T:
        """Return the result of *awaitable*."""
        return self.loop.run_until_complete(awaitable)

    def begin(self, coroutine: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """Run *coroutine* up to where it waits for the disk."""
        task = self.loop.create_task(coroutine)
        self.turn()
        return task

    def turn(self) -> None:
        """Run one turn of the event loop."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def deliver(self) -> list[tuple[int, StoredMessage]]:
        """Return what consumers get until nothing more comes: consumer and message."""
        got: list[tuple[int, StoredMessage]] = []
        while True:
            batches = self.registry.deliver(self.now)
            got += [(each.consumer.id, message) for each in batches for message in each.messages]
            if not batches and not self._is_reading and not self.registry.has_deliverable:
                return got
            self.turn()

    @property
    def _is_reading(self) -> bool:
        return any(
            channel._is_reading
            for topic in self.registry.topics.values()
            for channel in topic.channels.values()
            if isinstance(channel, DurableChannel)
        )

    def move(self, seconds: float) -> None:
        """Let time pass, with what is due."""
        self.now += seconds
        while (due := self.registry.next_due) is not None and due <= self.now:
            self.registry.expire(self.now)

    def kill(self) -> None:
        """End this life; what was not handed to the store's thread is lost."""
        if self.journal._handle is not None:
            self.journal._handle.cancel()
        self.journal.store.close()
        self.loop.close()


@contextmanager
def held_reads(store: Store) -> Iterator[queue.SimpleQueue[Any]]:
    """Context manager: nothing is read from the disk meanwhile; return the reads that wait."""
    released, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        released.wait()

    store._reads.put(hold)
    begun.wait()
    try:
        yield store._reads
    finally:
        released.set()


def durable(topic: Topic) -> DurableTopic:
    """Return *topic*, which is on disk."""
    assert isinstance(topic, DurableTopic)
    return topic


def durable_channel(channel: Channel) -> DurableChannel:
    """Return *channel*, which is on disk."""
    assert isinstance(channel, DurableChannel)
    return channel
