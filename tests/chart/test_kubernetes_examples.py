"""Autoscalers by the depth of a channel: Kubernetes, KEDA and Prometheus accept them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.support.chart.checks import VERSIONS
from tests.support.chart.kubernetes_schemas import findings
from tests.support.chart.promql import metric_names, metrics_of, parsed
from tests.support.project import ROOT

EXAMPLES = ROOT / "examples" / "kubernetes"
_METADATA_OF_THE_CHART = {"namespace": "n", "labels": {"app": "billing"}}
"""What the chart's strict schemas of custom resources require, and an example leaves out."""

Json = dict[str, Any]


def example(name: str) -> Json:
    found: Json = yaml.safe_load((EXAMPLES / name).read_text())
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_an_example_is_valid(name: str, version: str) -> None:
    found = example(name)
    found["metadata"] |= _METADATA_OF_THE_CHART

    assert [] == findings(found, version)


def test_the_query_of_keda_asks_for_metrics_of_a_gateway() -> None:
    (trigger,) = example("scaledobject.yaml")["spec"]["triggers"]

    asked = metrics_of(parsed(trigger["metadata"]["query"]))
    assert {f"nsq_gateway_broker_channel_{name}" for name in ("depth", "in_flight")} == asked
    assert asked <= metric_names()


def test_the_rule_of_the_adapter_exports_what_the_autoscaler_reads() -> None:
    """The rule is a comment of the example: valid YAML, and a valid query once filled in."""
    text = (EXAMPLES / "horizontalpodautoscaler.yaml").read_text()
    comment = re.findall(r"^#   (- .*|  .*)$", text, re.MULTILINE)
    (rule,) = yaml.safe_load("\n".join(comment))
    (metric,) = example("horizontalpodautoscaler.yaml")["spec"]["metrics"]

    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'topic="orders",channel="billing"')
    assert {"nsq_gateway_broker_channel_depth"} == metrics_of(parsed(query))
    assert rule["name"]["as"] == metric["external"]["metric"]["name"]
