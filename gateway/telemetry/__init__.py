"""
Logs, metrics and traces, independent of NSQ and HTTP.

Metrics have the prefix ``nsq_gateway_``; each module registers its own in `REGISTRY`.
"""

from gateway.telemetry.logs import (
    LOG_LEVEL_VARIABLE,
    LogFormat,
    configure_logging,
    get_logger,
    log_uncaught,
    set_log_level,
)
from gateway.telemetry.metrics import (
    METRIC_PREFIX,
    OTHER,
    REGISTRY,
    SECONDS_BUCKETS,
    SHORT_SECONDS_BUCKETS,
    FastCounter,
    FastGauge,
    Histogram,
    HistogramChild,
    LabelLimiter,
    TextFamily,
    counter,
    exposition,
    fast_counter,
    fast_gauge,
    gauge,
    histogram,
)
from gateway.telemetry.process import LoopLag, ProcessMetrics
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
    "LOG_LEVEL_VARIABLE",
    "METRIC_PREFIX",
    "OTHER",
    "REGISTRY",
    "SECONDS_BUCKETS",
    "SHORT_SECONDS_BUCKETS",
    "Attributes",
    "FastCounter",
    "FastGauge",
    "Histogram",
    "HistogramChild",
    "LabelLimiter",
    "LogFormat",
    "LoopLag",
    "ProcessMetrics",
    "Span",
    "TextFamily",
    "TraceParent",
    "Tracing",
    "configure_logging",
    "counter",
    "exposition",
    "fast_counter",
    "fast_gauge",
    "gauge",
    "get_logger",
    "histogram",
    "log_uncaught",
    "read_traceparent",
    "set_log_level",
    "start_tracing",
]
