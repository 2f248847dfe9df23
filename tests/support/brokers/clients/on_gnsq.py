"""``python -m tests.support.brokers.clients.on_gnsq``: gnsq, on gevent."""

from __future__ import annotations

from typing import Any

import gnsq

from tests.support.brokers.clients.program import (
    BODIES,
    CHANNEL,
    DEFER_MS,
    print_delivery,
    work_from_command_line,
)


def handle(_consumer: object, message: Any) -> None:  # noqa: ANN401 - untyped
    """Handle one delivery; the message is finished unless it has been requeued."""
    print_delivery(message.body, message.attempts)
    if message.body == b"requeue" and message.attempts == 1:
        message.requeue(0, backoff=False)
    elif message.body == b"touch":
        message.touch()


def main() -> None:
    """Publish and consume until the input ends."""
    work = work_from_command_line()
    options: dict[str, Any] = {"snappy": work.snappy, "deflate": work.deflate}
    if work.root_ca_file:
        options |= {"tls_v1": True, "tls_options": {"ca_certs": work.root_ca_file}}
    if work.secret:
        options["auth_secret"] = work.secret.encode()
    # Not `gnsq.Producer`: with TLS, compression or AUTH it fails at nsqd, too (a KeyError when the
    # first OK arrives before its queue of answers is there).
    host, _, port = work.address.rpartition(":")
    connection = gnsq.NsqdTCPClient(host, int(port), **options)
    connection.connect()
    connection.identify()
    connection.publish(work.topic, BODIES[0])
    connection.check_ok()
    connection.multipublish(work.topic, list(BODIES[1:3]))
    connection.check_ok()
    connection.publish(work.topic, BODIES[3], defer=DEFER_MS)
    connection.check_ok()
    consumer = gnsq.Consumer(
        work.topic, CHANNEL, work.address, message_handler=handle, max_in_flight=5, **options
    )
    consumer.start()


if __name__ == "__main__":
    main()
