"""Producers and a consumer on `gateway.client`; as a program: python -m benchmarks.tcp_client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import uvloop

from benchmarks.clients.program import make_bodies
from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import Discovery
from gateway.client.producer import Producer
from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.errors import BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyRequest, IdentifyResponse

BODY_BYTES = 200
BODY = b"x" * BODY_BYTES
BATCH = 500
"""Messages per MPUB."""
STAMP_DIGITS = 20


@contextlib.asynccontextmanager
async def producer(tcp: str) -> AsyncIterator[Producer]:
    """Yield a connected producer; stop it when the block ends."""
    publisher = Producer([tcp])
    await publisher.start()
    try:
        yield publisher
    finally:
        await publisher.stop()


async def fill(tcp: str, topic: str, count: int, bodies: Sequence[bytes] = ()) -> None:
    """Publish *count* messages by repeated MPUBs of *bodies* (default: 500 texts of 200 B)."""
    bodies = bodies or make_bodies(BATCH, BODY_BYTES)
    async with producer(tcp) as publisher:
        for done in range(0, count, len(bodies)):
            await publisher.publish_many(topic, bodies[: count - done])


async def publish_batches(publisher: Producer, topic: str, count: int) -> None:
    """Publish *count* messages as consecutive MPUBs."""
    bodies = make_bodies(BATCH, BODY_BYTES)
    for _ in range(count // BATCH):
        await publisher.publish_many(topic, bodies)


async def publish_singly(publisher: Producer, topic: str, count: int, *, callers: int) -> None:
    """Publish *count* messages from concurrent *callers*, each waiting for every response."""

    async def call() -> None:
        for _ in range(count // callers):
            await publisher.publish(topic, BODY)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call())


async def publish_stamped(tcp: str, topic: str, rate: int, count: int) -> None:
    """Publish *rate* messages per second without waiting for responses; bodies hold their time."""
    async with producer(tcp) as publisher, asyncio.TaskGroup() as group:
        start = time.monotonic()
        for number in range(count):
            await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))
            stamp = b"%0*d" % (STAMP_DIGITS, time.monotonic_ns())
            group.create_task(publisher.publish(topic, stamp.ljust(BODY_BYTES, b"x")))


def age_ms(stamp: bytes) -> float:
    """Return the age of a stamped body; all processes share the clock."""
    return (time.monotonic_ns() - int(stamp[:STAMP_DIGITS])) / 1e6


class Consumer:
    """Finish every message, and measure from the first to the last."""

    def __init__(
        self,
        tcp: str,
        names: tuple[str, str],
        *,
        window: int,
        count: int,
        took: Callable[[list[Message]], None] = lambda _messages: None,
    ) -> None:
        offer = IdentifyRequest(feature_negotiation=True, output_buffer_timeout=25)
        options = SubscriptionOptions(
            topic=names[0], channel=names[1], connection=ConnectionOptions(offer=offer)
        )
        self._subscriber = Subscription(Discovery([tcp]), options, self)
        self._window = window
        self._left = count
        self._count = count
        self._took = took
        self._first = (0.0, 0.0)
        """Wall-clock and CPU time at the first message."""
        self._done = asyncio.Event()

    async def start(self) -> None:
        """Subscribe."""
        await self._subscriber.start()
        self._subscriber.set_window(self._window)

    async def finish(self) -> dict[str, float]:
        """Wait for the last message; return messages, seconds and cpu_seconds."""
        await self._done.wait()
        wall, cpu = time.perf_counter() - self._first[0], time.process_time() - self._first[1]
        await self._subscriber.close()
        return {"messages": self._count, "seconds": wall, "cpu_seconds": cpu}

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return nothing: with one connection, the count is not needed."""
        return {}

    def on_messages(self, source: int, messages: list[Message], sent_after: float) -> None:
        """Finish *messages* in one write."""
        del sent_after
        if self._left == self._count:
            self._first = time.perf_counter(), time.process_time()
        self._took(messages)
        self._subscriber.finish(source, [message.id for message in messages])
        self._left -= len(messages)
        if self._left <= 0:
            self._done.set()

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """Exit: no FIN may fail."""
        raise SystemExit(f"source {source}: {frame}")

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Do nothing."""

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Exit: the connection must not be lost."""
        raise SystemExit(f"source {source}: {error}")

    def on_channel_gone(self, address: str) -> None:
        """Exit: the channel must not be deleted."""
        raise SystemExit(f"the channel is gone at {address}")

    def on_secret_missing(self) -> None:
        """Do nothing."""


async def consume(tcp: str, names: tuple[str, str], window: int, count: int) -> None:
    """Consume *count* messages and print one line of JSON, as go-nsq's consumer does."""
    consumer = Consumer(tcp, names, window=window, count=count)
    await consumer.start()
    print(json.dumps(await consumer.finish()))


def main(command: str, tcp: str, *rest: str) -> None:
    """Run ``consume TCP TOPIC CHANNEL WINDOW COUNT`` or ``publish TCP TOPIC RATE COUNT``."""
    if command == "consume":
        topic, channel, window, count = rest
        uvloop.run(consume(tcp, (topic, channel), int(window), int(count)))
    else:
        topic, rate, count = rest
        # The timers of asyncio's own loop are finer than the millisecond of uvloop's.
        asyncio.run(publish_stamped(tcp, topic, int(rate), int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
