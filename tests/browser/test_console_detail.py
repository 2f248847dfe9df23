"""The console in real browsers: an open message, its row in the list, and its JSON, which folds."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from tests.support.browser.browsers import Device, Visitor, run
from tests.support.browser.console_page import (
    WITH_ONE_BROKER,
    make_channel,
    open_console,
    open_view,
)
from tests.support.browser.fixtures import Visits
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), WITH_ONE_BROKER]

MOST_FOLDS = 300
NESTED = {"order": 1, "lines": [{"item": "teapot"}, {"item": "lantern"}], "empty": {}}
COLOURS = """
return [...document.querySelectorAll("#detail-body [data-type]")]
  .map((each) => [each.dataset.type, each.textContent, getComputedStyle(each).color]);
"""
IS_SEEN = """
const row = document.querySelector('#message-rows [aria-selected="true"]');
const { left, top } = row.getBoundingClientRect();
return row.contains(document.elementFromPoint(left + 20, top + 10));
"""


@pytest.mark.parametrize("is_phone", [False, True], ids=["desk", "phone"])
async def test_the_row_of_an_open_message_stays_in_sight(
    visits: Visits, gateway: RunningGateway, topic: str, *, is_phone: bool
) -> None:
    """Wherever it is in the list, and while more messages arrive."""
    visitor = await visits(Device(is_phone=is_phone))
    console = await open_console(visitor, gateway)
    if is_phone:
        await console.open_tab("messages")
    await console.subscribe(topic)
    bodies = "\n".join(f"message-{number:02}" for number in range(30))
    await gateway.post("/mpub", bodies.encode(), topic=topic)
    await expect(console.row("message-00")).to_have_count(1)
    seen = {}
    for body in ("message-29", "message-18", "message-00"):
        await console.row(body).click()
        await expect(console.body).to_have_text(body)
        seen[body] = await run(console.page, IS_SEEN)
        await console.page.click("#detail-close")
    await console.row("message-29").click()
    await gateway.post("/mpub", bodies.replace("message", "later").encode(), topic=topic)
    await expect(console.row("later-29")).to_have_count(1)
    seen["with more"] = await run(console.page, IS_SEEN)

    assert dict.fromkeys(seen, True) == seen
    visitor.found_nothing_wrong(gateway.address)


async def test_keys_move_through_the_list_while_a_message_is_open(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The list scrolls with the selection: the rows around it are in sight, too."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    bodies = "\n".join(f"message-{number:02}" for number in range(60))
    await gateway.post("/mpub", bodies.encode(), topic=topic)
    await expect(console.row("message-59")).to_have_count(1)
    await console.page.locator("h1").click()
    await console.press(*["j"] * 50)
    await expect(console.body).to_have_text("message-10")

    assert await run(console.page, IS_SEEN)
    await expect(console.row("message-11")).to_be_in_viewport()
    visitor.found_nothing_wrong(gateway.address)


async def test_objects_and_arrays_fold(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """With the pointer or the keyboard; what is folded says how many members it has."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, json.dumps(NESTED).encode())
    await console.row("teapot").click()
    whole = await console.body.inner_text()
    lines = console.body.locator("summary").filter(has_text='"lines"')
    item = console.body.locator("details").filter(has_text='"lines"').last.get_by_text("teapot")
    await lines.click()
    await expect(item).to_be_hidden()
    folded = await lines.get_attribute("data-folded")
    await lines.press("Enter")
    await expect(item).to_be_visible()

    assert json.dumps(NESTED, indent=2) == whole == await console.body.inner_text()
    assert " … 2 elements ]" == folded
    visitor.found_nothing_wrong(gateway.address)


async def test_all_is_folded_and_unfolded_at_once(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """But for the outermost object; the button follows what is folded one by one."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, json.dumps(NESTED).encode())
    await gateway.publish(topic, b'{"flat": 1}')
    await console.row("teapot").click()
    folds = console.body.locator("details details")
    unfolded = console.body.locator("details details[open]")
    number = await folds.count()
    await console.detail.get_by_role("button", name="Fold all", exact=True).click()
    await expect(unfolded).to_have_count(0)
    await expect(console.body.get_by_text('"order": ')).to_be_visible()
    await console.detail.get_by_role("button", name="Unfold all").click()
    await expect(unfolded).to_have_count(number)
    for fold in reversed(await folds.all()):
        await fold.locator("summary").first.click()
    await expect(console.detail.get_by_role("button", name="Unfold all")).to_be_visible()
    await console.row("flat").click()
    await expect(console.detail.get_by_role("button", name="all")).to_have_count(0)
    visitor.found_nothing_wrong(gateway.address)


async def test_values_have_the_colour_of_their_type(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Four types, four colours; the text is that of the body."""
    text = 'text, with " and: 1'
    body = {"a": [text, -1.5e3], "b": {"yes": True, "no": False}, "c": None}
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, json.dumps(body).encode())
    await console.row("text").click()
    found = await run(console.page, COLOURS)
    types = {value: type_ for type_, value, _ in found}

    assert json.dumps(body, indent=2) == await console.body.inner_text()
    assert {
        json.dumps(text): "string",
        "-1500.0": "number",
        "true": "boolean",
        "false": "boolean",
        "null": "null",
    } == types
    assert 4 == len({color for _, _, color in found})
    assert [] == await console.barriers()
    visitor.found_nothing_wrong(gateway.address)


async def test_a_huge_body_has_a_bounded_number_of_folds(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The rest of it is there as text."""
    body = [{"number": number, "of": [number]} for number in range(1_000)]
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, json.dumps(body).encode())
    await console.row("number").click()

    await expect(console.body.locator("details")).to_have_count(MOST_FOLDS)
    assert json.dumps(body, indent=2) == await console.body.inner_text()
    visitor.found_nothing_wrong(gateway.address)


async def test_what_was_peeked_folds_as_well(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    await make_channel(gateway, topic, "c")
    await gateway.publish(topic, json.dumps(NESTED).encode())
    console = await open_view(visitor, gateway, f"#/topics/{topic}/c")
    await console.page.click("#subject [data-part=peek]")
    await console.page.locator("#subject [data-part=peeked] tbody button").click()
    body = console.page.locator("#subject [data-part=peeked-body]")
    await expect(body).to_be_focused()

    await expect(body.locator("summary")).to_have_count(4)
    assert json.dumps(NESTED, indent=2) == await body.inner_text()
    visitor.found_nothing_wrong(gateway.address)
