"""What one idle subscriber costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.harness import Server, gateway, real_nsqd, resident_bytes
from benchmarks.table import Benchmark, Row, compare
from benchmarks.websocket_client import WebSocket

BUDGET_KIB = 21.0
"""docs: an idle socket with a consumer of its own."""


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    count, rounds = (100, 1) if quick else (500, 3)
    about = (
        f"resident memory of the gateway for each of {count} idle sockets, all subscribed with a "
        f"consumer of their own, beside the budget; {rounds} fresh gateways"
    )
    return Benchmark(about, _rows(count, rounds))


def _rows(count: int, rounds: int) -> Iterator[Row]:
    grown, all_of_it = [], []
    for _ in range(rounds):
        with real_nsqd() as nsqd, gateway(nsqd) as ours:
            before, after = _resident_kib(ours, count)
        grown.append((after - before) / count)
        all_of_it.append(after / 1024)
    note = f"the whole process then has {statistics.median(all_of_it):.0f} MiB"
    yield compare("idle socket ÷ budget", "KiB", grown, [BUDGET_KIB] * rounds, note)


def _resident_kib(ours: Server, count: int) -> tuple[float, float]:
    """Return the gateway's memory before and after *count* sockets have been opened."""
    query = f"topic={TOPIC}&channel={CHANNEL}"
    # The first sockets pay for what all share.
    sockets = [WebSocket(ours, query) for _ in range(count // 5)]
    before = resident_bytes(ours.pid) / 1024
    sockets += [WebSocket(ours, query) for _ in range(count)]
    after = resident_bytes(ours.pid) / 1024
    for socket in sockets:
        socket.close()
    return before, after
