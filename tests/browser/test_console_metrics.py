"""The console subscribed to the topic that `nsq-gateway pipeline metrics` fills."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from tests.support.browser.browsers import Device, Visitor
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    WITH_ONE_BROKER,
    ConsolePage,
    open_console,
)
from tests.support.browser.fixtures import PAIRED, Visits
from tests.support.gateways.gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

START = datetime(2026, 11, 22, 10, tzinfo=UTC)


def window(number: int, count: int, *, topic: str = "orders", p99_ms: float = 40) -> bytes:
    """Return the message of one minute, as the job publishes it."""
    start, end = (START + timedelta(minutes=number + more) for more in (0, 1))
    return json.dumps(
        {
            "topic": topic,
            "window_start": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "window_end": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "count": count,
            "bytes": 200 * count,
            "redelivered": count // 10,
            "max_attempts": 2,
            "p50_ms": 3.5,
            "p95_ms": 12,
            "p99_ms": p99_ms,
        }
    ).encode()


async def reads(console: ConsolePage, chart: str, words: str) -> None:
    """Return once *chart* tells *words* behind the moment that is read."""
    plot = console.page.locator(f'#{chart} [data-part="plot"]')
    said = re.compile(rf"^\d\d:\d\d:\d\d: {re.escape(words)}$")
    await expect(plot).to_have_attribute("aria-valuetext", said)


@PAIRED
async def test_metrics_become_charts_and_growing_windows_are_updated(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Nothing is shown before the first; later each window stands once, and keys read them."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, b"no metric")
    await expect(console.row("no metric")).to_be_visible()
    charts = console.page.locator("#metrics")
    await expect(charts).to_be_hidden()
    for body in (window(0, 90), window(1, 20), window(1, 30, p99_ms=55)):
        await gateway.publish(topic, body)
    await reads(console, "metrics-counts", "messages 30, redelivered 3")
    await reads(console, "metrics-times", "p50 3.5 ms, p95 12 ms, p99 55 ms")
    await gateway.publish(topic, window(1, 25))
    await gateway.publish(topic, window(2, 50))
    await reads(console, "metrics-counts", "messages 50, redelivered 5")
    await console.page.locator('#metrics-counts [data-part="plot"]').focus()
    await console.press("ArrowLeft", "ArrowLeft")
    await reads(console, "metrics-counts", "messages 30, redelivered 3")
    await reads(console, "metrics-times", "p50 3.5 ms, p95 12 ms, p99 55 ms")
    await console.press("ArrowLeft")
    await reads(console, "metrics-counts", "messages 90, redelivered 9")

    assert "each 1 min" == await console.page.inner_text("#metrics-window")
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_each_topic_has_its_charts_and_a_new_subscription_resets_them(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The choice offers what came, and stays where it is when more comes."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, window(0, 100, topic="orders"))
    await gateway.publish(topic, window(0, 70, topic="clicks"))
    choice = console.page.locator("#metrics-topic")
    await expect(choice.locator("option")).to_have_text(["clicks", "orders"])
    await choice.select_option("orders")
    await reads(console, "metrics-counts", "messages 100, redelivered 10")
    await gateway.publish(topic, window(1, 200, topic="orders"))
    await gateway.publish(topic, window(1, 60, topic="ads"))
    await reads(console, "metrics-counts", "messages 200, redelivered 20")
    await expect(choice.locator("option")).to_have_count(3)
    assert "orders" == await choice.input_value()
    await console.page.click("#stop")
    await console.subscribe(f"{topic}.other")

    await expect(console.page.locator("#metrics")).to_be_hidden()
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
@pytest.mark.javascript
@pytest.mark.parametrize(
    "look",
    [
        pytest.param(Device(is_phone=is_phone, is_dark=is_dark), id=f"{where}-{color}")
        for is_phone, where in ((False, "desk"), (True, "phone"))
        for is_dark, color in ((False, "light"), (True, "dark"))
    ],
)
async def test_the_charts_fit_and_have_no_barrier(
    visits: Visits, gateway: RunningGateway, topic: str, look: Device
) -> None:
    """axe-core finds nothing, and no sideways scrolling is needed."""
    visitor = await visits(look)
    console = await open_console(visitor, gateway)
    if look.is_phone:
        await console.open_tab("messages")
    await console.subscribe(topic)
    await gateway.publish(topic, window(0, 1_234_567, topic="a-topic-with-a-long-name." * 2))
    if look.is_phone:
        await console.open_tab("charts")
    await expect(console.page.locator("#metrics")).to_be_visible()
    await expect(console.page.locator('#metrics-counts [data-part="count"]')).to_have_text("1.2M")

    assert ([], []) == (await console.barriers(), await console.too_wide())
    visitor.found_nothing_wrong(gateway.address)
