"""
Traces: sampling, and spans exported with OpenTelemetry.

Only `start_tracing` imports OpenTelemetry, which is an optional dependency. This module decides
which requests are traced, before any object of OpenTelemetry is created: of a request with a
traceparent, the sampled flag decides; of the others, a random share is traced. The SDK's samplers
would cost a span for each request, and none of them limits the rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from gateway.errors import SettingRefused
from gateway.telemetry.logs import get_logger

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

Kind: TypeAlias = Literal["server", "producer", "consumer"]
Attributes: TypeAlias = Mapping[str, str | int]

logger = get_logger()

_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01
FLUSH_S = 2.0
"""Time for the export of the last spans."""
_MAX_TRACES_PER_S = 500
"""Limit of all traces: one costs as much CPU as ten publishes, and clients can ask for any."""
_MAX_SAMPLED_PER_S = 50
"""Limit of random samples: a ratio of 0.01 would cost a tenth of the CPU at 30 000 publishes/s."""
_SERVICE_NAME: Final = "nsq-gateway"


class TraceParent(NamedTuple):
    """The parent of a span, from a ``traceparent`` header (W3C Trace Context)."""

    trace_id: int
    span_id: int
    is_sampled: bool


def read_traceparent(text: str) -> TraceParent | None:
    """Parse a traceparent; return None if it is invalid."""
    found = _TRACEPARENT.fullmatch(text)
    # Version 00 has exactly four fields; a later version may have more (W3C Trace Context).
    if found is None or (found["version"] == "00" and found["more"]):
        return None
    trace_id, span_id = int(found["trace"], 16), int(found["span"], 16)
    if not (trace_id and span_id):
        return None
    return TraceParent(trace_id, span_id, bool(int(found["flags"], 16) & _SAMPLED))


class SuppressErrors:
    """A context manager that suppresses every Exception in its block, and logs the first one."""

    __slots__ = ("_is_logged",)

    def __init__(self) -> None:
        self._is_logged = False

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Suppress an Exception; let cancellation, KeyboardInterrupt and SystemExit pass."""
        del kind, traceback
        if not isinstance(error, Exception):
            return False
        if not self._is_logged:
            self._is_logged = True
            logger.error("tracing failed", exc_info=error)
        return True


class _RateLimit:
    """Permit up to *per_s* calls of `take` in each second of the clock."""

    __slots__ = ("_per_s", "_remaining", "_second")

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._remaining = per_s
        self._second = 0

    def take(self) -> bool:
        """Return whether one more call is permitted in this second, and count it if so."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._remaining = second, self._per_s
        if not self._remaining:
            return False
        self._remaining -= 1
        return True


class Span:
    """A span of OpenTelemetry whose methods never raise an Exception; call `end` once."""

    __slots__ = ("_span", "_tracing")

    def __init__(self, tracing: Tracing, span: trace.Span) -> None:
        self._tracing = tracing
        self._span = span

    @property
    def trace_id(self) -> str:
        """The trace id, 32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def child(self, name: str, kind: Kind, attributes: Attributes) -> Span | None:
        """Start and return a child span of this one; return None if that failed."""
        with self._tracing.suppress_errors:
            return self._tracing.start(name, kind, self._span.get_span_context(), attributes)
        return None

    def end(self, attributes: Attributes, *, error: str | None = None) -> None:
        """End the span with *attributes*; an *error* marks it as failed, and is its error.type."""
        with self._tracing.suppress_errors:
            self._span.set_attributes(dict(attributes))
            if error is not None:
                self._tracing.fail(self._span, error)
        # A block of its own: the span ends even if its attributes are invalid.
        with self._tracing.suppress_errors:
            self._span.end()


