"""ansq, on asyncio; it has no TLS, no compression and no output buffer options."""

from __future__ import annotations

import ansq

from benchmarks.clients.program import Meter, Work, keep_in_flight, run


async def publish(work: Work) -> dict[str, float]:
    """Publish, and wait for each response."""
    writer = await ansq.create_writer([work.nsqd_tcp_address])
    bodies = work.bodies

    async def call() -> None:
        answer = await writer.mpub(work.topic, *bodies)
        if not answer.is_ok:
            raise SystemExit(f"not published: {answer!r}")

    async def call_single() -> None:
        answer = await writer.pub(work.topic, bodies[0])
        if not answer.is_ok:
            raise SystemExit(f"not published: {answer!r}")

    meter = Meter()
    await keep_in_flight(work, call_single if work.batch == 1 else call)
    spent = meter.stop(work.count)
    await writer.close()
    return spent


async def consume(work: Work) -> dict[str, float]:
    """Finish every message; measure from the first to the last."""
    host, _, port = work.nsqd_tcp_address.rpartition(":")
    # Its Reader always has one message in flight; a connection allows any number.
    connection = await ansq.open_connection(host, int(port))
    await connection.subscribe(work.topic, work.channel, work.max_in_flight)
    left = work.count
    meter = Meter()
    async for message in connection.messages():
        if left == work.count:
            meter = Meter()
        await message.fin()
        left -= 1
        if left == 0:
            break
    spent = meter.stop(work.count)
    await connection.close()
    return spent


if __name__ == "__main__":
    run(consume, publish)
