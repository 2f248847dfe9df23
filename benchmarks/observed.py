"""The cost of metrics, logs and traces: enabled compared with disabled."""

from __future__ import annotations

import os
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.delivery import Load as Delivery
from benchmarks.delivery import receive
from benchmarks.harness import (
    KEPT_MESSAGES,
    Server,
    Usage,
    fetch,
    free_port,
    gateway,
    real_nsqd,
    run_server,
)
from benchmarks.publish import Load as Publish
from benchmarks.publish import ask_for
from benchmarks.table import Benchmark, Row, compare, in_turn

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_OFF = ("--log-level=error", "--no-tracing")
_ON = ("--log-level=info", "--log-format=json", "--tracing")
_SCRAPE_S = 1.0
_GOAL = 1.05


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    seconds, count, rounds = (1, 20_000, 1) if quick else (4, 200_000, 9)
    about = (
        "one gateway with tracing, logs at info as JSON, and /metrics read every second, beside "
        "one without tracing, logs at error, and nobody who reads; both on one nsqd; spans go to "
        f"a server here; {rounds} rounds, in turn; goal: at most {_GOAL}"
    )
    return Benchmark(about, _rows(seconds, count, rounds))


def _rows(seconds: int, count: int, rounds: int) -> Iterator[Row]:
    publish = Publish("/pub", 64, 200)
    # An nsqd for each: what one has asked for and not read would count for the other.
    with (
        real_nsqd(mem_queue_messages=KEPT_MESSAGES) as nsqd,
        real_nsqd(mem_queue_messages=KEPT_MESSAGES) as other,
        _pair(nsqd, other) as (on, off),
    ):
        sides = {
            "on": partial(ask_for, publish, on, nsqd, seconds),
            "off": partial(ask_for, publish, off, other, seconds),
        }
        yield _compare(publish.name, in_turn(sides, rounds=rounds))
    for window, messages in ((2_500, count), (1, count // 10)):
        load = Delivery(window, messages, {})
        with real_nsqd() as nsqd, _pair(nsqd, nsqd) as (on, off):
            sides = {
                "on": partial(receive, nsqd, on, load, by_ids=True),
                "off": partial(receive, nsqd, off, load, by_ids=True),
            }
            yield _compare(f"delivery and FIN, window {window}", in_turn(sides, rounds=rounds))


def _compare(name: str, sides: dict[str, list[Usage]]) -> Row:
    """Compare the CPU time per request; the rates are shown beside it."""
    rates = (statistics.median(each.rate for each in side) for side in sides.values())
    note = " ÷ ".join(f"{rate:,.0f}" for rate in rates) + " a second"
    on, off = ([each.cpu_us for each in side] for side in sides.values())
    return compare(f"{name}, on ÷ off", "µs CPU", on, off, note)


@contextmanager
def _pair(nsqd: Server, other: Server) -> Iterator[tuple[Server, Server]]:
    """Run an observed gateway in front of *nsqd*, and an unobserved one in front of *other*."""
    sink, management = free_port(), free_port()
    program = (sys.executable, "-m", "benchmarks.clients.trace_sink", f"--port={sink}")
    with run_server(program, ports=[sink]):
        os.environ[_ENDPOINT] = f"http://127.0.0.1:{sink}"
        with (
            gateway(nsqd, *_ON, management=management) as on,
            gateway(other, *_OFF) as off,
            _scraper(Server(on.pid, "", f"127.0.0.1:{management}")),
        ):
            del os.environ[_ENDPOINT]
            yield on, off


@contextmanager
def _scraper(management: Server) -> Iterator[None]:
    """Read /metrics every second while the block runs."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_SCRAPE_S):
            fetch(management, "/metrics")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
