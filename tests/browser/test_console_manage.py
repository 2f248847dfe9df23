"""The console in a real browser: create, pause, empty and delete topics and channels."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, expect

from tests.support.browser.browsers import Device, Visitor
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    ConsolePage,
    make_channel,
    open_console,
)
from tests.support.browser.fixtures import Visits
from tests.support.gateways.gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def managed(
    visitor: Visitor, gateway: RunningGateway, topic: str, channel: str = ""
) -> ConsolePage:
    """Open the console with the dialog about a topic or channel, once it has numbers."""
    console = await open_console(visitor, gateway, topic=topic, channel=channel)
    await console.page.click("#manage-open")
    await expect(numbers(console, 0)).not_to_have_text("Its numbers are not known.")
    return console


def section(console: ConsolePage, number: int) -> Locator:
    """Return the first section, of what was chosen, or the second, of the topic of a channel."""
    return console.page.locator("#manage-subjects > *").nth(number)


def numbers(console: ConsolePage, number: int) -> Locator:
    return section(console, number).locator('[data-part="numbers"]')


def button(console: ConsolePage, number: int, action: str) -> Locator:
    return section(console, number).locator(f'[data-action="{action}"]')


async def confirm(console: ConsolePage, number: int, action: str, typed: str) -> None:
    """Ask for *action*, and type *typed* for its confirmation."""
    await button(console, number, action).click()
    await section(console, number).locator('[data-part="typed"]').fill(typed)


async def test_a_channel_is_deleted_once_its_name_is_typed(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The question says how many messages are lost; another name does not confirm."""
    await make_channel(gateway, topic, "billing")
    await make_channel(gateway, topic, "archive")
    await gateway.post("/mpub", b"one\ntwo\nthree", topic=topic)
    console = await managed(visitor, gateway, topic, "billing")
    await expect(numbers(console, 0)).to_contain_text("3 messages waiting")
    await confirm(console, 0, "delete", "archive")
    go = section(console, 0).locator('[data-part="go"]')
    await expect(go).to_be_disabled()
    await expect(section(console, 0).locator('[data-part="loss"]')).to_have_text(
        f"Deletes channel billing of topic {topic}: 3 messages on 1 nsqd. This cannot be undone."
    )
    await console.page.keyboard.press("Escape")
    await expect(go).to_be_hidden()
    await expect(numbers(console, 1)).to_contain_text("6 messages waiting (6 in its channels)")
    await confirm(console, 0, "delete", "billing")
    await go.click()
    result = console.page.locator("#manage-result")
    await expect(result).to_have_text(
        f"Deleted channel billing of topic {topic} on every nsqd; it had 3 messages on 1 nsqd."
    )
    await expect(numbers(console, 0)).to_have_text("No nsqd has it.")
    await expect(numbers(console, 1)).to_contain_text("3 messages waiting")
    await console.page.click("#manage-close")
    await expect(console.choice(topic, "archive")).to_be_visible()
    await expect(console.choice(topic, "billing")).to_be_hidden()

    visitor.found_nothing_wrong(gateway.address)


