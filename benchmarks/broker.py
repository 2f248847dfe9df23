"""
The embedded broker compared with nsqd: publishing and delivery over TCP.

Rows that begin with "durable" are of a broker with a data path, beside nsqd in memory: its OK means
on disk, nsqd's does not.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import uvloop

from benchmarks import backlog
from benchmarks.harness import (
    RESULTS,
    Server,
    Usage,
    cpu_seconds,
    embedded_broker,
    fetch,
    real_nsqd,
    resident_bytes,
)
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.tcp_client import BATCH, BODY, producer, publish_batches, publish_singly
from gateway.client.producer import Producer

# What an ephemeral topic keeps by default, in both; the rest is thrown away, nobody consumes. With
# a data path, an ephemeral topic would be in memory.
_TOPICS = {"memory": "publish#ephemeral", "durable": "publish", "peer": "publish#ephemeral"}
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
    RESULTS.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=RESULTS) as folder,
        embedded_broker() as memory,
        embedded_broker(Path(folder)) as durable,
        real_nsqd() as peer,
    ):
        sides = {"memory": memory, "durable": durable, "peer": peer}
        for name, (work, part) in PUBLISHES.items():
            measures = {
                side: partial(_publish, server, work, int(count * part), _TOPICS[side])
                for side, server in sides.items()
            }
            spent = in_turn(measures, rounds=rounds)
            yield from _compare(name, spent["memory"], spent["peer"])
            yield from _compare(f"durable: {name}", spent["durable"], spent["peer"])
        yield from _synced(durable, Path(folder), int(count * 0.005), rounds)
        measures = {side: partial(_deliver, server, count) for side, server in sides.items()}
        spent = in_turn(measures, rounds=rounds)
        yield from _compare("delivery", spent["memory"], spent["peer"])
        yield from _compare("durable: delivery", spent["durable"], spent["peer"])
    yield from _backlogs(count, rounds)


def _synced(durable: Server, folder: Path, count: int, rounds: int) -> Iterator[Row]:
    """Compare a publisher that waits for each OK with a program that only appends and syncs."""
    measures = {
        "ours": partial(_publish, durable, PUBLISHES["PUB, one at a time"][0], count, "synced"),
        "peer": partial(_sync, folder / "synced", count),
    }
    spent = in_turn(measures, rounds=rounds)
    rates, peer_rates = ([each.rate for each in spent[side]] for side in ("ours", "peer"))
    name = "durable: PUB, one at a time, beside write and fdatasync of a file"
    yield compare(name, "messages/s", rates, peer_rates)


def _sync(path: Path, count: int) -> Usage:
    """Append and sync *count* messages of 200 bytes, one after the other."""
    started, cpu = time.perf_counter(), time.process_time()
    with path.open("ab", buffering=0) as file:
        for _ in range(count):
            file.write(BODY)
            os.fdatasync(file.fileno())
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Usage(count, seconds, cpu, cpu)


def _backlogs(count: int, rounds: int) -> Iterator[Row]:
    """Compare a long backlog with a short one: memory, a message from it, and a start with it."""
    long_count, short_count = 33 * count, 10_000
    rss: dict[str, list[int]] = {"long": [], "short": []}
    cpu: dict[str, list[float]] = {"long": [], "short": []}
    for _ in range(max(1, rounds // 2)):
        for side, backlog_count in (("long", long_count), ("short", short_count)):
            with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
                with embedded_broker(Path(folder)) as server:
                    _create_channel(server)
                    backlog.publish(server, backlog_count)
                    rss[side].append(resident_bytes(server.pid))
                with embedded_broker(Path(folder)) as server:
                    before = cpu_seconds(server.pid)
                    backlog.run_client(
                        backlog.python_consumer(server, window=2_500, count=short_count)
                    )
                    cpu[side].append((cpu_seconds(server.pid) - before) / short_count * 1e6)
    name = f"durable: backlog of {long_count:,} beside one of {short_count:,}"
    yield compare(f"{name}: memory", "bytes", rss["long"], rss["short"])
    yield compare(f"{name}: delivery after a start", "µs CPU a message", cpu["long"], cpu["short"])


def _create_channel(server: Server) -> None:
    fetch(server, f"/topic/create?topic={backlog.TOPIC}", method="POST")
    fetch(server, f"/channel/create?topic={backlog.TOPIC}&channel={backlog.CHANNEL}", method="POST")


def _compare(name: str, ours: list[Usage], peers: list[Usage]) -> Iterator[Row]:
    share, peer_share = (
        statistics.median(each.load_share for each in side) for side in (ours, peers)
    )
    note = f"the client takes {share:.0%} and {peer_share:.0%} of a core"
    rates, peer_rates = ([each.rate for each in side] for side in (ours, peers))
    yield compare(name, "messages/s", rates, peer_rates, note)
    cpu, peer_cpu = ([each.cpu_us for each in side] for side in (ours, peers))
    yield compare(name, "µs CPU a message", cpu, peer_cpu)


def _publish(server: Server, work: _Work, count: int, topic: str) -> Usage:
    async def publish() -> Usage:
        async with producer(server.tcp) as publisher:
            started, cpu, own = time.perf_counter(), cpu_seconds(server.pid), time.process_time()
            await work(publisher, topic, count)
            seconds, own = time.perf_counter() - started, time.process_time() - own
            return Usage(count, seconds, cpu_seconds(server.pid) - cpu, own)

    return uvloop.run(publish())


def _deliver(server: Server, count: int) -> Usage:
    with backlog.channel(server, count=count):
        cpu = cpu_seconds(server.pid)
        client = backlog.run_client(backlog.python_consumer(server, window=2_500, count=count))
        cpu = cpu_seconds(server.pid) - cpu
    return Usage(count, client.seconds, cpu, client.cpu_seconds)
