"""What one idle subscriber costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks.harness import Row, Server, gateway, real_nsqd, resident_bytes

_UPGRADE = (
    "GET /sub?topic=idle&channel=c HTTP/1.1\r\nHost: {0}\r\nConnection: Upgrade\r\n"
    "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Version: 13\r\n\r\n"
)


def run(*, quick: bool) -> Iterator[Row]:
    """Yield KiB for each socket with its own consumer, ÷ the budget of 21 KiB."""
    count = 100 if quick else 500
    with real_nsqd() as nsqd, gateway(nsqd) as ours:
        kib = asyncio.run(_kib_per_socket(ours, count))
    yield Row("memory of an idle socket with its own consumer ÷ 21 KiB", kib / 21, f"{kib:.1f} KiB")


async def _kib_per_socket(ours: Server, count: int) -> float:
    # The first sockets pay for what all share.
    writers = [await _open(ours) for _ in range(count // 5)]
    before = resident_bytes(ours.pid)
    writers += [await _open(ours) for _ in range(count)]
    after = resident_bytes(ours.pid)
    for writer in writers:
        writer.close()
    return (after - before) / count / 1024


async def _open(ours: Server) -> asyncio.StreamWriter:
    host, port = ours.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_UPGRADE.format(ours.http).encode())
    await reader.readuntil(b'"msg_timeout_ms"')
    return writer
