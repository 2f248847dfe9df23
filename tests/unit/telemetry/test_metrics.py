"""Counters, gauges and histograms, and their text format."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from gateway import telemetry
from gateway.telemetry import (
    OTHER,
    REGISTRY,
    FastCounter,
    FastGauge,
    Histogram,
    HistogramChild,
    LabelLimiter,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"


def lines_of(*metrics: FastCounter | Histogram) -> list[str]:
    registry = CollectorRegistry()
    for metric in metrics:
        registry.register(metric)
    return generate_latest(registry).decode().splitlines()


def test_metrics_have_our_prefix_and_are_shown() -> None:
    """The functions that create metrics register them."""
    telemetry.counter("tests_total", "Tests.", ["kind"]).labels("a").inc()
    telemetry.gauge("tests_open", "Tests that are open.").set(2)
    telemetry.fast_gauge("tests_waiting", "Tests that wait.").counts[()] += 3
    telemetry.histogram("test_seconds", "Time of a test.", buckets=(1.0,)).observe(0.5)

    shown = generate_latest(REGISTRY).decode().splitlines()

    assert {
        'nsq_gateway_tests_total{kind="a"} 1.0',
        "nsq_gateway_tests_open 2.0",
        "nsq_gateway_tests_waiting 3.0",
        'nsq_gateway_test_seconds_bucket{le="1.0"} 1.0',
    } <= set(shown)


def test_what_has_not_happened_is_shown_as_0() -> None:
    """rate() misses the first event of a series that begins with it."""
    assert "eaten_total 0.0" in lines_of(FastCounter("eaten_total", "Eaten.", ()))


def test_a_level_goes_up_and_down() -> None:
    level = FastGauge("open", "Open.", ("role",))
    level.counts["a",] += 2
    level.counts["a",] -= 1

    assert ["# TYPE open gauge", 'open{role="a"} 1.0'] == lines_of(level)[1:]


@pytest.mark.parametrize("value,place", [(0.5, 0), (1.0, 0), (1.5, 1), (2.0, 1), (2.5, 2)])
def test_a_bound_belongs_to_its_bucket(value: float, place: int) -> None:
    """Upper bounds are inclusive, as in Prometheus."""
    distribution = HistogramChild((1.0, 2.0))

    distribution.observe(value)

    assert [place] == [at for at, count in enumerate(distribution.counts) if count]


@pytest.mark.parametrize(
    "least,most,counts", [(0.1, 1.0, [3, 0, 0]), (1.5, 2.0, [0, 3, 0]), (0.1, 1.5, [0, 0, 0])]
)
def test_many_count_at_once_where_they_are_in_one_bucket(
    least: float, most: float, counts: list[int]
) -> None:
    """Otherwise nothing is counted, and the result is False."""
    distribution = HistogramChild((1.0, 2.0))

    is_counted = distribution.observe_many(least, most, count=3, total=2.5)

    assert (any(counts), counts) == (is_counted, distribution.counts)
    assert (2.5 if any(counts) else 0.0) == distribution.total


def test_a_histogram_is_shown_with_sums_over_its_buckets() -> None:
    """Buckets are cumulative in the text format."""
    histogram = Histogram("size", "Sizes.", ("route",), buckets=(1.0, 2.0))
    for value in (0.5, 1.5, 9.0):
        histogram.labels("/pub").observe(value)

    assert [
        'size_bucket{le="1.0",route="/pub"} 1.0',
        'size_bucket{le="2.0",route="/pub"} 2.0',
        'size_bucket{le="+Inf",route="/pub"} 3.0',
        'size_count{route="/pub"} 3.0',
        'size_sum{route="/pub"} 11.0',
    ] == lines_of(histogram)[2:]


def test_an_example_names_its_trace() -> None:
    """OpenMetrics shows the exemplar at the bucket of its value."""
    histogram = Histogram("size", "Sizes.", (), buckets=(1.0, 2.0))
    histogram.observe(0.5)
    histogram.observe(1.5, TRACE)
    registry = CollectorRegistry()
    registry.register(histogram)

    text: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    lines = text.decode().splitlines()

    found = [line for line in lines if TRACE in line]
    assert [f'size_bucket{{le="2.0"}} 2.0 # {{trace_id="{TRACE}"}} 1.5'] == [
        line.rpartition(" ")[0] for line in found
    ]


def test_names_beyond_the_limit_are_one() -> None:
    """The first names keep their labels; unproven names take no place."""
    names = LabelLimiter(2)

    labels = [
        names.label_of("a"),
        names.label_of("b", is_proven=False),
        names.label_of("c"),
        names.label_of("d"),
        names.label_of("a", is_proven=False),
    ]

    assert ["a", OTHER, "c", OTHER, "a"] == labels
