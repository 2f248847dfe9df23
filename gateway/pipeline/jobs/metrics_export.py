"""
Export the metrics of a job that ends by itself, to a Pushgateway or a file for node_exporter.

Prometheus scrapes the management port of an endless job. Other jobs may end between two scrapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import TypeVar

from prometheus_client import Metric, pushadd_to_gateway, write_to_textfile
from prometheus_client.registry import Collector

from gateway.pipeline.jobs.runner import JobResult
from gateway.settings.pipeline import JobSettings, StreamJobSettings
from gateway.telemetry import METRIC_PREFIX, REGISTRY, gauge, get_logger

logger = get_logger()

ResultT = TypeVar("ResultT")

_COMMAND = ("command",)
_LAST_RUN = gauge(
    "pipeline_job_last_run_timestamp_seconds", "When the last run of a job ended.", _COMMAND
)
_LAST_SUCCESS = gauge(
    "pipeline_job_last_success_timestamp_seconds", "When a run last succeeded.", _COMMAND
)
_DURATION = gauge("pipeline_job_duration_seconds", "Duration of the last run.", _COMMAND)
_FAILED = gauge("pipeline_job_failed", "1 if the last run failed, else 0.", _COMMAND)
_ROWS = gauge("pipeline_job_rows", "Rows written or published by the last run.", _COMMAND)

_recorded_rows: dict[str, int] = {}
"""Rows of the current run by command, set by `set_row_count`."""

_OF_RUNS = METRIC_PREFIX + "pipeline_job_"
"""
Prefix of the exported metrics. Others are not exported: metrics of a stream describe the present,
its counters restart at each run, and node_exporter rejects a file with process_*, which it has.
"""
_PUSH_TIMEOUT_S = 10


def run_exported(settings: JobSettings, command: str, run: Callable[[], ResultT]) -> ResultT:
    """
    Call *run*, export the metrics of that run, and return its result.

    The metrics are exported if the run ends by itself, whether it succeeds or fails. Those of an
    endless stream, or of a run stopped by a signal, are not. A failed export is only logged.
    """
    if isinstance(settings, StreamJobSettings) and not settings.available_now:
        return run()
    began_at_s = time.monotonic()
    _recorded_rows.pop(command, None)
    try:
        result = run()
    except Exception:
        _FAILED.labels(command).set(1)
        _ROWS.labels(command).set(_rows_of_query(command))
        _export(settings, command, time.monotonic() - began_at_s)
        raise
    if result not in (JobResult.TERMINATED, JobResult.INTERRUPTED):
        _FAILED.labels(command).set(0)
        # Not set by a failed run, so that a Pushgateway keeps the last value.
        _LAST_SUCCESS.labels(command).set_to_current_time()
        rows = getattr(result, "rows", None)  # a compaction counts its rows itself
        _ROWS.labels(command).set(_rows_of_query(command) if rows is None else rows)
        _export(settings, command, time.monotonic() - began_at_s)
    return result


def set_row_count(command: str, rows: int) -> None:
    """
    Set the number of *rows* that the metric of the current run of *command* reports.

    Call this if the run publishes or writes fewer rows than its query reads.
    """
    _recorded_rows[command] = rows


def _rows_of_query(name: str) -> float:
    """Return the rows set by `set_row_count`, or else the input rows of the query, or else 0."""
    if name in _recorded_rows:
        return _recorded_rows[name]
    sample = f"{METRIC_PREFIX}pipeline_input_rows_total"
    return REGISTRY.get_sample_value(sample, {"query": name}) or 0


class _RunMetrics(Collector):
    """Collect the metrics of a run that have a value, and add the label job_name."""

    def __init__(self, job_name: str) -> None:
        self._label = {"job_name": job_name}

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        for family in REGISTRY.collect():
            if family.name.startswith(_OF_RUNS) and family.samples:
                family.samples = [
                    sample._replace(labels=sample.labels | self._label) for sample in family.samples
                ]
                yield family


def _export(settings: JobSettings, command: str, took_s: float) -> None:
    _LAST_RUN.labels(command).set_to_current_time()
    _DURATION.labels(command).set(took_s)
    job_name = settings.job_name or command
    metrics = _RunMetrics(job_name)
    if settings.metrics_textfile is not None:
        path = str(settings.metrics_textfile)
        try:
            write_to_textfile(path, metrics)
        except OSError as error:
            logger.warning("metrics not written", path=path, reason=error.strerror or str(error))
    if settings.metrics_push_url:
        try:
            pushadd_to_gateway(
                settings.metrics_push_url, job_name, metrics, timeout=_PUSH_TIMEOUT_S
            )
        except (OSError, HTTPException) as error:
            logger.warning("metrics not pushed", url=settings.metrics_push_url, reason=str(error))
