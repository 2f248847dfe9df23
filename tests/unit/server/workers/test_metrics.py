"""Merging the metrics of several processes."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from gateway.server.workers.metrics import Family, MergedCollector, families
from gateway.telemetry import Histogram as OurHistogram


def counted(apples: int) -> list[Family]:
    """Return the metrics of a process with the count *apples*, after JSON."""
    registry = CollectorRegistry()
    Counter("apples", "Apples eaten.", ["kind"], registry=registry).labels("red").inc(apples)
    Histogram("size", "Sizes.", buckets=(1, 2), registry=registry).observe(1.5)
    received: list[Family] = json.loads(json.dumps(families(registry)))
    return received


def shown(**by_process: list[Family]) -> list[str]:
    """Return the lines of the text format."""
    return generate_latest(MergedCollector(by_process)).decode().splitlines()


def test_each_sample_says_whose_it_is() -> None:
    """A metric has one HELP and one TYPE, then the samples of all processes."""
    lines = shown(a=counted(1), b=counted(2))

    assert [
        "# HELP apples_total Apples eaten.",
        "# TYPE apples_total counter",
        'apples_total{kind="red",worker="a"} 1.0',
        'apples_total{kind="red",worker="b"} 2.0',
    ] == lines[:4]
    assert len(lines) == len(set(lines))


def test_a_histogram_stays_one() -> None:
    """The buckets of each process stay in order."""
    lines = shown(a=counted(1))

    assert [
        'size_bucket{le="1.0",worker="a"} 0.0',
        'size_bucket{le="2.0",worker="a"} 1.0',
        'size_bucket{le="+Inf",worker="a"} 1.0',
    ] == [line for line in lines if line.startswith("size_bucket")]


def test_an_example_comes_through() -> None:
    """An exemplar keeps its trace id."""
    registry = CollectorRegistry()
    histogram = OurHistogram("took", "Time.", (), buckets=(1.0,))
    histogram.observe(0.5, "0af7")
    registry.register(histogram)
    received: list[Family] = json.loads(json.dumps(families(registry)))

    text: bytes = generate_openmetrics(MergedCollector({"1": received}))  # type: ignore[no-untyped-call]

    assert 'took_bucket{le="1.0",worker="1"} 1.0 # {trace_id="0af7"} 0.5' in text.decode()


def test_a_sample_that_names_a_worker_keeps_the_name() -> None:
    """The supervisor's own metrics about a worker have the label already."""
    registry = CollectorRegistry()
    Counter("restarts", "Restarts.", ["worker"], registry=registry).labels(1).inc()

    assert 'restarts_total{worker="1"} 1.0' in shown(supervisor=families(registry))


@pytest.mark.parametrize("value,text", [(float("inf"), "+Inf"), (float("nan"), "NaN")])
def test_values_that_are_no_numbers_come_through(value: float, text: str) -> None:
    """A gauge may be NaN or infinite."""
    registry = CollectorRegistry()
    Gauge("level", "Level.", registry=registry).set(value)
    received: list[Family] = json.loads(json.dumps(families(registry)))

    assert f'level{{worker="0"}} {text}' in shown(**{"0": received})
