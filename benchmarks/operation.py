"""Ten thousand sockets: the pauses that a scrape of /metrics and a drain cause for others."""

from __future__ import annotations

import http.client
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.backlog import TOPIC
from benchmarks.clients.watched import FILE
from benchmarks.crowd import Crowd
from benchmarks.harness import Server, free_port, gateway, raise_open_files_limit, real_nsqd
from benchmarks.table import Benchmark, Gap, Row, compare

_SPARE_FILES = 300
_METRICS_MS, _METRICS_PAUSE_MS = 20.0, 5.0
_WINDOW_S, _BEYOND_WINDOW_S, _DRAIN_PAUSE_MS = 10.0, 2.0, 50.0
_RESTART = 1012
_REST_S = 1.0
_LOOKS = 20
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class _Run:
    metrics_ms: float
    metrics_bytes: int
    metrics_pause_ms: float
    idle_pause_ms: float
    drain_s: float
    spread_s: float
    drain_pause_ms: float


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    sockets, rounds = (500, 1) if quick else (10_000, 3)
    about = (
        f"{sockets:,} viewers on one gateway: /metrics asked {_LOOKS} times (the slowest), then "
        f"SIGTERM with --drain-window-s={_WINDOW_S:g}; pauses are what a timer of 1 ms in the "
        f"event loop was late at most; beside the limits we have set; {rounds} fresh gateways"
    )
    return Benchmark(about, _rows(sockets, rounds))


def _rows(sockets: int, rounds: int) -> Iterator[Row | Gap]:
    need, limit = sockets + _SPARE_FILES, raise_open_files_limit()
    if need > limit:
        yield Gap(f"{sockets:,} sockets", f"{need:,} open files are needed, the limit is {limit:,}")
        return
    runs = [_run(sockets) for _ in range(rounds)]

    def row(name: str, unit: str, ours: Sequence[float], limit: float, note: str = "") -> Row:
        return compare(f"{name} ÷ limit", unit, ours, [limit] * rounds, note)

    idle = statistics.median(run.idle_pause_ms for run in runs)
    size = statistics.median(run.metrics_bytes for run in runs)
    yield row(
        "one answer to /metrics",
        "ms",
        [run.metrics_ms for run in runs],
        _METRICS_MS,
        f"{size / 1_024:.0f} KiB",
    )
    yield row(
        "longest pause beside /metrics",
        "ms",
        [run.metrics_pause_ms for run in runs],
        _METRICS_PAUSE_MS,
        f"{idle:.1f} ms in as long a time without",
    )
    spread = statistics.median(run.spread_s for run in runs)
    yield row(
        "drain, from the signal to the exit",
        "s",
        [run.drain_s for run in runs],
        _WINDOW_S + _BEYOND_WINDOW_S,
        f"closes spread over {spread:.1f} s",
    )
    pauses = [run.drain_pause_ms for run in runs]
    yield row("longest pause in the drain", "ms", pauses, _DRAIN_PAUSE_MS)


def _run(sockets: int) -> _Run:
    management = free_port()
    flags = (
        f"--max-sockets={sockets}",
        f"--drain-window-s={_WINDOW_S:g}",
        "--ping-interval-s=3600",
    )
    with (
        pause_file() as path,
        real_nsqd() as nsqd,
        gateway(nsqd, *flags, module="benchmarks.clients.watched", management=management) as ours,
    ):
        crowd = Crowd(ours)
        crowd.join([f"topic={TOPIC}"] * sockets)
        crowd.rest(_REST_S)
        pause_ms(ours, path)
        answers = [ask_metrics(management) for _ in range(_LOOKS)]
        metrics_pause_ms = pause_ms(ours, path)
        time.sleep(sum(seconds for seconds, _ in answers))
        idle_pause_ms = pause_ms(ours, path)
        path.unlink()
        started = time.monotonic()
        os.kill(ours.pid, signal.SIGTERM)
        ends = crowd.wait_until_closed()
        drain_s = _wait_for(path) - started
        drain_pause_ms = float(path.read_text()) * 1_000
    if wrong := {code for _, code in ends} - {_RESTART}:
        raise SystemExit(f"sockets were closed with {wrong}, not {_RESTART}")
    return _Run(
        metrics_ms=max(seconds for seconds, _ in answers) * 1_000,
        metrics_bytes=answers[-1][1],
        metrics_pause_ms=metrics_pause_ms,
        idle_pause_ms=idle_pause_ms,
        drain_s=drain_s,
        spread_s=ends[-1][0] - ends[0][0],
        drain_pause_ms=drain_pause_ms,
    )


@contextmanager
def pause_file() -> Iterator[Path]:
    """Choose the result file of the watched gateway."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pause"
        os.environ[FILE] = str(path)
        try:
            yield path
        finally:
            del os.environ[FILE]


def pause_ms(ours: Server, path: Path) -> float:
    """Return the longest pause since the last call."""
    path.unlink(missing_ok=True)
    os.kill(ours.pid, signal.SIGUSR2)
    _wait_for(path)
    return float(path.read_text()) * 1_000


def _wait_for(path: Path) -> float:
    """Wait until the file exists; exit if it does not appear."""
    end = time.monotonic() + _TIMEOUT_S
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"the gateway says nothing within {_TIMEOUT_S:g} s")
        time.sleep(0.002)
    return time.monotonic()


def ask_metrics(management: int) -> tuple[float, int]:
    """Return the duration of /metrics in seconds and its size."""
    connection = http.client.HTTPConnection("127.0.0.1", management, timeout=_TIMEOUT_S)
    with closing(connection):
        connection.connect()
        started = time.perf_counter()
        connection.request("GET", "/metrics")
        body = connection.getresponse().read()
        return time.perf_counter() - started, len(body)
