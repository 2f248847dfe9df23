"""Dashboard building blocks, and their Grafana JSON, with the data source as a variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["timeseries", "stat", "state-timeline"]

GRID_COLUMNS = 24
SCHEMA_VERSION = 39
"""The schema version of Grafana 10.4; later versions migrate it on import."""

HERE = 'namespace=~"$namespace", job=~"$job", pod=~"$pod"'
"""Label matchers for the variables at the top of a dashboard."""
PROCESS = "pod, instance, worker"
"""The labels that identify a process; absent labels are empty."""
BY_PROCESS = "{{pod}} {{instance}} {{worker}}"

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PREFIX = "nsq_gateway_"
_ROW_HEIGHT = 1


@dataclass(frozen=True, kw_only=True)
class Query:
    """A PromQL query of a panel, with the legend of its lines."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A Grafana panel; *unit* is one of Grafana's unit identifiers, such as `reqps`."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    is_stacked: bool = False
    most: float | None = None
    """Maximum of the axis; None: automatic."""
    warn_at: float | None = None
    """Threshold above which values are red; None: no threshold."""
    words: Mapping[int, str] = field(default_factory=dict)
    """Texts shown instead of values, for a state timeline."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A titled row of panels, laid out from left to right and wrapped."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A Grafana dashboard; *uid* is part of its URL and must not change."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]


# Expressions


def series(name: str, labels: str = "") -> str:
    """Return a selector of a gateway metric with the dashboard's variables and *labels*."""
    full = name if name.startswith(("process_", "python_")) else _PREFIX + name
    return f"{full}{{{HERE}{', ' * bool(labels)}{labels}}}"


def rate(name: str, labels: str = "") -> str:
    """Return the per-second rate of a counter."""
    return f"rate({series(name, labels)}[$__rate_interval])"


def total(expression: str, by: str = "") -> str:
    """Return the sum of *expression*, grouped by the labels *by*."""
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"


def per(name: str, by: str, labels: str = "") -> tuple[Query, ...]:
    """Return a query for the per-second rate of a counter, one line per value of label *by*."""
    return (Query(expression=total(rate(name, labels), by), legend=f"{{{{{by}}}}}"),)


def by_process(expression: str) -> tuple[Query, ...]:
    """Return a query with one line per process."""
    return (Query(expression=expression, legend=BY_PROCESS),)


def quantiles(name: str, labels: str = "") -> tuple[Query, ...]:
    """Return queries for the 50th, 95th and 99th percentile of a histogram, over all processes."""
    buckets = total(rate(f"{name}_bucket", labels), "le")
    return tuple(
        Query(expression=f"histogram_quantile({share}, {buckets})", legend=f"p{share * 100:g}")
        for share in (0.5, 0.95, 0.99)
    )


# The JSON


def grafana(dashboard: Dashboard) -> Json:
    """Return the JSON model of *dashboard*."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["nsq-gateway"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "links": [
            {
                "type": "dashboards",
                "title": "nsq-gateway",
                "tags": ["nsq-gateway"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {"list": []},
        "templating": {"list": list(_variables())},
        "panels": [
            {"id": number, **panel} for number, panel in enumerate(_laid_out(dashboard.rows), 1)
        ],
    }


def _variables() -> Iterator[Json]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    chosen = ""
    for name in ("namespace", "job", "pod"):
        query = f"label_values(nsq_gateway_build_info{{{chosen}}}, {name})"
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "includeAll": True,
            "multi": True,
            # ".*" also matches an absent label: a process outside Kubernetes has no `pod`.
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
            "hide": 0,
        }
        chosen += f'{", " * bool(chosen)}{name}=~"${name}"'


def _laid_out(rows: tuple[Row, ...]) -> Iterator[Json]:
    top = 0
    for row in rows:
        place = {"h": _ROW_HEIGHT, "w": GRID_COLUMNS, "x": 0, "y": top}
        yield {
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        top += _ROW_HEIGHT
        left, line_height = 0, 0
        for panel in row.panels:
            if left + panel.width > GRID_COLUMNS:
                left, top, line_height = 0, top + line_height, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            yield {**_panel(panel), "gridPos": place}
            left += panel.width
            line_height = max(line_height, panel.height)
        top += line_height


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "range": panel.kind != "stat",
                "instant": panel.kind == "stat",
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel.kind),
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.warn_at is not None:
        steps.append({"color": "red", "value": panel.warn_at})
    defaults: Json = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": _mappings(panel.words),
    }
    if panel.kind != "timeseries":
        return defaults
    if panel.most is not None:
        defaults["max"] = panel.most
    defaults["min"] = 0
    defaults["custom"] = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 20 if panel.is_stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off" if panel.warn_at is None else "line"},
    }
    return defaults


def _mappings(words: Mapping[int, str]) -> list[Json]:
    if not words:
        return []
    options = {str(value): {"text": word, "index": value} for value, word in words.items()}
    return [{"type": "value", "options": options}]


def _options(kind: Kind) -> Json:
    if kind == "stat":
        last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": last, "colorMode": "value", "graphMode": "none"}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    if kind == "state-timeline":
        return {"legend": legend, "mergeValues": True, "showValue": "auto"}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
