"""
Metrics: `REGISTRY`, cheap counters, and the text exposition.

prometheus-client's counters and histograms take a lock, which costs as much CPU as a whole message.
`FastCounter`, `FastGauge` and `Histogram` have no lock: only the event loop's thread may use them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

METRIC_PREFIX = "nsq_gateway_"

REGISTRY = CollectorRegistry(auto_describe=True)
"""All metrics of this process, for /metrics."""

OTHER = "other"
"""Label value in place of values that would create too many series."""

TRACE_ID = "trace_id"
"""Label of exemplars."""

SECONDS_BUCKETS = (
    *(0.00025, 0.0005, 0.001, 0.0025),
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
"""OpenTelemetry's bounds for request durations, and lower ones: most publishes take below 5 ms."""
SHORT_SECONDS_BUCKETS = (
    *(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Bounds for durations of milliseconds or less, up to 10 s in a fault."""


def counter(name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
    """Create and register a counter; *name* ends with the unit and ``_total``."""
    # Process-wide switch of the library: no ``_created`` series for each counter.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return Counter(METRIC_PREFIX + name, doc, labels, registry=REGISTRY)


def gauge(name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
    """Create and register a gauge."""
    return Gauge(METRIC_PREFIX + name, doc, labels, registry=REGISTRY)


class Counts(dict[tuple[str, ...], int]):
    """Counts by label values, 0 if missing; `collections.Counter` takes twice as long."""

    __slots__ = ()

    def __missing__(self, values: tuple[str, ...]) -> int:
        """Return 0 without creating an entry."""
        return 0


class FastCounter(Collector):
    """
    A counter without a lock, for frequent events: ``requests.counts["/pub", "OK"] += 1``.

    An increment costs a fifth of one of a `counter`, or less. Without labels the only count is
    ``counts[()]``.

    *zeros* are the label values of series that are exported as 0 before their first event. If a
    series appears with 1, Prometheus sees no increase: each series of an alert must begin at 0.
    """

    def __init__(
        self, name: str, doc: str, labels: Sequence[str], zeros: Iterable[tuple[str, ...]] = ()
    ) -> None:
        self.counts = Counts()
        self.init_series(zeros if labels else [()])
        self._name = name
        self._doc = doc
        self._labels = tuple(labels)

    def init_series(self, zeros: Iterable[tuple[str, ...]]) -> None:
        """Export the series with the label values *zeros*; those without a count start at 0."""
        for values in zeros:
            self.counts.setdefault(values, 0)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metric; prometheus-client calls this on a scrape."""
        family = CounterMetricFamily(self._name, self._doc, labels=self._labels)
        for values, count in self.counts.items():
            family.add_metric(values, count)
        yield family


class FastGauge(FastCounter):
    """A gauge without a lock: ``sockets.counts[()] += 1`` and ``-= 1``; see `FastCounter`."""

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metric; prometheus-client calls this on a scrape."""
        family = GaugeMetricFamily(self._name, self._doc, labels=self._labels)
        for values, count in self.counts.items():
            family.add_metric(values, count)
        yield family


def fast_counter(
    name: str, doc: str, labels: Sequence[str] = (), *, zeros: Iterable[tuple[str, ...]] = ()
) -> FastCounter:
    """Create and register a `FastCounter`; *name* ends with the unit and ``_total``."""
    registered = FastCounter(METRIC_PREFIX + name, doc, labels, zeros)
    REGISTRY.register(registered)
    return registered


def fast_gauge(
    name: str, doc: str, labels: Sequence[str] = (), *, zeros: Iterable[tuple[str, ...]] = ()
) -> FastGauge:
    """Create and register a `FastGauge`."""
    registered = FastGauge(METRIC_PREFIX + name, doc, labels, zeros)
    REGISTRY.register(registered)
    return registered


class HistogramChild:
    """The buckets of a histogram for one set of label values; *bounds* are in ascending order."""

    __slots__ = ("_bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values of each bucket, not cumulative; the last bucket has no upper bound."""
        self.total = 0.0
        """The sum of all values."""
        self.exemplars: dict[int, Exemplar] = {}
        """The last traced value of each bucket, by index in `counts`."""

    def observe(self, value: float, trace_id: str | None = None) -> None:
        """Count *value* in its bucket; a *trace_id* becomes the exemplar of the bucket."""
        # bisect_left: a value equal to a bound is in its bucket, as Prometheus' label "le" says.
        place = bisect_left(self._bounds, value)
        self.counts[place] += 1
        self.total += value
        if trace_id is not None:
            self.exemplars[place] = Exemplar({TRACE_ID: trace_id}, value, time.time())

    def observe_many(self, least: float, most: float, *, count: int, total: float) -> bool:
        """
        Count *count* values at once: *least* and *most* are their extremes, *total* is their sum.

        Return True if all values are in one bucket. Otherwise count nothing and return False: the
        caller then counts them one by one.
        """
        place = bisect_left(self._bounds, least)
        if place != bisect_left(self._bounds, most):
            return False
        self.counts[place] += count
        self.total += total
        return True


class Histogram(Collector):
    """
    A histogram without a lock, at a fraction of the cost of prometheus-client's.

    `labels` returns the child for label values; callers keep the child to avoid the lookup.
    """

    def __init__(
        self, name: str, doc: str, labels: Sequence[str], *, buckets: Sequence[float]
    ) -> None:
        self._name = name
        self._doc = doc
        self._labels = tuple(labels)
        self._bounds = tuple(buckets)
        self._distributions: dict[tuple[str, ...], HistogramChild] = {}
        # Without labels there is one series, exported as 0 before its first value.
        if not labels:
            self.labels()

    def labels(self, *values: str) -> HistogramChild:
        """Return the child for label *values*, in the order of the label names."""
        found = self._distributions.get(values)
        if found is None:
            found = self._distributions[values] = HistogramChild(self._bounds)
        return found

    def observe(self, value: float, trace_id: str | None = None) -> None:
        """Count *value* in a histogram without labels."""
        self.labels().observe(value, trace_id)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the metric; prometheus-client calls this on a scrape."""
        family = HistogramMetricFamily(self._name, self._doc, labels=self._labels)
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, distribution in self._distributions.items():
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            counts = itertools.accumulate(distribution.counts)
            for place, (end, count) in enumerate(zip(ends, counts, strict=True)):
                example = distribution.exemplars.get(place)
                buckets.append((end, count) if example is None else (end, count, example))
            family.add_metric(values, buckets, distribution.total)
        yield family


def histogram(
    name: str, doc: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
) -> Histogram:
    """Create and register a histogram; *buckets* are upper bounds, in the histogram's unit."""
    registered = Histogram(METRIC_PREFIX + name, doc, labels, buckets=buckets)
    REGISTRY.register(registered)
    return registered


class LabelLimiter:
    """Limits the values of a label: the first *limit* names are kept, others become `OTHER`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._names: set[str] = set()

    def label_of(self, name: str, *, is_proven: bool = True) -> str:
        """
        Return *name* if it is one of the names kept, or can be kept from now on; otherwise `OTHER`.

        With *is_proven* False, a new name is not kept.
        """
        # A failed publish proves nothing about its topic: a client could use up the limit with
        # names that it has made up.
        names = self._names
        if name in names:
            return name
        if not is_proven or len(names) >= self.limit:
            return OTHER
        names.add(name)
        return name


_TURN_S = 0.002
"""After this time, `exposition` lets the event loop run before the next metric family."""
_OPENMETRICS = "application/openmetrics-text"
_END = b"# EOF\n"
"""The last line of OpenMetrics."""


class TextFamily(NamedTuple):
    """A metric family whose samples are text already, for thousands of samples that all change."""

    name: str
    """Without the prefix, and without ``_total`` for a counter."""
    doc: str
    kind: Literal["counter", "gauge"]
    samples: bytes
    """Lines that are the same in both text formats; each ends with a newline."""

    def encode(self, *, is_openmetrics: bool) -> bytes:
        """Return the family with its HELP and TYPE; empty without samples."""
        if not self.samples:
            return b""
        # Only in the older format the name of a counter ends with _total here as well.
        suffix = "_total" if self.kind == "counter" and not is_openmetrics else ""
        name = f"{METRIC_PREFIX}{self.name}{suffix}"
        head = f"# HELP {name} {self.doc}\n# TYPE {name} {self.kind}\n"
        return head.encode() + self.samples


class _One(Collector):
    """A collector of one metric family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield self._metric


async def exposition(
    collector: Collector, accept: str, more: Sequence[TextFamily] = ()
) -> tuple[bytes, str]:
    """
    Return the metrics of *collector*, and then *more*, as text, and its Content-Type.

    *accept* is the request's Accept header. If it asks for OpenMetrics, the text is OpenMetrics,
    with exemplars; otherwise it has the text format 0.0.4. Encoding thousands of series takes long:
    between metric families, other callbacks of the event loop run.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the library fails on an invalid version in Accept
        encode, content_type = choose_encoder("")
    parts = []
    began_at = time.perf_counter()
    for metric in collector.collect():
        # The encoder ends every call with # EOF in OpenMetrics; a response has it once, at the end.
        part = encode(_One(metric))
        parts.append(part.removesuffix(_END))
        # Yield only between families: collectors iterate over their dicts of counts, which must not
        # change meanwhile.
        began_at = await _end_turn(began_at)
    is_openmetrics = content_type.startswith(_OPENMETRICS)
    for family in more:
        parts.append(family.encode(is_openmetrics=is_openmetrics))
        began_at = await _end_turn(began_at)
    if is_openmetrics:
        parts.append(_END)
    return b"".join(parts), content_type


async def _end_turn(began_at: float) -> float:
    """Let other callbacks run if this turn has taken long; return when the current one began."""
    if time.perf_counter() - began_at <= _TURN_S:
        return began_at
    await asyncio.sleep(0)
    return time.perf_counter()
