"""What the system knows of this process, under the names that every Prometheus client has."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import GCCollector, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.telemetry.metrics import REGISTRY

_SELF = Path("/proc/self")
_FIELDS_BEFORE_START = 19
"""Of /proc/self/stat, behind the name of the program, which is in brackets."""


class ProcessMetrics(Collector):
    """
    process_*: memory, time of the processor, open files, when it began. Nothing without /proc.

    prometheus-client's own counts open files by listing them, which takes some tens of
    milliseconds where there are as many as sockets here.
    """

    def __init__(self) -> None:
        self._started_at = _started_at()

    def collect(self) -> Iterator[Metric]:
        """Yield what there is now."""
        if self._started_at is None:
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        virtual, resident = (_SELF / "statm").read_text().split()[:2]
        page_bytes = resource.getpagesize()
        yield CounterMetricFamily(
            "process_cpu_seconds_total",
            "Time of processors used, for us and in the kernel.",
            value=usage.ru_utime + usage.ru_stime,
        )
        for name, doc, value in (
            ("virtual_memory_bytes", "Addresses taken.", int(virtual) * page_bytes),
            ("resident_memory_bytes", "Memory used.", int(resident) * page_bytes),
            ("start_time_seconds", "When it began, seconds since 1970.", self._started_at),
            ("open_fds", "Files that are open, sockets among them.", _open_files()),
            ("max_fds", "Files that may be open.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        ):
            yield GaugeMetricFamily(f"process_{name}", doc, value=value)


def _open_files() -> int:
    """Return how many files are open; kernels before 6.2 do not tell it but by listing them."""
    files = _SELF / "fd"
    return files.stat().st_size or sum(1 for _ in files.iterdir())


def _started_at() -> float | None:
    """Return when this process began, seconds since 1970; None where nothing tells it."""
    try:
        stat = (_SELF / "stat").read_text()
        since_boot_s = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    ticks = int(stat.rpartition(")")[2].split()[_FIELDS_BEFORE_START])
    return time.time() - since_boot_s + ticks / os.sysconf("SC_CLK_TCK")


REGISTRY.register(ProcessMetrics())
GCCollector(registry=REGISTRY)
