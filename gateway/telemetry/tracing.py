"""
Traces: which requests have one, and where they are sent.

OpenTelemetry is imported by `start_tracing` alone: a process without traces knows nothing of it.
Which request has a trace is decided here, before anything is made of it: who brings a traceparent
has decided it, of the others a share is drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import re
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from gateway.errors import SettingRefused
from gateway.telemetry.logs import get_logger
from gateway.telemetry.otlp_variables import check_otlp_variables

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
"""What the last spans get to be sent."""
_BEGUN_A_SECOND = 500
"""Who may publish may ask for any number of traces, and each costs what ten publishes do."""
_DRAWN_A_SECOND = 50
"""Of those that nobody asked for: more would tell no more, and cost a share of all publishes."""
_TELLER: Final = "nsq-gateway"


class TraceParent(NamedTuple):
    """Who is above, as a ``traceparent`` says it (W3C Trace Context)."""

    trace_id: int
    span_id: int
    is_sampled: bool


def read_traceparent(text: str) -> TraceParent | None:
    """Return what *text* says; None for what is no traceparent."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or (found["version"] == "00" and found["more"]):
        return None
    trace_id, span_id = int(found["trace"], 16), int(found["span"], 16)
    if not (trace_id and span_id):
        return None
    return TraceParent(trace_id, span_id, bool(int(found["flags"], 16) & _SAMPLED))


class Harmless:
    """Keeps what fails within from what is traced; the log is told of the first one."""

    __slots__ = ("_is_told",)

    def __init__(self) -> None:
        self._is_told = False

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Let what is no mere failure out: a cancellation, the end of the program."""
        del kind, traceback
        if not isinstance(error, Exception):
            return False
        if not self._is_told:
            self._is_told = True
            logger.error("tracing failed", exc_info=error)
        return True


class _Budget:
    """What may be had a second; what is left of one is gone with it."""

    __slots__ = ("_left", "_per_s", "_second")

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._left = per_s
        self._second = 0

    def take(self) -> bool:
        """Take one; False: this second has none left."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._left = second, self._per_s
        if not self._left:
            return False
        self._left -= 1
        return True


class Span:
    """One step of a trace; `end` last, once. Nothing here fails."""

    __slots__ = ("_span", "_tracing")

    def __init__(self, tracing: Tracing, span: trace.Span) -> None:
        self._tracing = tracing
        self._span = span

    @property
    def trace_id(self) -> str:
        """Of the trace that it belongs to, 32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def child(self, name: str, kind: Kind, attributes: Attributes) -> Span | None:
        """Return a step within this one; None: that failed."""
        with self._tracing.harmless:
            return self._tracing.start(name, kind, self._span.get_span_context(), attributes)
        return None

    def end(self, attributes: Attributes, *, error: str | None = None) -> None:
        """End it; *error* says in a word why it failed."""
        with self._tracing.harmless:
            self._span.set_attributes(dict(attributes))
            if error is not None:
                self._tracing.fail(self._span, error)
        with self._tracing.harmless:
            self._span.end()


class Tracing:
    """Begins traces and steps of them; made by `start_tracing`, `stop` last."""

    def __init__(self, provider: TracerProvider, api: Any, *, ratio: float) -> None:  # noqa: ANN401 - the module
        self.harmless: Final = Harmless()
        """Around whatever is done for traces alone, amid what is to go on without them."""
        self._provider = provider
        self._api = api
        self._log_of_rest = math.log1p(-ratio) if ratio < 1 else -math.inf
        self._left = self._distance()
        """How many are asked about until one is drawn, that one included."""
        self._begun = _Budget(_BEGUN_A_SECOND)
        self._drawn = _Budget(_DRAWN_A_SECOND)
        self.followed = 0
        """Steps that others keep open for long, who bound and count them here together."""
        self._tracer = provider.get_tracer(_TELLER)
        kinds = api.SpanKind
        self._kinds = {
            "server": kinds.SERVER,
            "producer": kinds.PRODUCER,
            "consumer": kinds.CONSUMER,
        }

    def wants(self, parent: TraceParent | None) -> bool:
        """Tell whether what has this *parent*, None for none, has a trace; then it is to begin."""
        if parent is None:
            return self.draws()
        return parent.is_sampled and self._begun.take()

    def draws(self) -> bool:
        """Tell whether what has no parent has a trace; then it is to begin."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._distance()
        return self._drawn.take() and self._begun.take()

    def _distance(self) -> float:
        """Return how far it is to the next one drawn, as if each had been drawn by itself."""
        if self._log_of_rest == 0:
            return math.inf
        return 1 + math.log(1 - random.random()) // self._log_of_rest  # noqa: S311 - a sample

    def begin(
        self,
        name: str,
        kind: Kind,
        parent: TraceParent | None,
        attributes: Attributes,
        *,
        ago_s: float = 0.0,
    ) -> Span | None:
        """Begin a step below *parent*, or a trace, which began *ago_s* ago; None: that failed."""
        with self.harmless:
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
        above: trace.SpanContext | None,
        attributes: Attributes,
        began_ns: int | None = None,
    ) -> Span:
        """Begin a step below *above*, or a trace, at *began_ns* (since 1970), None for now."""
        api = self._api
        # Never what may stand in a context variable: nothing puts anything there.
        context = api.set_span_in_context(
            api.INVALID_SPAN if above is None else api.NonRecordingSpan(above)
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
        """Say that *span* has failed."""
        span.set_attribute("error.type", error)
        span.set_status(self._api.StatusCode.ERROR)

    def discard(self) -> None:
        """Undo `start_tracing`, where nothing has been begun."""
        self._provider.shutdown()

    async def stop(self) -> None:
        """Send what is left, within 2 s."""
        loop = asyncio.get_running_loop()
        is_over = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(is_over.set)

        # Not one that the end of the program waits for: nobody may be there to take it.
        threading.Thread(target=shut_down, name="send the last spans", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await is_over.wait()


def start_tracing(*, ratio: float, version: str) -> Tracing:
    """
    Return what sends traces to where the OTEL_EXPORTER_OTLP_* variables say.

    Raises:
        SettingsError: The extra is not installed, or a variable OTEL_* cannot be used.
    """
    check_otlp_variables(os.environ)
    try:
        from opentelemetry import trace  # noqa: PLC0415 - who has no traces does without it
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
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES beat what is said here.
    said = Resource({"service.name": _TELLER, "service.version": version})
    try:
        provider = TracerProvider(
            sampler=sampling.ALWAYS_ON,
            resource=said.merge(_from_environment()),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except Exception as error:
        # It reads its variables there, and has no error of its own for them.
        raise SettingRefused(
            "--tracing", f"a variable OTEL_* cannot be used ({error}); correct it, or unset it"
        ) from error
    return Tracing(provider, trace, ratio=ratio)


def _from_environment() -> Any:  # noqa: ANN401 - a Resource
    from opentelemetry.sdk.resources import OTELResourceDetector  # noqa: PLC0415

    return OTELResourceDetector().detect()
