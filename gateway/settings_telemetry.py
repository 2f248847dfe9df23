"""The settings of how a gateway is watched: metrics and traces. Logs are common to all commands."""

from __future__ import annotations

from gateway.settings_common import Settings, number, switch


class TelemetrySettings(Settings):
    """What /metrics tells, and which traces are sent."""

    metrics_topics_limit: int = number(
        100,
        "How many topics have metrics of their own, those that came first; the others are counted "
        "together, as topic other.",
        (0, 10_000),
        "topics",
    )
    tracing: bool = switch(
        "Send traces to where the OTEL_EXPORTER_OTLP_* variables say, by OTLP over HTTP; it needs "
        "the extra tracing (pip install '.[tracing]' from the checkout)."
    )
    tracing_sample_ratio: float = number(
        0.01,
        "Which share of requests without a traceparent begins a trace, at most 50 a second; one "
        "that brings it is followed where it says that it is sampled.",
        (0, 1),
    )
