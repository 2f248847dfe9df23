"""Delivery to a WebSocket with FIN, compared with go-nsq's consumer and a minimal client."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks import backlog
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.clients.program import make_documents
from benchmarks.harness import Server, Usage, cpu_seconds, gateway, real_nsqd
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.tcp_client import BATCH
from benchmarks.websocket_client import IDS, WebSocket

WAYS = {"FIN by ids": True, "one FIN each": False}
_JSON_BYTES = 1_024


@dataclass(frozen=True)
class Load:
    """A load to consume."""

    window: int
    count: int
    ways: Mapping[str, bool]
    """The windows, each with True if it finishes by `ids`."""
    name: str = ""
    bodies: Sequence[bytes] = ()
    """If empty, texts of 200 B."""


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    wide, narrow, rounds = (20_000, 1_000, 1) if quick else (300_000, 20_000, 5)
    documents = make_documents(BATCH, _JSON_BYTES)
    loads = [
        Load(2_500, wide, WAYS),
        # A frame holds one message, so both modes are the same.
        Load(1, narrow, {"FIN": True}),
        Load(2_500, wide // 3, {"FIN by ids": True}, ", JSON of 1 KiB", documents),
    ]
    about = (
        "nsqd → gateway → one WebSocket and each FIN back; bodies of 200 B, output buffer 25 ms; "
        + ", ".join(f"{load.count:,} messages at window {load.window}{load.name}" for load in loads)
        + f", published before; {rounds} rounds; CPU of the one process that consumes"
    )
    return Benchmark(about, _rows(loads, rounds))


def _rows(loads: Sequence[Load], rounds: int) -> Iterator[Row]:
    with real_nsqd() as nsqd, gateway(nsqd) as ours:
        for load in loads:
            asked = {"window": load.window, "count": load.count}
            peers = {
                "go-nsq's consumer": backlog.go_nsq_consumer(nsqd, **asked),
                "plain Python client": backlog.python_consumer(nsqd, **asked),
            }
            through = {
                way: partial(receive, nsqd, ours, load, by_ids=by_ids)
                for way, by_ids in load.ways.items()
            }
            beside = {
                name: partial(_consume, nsqd, load, arguments) for name, arguments in peers.items()
            }
            spent = in_turn({**through, **beside}, rounds=rounds)
            for way in through:
                for peer in peers:
                    name = f"window {load.window}{load.name}, {way} ÷ {peer}"
                    yield from _compare(name, spent[way], spent[peer])


def _compare(name: str, ours: list[Usage], peers: list[Usage]) -> Iterator[Row]:
    share = statistics.median(each.load_share for each in ours)
    cpu, peer_cpu = ([each.cpu_us for each in side] for side in (ours, peers))
    yield compare(name, "µs CPU a message", cpu, peer_cpu)
    rates, peer_rates = ([each.rate for each in side] for side in (ours, peers))
    yield compare(name, "messages/s", rates, peer_rates, f"our load {share:.0%} of a core")


def _consume(nsqd: Server, load: Load, arguments: Sequence[str]) -> Usage:
    with backlog.channel(nsqd, count=load.count, bodies=load.bodies):
        return backlog.run_client(arguments)


def receive(nsqd: Server, ours: Server, load: Load, *, by_ids: bool) -> Usage:
    """Consume over a WebSocket; the CPU is the gateway's."""
    with backlog.channel(nsqd, count=load.count, bodies=load.bodies):
        socket = WebSocket(ours, f"topic={TOPIC}&channel={CHANNEL}&max_in_flight={load.window}")
        started, cpu, load_cpu = time.perf_counter(), cpu_seconds(ours.pid), time.process_time()
        left = load.count
        while left > 0:
            ids = IDS.findall(socket.receive())
            socket.finish(ids, by_ids=by_ids)
            left -= len(ids)
        seconds, load_cpu = time.perf_counter() - started, time.process_time() - load_cpu
        socket.wait_until_read()
        cpu = cpu_seconds(ours.pid) - cpu
        socket.close()
    return Usage(load.count, seconds, cpu, load_cpu)
