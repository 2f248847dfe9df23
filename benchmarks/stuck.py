"""The cost of a socket that never reads for the others on the same gateway."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import uvloop

from benchmarks import backlog
from benchmarks.backlog import CHANNEL, TOPIC
from benchmarks.crowd import NOP, Crowd, Member
from benchmarks.harness import Server, fetch, gateway, real_nsqd
from benchmarks.latency import STAMPS, percentile, publishing
from benchmarks.table import Benchmark, Row, compare, in_turn
from benchmarks.tcp_client import age_ms, fill
from benchmarks.websocket_client import IDS, fin, upgrade_request

_STUCK = "stuck"
"""Its topic and its channel."""
_BACKLOG, _BODY_BYTES, _BATCH = 2_500, 16_384, 50
"""40 MB for the stuck socket: one window exceeds all buffers between nsqd and the socket."""
_RATE = 20
"""Messages per second, each for every socket."""
_CLOSING_S = 3.0
"""Time limit for closing a socket that does not read the close frame."""
_GOAL = 1.2


@dataclass(frozen=True)
class _Load:
    sockets: int
    seconds: int
    slow_s: float
    """When the gateway closes a socket that does not read."""


@dataclass(frozen=True)
class _Run:
    ages_ms: list[float]
    load_share: float
    closed: int
    """How often the stuck socket was closed and reconnected."""


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    load, rounds = (_Load(20, 5, 0.5), 1) if quick else (_Load(100, 20, 8), 5)
    about = (
        f"publish on nsqd → delivery on {load.sockets} WebSockets with a channel and a consumer "
        f"each, window 1, {_RATE} messages/s of 200 B to every one; with and without one more, on "
        f"a topic of its own, that is sent {_BACKLOG:,} × {_BODY_BYTES // 1024} KiB, never reads, "
        f"is closed after {load.slow_s:g} s, and comes back; {rounds} × {load.seconds} s each; "
        f"goal: p99 at most {_GOAL} of the other"
    )
    return Benchmark(about, _rows(load, rounds))


def _rows(load: _Load, rounds: int) -> Iterator[Row]:
    with real_nsqd() as nsqd, gateway(nsqd, f"--slow-consumer-s={load.slow_s}") as ours:
        names = f"topic={_STUCK}&channel={_STUCK}"
        fetch(nsqd, f"/topic/create?topic={_STUCK}", method="POST")
        fetch(nsqd, f"/channel/create?{names}", method="POST")
        bodies = [b"x" * _BODY_BYTES] * _BATCH
        uvloop.run(fill(nsqd.tcp, _STUCK, _BACKLOG, bodies))
        sides = {
            "with": partial(_receive, nsqd, ours, load, has_stuck=True),
            "without": partial(_receive, nsqd, ours, load, has_stuck=False),
        }
        runs = in_turn(sides, rounds=rounds)
    share = " ÷ ".join(
        f"{statistics.median(run.load_share for run in side):.0%}" for side in runs.values()
    )
    closed = statistics.median(run.closed for run in runs["with"])
    note = f"closed {closed:g} times a round; our load {share} of a core"
    for percent in (50, 99):
        stuck, alone = (
            [percentile(run.ages_ms, percent) for run in side] for side in runs.values()
        )
        yield compare(f"p{percent} with ÷ without a stuck socket", "ms", stuck, alone, note)


def _receive(nsqd: Server, ours: Server, load: _Load, *, has_stuck: bool) -> _Run:
    """Deliver every message to every socket; each has a channel of its own."""
    ages: list[float] = []

    def took(member: Member, text: bytes) -> None:
        if ids := IDS.findall(text):
            ages.extend(map(age_ms, STAMPS.findall(text)))
            member.send(fin(ids, by_ids=True))

    count = _RATE * load.seconds
    names = [f"{CHANNEL}{number}" for number in range(load.sockets)]
    with backlog.channels(nsqd, names, count=0), contextlib.ExitStack() as stack:
        crowd = Crowd(ours, took)
        crowd.join(f"topic={TOPIC}&channel={name}&max_in_flight=1" for name in names)
        stuck = _Stuck(nsqd, ours, load.slow_s + _CLOSING_S) if has_stuck else None
        if stuck is not None:
            stack.enter_context(contextlib.closing(stuck))
        started, cpu = time.perf_counter(), time.process_time()
        with publishing(nsqd, _RATE, count):
            while len(ages) < count * load.sockets:
                crowd.turn()
                if stuck is not None:
                    stuck.look()
        share = (time.process_time() - cpu) / (time.perf_counter() - started)
        crowd.send_to_all(NOP)
        crowd.leave()
    return _Run(ages, share, 0 if stuck is None else stuck.closed)


class _Stuck:
    """A socket that subscribes with a large window and never reads."""

    def __init__(self, nsqd: Server, ours: Server, closed_within_s: float) -> None:
        self.closed = 0
        self._nsqd = nsqd
        self._ours = ours
        self._closed_within_s = closed_within_s
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        host, port = self._ours.http.split(":")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect((host, int(port)))
        query = f"topic={_STUCK}&channel={_STUCK}&max_in_flight={_BACKLOG}"
        sock.sendall(upgrade_request(self._ours, query))
        self._due = time.monotonic() + self._closed_within_s
        return sock

    def look(self) -> None:
        """
        Connect again where it is time; the gateway must have closed the connection by then.

        Who never reads does not see that it was closed, so nsqd is asked.
        """
        if time.monotonic() < self._due:
            return
        if backlog.consumers(self._nsqd, _STUCK):
            raise SystemExit(f"a socket that never reads is open for {self._closed_within_s:g} s")
        self.closed += 1
        self.close()
        self._socket = self._connect()

    def close(self) -> None:
        """Close; the unread data makes it a reset."""
        self._socket.close()
