"""Merge the metrics of several processes, with a label for the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

WORKER = "worker"
"""Name of the label that says which process a sample is from."""

ExemplarJson: TypeAlias = tuple[dict[str, str], float, float | None]
"""Labels, value, timestamp in seconds since 1970."""
Sample: TypeAlias = tuple[str, dict[str, str], float, ExemplarJson | None]
"""Name, labels, value, exemplar."""
Family: TypeAlias = tuple[str, str, str, str, list[Sample]]
"""Name, help, type, unit, samples: a metric in JSON."""


def families(collector: Collector) -> list[Family]:
    """Return all metrics of *collector* as values that JSON can encode."""
    return [
        (
            metric.name,
            metric.documentation,
            metric.type,
            metric.unit,
            [
                (sample.name, dict(sample.labels), sample.value, _exemplar_json(sample.exemplar))
                for sample in metric.samples
            ],
        )
        for metric in collector.collect()
    ]


def _exemplar_json(exemplar: Exemplar | None) -> ExemplarJson | None:
    if exemplar is None:
        return None
    timestamp = exemplar.timestamp
    return dict(exemplar.labels), exemplar.value, None if timestamp is None else float(timestamp)


class MergedCollector(Collector):
    """
    Merges the metrics of several processes, and adds the label `WORKER` to each sample.

    A sample that already has the label keeps its value: the supervisor counts the restarts of each
    worker by this label.
    """

    def __init__(self, by_process: Mapping[str, Iterable[Family]]) -> None:
        self._by_process = by_process

    def collect(self) -> Iterator[Metric]:
        """Return each metric once, with the samples of every process."""
        merged: dict[str, Metric] = {}
        for process, each in self._by_process.items():
            for name, documentation, kind, unit, samples in each:
                # The text format requires all samples of a metric in one group.
                metric = merged.setdefault(name, Metric(name, documentation, kind, unit))
                for sample, labels, value, example in samples:
                    exemplar = None if example is None else Exemplar(*example)
                    metric.add_sample(sample, {WORKER: process, **labels}, value, None, exemplar)
        return iter(merged.values())
