"""The console in a real browser: layout, touch targets, and axe-core's checks."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from tests.support.browser.browsers import Device, run
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    WITH_ONE_BROKER,
    ConsolePage,
    make_channel,
    open_console,
    open_view,
)
from tests.support.browser.fixtures import Visits
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), IN_CHROMIUM, WITH_ONE_BROKER]

LIGHT_AND_DARK = pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
TABS = ("topics", "messages", "publish", "charts")
FINGER_PX = 44
# A name in the list of topics is pressed with the line that it stands in.
SMALL = """
const found = [];
for (const button of document.querySelectorAll("button, nav a, .body-views")) {
  const pressed = button.closest(".topic-line, .channel") ?? button;
  const { width, height } = pressed.getBoundingClientRect();
  if (width > 0 && Math.min(width, height) < given[0])
    found.push(`${button.id || button.textContent}: ${width} by ${height} px`);
}
return found;
"""
# The bottoms of the links and tabs that are shown, and those that are beyond the page.
NAVIGATION = """
const shown = [...document.querySelectorAll("#ways a, #ways button")]
  .map((each) => [each.innerText, each.getBoundingClientRect()])
  .filter(([, { width }]) => width > 0);
return {
  names: shown.map(([name]) => name),
  rows: new Set(shown.map(([, { bottom }]) => Math.round(bottom))).size,
  cut: shown.filter(([, { left, right }]) => left < 0 || right > innerWidth).map(([name]) => name),
};
"""
# What is beyond the page, or narrower than its text, or not in one line with its group.
TOOLBARS = """
const found = [];
const isShown = (each) => each.getClientRects().length > 0;
const all = document.querySelectorAll("button, select, header a, .gauges div");
const shown = [...all].filter(isShown);
for (const each of shown) {
  const { left, right } = each.getBoundingClientRect();
  const mayEnd = each.matches(".row *, .name, select");
  const isCut = each.scrollWidth > each.clientWidth + 1 && !mayEnd;
  if (left < 0 || right > innerWidth || isCut) found.push(`cut: ${each.id || each.textContent}`);
}
const groups = ".tools, #subscription-form .buttons, .page-head .buttons";
for (const group of document.querySelectorAll(groups)) {
  const bottoms = [...group.querySelectorAll("button, select")].filter(isShown)
    .map((each) => Math.round(each.getBoundingClientRect().bottom));
  if (Math.max(...bottoms) - Math.min(...bottoms) > 2) found.push(`torn: ${group.textContent}`);
}
const { height } = document.querySelector("header").getBoundingClientRect();
if (innerWidth >= 860 && height > 50) found.push(`header: ${height} px`);
return found;
"""
# Texts of the list and hints of its fields that are cut, and those in letters below 12 px.
CUT = """
const found = [];
const isShown = (each) => each.getClientRects().length > 0;
const ruler = document.createElement("canvas").getContext("2d");
for (const field of document.querySelectorAll("#list-tools input")) {
  const { font, paddingLeft, paddingRight } = getComputedStyle(field);
  ruler.font = font;
  const room = field.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
  if (ruler.measureText(field.placeholder).width > room) found.push(`cut: ${field.placeholder}`);
}
const inRows = ".row .id, .row .time, .row .left, .row .answers button";
const texts = [inRows, "[role=columnheader], .gauges dt"];
for (const each of [...document.querySelectorAll(texts)].filter(isShown)) {
  if (each.scrollWidth > each.clientWidth + 1) found.push(`cut: ${each.textContent}`);
  if (parseFloat(getComputedStyle(each).fontSize) < 12) found.push(`small: ${each.textContent}`);
  const { left, right } = each.getBoundingClientRect();
  const cell = each.closest(".row > span")?.getBoundingClientRect();
  if (cell && (left < cell.left - 1 || right > cell.right + 1))
    found.push(`beyond: ${each.textContent}`);
}
return found;
"""
# The number of characters of the first body that are visible.
BODY_CHARACTERS = """
const body = document.querySelector('#message-rows .row[data-state="in flight"] .body');
const { right, bottom } = body.getBoundingClientRect();
const range = document.createRange();
const text = body.firstChild;
let at = 0;
for (; at < text.length; at += 1) {
  range.setStart(text, at);
  range.setEnd(text, at + 1);
  const letter = range.getBoundingClientRect();
  if (letter.right > right + 1 || letter.bottom > bottom + 1) break;
}
return at;
"""
COVERED = """
const row = document.querySelector('#message-rows [aria-selected="true"]');
const sheet = document.querySelector("#detail").getBoundingClientRect();
return [...row.querySelectorAll("button")]
  .filter((each) => getComputedStyle(each).visibility === "visible")
  .map((each) => each.getBoundingClientRect())
  .some(({ top, bottom }) => top < sheet.top && bottom > sheet.top);
