"""`gateway.client`, as a program that uses the library."""

from __future__ import annotations

import asyncio

from benchmarks.clients.program import (
    OUTPUT_BUFFER_TIMEOUT_MS,
    Meter,
    Work,
    keep_in_flight,
    run,
)
from gateway.client import (
    ConnectionOptions,
    Consumer,
    ConsumerOptions,
    Delivery,
    IdentifyRequest,
    Producer,
    ProducerOptions,
    TlsOptions,
)


def _connection(work: Work) -> ConnectionOptions:
    offer = IdentifyRequest(
        feature_negotiation=True,
        output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT_MS,
        snappy=work.snappy,
    )
    tls = TlsOptions(root_ca_file=work.tls_root_ca_file) if work.tls_root_ca_file else None
    return ConnectionOptions(offer=offer, tls=tls)


async def publish(work: Work) -> dict[str, float]:
    """Publish, and wait for each response."""
    options = ProducerOptions(connection=_connection(work))
    bodies, topic = work.bodies, work.topic
    async with Producer([work.nsqd_tcp_address], options) as publisher:
        meter = Meter()
        if work.batch == 1:
            await keep_in_flight(work, lambda: publisher.publish(topic, bodies[0]))
        else:
            await keep_in_flight(work, lambda: publisher.publish_many(topic, bodies))
        return meter.stop(work.count)


async def consume(work: Work) -> dict[str, float]:
    """Finish every message; measure from the first to the last."""
    options = ConsumerOptions(max_in_flight=work.max_in_flight, connection=_connection(work))
    addresses = [work.nsqd_tcp_address]
    async with Consumer(work.topic, work.channel, addresses, options) as subscriber:
        take = _take_lists if work.by_lists else _take_one_at_a_time
        return await take(subscriber, work.count)


async def _take_lists(subscriber: Consumer, count: int) -> dict[str, float]:
    left = count
    async for deliveries in subscriber.batches():
        if left == count:
            meter = Meter()
        subscriber.finish(deliveries)
        left -= len(deliveries)
        if left <= 0:
            break
    return meter.stop(count)


async def _take_one_at_a_time(subscriber: Consumer, count: int) -> dict[str, float]:
    left = count
    meter = Meter()
    last: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()

    async def handle(_delivery: Delivery) -> None:
        nonlocal left, meter
        if left == count:
            meter = Meter()
        left -= 1
        if left == 0:
            last.set_result(meter.stop(count))

    async with asyncio.TaskGroup() as group:
        group.create_task(subscriber.run(handle))
        await last
        await subscriber.stop()
    return last.result()


if __name__ == "__main__":
    run(consume, publish)
