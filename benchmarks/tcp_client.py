"""Consumers and a producer on `gateway.client`, as programs: python -m benchmarks.tcp_client."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

from gateway.client.connection import ConnectionOptions
from gateway.client.publisher import Publisher
from gateway.client.subscriber import Subscriber, SubscriberOptions
from gateway.errors import BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer, Offer

_BATCH = 500


async def fill(tcp: str, topic: str, count: int, body: bytes) -> None:
    """Publish *count* messages (a multiple of the batch) as MPUBs."""
    publisher = Publisher([tcp])
    await publisher.start()
    for _ in range(count // _BATCH):
        await publisher.publish_many(topic, [body] * _BATCH)
    await publisher.stop()


class Consumer:
    """Finishes everything, and measures from the first message to the last."""

    def __init__(self, tcp: str, topic: str, *, window: int, count: int) -> None:
        offer = Offer(feature_negotiation=True, output_buffer_timeout=25)
        options = SubscriberOptions(
            topic=topic, channel="plain", connection=ConnectionOptions(offer=offer)
        )
        self._subscriber = Subscriber([tcp], options, self)
        self._window = window
        self._left = count
        self._count = count
        self._first = (0.0, 0.0)
        """Wall and processor time at the first message."""
        self._done = asyncio.Event()

    async def run(self) -> dict[str, float]:
        """Consume, and return messages, seconds and cpu_seconds."""
        await self._subscriber.start()
        self._subscriber.set_window(self._window)
        await self._done.wait()
        wall, cpu = time.perf_counter() - self._first[0], time.process_time() - self._first[1]
        await self._subscriber.close()
        return {"messages": self._count, "seconds": wall, "cpu_seconds": cpu}

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Finish them in one write."""
        if self._left == self._count:
            self._first = time.perf_counter(), time.process_time()
        self._subscriber.finish(source, [message.id for message in messages])
        self._left -= len(messages)
        if self._left <= 0:
            self._done.set()

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Nothing may be refused here."""
        raise SystemExit(f"source {source}: {frame}")

    def source_opened(self, source: int, answer: Answer) -> None:
        """Nothing to do."""

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Nothing may be lost here."""
        raise SystemExit(f"source {source}: {error}")


async def _main(tcp: str, topic: str, window: str, count: str) -> None:
    consumer = Consumer(tcp, topic, window=int(window), count=int(count))
    print(json.dumps(await consumer.run()))


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
