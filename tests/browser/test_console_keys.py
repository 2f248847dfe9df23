"""The keys of the console in a real browser: each acts on the page that is shown, and no other."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.support.browser.browsers import Device, Visitor, run
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    WITH_ONE_BROKER,
    make_channel,
    open_console,
)
from tests.support.browser.fixtures import Visits
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), IN_CHROMIUM, WITH_ONE_BROKER]

MESSAGE_KEYS = ("j", "k", "ArrowDown", "ArrowUp", "f", "r", "t", "h", "Escape")
# Which of the keys given the page has taken from the browser.
TAKEN = """
return given.filter((key) => {
  const pressed = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
  document.body.dispatchEvent(pressed);
  return pressed.defaultPrevented;
});
"""


@pytest.mark.parametrize("view", ["overview", "nodes"])
async def test_keys_of_messages_are_inactive_on_other_pages(
    visitor: Visitor, gateway: RunningGateway, topic: str, view: str
) -> None:
    """The selected message is not answered, the page stays, and arrows are left to scroll it."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await gateway.post("/mpub", b"one\ntwo", topic=topic)
    await expect(console.rows).to_have_count(2)
    await console.rows.first.click()
    await console.page.click(f"#views [data-view={view}]")
    await expect(console.page.locator(f"#{view}")).to_be_visible()
    taken = await run(console.page, TAKEN, *MESSAGE_KEYS)
    await expect(console.page.locator(f"#{view}")).to_be_visible()
    await console.page.click("#views [data-view=messages]")
    account = {"in_flight_count": 2, "finished": 0, "requeue_count": 0}

    assert [] == taken
    assert account == await console.account_becomes(topic, "c", account)
    assert await run(console.page, TAKEN, "j", "f") == ["j", "f"]
    await console.counted("finished", "1")
    visitor.found_nothing_wrong(gateway.address)


async def test_keys_of_messages_are_inactive_behind_another_tab(
    visits: Visits, gateway: RunningGateway, topic: str
) -> None:
    """On a phone that has a keyboard, the list may be hidden."""
    visitor = await visits(Device(is_phone=True))
    console = await open_console(visitor, gateway)
    await console.open_tab("messages")
    await console.subscribe(topic, "c")
    await gateway.publish(topic, b"one")
    await console.row("one").click()
    await console.open_tab("charts")

    assert [] == await run(console.page, TAKEN, *MESSAGE_KEYS)
    visitor.found_nothing_wrong(gateway.address)


async def test_a_slash_focuses_the_filter_of_the_page(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    await make_channel(gateway, topic, "c")
    console = await open_console(visitor, gateway)
    filters = {
        "#/messages": "#filter",
        "#/": "#overview [data-part=filter]",
        f"#/topics/{topic}/c": "#subject [data-part=peek-filter]",
    }
    for view, filter_ in filters.items():
        await console.page.goto(f"{gateway.url}/console{view}")
        await expect(console.page.locator(filter_)).to_be_visible()
        await console.page.locator("h1").click()
        await console.press("/")
        await expect(console.page.locator(filter_)).to_be_focused()
        await expect(console.page.locator(filter_)).to_have_value("")

    visitor.found_nothing_wrong(gateway.address)


async def test_the_help_says_where_keys_hold(visitor: Visitor, gateway: RunningGateway) -> None:
    console = await open_console(visitor, gateway)
    await console.press("?")
    titles = await console.page.locator("#help h3").all_inner_texts()

    assert ["On all pages", "On the page Messages"] == titles
    visitor.found_nothing_wrong(gateway.address)


async def test_a_key_copies_the_open_message(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, b'{"a":1}')
    await console.row('"a"').click()
    await console.press("c")
    await expect(console.detail.get_by_role("button", name="Copied")).to_be_visible()

    assert '{"a":1}' == await console.page.evaluate("navigator.clipboard.readText()")
    visitor.found_nothing_wrong(gateway.address)
