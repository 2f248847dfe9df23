"""The metrics of several processes as those of one: each sample says whose it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

WORKER = "worker"
"""The label."""

Example: TypeAlias = tuple[dict[str, str], float, float | None]
"""Labels, value, when it was, seconds since 1970."""
Sample: TypeAlias = tuple[str, dict[str, str], float, Example | None]
"""Name, labels, value, an example of what is counted in it."""
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
            [
                (sample.name, dict(sample.labels), sample.value, _example(sample.exemplar))
                for sample in metric.samples
            ],
        )
        for metric in collector.collect()
    ]


def _example(exemplar: Exemplar | None) -> Example | None:
    if exemplar is None:
        return None
    timestamp = exemplar.timestamp
    return dict(exemplar.labels), exemplar.value, None if timestamp is None else float(timestamp)


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
                for sample, labels, value, example in samples:
                    exemplar = None if example is None else Exemplar(*example)
                    metric.add_sample(sample, {WORKER: process, **labels}, value, None, exemplar)
        return iter(merged.values())
