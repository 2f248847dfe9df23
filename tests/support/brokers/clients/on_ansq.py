"""``python -m tests.support.brokers.clients.on_ansq``: ansq, on asyncio."""

from __future__ import annotations

import asyncio

import ansq
from ansq.tcp.types import NSQMessage

from tests.support.brokers.clients.program import (
    BODIES,
    CHANNEL,
    DEFER_MS,
    print_delivery,
    work_from_command_line,
)


async def handle(message: NSQMessage) -> None:
    """Handle one delivery."""
    print_delivery(message.body, message.attempts)
    if message.body == b"requeue" and message.attempts == 1:
        await message.req(0)
        return
    if message.body == b"touch":
        await message.touch()
    await message.fin()


async def main() -> None:
    """Publish and consume until the input ends; it has no TLS, no compression and no AUTH."""
    work = work_from_command_line()
    host, _, port = work.address.rpartition(":")
    writer = await ansq.create_writer([work.address])
    answers = [
        await writer.pub(work.topic, BODIES[0]),
        await writer.mpub(work.topic, *BODIES[1:3]),
        await writer.dpub(work.topic, BODIES[3], DEFER_MS),
    ]
    if not all(answer.is_ok for answer in answers):
        raise SystemExit(f"not published: {answers!r}")
    connection = await ansq.open_connection(host, int(port))
    await connection.subscribe(work.topic, CHANNEL, 5)
    async for message in connection.messages():
        await handle(message)


if __name__ == "__main__":
    asyncio.run(main())
