"""The embedded broker compared with nsqd: publishing and delivery over TCP."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TypeAlias

import uvloop

from benchmarks import backlog
from benchmarks.harness import Server, Usage, cpu_seconds, embedded_broker, real_nsqd
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.tcp_client import BATCH, producer, publish_batches, publish_singly
from gateway.client.producer import Producer

# What an ephemeral topic keeps by default, in both; the rest is thrown away, nobody consumes.
_TOPIC = "publish#ephemeral"
_CALLERS = 64

_Work: TypeAlias = Callable[[Producer, str, int], Awaitable[None]]

PUBLISHES: dict[str, tuple[_Work, float]] = {
    "PUB, one at a time": (partial(publish_singly, callers=1), 0.05),
    f"PUB by {_CALLERS} callers, grouped": (partial(publish_singly, callers=_CALLERS), 0.32),
    f"MPUB of {BATCH}": (publish_batches, 1.0),
}
"""Each with its share of the count, so that all take about the same time."""


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    count, rounds = (20_000, 1) if quick else (300_000, 5)
    about = (
        f"the embedded broker beside nsqd, both over TCP with `gateway.client`, bodies of 200 B; "
        f"up to {count:,} messages, window 2500, {rounds} rounds; CPU of the broker"
    )
    return Benchmark(about, _rows(count, rounds))


def _rows(count: int, rounds: int) -> Iterator[Row]:
    with embedded_broker() as ours, real_nsqd() as peer:
        sides = {"ours": ours, "peer": peer}
        for name, (work, part) in PUBLISHES.items():
            measures = {
                side: partial(_publish, server, work, int(count * part))
                for side, server in sides.items()
            }
            yield from _compare(name, in_turn(measures, rounds=rounds))
        measures = {side: partial(_deliver, server, count) for side, server in sides.items()}
        yield from _compare("delivery", in_turn(measures, rounds=rounds))


def _compare(name: str, spent: dict[str, list[Usage]]) -> Iterator[Row]:
    ours, peers = spent["ours"], spent["peer"]
    share, peer_share = (
        statistics.median(each.load_share for each in side) for side in (ours, peers)
    )
    note = f"the client takes {share:.0%} and {peer_share:.0%} of a core"
    rates, peer_rates = ([each.rate for each in side] for side in (ours, peers))
    yield compare(name, "messages/s", rates, peer_rates, note)
    cpu, peer_cpu = ([each.cpu_us for each in side] for side in (ours, peers))
    yield compare(name, "µs CPU a message", cpu, peer_cpu)


def _publish(server: Server, work: _Work, count: int) -> Usage:
    async def publish() -> Usage:
        async with producer(server.tcp) as publisher:
            started, cpu, own = time.perf_counter(), cpu_seconds(server.pid), time.process_time()
            await work(publisher, _TOPIC, count)
            seconds, own = time.perf_counter() - started, time.process_time() - own
            return Usage(count, seconds, cpu_seconds(server.pid) - cpu, own)

    return uvloop.run(publish())


def _deliver(server: Server, count: int) -> Usage:
    with backlog.channel(server, count=count):
        cpu = cpu_seconds(server.pid)
        client = backlog.run_client(backlog.python_consumer(server, window=2_500, count=count))
        cpu = cpu_seconds(server.pid) - cpu
    return Usage(count, client.seconds, cpu, client.cpu_seconds)
