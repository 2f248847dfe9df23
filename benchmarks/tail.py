"""High percentiles of POST /pub at half of the maximum rate, compared with nsqd's own HTTP."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.harness import (
    KEPT_MESSAGES,
    WITNESSES,
    Server,
    gateway,
    message_count,
    real_nsqd,
)
from benchmarks.publish import Load, ask_for
from benchmarks.table import Benchmark, Row, compare

_LOAD = Load("/pub", 64, 200)
_GOAL = 2.0
_WARM_UP_S = 1
_OURS, _NSQD = "ours", "nsqd"


@dataclass(frozen=True)
class _Times:
    """Latencies measured by `tools/steady` at a rate: milliseconds from the scheduled time."""

    rate: float
    p50_ms: float
    p99_ms: float
    p99_sent_late_ms: float


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    seconds, rounds = (1, 1) if quick else (10, 5)
    if not (WITNESSES / "steady").exists():
        raise SystemExit("tools/bin/steady is missing; make bench builds it (needs Go)")
    about = (
        f"p99 of {_LOAD.name}, keep-alive, at a constant rate whatever the answers do, timed from "
        "the moment when a request is due; the top rates are measured by wrk in the same round; "
        f"{rounds} × {seconds} s each; every answer is 200 and counted by nsqd"
    )
    return Benchmark(about, _rows(seconds, rounds))


def _rows(seconds: int, rounds: int) -> Iterator[Row]:
    own: dict[str, list[_Times]] = {_OURS: [], _NSQD: []}
    same: dict[str, list[_Times]] = {_OURS: [], _NSQD: []}
    with (
        real_nsqd(mem_queue_messages=KEPT_MESSAGES) as behind,
        gateway(behind) as ours,
        real_nsqd(mem_queue_messages=KEPT_MESSAGES) as peer,
    ):
        asked = {_OURS: (ours, behind), _NSQD: (peer, peer)}
        for _ in range(rounds):
            halves = {
                name: ask_for(_LOAD, *servers, max(1, seconds // 3)).rate / 2
                for name, servers in asked.items()
            }
            for name, servers in asked.items():
                own[name].append(_ask_steadily(*servers, halves[name], seconds))
            for name, servers in asked.items():
                same[name].append(_ask_steadily(*servers, min(halves.values()), seconds))
    yield _row("p99, each at half of its own top rate", own)
    yield _row("p99, both at half of the lower top rate", same)


def _row(name: str, times: Mapping[str, list[_Times]]) -> Row:
    rate, p50, late = (
        " ÷ ".join(
            f"{statistics.median(getattr(each, column) for each in times[side]):,.{digits}f}"
            for side in (_OURS, _NSQD)
        )
        for column, digits in (("rate", 0), ("p50_ms", 2), ("p99_sent_late_ms", 2))
    )
    note = f"{rate} requests/s; p50 {p50} ms; sent late, p99: {late} ms; goal: {_GOAL} at most"
    ours, peers = ([each.p99_ms for each in times[side]] for side in (_OURS, _NSQD))
    return compare(name, "ms", ours, peers, note)


def _ask_steadily(asked: Server, nsqd: Server, rate: float, seconds: int) -> _Times:
    """Send requests at *rate*; compare the responses with nsqd's count."""
    before = message_count(nsqd)
    said = subprocess.run(
        [
            str(WITNESSES / "steady"),
            f"-url=http://{asked.http}{_LOAD.path}?topic=bench%23ephemeral",
            f"-rate={rate}",
            f"-connections={_LOAD.connections}",
            f"-body-bytes={_LOAD.body_bytes}",
            f"-warm-up={_WARM_UP_S}s",
            f"-length={seconds}s",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    times = json.loads(said)
    counted = message_count(nsqd) - before
    asked_for = round(rate * (seconds + _WARM_UP_S))
    # The last request may fall on either side of the end.
    if times["failed"] or abs(counted - asked_for) > 1:
        raise SystemExit(f"{times['failed']} of {asked_for} failed, and nsqd counts {counted}")
    return _Times(rate, times["p50_ms"], times["p99_ms"], times["p99_sent_late_ms"])
