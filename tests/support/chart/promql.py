"""Analyse PromQL expressions: their metrics, ranges and aggregations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

import promql_parser
from promql_parser import (
    AggModifierType,
    AggregateExpr,
    Call,
    Expr,
    MatchOp,
    MatrixSelector,
    VectorSelector,
)

import gateway.pipeline.jobs.metrics_export
import gateway.pipeline.jobs.monitoring
import gateway.server.service
import gateway.server.workers.supervisor
from gateway.telemetry import REGISTRY
from tests.support.brokers.stats_answers import broker_metrics

_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
# Every metric is registered where its module is imported.
_REGISTERED_BY = (
    gateway.pipeline.jobs.metrics_export,
    gateway.pipeline.jobs.monitoring,
    gateway.server.service,
    gateway.server.workers.supervisor,
)


def metric_names() -> frozenset[str]:
    """Return the name of every sample that a gateway, or a job on Spark, may expose."""
    return frozenset(
        family.name + suffix
        for family in REGISTRY.collect()
        for suffix in _SUFFIXES.get(family.type, ("",))
    ) | {sample.name for family in broker_metrics() for sample in family.samples}


def parsed(expression: str) -> Expr:
    """Return the tree of *expression*; raise ValueError if it is invalid."""
    return promql_parser.parse(expression)


def nodes(tree: Expr) -> Iterator[Expr]:
    found: list[Expr] = []
    promql_parser.walk(tree, found.append)
    return iter(found)


def metrics_of(tree: Expr) -> set[str]:
    return {node.name or "" for node in nodes(tree) if isinstance(node, VectorSelector)}


class Selector(NamedTuple):
    """A metric with its label matchers."""

    name: str
    text: str
    matchers: tuple[tuple[str, bool, bool, str], ...]
    """Label, True to match or False to exclude, True for a regular expression, value."""


def selectors_of(tree: Expr) -> list[Selector]:
    return [
        Selector(
            name=node.name or "",
            text=node.prettify(),
            matchers=tuple(
                (
                    matcher.name,
                    matcher.op in (MatchOp.Equal, MatchOp.Re),
                    matcher.op in (MatchOp.Re, MatchOp.NotRe),
                    matcher.value,
                )
                for matcher in node.matchers.matchers
            ),
        )
        for node in nodes(tree)
        if isinstance(node, VectorSelector)
    ]


def windows_of(tree: Expr) -> set[timedelta]:
    """Return the duration of each range (``[…]``)."""
    return {node.range for node in nodes(tree) if isinstance(node, MatrixSelector)}


def bare_counters_of(tree: Expr) -> set[str]:
    """Return counters used without a rate: these show only when a process started."""
    in_windows = {
        node.vector_selector.prettify() for node in nodes(tree) if isinstance(node, MatrixSelector)
    }
    return {
        node.name or ""
        for node in nodes(tree)
        if isinstance(node, VectorSelector)
        and (node.name or "").endswith(("_total", "_bucket"))
        and node.prettify() not in in_windows
    }


def buckets_without_le(tree: Expr) -> set[str]:
    """Return arguments of ``histogram_quantile`` that are no rate of buckets by le."""
    wrong = set()
    for call in nodes(tree):
        if not isinstance(call, Call) or call.func.name != "histogram_quantile":
            continue
        distribution = call.args[1]
        names = metrics_of(distribution)
        sums = [node for node in nodes(distribution) if isinstance(node, AggregateExpr)]
        if not (all(name.endswith("_bucket") for name in names) and all(map(_keeps_le, sums))):
            wrong.add(distribution.prettify())
    return wrong


def _keeps_le(aggregation: AggregateExpr) -> bool:
    modifier = aggregation.modifier
    if modifier is None:
        return False
    return ("le" in modifier.labels) is (modifier.type == AggModifierType.By)
