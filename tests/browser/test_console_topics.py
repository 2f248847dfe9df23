"""The console in a real browser: the list of topics, the charts, and the page around them."""

from __future__ import annotations

import asyncio
import re
import shlex
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.support.browser.browsers import Visitor
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    WITH_ONE_BROKER,
    make_channel,
    open_console,
    open_view,
)
from tests.support.gateways.gateway import RunningGateway, gateway_alone

pytestmark = [pytest.mark.asyncio(loop_scope="session"), IN_CHROMIUM]

NONE = "\N{EN DASH}"
"""Where there is no value yet, and between two of a range."""
LONGEST = "t" + "x" * 63


@pytest_asyncio.fixture(loop_scope="session")
async def empty() -> AsyncIterator[RunningGateway]:
    async with gateway_alone() as gateway:
        yield gateway


async def test_an_empty_console_explains_the_first_step(
    visitor: Visitor, empty: RunningGateway
) -> None:
    """The line that stands there is one of a shell; a topic appears, chosen it can be read."""
    console = await open_console(visitor, empty)
    example = console.page.locator("#no-topics pre")
    await expect(example).to_be_visible()
    command = shlex.split(await example.inner_text())
    curl = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    output, _ = await curl.communicate()
    await console.choose("orders")
    await console.page.fill("#channel", "c")
    await console.click_subscribe()
    await expect(console.row("hello")).to_be_visible()
    await expect(example).to_be_hidden()

    assert b"OK" == output
    visitor.found_nothing_wrong(empty.address)


async def test_a_hundred_topics_are_filtered(visitor: Visitor, empty: RunningGateway) -> None:
    """By name of topic or of channel, from the key /; the others come back."""
    for number in range(100):
        await make_channel(empty, f"topic-{number:03}", "archive")
    await make_channel(empty, "topic-007", "bond")
    console = await open_console(visitor, empty)
    topics = console.page.locator("#topic-list .topic")
    await expect(topics).to_have_count(100)
    await console.press("/")
    await console.page.keyboard.type("topic-04")
    await expect(topics).to_have_count(10)
    await expect(console.page.locator("#topic-count")).to_have_text("10 of 100 topics")
    await console.page.fill("#filter", "BOND")
    await expect(topics).to_have_count(1)
    await expect(console.choice("topic-007", "bond")).to_be_visible()
    await expect(console.choice("topic-007", "archive")).to_be_hidden()
    await console.page.fill("#filter", "")
    await expect(topics).to_have_count(100)

    visitor.found_nothing_wrong(empty.address)


async def test_the_longest_names_can_be_used(visitor: Visitor, empty: RunningGateway) -> None:
    """64 characters, in the list and in the form; nothing is pushed out of the page."""
    channel = "c" * 54 + "#ephemeral"
    console = await open_console(visitor, empty)
    await empty.publish(LONGEST, b"hello")
    await console.choose(LONGEST)
    await console.page.fill("#channel", channel)
    await console.click_subscribe()
    await console.answer("hello", "FIN")
    await console.counted("finished", "1")
    await expect(console.choice(LONGEST, channel)).to_be_visible()

    assert [] == await console.too_wide()
    visitor.found_nothing_wrong(empty.address)


async def test_the_list_shows_the_counts_of_nsqd(visitor: Visitor, empty: RunningGateway) -> None:
    """Depths of a topic and of a channel, and that it is paused."""
    await empty.publish("waiting", b"one")
    await make_channel(empty, "read", "c")
    await empty.post("/mpub", b"one\ntwo", topic="read")
    pausing = {"topic": "read", "channel": "c"}
    (await empty.http.post("/channel/pause", params=pausing)).raise_for_status()
    console = await open_console(visitor, empty)
    await expect(console.choice("waiting")).to_be_visible()
    entries = console.page.locator("#topic-list .topic")
    topic = entries.filter(has=console.choice("waiting"))
    channel = console.page.locator(".channel").filter(has=console.choice("read", "c"))

    await expect(topic.locator('.topic-line [data-part="depth"]')).to_have_text("1")
    await expect(channel.locator('[data-part="depth"]')).to_have_text("2")
    await expect(channel.get_by_text("paused")).to_be_visible()
    await expect(console.page.locator("#nsqd-health")).to_have_text(re.compile("^1 nsqd · "))
    visitor.found_nothing_wrong(empty.address)


