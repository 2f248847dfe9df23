"""
What is counted: `REGISTRY`, and the kinds of metrics.

prometheus-client's own counters and histograms lock, which costs what a whole message does. What
happens very often is counted here in plain numbers: only the event loop's thread may count.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

METRIC_PREFIX = "nsq_gateway_"

REGISTRY = CollectorRegistry(auto_describe=True)
"""Every metric of this process; /metrics shows it."""

OTHER = "other"
"""What a label says in place of a value that is none of those it may have."""

TRACE_ID = "trace_id"
"""The label of an exemplar."""

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""OpenTelemetry's bounds for the duration of a request."""
SHORT_SECONDS_BUCKETS = (
    *(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""For what is a matter of milliseconds or less, and of seconds where something is wrong."""


def counter(name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
    """Return a counter that has been registered; its name ends in the unit and ``_total``."""
    return Counter(METRIC_PREFIX + name, doc, labels, registry=REGISTRY)


def gauge(name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
    """Return a gauge that has been registered."""
    return Gauge(METRIC_PREFIX + name, doc, labels, registry=REGISTRY)


class Counts(dict[tuple[str, ...], int]):
    """Counts by label values, 0 where there is none; `collections.Counter` takes twice as long."""

    __slots__ = ()

    def __missing__(self, values: tuple[str, ...]) -> int:
        """Return 0; to look makes no entry."""
        return 0


class Tally(Collector):
    """
    Counts by label values, ``tally.counts["/pub", "OK"] += 1``, for what happens very often.

    A fraction of what a `counter` costs. Without labels the only count is ``counts[()]``.
    """

    def __init__(self, name: str, doc: str, labels: Sequence[str]) -> None:
        self.counts = Counts()
        if not labels:
            self.counts[()] = 0  # what has not happened is shown, where that can be said
        self._name = name
        self._doc = doc
        self._labels = tuple(labels)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield what has been counted, for prometheus-client."""
        family = CounterMetricFamily(self._name, self._doc, labels=self._labels)
        for values, count in self.counts.items():
            family.add_metric(values, count)
        yield family


class Level(Tally):
    """What there is now, as a `Tally` counts: ``level.counts[()] += 1`` and ``-= 1``."""

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield what there is, for prometheus-client."""
        family = GaugeMetricFamily(self._name, self._doc, labels=self._labels)
        for values, count in self.counts.items():
            family.add_metric(values, count)
        yield family


def tally(name: str, doc: str, labels: Sequence[str] = ()) -> Tally:
    """Return a `Tally` that has been registered; its name ends in the unit and ``_total``."""
    registered = Tally(METRIC_PREFIX + name, doc, labels)
    REGISTRY.register(registered)
    return registered


def level(name: str, doc: str, labels: Sequence[str] = ()) -> Level:
    """Return a `Level` that has been registered."""
    registered = Level(METRIC_PREFIX + name, doc, labels)
    REGISTRY.register(registered)
    return registered


class Distribution:
    """How often a value was up to each of *bounds*, in ascending order, and above all of them."""

    __slots__ = ("_bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One for each bound, that of the bounds before not included; the last is what is above."""
        self.total = 0.0
        """The sum of all values."""
        self.exemplars: dict[int, Exemplar] = {}
        """By place in `counts`, the last value that a trace tells of."""

    def observe(self, value: float, trace_id: str | None = None) -> None:
        """Count *value*; a *trace_id* is shown as an example of its bucket."""
        place = bisect_left(self._bounds, value)
        self.counts[place] += 1
        self.total += value
        if trace_id is not None:
            self.exemplars[place] = Exemplar({TRACE_ID: trace_id}, value, time.time())

    def observe_alike(self, least: float, most: float, *, count: int, total: float) -> bool:
        """
        Count *count* values from *least* to *most*, whose sum is *total*, at once.

        False: they are not in one bucket, and nothing was counted.
        """
        place = bisect_left(self._bounds, least)
        if place != bisect_left(self._bounds, most):
            return False
        self.counts[place] += count
        self.total += total
        return True


class Histogram(Collector):
    """
    Distributions by label values: `labels` gives the one to count with, which may be kept.

    A fraction of what prometheus-client's costs.
    """

    def __init__(
        self, name: str, doc: str, labels: Sequence[str], *, buckets: Sequence[float]
    ) -> None:
        self._name = name
        self._doc = doc
        self._labels = tuple(labels)
        self._bounds = tuple(buckets)
        self._distributions: dict[tuple[str, ...], Distribution] = {}
        if not labels:
            self.labels()

    def labels(self, *values: str) -> Distribution:
        """Return what counts for the label values *values*, in the order of the labels."""
        found = self._distributions.get(values)
        if found is None:
            found = self._distributions[values] = Distribution(self._bounds)
        return found

    def observe(self, value: float, trace_id: str | None = None) -> None:
        """Count *value* where there are no labels."""
        self.labels().observe(value, trace_id)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield what has been counted, for prometheus-client."""
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
    """Return a histogram that has been registered; *buckets* are upper bounds, in its unit."""
    registered = Histogram(METRIC_PREFIX + name, doc, labels, buckets=buckets)
    REGISTRY.register(registered)
    return registered


class FirstNames:
    """Names as values of a label: the first *limit* of them as they are, `OTHER` for the rest."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._names: set[str] = set()

    def label_of(self, name: str, *, is_proven: bool = True) -> str:
        """Return what the label says for *name*; one that is not proven gets no place anew."""
        names = self._names
        if name in names:
            return name
        if not is_proven or len(names) >= self.limit:
            return OTHER
        names.add(name)
        return name
