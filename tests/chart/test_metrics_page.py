"""docs/metrics.md is what a gateway shows, and promtool finds nothing wrong with that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import gateway.access.control
import gateway.pipeline.jobs.metrics_export
import gateway.pipeline.jobs.monitoring
import gateway.server.service
import gateway.server.workers.supervisor
from gateway.telemetry import REGISTRY
from tests.support.brokers.stats_answers import broker_metrics
from tests.support.chart.prometheus import promtool, promtool_binary
from tests.support.gateways.gateway import gateway_alone
from tests.support.project import ROOT

PAGE = ROOT / "docs" / "metrics.md"
_ROW = re.compile(
    r"^\| `(\w+)` \| (\w+) \| ([a-z, ]*)\| ([^|]*)\| ([^|]+)\| ([^|]*)\|$", re.MULTILINE
)
ALL_PARTS = (
    gateway.access.control,
    gateway.pipeline.jobs.metrics_export,
    gateway.pipeline.jobs.monitoring,
    gateway.server.service,
    gateway.server.workers.supervisor,
)
"""Who imports them has registered every metric."""
_OF_TESTS = ("nsq_gateway_test",)


class Metric(NamedTuple):
    """What the page and the registry both say."""

    name: str
    kind: str
    labels: tuple[str, ...]


def of_page() -> set[Metric]:
    return {
        Metric(name, kind, tuple(re.findall(r"\w+", labels)))
        for name, kind, labels, *_ in _ROW.findall(PAGE.read_text())
    }


def of_registry() -> Iterator[Metric]:
    for collector in list(REGISTRY._collector_to_names):
        labels = getattr(collector, "_labelnames", getattr(collector, "_labels", ()))
        for metric in collector.collect():
            name = metric.name + ("_total" if metric.type == "counter" else "")
            if name.startswith("python_gc"):
                labels = ("generation",)
            if not name.startswith(_OF_TESTS):
                yield Metric(name, metric.type, tuple(labels))


def test_every_metric_is_on_the_page_and_no_other() -> None:
    """Name, type and labels, in their order."""
    of_brokers = {
        Metric(sample.name, family.type, tuple(sample.labels))
        for family in broker_metrics()
        for sample in family.samples
    }
    assert set(of_registry()) | of_brokers == of_page()


def test_a_metric_has_one_row() -> None:
    rows = _ROW.findall(PAGE.read_text())

    assert len(rows) == len({name for name, *_ in rows})
    assert [] == [name for name, _, _, unit, says, _ in rows if not (unit.strip() and says.strip())]


@pytest.mark.promtool
@pytest.mark.skipif(promtool_binary() is None, reason="no promtool: make witnesses")
@pytest.mark.parametrize("flags", [(), ("--workers=2",)], ids=["one process", "workers"])
async def test_promtool_finds_nothing_wrong(flags: tuple[str, ...]) -> None:
    """Names, units, helps and types of a gateway that has worked."""
    async with (
        gateway_alone(*flags) as running,
        httpx.AsyncClient(trust_env=False) as http,
        running.subscribe("t", "c") as client,
    ):
        await running.publish("t", b"hello")
        await client.finish(await client.message())
        answer = await http.get(f"{running.management_url}/metrics")

    names = {family.name for family in text_string_to_metric_families(answer.text)}
    expected = {"message_age_seconds", "broker_up", "broker_channel_messages"}
    assert {"process_open_fds", *(f"nsq_gateway_{name}" for name in expected)} <= names
    assert "" == promtool("check", "metrics", said=answer.text)


@pytest.mark.parametrize("flags", [(), ("--workers=2",)], ids=["one process", "workers"])
async def test_openmetrics_has_no_series_of_when_another_began(flags: tuple[str, ...]) -> None:
    """They are as many again as there are counters, and nothing reads them."""
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with gateway_alone(*flags) as running, httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{running.management_url}/metrics", headers=headers)

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert [] == [line for line in answer.text.splitlines() if "_created" in line]


async def test_requests_are_told_apart_below_a_millisecond() -> None:
    """Most publishes take less: one bucket for all of them says nothing."""
    async with gateway_alone() as running, httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{running.management_url}/metrics")

    bounds = sorted(
        float(sample.labels["le"])
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == "nsq_gateway_http_request_duration_seconds_bucket"
        and sample.labels["route"] == "/pub"
    )
    assert [0.00025, 0.0005, 0.001, 0.0025, 0.005] == bounds[:5]
