"""The latency that the gateway adds between publish and delivery."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import uvloop

from benchmarks import backlog
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.harness import Server, gateway, real_nsqd
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.tcp_client import STAMP_DIGITS, Consumer, age_ms
from benchmarks.websocket_client import IDS, WebSocket
from gateway.protocol.frames import Message

STAMPS = re.compile(rb'"body":"(\d{%d})' % STAMP_DIGITS)
RATES = (500, 1_000)
"""Messages per second."""
_SECONDS = 10
_GOAL_MS = 2.0
"""Highest acceptable difference to the direct client's p99."""
WINDOWS = {
    1: "nsqd sends at once",
    10: "nsqd holds a lone message for up to 25 ms",
}


@dataclass(frozen=True)
class Load:
    """Messages that are published at a constant rate, and the window of their consumer."""

    rate: int
    """Messages per second."""
    count: int
    window: int


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    seconds, rounds = (1, 1) if quick else (_SECONDS, 5)
    rates = " and ".join(f"{rate:,}" for rate in RATES)
    about = (
        f"publish on nsqd → delivery, through the gateway's /sub beside a client on nsqd's TCP; "
        f"{rates} messages/s of 200 B whatever the answers do, {seconds} s each, {rounds} rounds; "
        f"goal: p99 at most {_GOAL_MS:g} ms more"
    )
    return Benchmark(about, _rows(seconds, rounds))


def _rows(seconds: int, rounds: int) -> Iterator[Row]:
    with real_nsqd() as nsqd, gateway(nsqd) as ours:
        for rate, (window, what) in product(RATES, WINDOWS.items()):
            load = Load(rate, rate * seconds, window)
            sides = {
                "ours": partial(through_gateway, nsqd, ours, load),
                "direct": partial(_directly, nsqd, load),
            }
            ages = in_turn(sides, rounds=rounds)
            name = f"{rate:,} messages/s, window {window} ({what})"
            yield from compare_ages(name, ages["ours"], ages["direct"])


def compare_ages(name: str, ours: list[list[float]], peers: list[list[float]]) -> Iterator[Row]:
    """Yield the rows of p50 and p99, with the difference; each list has the ages of a round."""
    for percent in (50, 99):
        mine, others = ([percentile(each, percent) for each in side] for side in (ours, peers))
        added = statistics.median(our - other for our, other in zip(mine, others, strict=True))
        yield compare(f"{name}, p{percent}", "ms", mine, others, f"{added:+.2f} ms")


def percentile(values: list[float], percent: int) -> float:
    """Return the percentile *percent* of *values*."""
    return statistics.quantiles(values, n=100)[percent - 1]


@contextlib.contextmanager
def publishing(nsqd: Server, rate: int, count: int) -> Iterator[None]:
    """Publish from another process while the block runs."""
    arguments = [
        *(sys.executable, "-m", "benchmarks.tcp_client", "publish"),
        *(nsqd.tcp, TOPIC, str(rate), str(count)),
    ]
    with subprocess.Popen(arguments) as process:
        yield
    if process.returncode:
        raise SystemExit("the publisher failed")


def through_gateway(nsqd: Server, ours: Server, load: Load) -> list[float]:
    """Consume on a WebSocket; return the age of each message in ms."""
    ages: list[float] = []
    with backlog.channel(nsqd, count=0):
        socket = WebSocket(ours, f"topic={TOPIC}&channel={CHANNEL}&max_in_flight={load.window}")
        with publishing(nsqd, load.rate, load.count):
            while len(ages) < load.count:
                frame = socket.receive()
                ages += map(age_ms, STAMPS.findall(frame))
                socket.finish(IDS.findall(frame), by_ids=True)
        socket.wait_until_read()
        socket.close()
    return ages


def _directly(nsqd: Server, load: Load) -> list[float]:
    ages: list[float] = []

    def took(messages: list[Message]) -> None:
        ages.extend(age_ms(message.body) for message in messages)

    async def consume() -> None:
        consumer = Consumer(
            nsqd.tcp, (TOPIC, CHANNEL), window=load.window, count=load.count, took=took
        )
        await consumer.start()
        with publishing(nsqd, load.rate, load.count):
            await consumer.finish()
            await asyncio.sleep(0)

    with backlog.channel(nsqd, count=0):
        uvloop.run(consume())
    return ages
