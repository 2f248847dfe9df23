"""pynsq, NSQ's own Python client, on tornado."""

from __future__ import annotations

import asyncio
from typing import Any

import nsq

from benchmarks.clients.program import OUTPUT_BUFFER_TIMEOUT_MS, Meter, Work, run

_POLL_S = 0.01


def _options(work: Work) -> dict[str, Any]:
    options: dict[str, Any] = {"snappy": work.snappy}
    if work.tls_root_ca_file:
        options |= {"tls_v1": True, "tls_options": {"ca_certs": work.tls_root_ca_file}}
    return options


async def publish(work: Work) -> dict[str, float]:
    """Publish, one message after each response."""
    writer = nsq.Writer([work.nsqd_tcp_address], **_options(work))
    while not writer.conns:  # noqa: ASYNC110 - it tells nobody when it is connected
        await asyncio.sleep(_POLL_S)
    bodies = work.bodies
    done = asyncio.Event()
    started = answered = 0

    def start() -> None:
        nonlocal started
        started += 1
        if work.batch == 1:
            writer.pub(work.topic, bodies[0], ended)
        else:
            writer.mpub(work.topic, bodies, ended)

    def ended(_connection: object, answer: object) -> None:
        nonlocal answered
        if answer != b"OK":
            raise SystemExit(f"not published: {answer!r}")
        answered += 1
        if started < work.commands:
            start()
        elif answered == work.commands:
            done.set()

    meter = Meter()
    for _ in range(min(work.in_flight, work.commands)):
        start()
    await done.wait()
    return meter.stop(work.count)


async def consume(work: Work) -> dict[str, float]:
    """Finish every message; measure from the first to the last."""
    left = work.count
    meter = Meter()
    last: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()

    def handle(_message: object) -> bool:
        nonlocal left, meter
        if left == work.count:
            meter = Meter()
        left -= 1
        if left == 0:
            last.set_result(meter.stop(work.count))
        return True  # FIN

    reader = nsq.Reader(
        work.topic,
        work.channel,
        message_handler=handle,
        nsqd_tcp_addresses=[work.nsqd_tcp_address],
        max_in_flight=work.max_in_flight,
        output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT_MS,
        **_options(work),
    )
    spent = await last
    for connection in reader.conns.values():
        # Closing would discard the last FINs.
        while connection.stream.writing():  # noqa: ASYNC110 - tornado has no event for it
            await asyncio.sleep(_POLL_S)
    return spent


if __name__ == "__main__":
    run(consume, publish)
