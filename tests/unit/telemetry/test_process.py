"""Metrics of the process."""

from __future__ import annotations

import os
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway.telemetry import ProcessMetrics


def values() -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ProcessMetrics())
    return {sample.name: sample.value for metric in registry.collect() for sample in metric.samples}


def test_names_are_those_that_every_client_has() -> None:
    """Existing dashboards rely on the standard names."""
    assert {
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    } == set(values())


def test_open_files_are_counted() -> None:
    """The count equals a listing, which opens one file more."""
    before = values()["process_open_fds"]
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(7)]
    after = values()["process_open_fds"]
    for file in files:
        os.close(file)

    assert (7, len(list(Path("/proc/self/fd").iterdir())) - 1) == (after - before, before)


def test_a_process_began_before_now() -> None:
    """The start time is in the past, and less than some days ago."""
    age_s = time.time() - values()["process_start_time_seconds"]

    assert 0 < age_s < 86_400
