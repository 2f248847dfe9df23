"""The memory of an idle subscriber, by its parts."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.crowd import Crowd
from benchmarks.harness import Server, gateway, raise_open_files_limit, real_nsqd, resident_bytes
from benchmarks.table import Benchmark, Gap, Row, compare

_FIRST = 200
"""Sockets opened first, so that shared memory is not counted."""
_SPARE_FILES = 300
"""File descriptors of a client process besides its sockets."""
_LOOK_S = 0.25
_LOOKS = 12
_STEADY_KIB = 64


@dataclass(frozen=True)
class _Kind:
    """A kind of sockets."""

    name: str
    query: str
    count: int
    flags: Sequence[str] = ()
    is_answered: bool = True
    files: int = 1
    """File descriptors per socket in the gateway."""


@dataclass(frozen=True)
class _Run:
    each_kib: float
    all_mib: float
    connected_s: float


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    count, viewers, rounds = (100, 200, 1) if quick else (1_000, 10_000, 3)
    consumer = _Kind("idle socket with its own consumer", _with_channel(), count, files=2)
    viewer = _Kind("idle viewer", f"topic={TOPIC}", viewers)
    waiting = _Kind(
        "socket that waits for AUTH", _with_channel(), count, ("--require-auth",), is_answered=False
    )
    about = (
        f"resident memory of the gateway for each of {count:,} idle sockets that have a consumer "
        f"of their own, {viewers:,} viewers of one topic, and {count:,} sockets without any "
        f"subscription; after {_FIRST} more, and each time after a garbage collection; all "
        f"connected without an error; {rounds} fresh gateways each"
    )
    return Benchmark(about, _rows(consumer, viewer, waiting, rounds))


def _with_channel() -> str:
    return f"topic={TOPIC}&channel={CHANNEL}"


BUDGETS_KIB = {"idle socket with its own consumer": 21.0, "idle viewer": 15.0}
"""The limit of the documentation for an idle socket."""


def _rows(consumer: _Kind, viewer: _Kind, waiting: _Kind, rounds: int) -> Iterator[Row | Gap]:
    limit = raise_open_files_limit()
    runs: dict[str, list[_Run]] = {}
    for kind in (consumer, viewer, waiting):
        need = (kind.count + _FIRST) * kind.files + _SPARE_FILES
        if need > limit:
            why = f"{need:,} open files are needed, the hard limit is {limit:,} (ulimit -Hn)"
            yield Gap(f"{kind.name}, at {kind.count:,}", why)
            continue
        runs[kind.name] = [_run(kind) for _ in range(rounds)]
        if kind.name in BUDGETS_KIB:
            yield _row(kind, runs[kind.name], "budget", [BUDGETS_KIB[kind.name]] * rounds)
        elif consumer.name in runs:
            whole = [run.each_kib for run in runs[consumer.name]]
            yield _row(kind, runs[kind.name], f"an {consumer.name}", whole)


def _row(kind: _Kind, runs: Sequence[_Run], beside: str, kib: Sequence[float]) -> Row:
    whole = statistics.median(run.all_mib for run in runs)
    connected = statistics.median(run.connected_s for run in runs)
    note = f"the whole process then has {whole:.0f} MiB; connected in {connected:.1f} s"
    each = [run.each_kib for run in runs]
    return compare(f"{kind.name}, at {kind.count:,} ÷ {beside}", "KiB", each, kib, note)


def _run(kind: _Kind) -> _Run:
    """Open the sockets on a new gateway."""
    # A tenth of all may wait for AUTH at a time.
    flags = (f"--max-sockets={10 * (kind.count + _FIRST)}", *kind.flags)
    with real_nsqd() as nsqd, gateway(nsqd, *flags, module="benchmarks.clients.collecting") as ours:
        crowd = Crowd(ours)
        crowd.join([kind.query] * _FIRST, is_answered=kind.is_answered)
        before = _settled_kib(ours, crowd)
        started = time.perf_counter()
        crowd.join([kind.query] * kind.count, is_answered=kind.is_answered)
        connected_s = time.perf_counter() - started
        after = _settled_kib(ours, crowd)
        crowd.leave()
    return _Run((after - before) / kind.count, after / 1_024, connected_s)


def _settled_kib(ours: Server, crowd: Crowd) -> float:
    """Return the gateway's memory once garbage is collected and it is stable."""
    os.kill(ours.pid, signal.SIGUSR2)
    last = 0.0
    for _ in range(_LOOKS):
        crowd.rest(_LOOK_S)
        now = resident_bytes(ours.pid) / 1_024
        if abs(now - last) < _STEADY_KIB:
            return now
        last = now
    return last
