"""Collect finished spans in memory, without a collector."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.telemetry import Tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"


class RecordedSpans:
    """The finished spans of `tracing`; *ratio* samples requests without a traceparent."""

    def __init__(self, *, ratio: float = 0.0) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider, trace, ratio=ratio)

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        """Ended spans, in order of their ends."""
        return self._exporter.get_finished_spans()

    def said(self, name: str) -> list[Any]:
        """Return the attribute *name* of each span that has ended, None where it has none."""
        return [(span.attributes or {}).get(name) for span in self.ended]


def broken_tracing() -> Tracing:
    """Return a tracer that fails whenever a span begins."""
    recorded = RecordedSpans(ratio=1.0)

    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("no span can be made")

    recorded.tracing.start = fail  # type: ignore[method-assign,assignment]
    return recorded.tracing
