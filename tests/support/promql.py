"""What an expression of Prometheus asks for: which metrics, over which windows, summed by what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import promql_parser
from promql_parser import AggModifierType, AggregateExpr, Call, Expr, MatrixSelector, VectorSelector

import gateway.service
import gateway.workers.supervisor
from gateway.telemetry import REGISTRY

_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
# Every metric is registered where its module is imported.
_REGISTERED_BY = (gateway.service, gateway.workers.supervisor)


def metric_names() -> frozenset[str]:
    """Return the name of every sample that a gateway may show."""
    return frozenset(
        family.name + suffix
        for family in REGISTRY.collect()
        for suffix in _SUFFIXES.get(family.type, ("",))
    )


def parsed(expression: str) -> Expr:
    """Return the tree of *expression*; raises ValueError where it is none."""
    return promql_parser.parse(expression)


def nodes(tree: Expr) -> Iterator[Expr]:
    """Return all parts of *tree*, each before its own parts."""
    found: list[Expr] = []
    promql_parser.walk(tree, found.append)
    return iter(found)


def metrics_of(tree: Expr) -> set[str]:
    """Return the names of the metrics that are asked for."""
    return {node.name or "" for node in nodes(tree) if isinstance(node, VectorSelector)}


def windows_of(tree: Expr) -> set[timedelta]:
    """Return the time that each ``[…]`` spans."""
    return {node.range for node in nodes(tree) if isinstance(node, MatrixSelector)}


def bare_counters_of(tree: Expr) -> set[str]:
    """Return the counters that stand as they are, not as a rate: they say when a process began."""
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
    """Return what each ``histogram_quantile`` is asked of that is no rate of buckets, by le."""
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
