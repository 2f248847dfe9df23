"""Metrics of the process itself: memory, CPU, open files, event loop lag."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import GCCollector, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.telemetry.metrics import REGISTRY, histogram

_SELF = Path("/proc/self")
_FIELDS_BEFORE_START = 19
"""Fields of /proc/self/stat between the program name, in brackets, and starttime (proc(5))."""


class ProcessMetrics(Collector):
    """
    The process_* metrics: memory, CPU time, open files, start time; none without /proc.

    prometheus-client's collector lists the open files to count them, which blocks the event loop
    for tens of milliseconds with ten thousand sockets.
    """

    def __init__(self) -> None:
        self._started_at = _started_at()

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        if self._started_at is None:
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        virtual, resident = (_SELF / "statm").read_text().split()[:2]
        page_bytes = resource.getpagesize()
        yield CounterMetricFamily(
            "process_cpu_seconds_total",
            "CPU time used, user and system.",
            value=usage.ru_utime + usage.ru_stime,
        )
        for name, doc, value in (
            ("virtual_memory_bytes", "Virtual memory size.", int(virtual) * page_bytes),
            ("resident_memory_bytes", "Resident memory size.", int(resident) * page_bytes),
            (
                "start_time_seconds",
                "Start time of the process, in seconds since 1970.",
                self._started_at,
            ),
            ("open_fds", "Open file descriptors, sockets included.", _open_files()),
            (
                "max_fds",
                "Limit of open file descriptors.",
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            ),
        ):
            yield GaugeMetricFamily(f"process_{name}", doc, value=value)


def _open_files() -> int:
    """Return the number of open files of this process."""
    files = _SELF / "fd"
    # Since Linux 6.2 the size of this folder is the number of files; before, it is 0.
    return files.stat().st_size or sum(1 for _ in files.iterdir())


def _started_at() -> float | None:
    """Return the start time of this process, in seconds since 1970; None without /proc."""
    try:
        stat = (_SELF / "stat").read_text()
        since_boot_s = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    # The program name may contain spaces and brackets: split after its last bracket.
    ticks = int(stat.rpartition(")")[2].split()[_FIELDS_BEFORE_START])
    return time.time() - since_boot_s + ticks / os.sysconf("SC_CLK_TCK")


REGISTRY.register(ProcessMetrics())
GCCollector(registry=REGISTRY)


_INTERVAL_S = 0.25

_LAG = histogram(
    "event_loop_lag_seconds",
    "Delay of a timer of the event loop, measured four times a second.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
).labels()


class LoopLag:
    """Measures the delay of event loop timers, from `start` to `stop`."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Measure the delay of the running event loop four times a second, until `stop`."""
        # Not loop.time(): uvloop's clock stands still within an iteration of the loop.
        self._due = time.perf_counter() + _INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._look)

    def _look(self) -> None:
        _LAG.observe(max(0.0, time.perf_counter() - self._due))
        self.start()

    def stop(self) -> None:
        """Stop measuring; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