async def test_a_topic_is_deleted_with_all_its_channels(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Emptying it would leave the messages of its channels, and says so."""
    await make_channel(gateway, topic, "a")
    await make_channel(gateway, topic, "b")
    await gateway.post("/mpub", b"one\ntwo", topic=topic)
    console = await managed(visitor, gateway, topic)
    loss = section(console, 0).locator('[data-part="loss"]')
    await expect(numbers(console, 0)).to_contain_text("4 messages waiting")
    await button(console, 0, "empty").click()
    await expect(loss).to_contain_text("0 messages of the topic itself on 1 nsqd")
    await confirm(console, 0, "delete", topic)
    await expect(loss).to_contain_text("4 messages in 2 channels on 1 nsqd")
    await console.page.keyboard.press("Enter")
    await expect(numbers(console, 0)).to_have_text("No nsqd has it.")

    visitor.found_nothing_wrong(gateway.address)


async def test_a_pause_is_undone_with_one_click(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    await make_channel(gateway, topic, "c")
    console = await managed(visitor, gateway, topic, "c")
    await button(console, 0, "pause").click()
    await expect(numbers(console, 0)).to_contain_text("Paused; ")
    await expect(button(console, 0, "pause")).to_be_hidden()
    await console.page.click("#manage-undo")
    await expect(numbers(console, 0)).not_to_contain_text("Paused")
    await expect(button(console, 0, "unpause")).to_be_hidden()

    visitor.found_nothing_wrong(gateway.address)


async def test_a_channel_is_emptied(visitor: Visitor, gateway: RunningGateway, topic: str) -> None:
    """Its topic and its consumers stay."""
    await make_channel(gateway, topic, "c")
    await gateway.post("/mpub", b"one\ntwo", topic=topic)
    console = await managed(visitor, gateway, topic, "c")
    await confirm(console, 0, "empty", "c")
    await section(console, 0).locator('[data-part="go"]').click()
    await expect(numbers(console, 0)).to_contain_text("0 messages waiting")

    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
    visitor.found_nothing_wrong(gateway.address)


async def test_what_is_not_there_can_be_created(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """A channel with its topic; then nothing else can be created."""
    console = await managed(visitor, gateway, topic, "c")
    await expect(numbers(console, 0)).to_have_text("No nsqd has it.")
    await expect(button(console, 0, "delete")).to_be_hidden()
    await button(console, 0, "create").click()
    await expect(numbers(console, 0)).to_contain_text("0 messages waiting")
    await expect(numbers(console, 1)).to_contain_text("0 messages waiting")
    await expect(button(console, 0, "create")).to_be_hidden()
    await console.page.click("#manage-close")
    await expect(console.choice(topic, "c")).to_be_visible()

    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_a_failure_is_shown_and_nothing_can_be_undone(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """What the gateway says, or that it does not respond."""
    await make_channel(gateway, topic, "c")
    console = await managed(visitor, gateway, topic, "c")
    await gateway.http.post("/channel/delete", params={"topic": topic, "channel": "c"})
    await button(console, 0, "pause").click()
    result = console.page.locator("#manage-result")
    await expect(result).to_contain_text("CHANNEL_NOT_FOUND")
    await expect(console.page.locator("#manage-undo")).to_be_hidden()
    await console.page.route("**/topic/pause*", lambda route: route.abort())
    await button(console, 1, "pause").click()
    await expect(result).to_contain_text("whether it is done is not known")

    visitor.found_nothing_wrong(gateway.address, besides=r"status of 404|ERR_FAILED")


@IN_CHROMIUM
@pytest.mark.javascript
@pytest.mark.parametrize("is_phone", [False, True], ids=["desk", "phone"])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
async def test_the_dialog_has_no_barrier(
    visits: Visits, gateway: RunningGateway, topic: str, *, is_phone: bool, is_dark: bool
) -> None:
    """With the question open, the longest names, and by the keyboard alone."""
    longest = f"{topic}-{'x' * 64}"[:64]
    await make_channel(gateway, longest, longest)
    visitor = await visits(Device(is_phone=is_phone, is_dark=is_dark))
    console = await managed(visitor, gateway, longest, longest)
    await button(console, 0, "delete").focus()
    await console.page.keyboard.press("Enter")
    await expect(section(console, 0).locator('[data-part="typed"]')).to_be_focused()
    await console.page.keyboard.type(longest)

    assert [] == await console.barriers()
    assert [] == await console.too_wide()
    await console.page.keyboard.press("Enter")
    await expect(numbers(console, 0)).to_have_text("No nsqd has it.")
    await console.page.keyboard.press("Escape")
    await expect(console.page.locator("#manage")).to_be_hidden()
    visitor.found_nothing_wrong(gateway.address)
