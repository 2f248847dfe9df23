"""The console in a real browser: what a peek shows, and what can be done with it."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from tests.support.browser.browsers import Visitor
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    WITH_ONE_BROKER,
    ConsolePage,
    make_channel,
    open_view,
)
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), IN_CHROMIUM, WITH_ONE_BROKER]

LATER = timedelta(days=3, hours=1)
PEEK = "#subject [data-part=peek]"


async def opened(
    visitor: Visitor, gateway: RunningGateway, topic: str, *bodies: bytes
) -> ConsolePage:
    """Open the page of a channel in which *bodies* wait."""
    await make_channel(gateway, topic, "c")
    for body in bodies:
        await gateway.publish(topic, body)
    return await open_view(visitor, gateway, f"#/topics/{topic}/c")


async def test_a_message_of_another_day_has_its_date(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """In a peek, with its age, and where it is open; the titles have the whole timestamp."""
    await visitor.context.clock.install(time=datetime.now(UTC) + LATER)
    published = datetime.now().astimezone()
    console = await opened(visitor, gateway, topic, b"old")
    await console.page.click(PEEK)
    cells = console.page.locator("#subject [data-part=peeked] tbody tr td")
    await expect(cells.nth(3)).to_have_text("3 d ago")
    shown = [await cells.nth(2).inner_text()]
    titles = [await cells.nth(2).get_attribute("title")]
    await console.page.click("#subject [data-part=messages]")
    await console.click_subscribe()
    await console.row("old").click()
    detail = console.detail.locator('[data-part="published"]')
    shown.append(await detail.inner_text())
    titles.append(await detail.get_attribute("title"))
    latency = await console.detail.locator('[data-part="age"]').inner_text()

    assert [f"{published:%Y-%m-%d %H:%M}"] * 2 == [text[:16] for text in shown]
    assert [f"{published.astimezone(UTC):%Y-%m-%dT%H:%M}"] * 2 == [
        str(text)[:16] for text in titles
    ]
    assert "3 d 1 h" == latency
    visitor.found_nothing_wrong(gateway.address)


async def test_a_message_of_today_has_no_date(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    console = await opened(visitor, gateway, topic, b"new")
    await console.page.click(PEEK)
    published = console.page.locator('#subject [data-part=peeked] td[data-label="published"]')

    await expect(published).to_have_text(re.compile(r"^\d\d:\d\d:\d\d\.\d{3}$"))
    visitor.found_nothing_wrong(gateway.address)


async def test_a_peeked_body_is_shown_as_bytes_and_copied(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """As an open message of the list is."""
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    console = await opened(visitor, gateway, topic, b'{ "a":1.0 }', b"\xff\x00")
    await console.page.click(PEEK)
    rows = console.page.locator("#subject [data-part=peeked] tbody button")
    await expect(rows).to_have_count(2)
    opened_message = console.page.locator("#subject [data-part=peeked-message]")
    body = console.page.locator("#subject [data-part=peeked-body]")
    await rows.filter(has_text="a").click()
    await opened_message.get_by_role("button", name="Copy").click()
    await expect(opened_message.get_by_role("button", name="Copied")).to_be_visible()
    copied = await console.page.evaluate("navigator.clipboard.readText()")
    await opened_message.get_by_role("button", name="Bytes").click()
    dump = await body.inner_text()
    await rows.filter(has_not_text="a").click()
    binary = await body.inner_text()

    assert ['{ "a":1.0 }', "000000  7b 20 22 61"] == [copied, dump[:19]]
    assert "000000  ff 00" == binary[:13]
    assert [] == await console.barriers()
    visitor.found_nothing_wrong(gateway.address)


async def test_what_was_peeked_is_exported(
    visitor: Visitor, gateway: RunningGateway, topic: str, tmp_path: Path
) -> None:
    """What matches the filter, into a file with the names of topic and channel."""
    console = await opened(visitor, gateway, topic, b"one", b"two", b"\xff\x00")
    save = console.page.locator("#subject [data-part=peek-export]")
    await expect(save).to_be_disabled()
    await console.page.click(PEEK)
    await console.page.fill("#subject [data-part=peek-filter]", "o")
    async with console.page.expect_download() as download:
        await save.click()
    file = await download.value
    await file.save_as(tmp_path / "file")
    lines = map(json.loads, (tmp_path / "file").read_text().splitlines())

    assert {"one", "two"} == {line["body"] for line in lines}
    assert re.fullmatch(rf"{topic}-c-[0-9-]{{10}}T\d{{6}}Z\.ndjson", file.suggested_filename)
    visitor.found_nothing_wrong(gateway.address)


async def test_rows_beyond_100_are_shown_on_demand(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    console = await opened(visitor, gateway, topic)
    bodies = "\n".join(f"message-{number}" for number in range(250))
    await gateway.post("/mpub", bodies.encode(), topic=topic)
    await console.page.select_option("#subject [data-part=peek-most]", "1000")
    await console.page.click(PEEK)
    rows = console.page.locator("#subject [data-part=peeked] tbody tr")
    more = console.page.locator("#subject [data-part=peek-more]")
    for number in (100, 200):
        await expect(rows).to_have_count(number)
        await more.click()
    await expect(rows).to_have_count(250)

    await expect(more).to_be_hidden()
    visitor.found_nothing_wrong(gateway.address)


async def test_peek_is_disabled_until_its_response(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Then it has the focus again."""
    console = await opened(visitor, gateway, topic, b"one")
    may_go = asyncio.Event()

    async def hold(route: Route) -> None:
        await may_go.wait()
        await route.continue_()

    await console.page.route("**/channel/peek*", hold)
    peek = console.page.locator(PEEK)
    await peek.click()
    await expect(peek).to_be_disabled()
    may_go.set()
    await expect(console.page.locator("#subject [data-part=peeked] tbody tr")).to_have_count(1)
    await expect(peek).to_be_enabled()
    await expect(peek).to_be_focused()
    visitor.found_nothing_wrong(gateway.address)
