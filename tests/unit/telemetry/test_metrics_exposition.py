"""The text exposition of metrics."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.telemetry import exposition

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"


def registry_of(series: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("apples", "Apples eaten.", registry=registry).inc()
    for family in range(20):
        gauge = Gauge(f"level_{family}", "Levels.", ["number"], registry=registry)
        for number in range(series // 20):
            gauge.labels(str(number)).set(number)
    return registry


async def test_openmetrics_is_for_who_asks_for_it() -> None:
    """The response is one OpenMetrics text, with one # EOF."""
    body, content_type = await exposition(registry_of(40), OPENMETRICS)

    families = text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]
    names = [family.name for family in families]
    assert "application/openmetrics-text" == content_type.partition(";")[0]
    assert ["apples", *(f"level_{family}" for family in range(20))] == names


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", "application/openmetrics-text; version=abc"]
)
async def test_everybody_else_gets_the_text_format(accept: str) -> None:
    """All versions of Prometheus read version 0.0.4."""
    body, content_type = await exposition(registry_of(0), accept)

    assert "text/plain; version=0.0.4; charset=utf-8" == content_type
    assert "apples_total 1.0" in body.decode().splitlines()
    assert b"# EOF" not in body


async def test_others_have_their_turn_while_much_is_written() -> None:
    """Other tasks run during the exposition of ten thousand series."""
    turns = 0
    loop = asyncio.get_running_loop()

    def other() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(other)

    other()
    await exposition(registry_of(10_000), "")

    assert turns > 3
