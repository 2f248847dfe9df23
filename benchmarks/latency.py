"""What the gateway adds between a publish and its delivery."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import uvloop

from benchmarks import backlog
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.harness import Server, gateway, real_nsqd
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.tcp_client import STAMP_DIGITS, Consumer, age_ms
from benchmarks.websocket_client import IDS, WebSocket
from gateway.protocol.frames import Message

_STAMPS = re.compile(rb'"body":"(\d{%d})' % STAMP_DIGITS)
_RATE = 500
WINDOWS = {
    1: "nsqd sends at once",
    10: "nsqd holds a lone message for up to 25 ms",
}


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    count, rounds = (500, 1) if quick else (5_000, 5)
    about = (
        f"publish on nsqd → delivery, through the gateway's /sub beside a client on nsqd's TCP; "
        f"{_RATE} messages/s of 200 B whatever the answers do, {count:,} messages, {rounds} rounds"
    )
    return Benchmark(about, _rows(count, rounds))


def _rows(count: int, rounds: int) -> Iterator[Row]:
    with real_nsqd() as nsqd, gateway(nsqd) as ours:
        for window, what in WINDOWS.items():
            sides = {
                "ours": partial(_through_gateway, nsqd, ours, window, count),
                "direct": partial(_directly, nsqd, window, count),
            }
            ages = in_turn(sides, rounds=rounds)
            for percent in (50, 99):
                mine, direct = (
                    [_percentile(each, percent) for each in ages[side]] for side in sides
                )
                added = statistics.median(mine) - statistics.median(direct)
                name = f"window {window} ({what}), p{percent}"
                yield compare(name, "ms", mine, direct, f"{added:+.2f} ms")


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


@contextlib.contextmanager
def _publishing(nsqd: Server, count: int) -> Iterator[None]:
    """Publish from a process of its own while the block runs."""
    arguments = [
        *(sys.executable, "-m", "benchmarks.tcp_client", "publish"),
        *(nsqd.tcp, TOPIC, str(_RATE), str(count)),
    ]
    with subprocess.Popen(arguments) as process:
        yield
    if process.returncode:
        raise SystemExit("the publisher failed")


def _through_gateway(nsqd: Server, ours: Server, window: int, count: int) -> list[float]:
    ages: list[float] = []
    with backlog.channel(nsqd, count=0):
        socket = WebSocket(ours, f"topic={TOPIC}&channel={CHANNEL}&max_in_flight={window}")
        with _publishing(nsqd, count):
            while len(ages) < count:
                frame = socket.receive()
                ages += map(age_ms, _STAMPS.findall(frame))
                socket.finish(IDS.findall(frame), by_ids=True)
        socket.wait_until_read()
        socket.close()
    return ages


def _directly(nsqd: Server, window: int, count: int) -> list[float]:
    ages: list[float] = []

    def took(messages: list[Message]) -> None:
        ages.extend(age_ms(message.body) for message in messages)

    async def consume() -> None:
        consumer = Consumer(nsqd.tcp, (TOPIC, CHANNEL), window=window, count=count, took=took)
        await consumer.start()
        with _publishing(nsqd, count):
            await consumer.finish()
            await asyncio.sleep(0)

    with backlog.channel(nsqd, count=0):
        uvloop.run(consume())
    return ages