class Tracing:
    """Samples requests and starts spans; created by `start_tracing`."""

    def __init__(self, provider: TracerProvider, api: Any, *, ratio: float) -> None:  # noqa: ANN401 - the module
        self.suppress_errors: Final = SuppressErrors()
        """Context manager for tracing code: its errors must not fail the traced request."""
        self._provider = provider
        self._api = api
        self._log_unsampled = math.log1p(-ratio) if ratio < 1 else -math.inf
        self._countdown = self._distance()
        """Calls of `sample` up to and including the next one that returns True."""
        self._traces = _RateLimit(_MAX_TRACES_PER_S)
        self._sampled = _RateLimit(_MAX_SAMPLED_PER_S)
        self.open_spans = 0
        """Open spans of deliveries, which may last long; `web.tracing` counts and limits them."""
        self._tracer = provider.get_tracer(_SERVICE_NAME)
        kinds = api.SpanKind
        self._kinds = {
            "server": kinds.SERVER,
            "producer": kinds.PRODUCER,
            "consumer": kinds.CONSUMER,
        }

    def should_trace(self, parent: TraceParent | None) -> bool:
        """Return whether to trace a request with this *parent*; call it once for each request."""
        if parent is None:
            return self.sample()
        return parent.is_sampled and self._traces.take()

    def sample(self) -> bool:
        """Return whether to trace a request without a parent; call it once for each request."""
        self._countdown -= 1
        if self._countdown > 0:
            return False
        self._countdown = self._distance()
        return self._sampled.take() and self._traces.take()

    def _distance(self) -> float:
        """Draw at random how many calls of `sample` later the next request is sampled."""
        # The geometric distribution: one random number decides about many requests.
        # A ratio of 0 has the logarithm 0, and samples nothing. A ratio of 1 has -inf: the quotient
        # is 0, and every request is sampled.
        if self._log_unsampled == 0:
            return math.inf
        return 1 + math.log(1 - random.random()) // self._log_unsampled  # noqa: S311 - a sample

    def begin(
        self,
        name: str,
        kind: Kind,
        parent: TraceParent | None,
        attributes: Attributes,
        *,
        ago_s: float = 0.0,
    ) -> Span | None:
        """
        Return a span that began *ago_s* seconds ago, as a child of *parent*; None if that failed.

        Without a parent, the span begins a new trace.
        """
        with self.suppress_errors:
            context = None
            if parent is not None:
                flags = self._api.TraceFlags(_SAMPLED)
                context = self._api.SpanContext(
                    parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags
                )
            began_ns = time.time_ns() - int(ago_s * 1e9)
            return self.start(name, kind, context, attributes, began_ns)
        return None

    def start(
        self,
        name: str,
        kind: Kind,
        parent: trace.SpanContext | None,
        attributes: Attributes,
        began_ns: int | None = None,
    ) -> Span:
        """
        Return a span that began at *began_ns* (in ns since 1970; None: now); may raise.

        It is a child of *parent*, or begins a new trace.
        """
        api = self._api
        # An explicit parent: the current span in the context variables is never used here.
        context = api.set_span_in_context(
            api.INVALID_SPAN if parent is None else api.NonRecordingSpan(parent)
        )
        span = self._tracer.start_span(
            name,
            context,
            kind=self._kinds[kind],
            attributes=dict(attributes),
            start_time=began_ns,
        )
        return Span(self, span)

    def fail(self, span: trace.Span, error: str) -> None:
        """Set error.type and the error status of *span*."""
        span.set_attribute("error.type", error)
        span.set_status(self._api.StatusCode.ERROR)

    def discard(self) -> None:
        """Shut down the exporter at once; call it only if no span was started."""
        self._provider.shutdown()

    async def stop(self) -> None:
        """Export the remaining spans and shut down, giving up after `FLUSH_S`."""
        loop = asyncio.get_running_loop()
        is_done = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(is_done.set)

        # A daemon thread: the process must not wait for a collector that does not respond.
        threading.Thread(target=shut_down, name="export last spans", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await is_done.wait()


def start_tracing(*, ratio: float, version: str) -> Tracing:
    """
    Start an exporter of traces, and sample the share *ratio* of requests without a traceparent.

    OpenTelemetry's OTEL_EXPORTER_OTLP_* variables configure the exporter.

    Raises:
        SettingRefused: The extra is not installed, or OpenTelemetry rejects a variable.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider, sampling  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise SettingRefused(
            "--tracing",
            f"{error}; install the extra tracing: pip install '.[tracing]' from the checkout",
        ) from error
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override these attributes.
    resource = Resource({"service.name": _SERVICE_NAME, "service.version": version})
    try:
        provider = TracerProvider(
            sampler=sampling.ALWAYS_ON,
            resource=resource.merge(_from_environment()),
            # `Tracing.stop` shuts it down, and waits for `FLUSH_S` at most.
            shutdown_on_exit=False,
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except Exception as error:
        # The SDK reads its variables here, and has no exception class for invalid ones.
        raise SettingRefused(
            "--tracing", f"an OTEL_* variable is invalid ({error}); correct or unset it"
        ) from error
    return Tracing(provider, trace, ratio=ratio)


def _from_environment() -> Any:  # noqa: ANN401 - a Resource
    from opentelemetry.sdk.resources import OTELResourceDetector  # noqa: PLC0415

    return OTELResourceDetector().detect()
