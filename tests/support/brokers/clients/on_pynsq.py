"""``python -m tests.support.brokers.clients.on_pynsq``: pynsq, on tornado."""

from __future__ import annotations

import asyncio
from typing import Any

import nsq

from tests.support.brokers.clients.program import (
    BODIES,
    CHANNEL,
    DEFER_MS,
    print_delivery,
    work_from_command_line,
)


class Writer(nsq.Writer):  # type: ignore[misc]  # untyped
    """A writer that tells when it is connected."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - nsq's own
        self.connected = asyncio.Event()
        super().__init__(*args, **options)

    def _on_connection_ready(self, conn: Any, **kwargs: Any) -> None:  # noqa: ANN401 - untyped
        super()._on_connection_ready(conn, **kwargs)
        self.connected.set()


def handle(message: Any) -> bool:  # noqa: ANN401 - untyped
    """Handle one delivery; True finishes the message."""
    print_delivery(message.body, message.attempts)
    if message.body == b"requeue" and message.attempts == 1:
        message.requeue(delay=0, backoff=False)
        message.enable_async()
    elif message.body == b"touch":
        message.touch()
    return not message.is_async()


async def main() -> None:
    """Publish and consume until the input ends."""
    work = work_from_command_line()
    options: dict[str, Any] = {"snappy": work.snappy, "deflate": work.deflate}
    if work.root_ca_file:
        options |= {"tls_v1": True, "tls_options": {"ca_certs": work.root_ca_file}}
    if work.secret:
        options["auth_secret"] = work.secret
    writer = Writer([work.address], **options)
    await writer.connected.wait()
    answers: asyncio.Queue[object] = asyncio.Queue()

    def answered(_connection: object, answer: object) -> None:
        answers.put_nowait(answer)

    writer.pub(work.topic, BODIES[0], answered)
    writer.mpub(work.topic, list(BODIES[1:3]), answered)
    writer.dpub(work.topic, DEFER_MS, BODIES[3], answered)
    for _ in range(3):
        answer = await answers.get()
        if answer != b"OK":
            raise SystemExit(f"not published: {answer!r}")
    nsq.Reader(
        work.topic,
        CHANNEL,
        message_handler=handle,
        nsqd_tcp_addresses=[work.address],
        max_in_flight=5,
        **options,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
