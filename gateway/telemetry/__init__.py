"""
Logs, metrics, traces and tasks: what every part uses to be seen. Knows no domain word.

Metrics have the prefix ``nsq_gateway_`` and are registered in `REGISTRY`, next to the code that
counts.
"""

from gateway.telemetry.exposition import exposition
from gateway.telemetry.logs import LogFormat, configure_logging, get_logger
from gateway.telemetry.loop_lag import LoopLag
from gateway.telemetry.metrics import (
    METRIC_PREFIX,
    OTHER,
    REGISTRY,
    SECONDS_BUCKETS,
    SHORT_SECONDS_BUCKETS,
    Distribution,
    FirstNames,
    Histogram,
    Level,
    Tally,
    counter,
    gauge,
    histogram,
    level,
    tally,
)
from gateway.telemetry.process import ProcessMetrics
from gateway.telemetry.tasks import spawn
from gateway.telemetry.tracing import (
    FLUSH_S,
    Attributes,
    Span,
    TraceParent,
    Tracing,
    read_traceparent,
    start_tracing,
)

__all__ = [
    "FLUSH_S",
    "METRIC_PREFIX",
    "OTHER",
    "REGISTRY",
    "SECONDS_BUCKETS",
    "SHORT_SECONDS_BUCKETS",
    "Attributes",
    "Distribution",
    "FirstNames",
    "Histogram",
    "Level",
    "LogFormat",
    "LoopLag",
    "ProcessMetrics",
    "Span",
    "Tally",
    "TraceParent",
    "Tracing",
    "configure_logging",
    "counter",
    "exposition",
    "gauge",
    "get_logger",
    "histogram",
    "level",
    "read_traceparent",
    "spawn",
    "start_tracing",
    "tally",
]
