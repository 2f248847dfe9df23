"""The dividers between the console's columns, in a real browser: resize, collapse, remember."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.browser.browsers import Visitor
from tests.support.browser.console_page import WITH_ONE_BROKER, open_console
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), WITH_ONE_BROKER]


def divider(page: Page, side: str) -> Locator:
    return page.locator(f'[role="separator"][aria-controls="{side}"]')


async def width_px(page: Page, element: str) -> int:
    box = await page.locator(f"#{element}").bounding_box()
    return 0 if box is None else round(box["width"])


async def test_the_sides_are_resized_by_keys(visitor: Visitor, gateway: RunningGateway) -> None:
    """The messages get what a side gives, and the width is there after a reload."""
    console = await open_console(visitor, gateway)
    page = console.page
    before = {each: await width_px(page, each) for each in ("topics", "messages", "side")}
    await divider(page, "topics").focus()
    await console.press(*["ArrowLeft"] * 3)
    assert before["topics"] - 48 == await width_px(page, "topics")
    # Widths are rounded, each for itself.
    assert abs(before["messages"] + 48 - await width_px(page, "messages")) <= 1
    await divider(page, "side").focus()
    await console.press(*["ArrowLeft"] * 2)
    assert before["side"] + 32 == await width_px(page, "side")
    await page.reload()
    await expect(page.locator("#topics")).to_be_visible()

    assert before["topics"] - 48 == await width_px(page, "topics")
    visitor.found_nothing_wrong(gateway.address)


async def test_a_side_collapses_and_opens_again(visitor: Visitor, gateway: RunningGateway) -> None:
    console = await open_console(visitor, gateway)
    page = console.page
    before_px = await width_px(page, "side")
    await divider(page, "side").focus()
    await console.press("Enter")
    await expect(page.locator("#publish-topic")).to_be_hidden()
    await expect(divider(page, "side")).to_have_attribute("aria-valuenow", "0")
    assert 0 == await width_px(page, "side")
    await console.press("Enter")
    await expect(page.locator("#publish-topic")).to_be_visible()

    assert before_px == await width_px(page, "side")
    visitor.found_nothing_wrong(gateway.address)


async def test_a_side_follows_the_pointer(visitor: Visitor, gateway: RunningGateway) -> None:
    """Within bounds: it collapses where it would be too narrow, and leaves room for messages."""
    console = await open_console(visitor, gateway)
    page = console.page

    async def drag(side: str, to_px: int) -> None:
        box = await divider(page, side).bounding_box()
        assert box is not None
        x, y = box["x"], box["y"] + box["height"] / 2
        await page.mouse.move(x, y)
        await page.mouse.down()
        await page.mouse.move(to_px, y, steps=4)
        await page.mouse.up()

    before_px = await width_px(page, "topics")
    await drag("topics", before_px + 60)
    assert abs(before_px + 60 - await width_px(page, "topics")) <= 1
    await drag("topics", 5)
    await expect(page.locator("#filter")).to_be_hidden()
    await drag("side", 5)
    whole_px = await width_px(page, "workbench")
    assert abs(0.45 * whole_px - await width_px(page, "side")) <= 1
    # Firefox's driver sends no double click.
    await divider(page, "topics").focus()
    await console.press("Enter")
    await expect(page.locator("#filter")).to_be_visible()
    visitor.found_nothing_wrong(gateway.address)
