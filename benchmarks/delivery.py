"""From nsqd to a WebSocket and the FIN back, beside go-nsq's consumer and a plain client."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvloop

from benchmarks.harness import WITNESSES, Row, Server, cpu_seconds, gateway, real_nsqd
from benchmarks.tcp_client import fill

_BODY = b"x" * 200
_IDS = re.compile(rb'"id":"([^"]+)"')


@dataclass(frozen=True)
class Spent:
    """What a run took."""

    messages: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time a message."""
        return self.cpu_seconds / self.messages * 1e6


def run(*, quick: bool) -> Iterator[Row]:
    """Yield rows of CPU a message and messages a second, for a wide and a narrow window."""
    with real_nsqd() as nsqd, gateway(nsqd) as ours:
        for window, count in (
            (2_500, 20_000 if quick else 300_000),
            (1, 2_000 if quick else 20_000),
        ):
            # A topic each: the first channel of a topic gets all that was kept for it.
            peers = {
                "go-nsq's consumer": _consume(nsqd, _go_nsq(nsqd, f"go-{window}", window, count)),
                "a plain Python client": _consume(
                    nsqd, _plain(nsqd, f"plain-{window}", window, count)
                ),
            }
            ways = (
                (("FIN by ids", True), ("one FIN each", False)) if window > 1 else (("FIN", True),)
            )
            for way, by_ids in ways:
                topic = f"ours-{window}-{by_ids}"
                uvloop.run(fill(nsqd.tcp, topic, count, _BODY))
                spent, client_us = uvloop.run(_receive(ours, (topic, window, count), by_ids=by_ids))
                for peer, theirs in peers.items():
                    name = f"delivery, window {window}, {way} ÷ {peer}"
                    yield Row(
                        f"{name}: CPU a message",
                        spent.cpu_us / theirs.cpu_us,
                        f"{spent.cpu_us:.1f} ÷ {theirs.cpu_us:.1f} µs; our load {client_us:.1f} µs",
                    )
                    yield Row(
                        f"{name}: messages/s",
                        spent.rate / theirs.rate,
                        f"{spent.rate:,.0f} ÷ {theirs.rate:,.0f}",
                    )


@dataclass(frozen=True)
class Peer:
    """Another consumer: its program, and what it is to consume."""

    arguments: Sequence[str]
    topic: str
    count: int


def _go_nsq(nsqd: Server, topic: str, window: int, count: int) -> Peer:
    arguments = (
        *(str(WITNESSES / "go-nsq-consumer"), "--nsqd-tcp-address", nsqd.tcp),
        *("--topic", topic, "--channel", "c"),
        *("--max-in-flight", str(window), "--count", str(count)),
    )
    return Peer(arguments, topic, count)


def _plain(nsqd: Server, topic: str, window: int, count: int) -> Peer:
    program = (sys.executable, "-m", "benchmarks.tcp_client")
    return Peer((*program, nsqd.tcp, topic, str(window), str(count)), topic, count)


def _consume(nsqd: Server, peer: Peer) -> Spent:
    """Fill the topic, let another consumer empty it, and return what it says of itself."""
    uvloop.run(fill(nsqd.tcp, peer.topic, peer.count, _BODY))
    said = subprocess.run(peer.arguments, check=True, capture_output=True, text=True).stdout
    row = json.loads(said)
    return Spent(row["messages"], row["seconds"], row["cpu_seconds"])


async def _receive(
    ours: Server, work: tuple[str, int, int], *, by_ids: bool
) -> tuple[Spent, float]:
    """
    Consume *work* (topic, window, count) over a WebSocket.

    Returns what the gateway spent, and our own CPU a message in microseconds.
    """
    topic, window, count = work
    host, port = ours.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**22)
    writer.write(
        (
            f"GET /sub?topic={topic}&channel=c&max_in_flight={window} HTTP/1.1\r\n"
            f"Host: {ours.http}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    started, own, cpu = time.perf_counter(), time.process_time(), cpu_seconds(ours.pid)
    left = count
    while left > 0:
        ids = _IDS.findall(await _read_frame(reader))
        if ids:
            writer.write(_masked(_finishes(ids, by_ids=by_ids)))
            left -= len(ids)
    seconds, own = time.perf_counter() - started, time.process_time() - own
    # An answer tells that the gateway has read everything.
    writer.write(_masked(b'{"cmd":"NOP","ref":1}'))
    await _read_frame(reader)
    spent = Spent(count, seconds, cpu_seconds(ours.pid) - cpu)
    writer.close()
    return spent, own / count * 1e6


def _finishes(ids: list[bytes], *, by_ids: bool) -> bytes:
    if by_ids:
        return b'{"cmd":"FIN","ids":["' + b'","'.join(ids) + b'"]}'
    return b'{"cmd":"FIN","id":"' + b'"}\n{"cmd":"FIN","id":"'.join(ids) + b'"}'


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    _, length = await reader.readexactly(2)
    if length == 126:
        (length,) = struct.unpack(">H", await reader.readexactly(2))
    elif length == 127:
        (length,) = struct.unpack(">Q", await reader.readexactly(8))
    return await reader.readexactly(length)


def _masked(text: bytes) -> bytes:
    """Return a text frame whose mask is zero: masking is the client's cost, not the gateway's."""
    size = len(text)
    if size < 126:
        head = bytes((0x81, 0x80 | size))
    elif size < 65_536:
        head = b"\x81\xfe" + struct.pack(">H", size)
    else:
        head = b"\x81\xff" + struct.pack(">Q", size)
    return head + bytes(4) + text
