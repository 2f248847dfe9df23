"""The metrics of several processes as those of one: each sample says whose it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import Metric
from prometheus_client.registry import Collector

WORKER = "worker"
"""The label."""

Sample: TypeAlias = tuple[str, dict[str, str], float]
"""Name, labels, value."""
Family: TypeAlias = tuple[str, str, str, str, list[Sample]]
"""Name, help, type, unit, samples: a metric as JSON carries it."""


def families(collector: Collector) -> list[Family]:
    """Return all metrics of *collector*, for another process."""
    return [
        (
            metric.name,
            metric.documentation,
            metric.type,
            metric.unit,
            [(sample.name, dict(sample.labels), sample.value) for sample in metric.samples],
        )
        for metric in collector.collect()
    ]


class Merged(Collector):
    """
    The metrics of several processes, by what the label `WORKER` is to say of each.

    A sample that has the label already keeps it: the supervisor counts things of its workers.
    """

    def __init__(self, by_process: Mapping[str, Iterable[Family]]) -> None:
        self._by_process = by_process

    def collect(self) -> Iterator[Metric]:
        """Give each metric once, with the samples of every process."""
        merged: dict[str, Metric] = {}
        for process, each in self._by_process.items():
            for name, documentation, kind, unit, samples in each:
                metric = merged.setdefault(name, Metric(name, documentation, kind, unit))
                for sample, labels, value in samples:
                    metric.add_sample(sample, {WORKER: process, **labels}, value)
        return iter(merged.values())
