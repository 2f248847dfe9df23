"""A hundred sockets, on one channel and on a channel each, compared with one socket."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks import backlog
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.crowd import NOP, Crowd, Member
from benchmarks.harness import Server, Usage, cpu_seconds, gateway, real_nsqd
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.websocket_client import IDS, fin

_WINDOW = 2_500
_GOAL = 0.5
_ONE = "one socket"


@dataclass(frozen=True)
class _Run:
    spent: Usage
    nsqd_share: float
    """Share of a core that nsqd used."""


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    sockets, count, rounds = (20, 20_000, 1) if quick else (100, 300_000, 5)
    about = (
        f"nsqd → gateway → {sockets} WebSockets of one process and each FIN back, by ids; bodies "
        f"of 200 B, window {_WINDOW} each; {count:,} deliveries in all, published before; beside "
        f"one socket on the same gateway; {rounds} rounds; goal: {_GOAL} of its rate"
    )
    return Benchmark(about, _rows(sockets, count, rounds))


def _rows(sockets: int, count: int, rounds: int) -> Iterator[Row]:
    shared = [CHANNEL] * sockets
    own = [f"{CHANNEL}{number}" for number in range(sockets)]
    sides = {
        _ONE: [CHANNEL],
        f"{sockets} sockets on one channel": shared,
        f"{sockets} channels with one socket each": own,
    }
    with real_nsqd() as nsqd, gateway(nsqd) as ours:
        measures = {
            name: partial(_receive, nsqd, ours, channels, count) for name, channels in sides.items()
        }
        runs = in_turn(measures, rounds=rounds)
    for name in list(sides)[1:]:
        yield from _compare(name, runs[name], runs[_ONE])


def _compare(name: str, many: Sequence[_Run], one: Sequence[_Run]) -> Iterator[Row]:
    load, nsqd = (
        " ÷ ".join(f"{statistics.median(shares):.0%}" for shares in both)
        for both in (
            ([each.spent.load_share for each in side] for side in (many, one)),
            ([each.nsqd_share for each in side] for side in (many, one)),
        )
    )
    note = f"our load {load} of a core, nsqd {nsqd}"
    rates, single = ([each.spent.rate for each in side] for side in (many, one))
    yield compare(f"{name} ÷ {_ONE}", "deliveries/s", rates, single, note)
    cpu, single_cpu = ([each.spent.cpu_us for each in side] for side in (many, one))
    yield compare(f"{name} ÷ {_ONE}", "µs CPU a delivery", cpu, single_cpu)


def _receive(nsqd: Server, ours: Server, channels: Sequence[str], count: int) -> _Run:
    """Consume *count* messages over all *channels*, with a socket for each name."""
    left = count

    def took(member: Member, text: bytes) -> None:
        nonlocal left
        if ids := IDS.findall(text):
            member.send(fin(ids, by_ids=True))
            left -= len(ids)

    names = list(dict.fromkeys(channels))
    with backlog.channels(nsqd, names, count=0):
        crowd = Crowd(ours, took)
        crowd.join(f"topic={TOPIC}&channel={name}&max_in_flight={_WINDOW}" for name in channels)
        # All are there before the first message moves.
        crowd.send_to_all(b'{"cmd":"RDY","count":0}')
        backlog.publish(nsqd, count // len(names))
        started, load = time.perf_counter(), time.process_time()
        cpu, nsqd_cpu = cpu_seconds(ours.pid), cpu_seconds(nsqd.pid)
        for member in crowd:
            member.send(b'{"cmd":"RDY","count":%d}' % _WINDOW)
        while left > 0:
            crowd.turn()
        seconds, load = time.perf_counter() - started, time.process_time() - load
        nsqd_cpu = cpu_seconds(nsqd.pid) - nsqd_cpu
        crowd.send_to_all(NOP)
        cpu = cpu_seconds(ours.pid) - cpu
        crowd.leave()
    if left:
        raise SystemExit(f"{-left} deliveries more than messages")
    return _Run(Usage(count, seconds, cpu, load), nsqd_cpu / seconds)
