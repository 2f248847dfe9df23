"""The console in a real browser: its form publishes and shows the result."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.support.browser.browsers import Visitor
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    WITH_ONE_BROKER,
    ConsolePage,
    make_channel,
    open_console,
)
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), IN_CHROMIUM, WITH_ONE_BROKER]

REFUSED = r"Failed to load resource: the server responded with a status of 4\d\d"


async def open_form(visitor: Visitor, gateway: RunningGateway, topic: str, way: str) -> ConsolePage:
    """Return the console with *topic*, which has the channel c; its form publishes by *way*."""
    await make_channel(gateway, topic, "c")
    console = await open_console(visitor, gateway, topic=topic)
    if way == "over the socket":
        await console.click_subscribe()
    return console


async def test_the_form_publishes_without_a_subscription(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Over HTTP: with the button, and with Ctrl+Enter from the body."""
    await make_channel(gateway, topic, "c")
    console = await open_console(visitor, gateway)
    await console.publish(topic, "żółć")
    await expect(console.published).to_have_text(f"OK: 1 message to {topic}, 8 bytes, over HTTP.")
    await console.page.fill("#publish-body", "by key")
    await console.page.press("#publish-body", "Control+Enter")
    await expect(console.published).to_have_text(f"OK: 1 message to {topic}, 6 bytes, over HTTP.")

    async with gateway.subscribe(topic, "c") as other:
        assert {"żółć", "by key"} == {(await other.message())["body"] for _ in range(2)}
    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("way", ["over HTTP", "over the socket"])
async def test_each_line_may_be_a_message(
    visitor: Visitor, gateway: RunningGateway, topic: str, way: str
) -> None:
    """MPUB: empty lines are none."""
    console = await open_form(visitor, gateway, topic, way)
    await console.page.check("#publish-lines")
    await console.publish(topic, "one\ntwo\n\nthree\n")

    await expect(console.published).to_have_text(f"OK: 3 messages to {topic}, 11 bytes, {way}.")
    assert (3, 0, 0) == await gateway.counts_become(topic, "c", (3, 0, 0))
    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("way", ["over HTTP", "over the socket"])
async def test_a_message_may_be_for_later(
    visitor: Visitor, gateway: RunningGateway, topic: str, way: str
) -> None:
    """NSQ keeps it back so long."""
    console = await open_form(visitor, gateway, topic, way)
    await console.page.fill("#publish-defer", "3600000")
    await console.publish(topic, "later")

    told = f"OK: 1 message to {topic}, 5 bytes, {way}, deferred by 3600000 ms."
    await expect(console.published).to_have_text(told)
    assert (0, 0, 1) == await gateway.counts_become(topic, "c", (0, 0, 1))
    visitor.found_nothing_wrong(gateway.address)


async def test_a_delay_is_at_most_nsqds(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The field begins with nsqd's default, an hour; a refusal tells it the real limit."""
    console = await open_form(visitor, gateway, topic, "over HTTP")
    await console.page.fill("#publish-defer", "3600001")
    await console.publish(topic, "too late")
    field = "document.querySelector('#publish-defer')"
    assert await console.page.evaluate(f"{field}.validity.rangeOverflow")
    await expect(console.published).to_be_hidden()
    await console.page.evaluate(f"{field}.max = '86400000'")
    await console.page.click("#publish")
    await expect(console.published).to_contain_text("INVALID_DEFER")

    assert "3600000" == await console.page.evaluate(f"{field}.max")
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
    visitor.found_nothing_wrong(gateway.address, besides=REFUSED)


@pytest.mark.parametrize("way", ["over HTTP", "over the socket"])
async def test_a_refused_publish_is_shown_with_its_code(
    visitor: Visitor, gateway: RunningGateway, topic: str, way: str
) -> None:
    """The page shows NSQ's error, and that nothing was published."""
    console = await open_form(visitor, gateway, topic, way)
    await console.publish(topic, "x" * (1024 * 1024 + 1))

    code = "MSG_TOO_BIG" if way == "over HTTP" else "E_BAD_MESSAGE"
    told = re.compile(rf"^{code}: .*Nothing was published\.$")
    await expect(console.published).to_have_text(told)
    await expect(console.published).to_have_attribute("data-tone", "bad")
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
    visitor.found_nothing_wrong(gateway.address, besides=REFUSED)


async def test_a_topic_that_cannot_be_is_not_sent(
    visitor: Visitor, gateway: RunningGateway
) -> None:
    """The browser says so at the field."""
    console = await open_console(visitor, gateway)
    await console.publish("no spaces", "x")

    message = "document.querySelector('#publish-topic').validity.patternMismatch"
    assert await console.page.evaluate(message)
    await expect(console.published).to_be_hidden()
    visitor.found_nothing_wrong(gateway.address)
