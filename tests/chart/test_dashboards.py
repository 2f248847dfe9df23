"""Dashboards: Grafana can read them, Prometheus can answer them, and a gateway has the data."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart.promql import (
    bare_counters_of,
    buckets_without_le,
    metric_names,
    metrics_of,
    parsed,
    windows_of,
)
from tools.make_dashboards import DASHBOARDS, FOLDER, path_of, text_of

Json = dict[str, Any]

FILES = sorted(FOLDER.glob("*.json"))
_COLUMNS = 24
# What stands for Grafana's own, so that Prometheus's grammar takes it; both are told apart again.
_RATE_INTERVAL, _RANGE = timedelta(seconds=61), timedelta(seconds=67)


def _dashboard(path: Path) -> Json:
    dashboard: Json = json.loads(path.read_text())
    return dashboard


def _panels(path: Path) -> list[Json]:
    """Return what shows something."""
    return [panel for panel in _dashboard(path)["panels"] if panel["type"] != "row"]


def with_windows(expression: str, rate_interval: str, whole_range: str) -> str:
    """Return *expression* with durations where Grafana puts its own."""
    expression = expression.replace("$__rate_interval", rate_interval)
    return expression.replace("$__range", whole_range)


PANELS = [
    pytest.param(panel, id=f"{path.stem}: {panel['title']}")
    for path in FILES
    for panel in _panels(path)
]
EXPRESSIONS = [
    pytest.param(target["expr"], id=f"{path.stem}: {panel['title']} {target['refId']}")
    for path in FILES
    for panel in _panels(path)
    for target in panel["targets"]
]


def test_dashboards_are_what_their_tool_writes() -> None:
    """If not: python tools/make_dashboards.py."""
    assert {path_of(dashboard) for dashboard in DASHBOARDS} == set(FILES)
    for dashboard in DASHBOARDS:
        assert text_of(dashboard) == path_of(dashboard).read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_can_be_found_again(path: Path) -> None:
    """Its uid is the name of its file, and links from one to the other keep what was chosen."""
    dashboard = _dashboard(path)

    assert path.stem == dashboard["uid"]
    assert ["nsq-gateway"] == dashboard["tags"]
    assert [True] == [link["includeVars"] for link in dashboard["links"]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_names_no_data_source(path: Path) -> None:
    """Which one, and which gateways, is chosen at its top; one without a pod is chosen, too."""
    dashboard = _dashboard(path)
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    sources = {
        each["datasource"]["uid"] for panel in _panels(path) for each in (panel, *panel["targets"])
    }

    assert ["datasource", "namespace", "job", "pod"] == list(variables)
    assert {"${datasource}"} == sources
    assert {".*"} == {variables[name]["allValue"] for name in ("namespace", "job", "pod")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_do_not_overlap(path: Path) -> None:
    """Each cell of the grid is one panel's, none is beside it, and each panel has its number."""
    panels = _dashboard(path)["panels"]
    cells = [
        (column, line)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]

    assert len(set(cells)) == len(cells)
    assert set(range(_COLUMNS)) >= {column for column, _ in cells}
    assert len(panels) == len({panel["id"] for panel in panels})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_row_has_panels_below_it(path: Path) -> None:
    """No two titles follow each other, and the first thing is a title."""
    kinds = [panel["type"] == "row" for panel in _dashboard(path)["panels"]]

    assert kinds[0]
    assert not any(first and second for first, second in itertools.pairwise([*kinds, True]))


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: Json) -> None:
    """A title, a sentence, a unit that is set, and a legend for each of several queries."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert len(set(legends)) == len(legends)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_query_asks_for_what_there_is(expression: str) -> None:
    """
    Prometheus takes it, every metric is one that the gateway has, no counter stands as it is.

    Quantiles are taken of rates of buckets that keep le, and a window is never shorter than what
    Grafana says is enough for two scrapes.
    """
    tree = parsed(with_windows(expression, "61s", "67s"))

    assert set() == metrics_of(tree) - metric_names() - {""}
    assert set() == bare_counters_of(tree)
    assert set() == buckets_without_le(tree)
    assert {_RATE_INTERVAL, _RANGE} >= windows_of(tree)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_query_is_about_the_gateways_chosen(expression: str) -> None:
    """Each selector has all three variables."""
    assert expression.count("{") == expression.count(
        '{namespace=~"$namespace", job=~"$job", pod=~"$pod"'
    )
