"""From nsqd to a WebSocket and the FIN back, beside go-nsq's consumer and a plain client."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks import backlog
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.harness import Server, Spent, cpu_seconds, gateway, real_nsqd
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.websocket_client import IDS, WebSocket

WAYS = {"FIN by ids": True, "one FIN each": False}
_WINDOW = 2_500


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    counts = {_WINDOW: 20_000, 1: 1_000} if quick else {_WINDOW: 300_000, 1: 20_000}
    rounds = 1 if quick else 5
    about = (
        "nsqd → gateway → one WebSocket and each FIN back; bodies of 200 B, output buffer 25 ms; "
        + ", ".join(f"{count:,} messages at window {window}" for window, count in counts.items())
        + f", published before; {rounds} rounds; CPU of the one process that consumes"
    )
    return Benchmark(about, _rows(counts, rounds))


def _rows(counts: dict[int, int], rounds: int) -> Iterator[Row]:
    with real_nsqd() as nsqd, gateway(nsqd) as ours:
        for window, count in counts.items():
            # At window 1 a frame holds one message, so both ways are the same.
            ways = WAYS if window > 1 else {"FIN": True}
            peers = {
                "go-nsq's consumer": backlog.go_nsq_consumer(nsqd, window=window, count=count),
                "plain Python client": backlog.python_consumer(nsqd, window=window, count=count),
            }
            through = {
                way: partial(_receive, nsqd, ours, (window, count), by_ids=by_ids)
                for way, by_ids in ways.items()
            }
            beside = {
                name: partial(_consume, nsqd, count, arguments) for name, arguments in peers.items()
            }
            spent = in_turn({**through, **beside}, rounds=rounds)
            for way in ways:
                for peer in peers:
                    name = f"window {window}, {way} ÷ {peer}"
                    yield from _compare(name, spent[way], spent[peer])


def _compare(name: str, ours: list[Spent], peers: list[Spent]) -> Iterator[Row]:
    share = statistics.median(each.load_share for each in ours)
    cpu, peer_cpu = ([each.cpu_us for each in side] for side in (ours, peers))
    yield compare(name, "µs CPU a message", cpu, peer_cpu)
    rates, peer_rates = ([each.rate for each in side] for side in (ours, peers))
    yield compare(name, "messages/s", rates, peer_rates, f"our load {share:.0%} of a core")


def _consume(nsqd: Server, count: int, arguments: Sequence[str]) -> Spent:
    with backlog.channel(nsqd, count=count):
        return backlog.run_client(arguments)


def _receive(nsqd: Server, ours: Server, work: tuple[int, int], *, by_ids: bool) -> Spent:
    """Consume *work* (window, count) over a WebSocket; the CPU is the gateway's."""
    window, count = work
    with backlog.channel(nsqd, count=count):
        socket = WebSocket(ours, f"topic={TOPIC}&channel={CHANNEL}&max_in_flight={window}")
        started, cpu, load_cpu = time.perf_counter(), cpu_seconds(ours.pid), time.process_time()
        left = count
        while left > 0:
            ids = IDS.findall(socket.receive())
            socket.finish(ids, by_ids=by_ids)
            left -= len(ids)
        seconds, load_cpu = time.perf_counter() - started, time.process_time() - load_cpu
        socket.wait_until_read()
        cpu = cpu_seconds(ours.pid) - cpu
        socket.close()
    return Spent(count, seconds, cpu, load_cpu)