@WITH_ONE_BROKER
async def test_the_charts_have_a_text_alternative(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Each value moves with what happens, in the legend and for who does not see the lines."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    before = await console.chart_says("page-chart")
    await gateway.post("/mpub", b"one\ntwo\nthree", topic=topic)
    arrivals, queue = (
        console.page.locator(f'#{chart} [data-part="plot"]')
        for chart in ("page-chart", "queue-chart")
    )
    moved = re.compile(r"^now: received (?!0/s)[\d.]+/s, answered [\d.]+/s$")
    await expect(arrivals).to_have_attribute("aria-valuetext", moved)
    in_flight = re.compile(r"^now: depth 0, in flight 3$")
    await expect(queue).to_have_attribute("aria-valuetext", in_flight)
    await expect(console.page.locator('#queue-chart [data-part="in-flight"]')).to_have_text("3")
    await queue.focus()
    await console.press("ArrowLeft", "ArrowLeft", "ArrowLeft")
    earlier = re.compile(rf"^\d\d:\d\d:\d\d: depth ({NONE}|0), in flight ({NONE}|0|3)$")
    await expect(queue).to_have_attribute("aria-valuetext", earlier)

    assert re.fullmatch(rf"now: received ({NONE}|0/s), answered ({NONE}|0/s)", before)
    visitor.found_nothing_wrong(gateway.address)


@WITH_ONE_BROKER
async def test_a_chart_says_its_range(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Of each line, unless a time is read."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    reading = console.page.locator('#queue-chart [data-part="reading"]')
    await expect(reading).to_have_text("depth 0, in flight 0")
    await gateway.post("/mpub", b"one\ntwo\nthree", topic=topic)
    await expect(reading).to_have_text(f"depth 0, in flight 0{NONE}3")
    await console.page.locator('#queue-chart [data-part="plot"]').focus()
    await console.press("ArrowLeft")
    await expect(reading).to_have_text(re.compile(r"^\d\d:\d\d:\d\d: depth 0, in flight 3$"))
    visitor.found_nothing_wrong(gateway.address)


@WITH_ONE_BROKER
async def test_an_address_fills_in_the_form(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Topic and channel stand there; subscribing puts them into the address, and no secret."""
    console = await open_view(visitor, gateway, "", topic=topic, channel="c")
    filled = [await console.page.input_value(f"#{field}") for field in ("topic", "channel")]
    await console.page.fill("#secret", "hush")
    await console.page.fill("#channel", "d")
    await console.click_subscribe()

    assert [topic, "c"] == filled
    assert f"{gateway.url}/console?topic={topic}&channel=d" == console.page.url
    visitor.found_nothing_wrong(gateway.address)


@WITH_ONE_BROKER
async def test_help_opens_by_its_key(visitor: Visitor, gateway: RunningGateway) -> None:
    """The dialog names the keys, takes them away from the page, and closes by Escape."""
    console = await open_console(visitor, gateway)
    dialog = console.page.get_by_role("dialog", name="Keys")
    await console.press("?")
    await expect(dialog).to_be_visible()
    await expect(dialog).to_contain_text("FIN: finish the message")
    await console.press("h")
    await console.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(console.page.locator("#pause")).to_have_attribute("aria-pressed", "false")
    await console.page.click("#help-open")
    await console.page.click("#help-close")
    await expect(dialog).to_be_hidden()

    visitor.found_nothing_wrong(gateway.address)


@WITH_ONE_BROKER
async def test_a_theme_is_kept(visitor: Visitor, gateway: RunningGateway) -> None:
    """System, light, dark and around; the browser knows it when the page comes again."""
    console = await open_console(visitor, gateway)
    ground = "getComputedStyle(document.body).backgroundColor"
    grounds = []
    for theme in ("system", "light", "dark"):
        await expect(console.page.locator("#theme b")).to_have_text(theme)
        grounds.append(await console.page.evaluate(ground))
        await console.page.click("#theme")
    await console.page.click("#theme")
    await console.page.click("#theme")
    await console.page.reload()
    await expect(console.page.locator("#theme b")).to_have_text("dark")

    assert grounds[0] == grounds[1] != grounds[2]
    assert grounds[2] == await console.page.evaluate(ground)
    visitor.found_nothing_wrong(gateway.address)