"""
ENDS = """
return given.map((each) => Math.round(document.querySelector(each).getBoundingClientRect().right));
"""
# Groups of several numbers with a line that has one only.
ALONE = """
const found = [];
for (const group of document.querySelectorAll("#pages .totals, #pages tbody tr")) {
  const numbers = [...group.querySelectorAll(":scope > div, :scope > .number")]
    .filter((each) => each.getClientRects().length > 0);
  const lines = Map.groupBy(numbers, (each) => Math.round(each.getBoundingClientRect().top));
  if (numbers.length > 1 && [...lines.values()].some((line) => line.length === 1))
    found.push(group.textContent);
}
return found;
"""
BEYOND = """
return [...document.querySelectorAll("#pages .page:not([hidden]) :is(th, td, button, input)")]
  .filter((each) => each.getClientRects().length > 0 && !each.closest("thead"))
  .filter((each) => each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.textContent);
"""


async def filled(console: ConsolePage, topic: str) -> None:
    """Have messages of several kinds in the list, one answered, and the last one open."""
    await make_channel(console.gateway, topic, "c")
    for body in (
        json.dumps({"order": 1, "text": "word " * 60}).encode(),
        b"y" * 3_000,
        b"\xff\x00",
    ):
        await console.gateway.publish(topic, body)
    await console.subscribe(topic, "c")
    await console.answer("yyy", "REQ")
    await console.row("order").click()
    await expect(console.detail).to_be_visible()


@LIGHT_AND_DARK
@pytest.mark.javascript
async def test_the_page_at_a_desk_has_no_barrier(
    visits: Visits, gateway: RunningGateway, topic: str, *, is_dark: bool
) -> None:
    """Before anything is subscribed, with messages and one of them open, with the help open."""
    visitor = await visits(Device(is_dark=is_dark))
    console = await open_console(visitor, gateway)
    barriers = {"empty": await console.barriers()}
    await filled(console, topic)
    barriers["messages"] = await console.barriers()
    await console.page.click("#help-open")
    barriers["help"] = await console.barriers()

    assert {key: [] for key in barriers} == barriers
    visitor.found_nothing_wrong(gateway.address)


@LIGHT_AND_DARK
@pytest.mark.javascript
async def test_the_page_on_a_phone_has_no_barrier(
    visits: Visits, gateway: RunningGateway, topic: str, *, is_dark: bool
) -> None:
    """Behind each tab, before anything is subscribed and after."""
    visitor = await visits(Device(is_phone=True, is_dark=is_dark))
    console = await open_console(visitor, gateway)
    barriers = {}
    for tab in TABS:
        await console.open_tab(tab)
        barriers["empty", tab] = await console.barriers()
    await console.open_tab("messages")
    await filled(console, topic)
    for tab in TABS:
        await console.open_tab(tab)
        barriers["messages", tab] = await console.barriers()

    assert {key: [] for key in barriers} == barriers
    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("width_px", [320, 390, 1280])
async def test_nothing_is_wider_than_the_page(
    visits: Visits, gateway: RunningGateway, topic: str, width_px: int
) -> None:
    """Nobody scrolls sideways, whatever is open."""
    is_phone = width_px < 860
    visitor = await visits(Device(is_phone=is_phone))
    console = await open_console(visitor, gateway)
    await console.page.set_viewport_size({"width": width_px, "height": 700})
    if is_phone:
        await console.open_tab("messages")
    await filled(console, topic)
    found = {}
    for tab in TABS if is_phone else ():
        await console.open_tab(tab)
        found[tab] = await console.too_wide()
    await console.page.click("#help-open")
    found["help"] = await console.too_wide()

    assert {key: [] for key in found} == found
    visitor.found_nothing_wrong(gateway.address)


async def test_touch_targets_are_at_least_44_px(
    visits: Visits, gateway: RunningGateway, topic: str
) -> None:
    """Each button and tab of the phone is 44 px high at least, and as wide."""
    visitor = await visits(Device(is_phone=True))
    console = await open_console(visitor, gateway)
    await console.open_tab("messages")
    await filled(console, topic)
    small = {}
    for tab in TABS:
        await console.open_tab(tab)
        small[tab] = await run(console.page, SMALL, FINGER_PX)

    assert {key: [] for key in TABS} == small
    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("width_px", [320, 390, 768])
async def test_a_phone_has_one_row_of_navigation(
    visits: Visits, gateway: RunningGateway, width_px: int
) -> None:
    """The messages have their parts in it, in place of the link to them."""
    visitor = await visits(Device(is_phone=True))
    found = {}
    for view in ("#/", "#/nodes", "#/messages"):
        console = await open_view(visitor, gateway, view)
        await console.page.set_viewport_size({"width": width_px, "height": 700})
        found[view] = await run(console.page, NAVIGATION)
    views = {"names": ["Overview", "Nodes", "Messages"], "rows": 1, "cut": []}
    parts = ["Overview", "Nodes", "Topics", "Messages", "Publish", "Charts"]

    assert {"#/": views, "#/nodes": views, "#/messages": {**views, "names": parts}} == found
    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("width_px", [320, 390])
async def test_no_cell_is_beyond_a_phone(
    visits: Visits, gateway: RunningGateway, topic: str, width_px: int
) -> None:
    """A row of a table is a block there, with all of its values."""
    visitor = await visits(Device(is_phone=True))
    channel = "c" * 54 + "#ephemeral"
    found = {}
    async with gateway.subscribe(topic, channel):
        await gateway.publish(topic, b"x" * 500)
        for view in ("#/", f"#/topics/{topic}", f"#/topics/{topic}/{channel[:-10]}%23ephemeral"):
            console = await open_view(visitor, gateway, view)
            await console.page.set_viewport_size({"width": width_px, "height": 700})
            await expect(console.page.locator("#pages tbody tr:visible").first).to_be_visible()
            if "%23" in view:
                await expect(console.page.locator("#subject")).to_contain_text("nsq-gateway/")
            found[view] = await run(console.page, BEYOND)

    assert {view: [] for view in found} == found
    visitor.found_nothing_wrong(gateway.address)


async def test_a_page_is_as_wide_as_its_header(
    visits: Visits, gateway: RunningGateway, topic: str
) -> None:
    """So are its chart and its totals."""
    await make_channel(gateway, topic, "c")
    visitor = await visits(Device())
    console = await open_view(visitor, gateway, f"#/topics/{topic}")
    await expect(console.page.locator("#subject tbody tr:visible").first).to_be_visible()
    ends = await run(console.page, ENDS, "#help-open", "#subject .totals", "#subject .plot")

    assert 1 == len(set(ends)), ends
    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("width_px", [360, 390])
async def test_no_number_of_a_phone_is_alone_in_its_line(
    visits: Visits, gateway: RunningGateway, topic: str, width_px: int
) -> None:
    """Neither in a row of a table nor in the totals."""
    await make_channel(gateway, topic, "c")
    visitor = await visits(Device(is_phone=True))
    found = {}
    for view in ("#/", f"#/topics/{topic}", f"#/topics/{topic}/c", "#/nodes"):
        console = await open_view(visitor, gateway, view)
        await console.page.set_viewport_size({"width": width_px, "height": 700})
        await expect(console.page.locator("#pages tbody tr:visible").first).to_be_visible()
        found[view] = await run(console.page, ALONE)

    assert {view: [] for view in found} == found
    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("width_px", [1280, 1024, 768, 390])
async def test_toolbars_wrap_by_their_groups(
    visits: Visits, gateway: RunningGateway, topic: str, width_px: int
) -> None:
    """Nothing is cut, no button is torn from those that it belongs to, the header has one line."""
    is_phone = width_px < 860
    visitor = await visits(Device(is_phone=is_phone))
    console = await open_console(visitor, gateway)
    await console.page.set_viewport_size({"width": width_px, "height": 800})
    if is_phone:
        await console.open_tab("messages")
    await filled(console, topic)
    found = {"messages": await run(console.page, TOOLBARS)}
    await console.page.click("#detail-close")
    await expect(console.page.locator("#finish-all")).to_have_text("FIN all 2")
    found["closed"] = await run(console.page, TOOLBARS)
    await console.page.goto(f"{gateway.url}/console#/topics/{topic}/c")
    await console.page.click("#subject [data-part=peek]")
    await expect(console.page.locator("#subject [data-part=peek-result]")).to_be_visible()
    found["channel"] = await run(console.page, TOOLBARS)

    assert {key: [] for key in found} == found
    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("width_px", [1440, 1280, 1024, 390, 360])
async def test_rows_show_whole_texts_and_much_of_the_body(
    visits: Visits, gateway: RunningGateway, topic: str, width_px: int
) -> None:
    """Nothing but the body is cut, and of that 60 characters are visible beside the buttons."""
    is_phone = width_px < 860
    visitor = await visits(Device(is_phone=is_phone))
    console = await open_console(visitor, gateway)
    await console.page.set_viewport_size({"width": width_px, "height": 900})
    if is_phone:
        await console.open_tab("messages")
    for _ in range(2):
        await gateway.publish(topic, json.dumps({"order": 1, "text": "word " * 60}).encode())
    await console.subscribe(topic, "c")
    await expect(console.page.locator("#finish-all")).to_have_text("FIN all 2")

    assert [] == await run(console.page, CUT)
    assert await run(console.page, BODY_CHARACTERS) >= 60
    visitor.found_nothing_wrong(gateway.address)


async def test_an_open_message_covers_no_half_of_a_button(
    visits: Visits, gateway: RunningGateway, topic: str
) -> None:
    """On a phone it has the buttons, and its row shows none."""
    visitor = await visits(Device(is_phone=True))
    console = await open_console(visitor, gateway)
    await console.open_tab("messages")
    await filled(console, topic)

    assert not await run(console.page, COVERED)
    visitor.found_nothing_wrong(gateway.address)
