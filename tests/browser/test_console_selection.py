"""The console in a real browser: find messages, answer or export all that match, publish again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.browser.browsers import Visitor
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    THEN,
    WITH_ONE_BROKER,
    make_channel,
    open_console,
)
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), WITH_ONE_BROKER]


async def test_what_matches_is_finished_together(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """After a question; the others stay in flight, and REQ all hands them back."""
    await make_channel(gateway, topic, "c")
    for number in range(6):
        city = "Lisbon" if number % 2 else "Oslo"
        await gateway.publish(topic, json.dumps({"order": number, "city": city}).encode())
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    page = console.page
    rows = page.locator("#message-rows .row")
    await expect(rows).to_have_count(6)
    await page.fill("#message-filter", ".city=Lisbon")
    await expect(rows).to_have_count(3)
    await expect(page.locator("#finish-all")).to_have_text("FIN all 3")
    await page.click("#finish-all")
    await expect(page.locator("#finish-all-what")).to_have_text(
        f"3 messages of {topic} {THEN} c that match “.city=Lisbon” will be finished: "
        "no consumer gets them again."
    )
    await page.click("#finish-all-go")
    await expect(page.locator("#selection-result")).to_have_text("3 messages finished.")
    await page.fill("#message-filter", "")
    await expect(page.locator("#requeue-all")).to_have_text("REQ all 3")
    await page.select_option("#req-delay", "60000")
    await page.click("#requeue-all")
    await expect(page.locator("#selection-result")).to_have_text("3 messages requeued.")
    account = {"finished": 3, "requeue_count": 3, "deferred_count": 3, "in_flight_count": 0}

    assert account == await console.account_becomes(topic, "c", account)
    visitor.found_nothing_wrong(gateway.address)


async def test_a_question_that_is_cancelled_finishes_nothing(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    await make_channel(gateway, topic, "c")
    await gateway.publish(topic, b"x")
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await console.page.click("#finish-all")
    await console.page.click("#finish-all-cancel")
    await expect(console.page.locator("#finish-all")).to_have_text("FIN all 1")
    account = {"finished": 0, "in_flight_count": 1}

    assert account == await console.account_becomes(topic, "c", account)
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_what_is_shown_is_exported(
    visitor: Visitor, gateway: RunningGateway, topic: str, tmp_path: Path
) -> None:
    """One object a line, newest first; what is no text as base64; the file has the topic's name."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    for body in (b"one", b"two", b"\xff\x00"):
        await gateway.publish(topic, body)
    await expect(console.page.locator("#message-rows .row")).to_have_count(3)
    async with console.page.expect_download() as download:
        await console.page.click("#export")
    name = (await download.value).suggested_filename
    await (await download.value).save_as(tmp_path / "messages.ndjson")
    lines = (tmp_path / "messages.ndjson").read_text().splitlines()
    messages = [json.loads(line) for line in lines]

    assert ["/wA=", "two", "one"] == [
        message.get("body_base64") or message["body"] for message in messages
    ]
    assert {"id", "timestamp_ns", "attempts", "body"} == messages[1].keys()
    assert re.fullmatch(rf"{topic}-[0-9-]{{10}}T\d{{6}}Z\.ndjson", name)
    visitor.found_nothing_wrong(gateway.address)


async def test_a_message_is_published_again_to_another_topic(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Its body is put into the form, and the user types the topic."""
    await make_channel(gateway, f"{topic}.again", "c")
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, b'{"order": 1}')
    await console.row("order").click()
    await console.page.click("#detail-publish")
    await expect(console.page.locator("#publish-topic")).to_be_focused()
    await console.page.keyboard.type(f"{topic}.again")
    await console.page.click("#publish")
    account = {"message_count": 1}

    assert account == await console.account_becomes(f"{topic}.again", "c", account)
    visitor.found_nothing_wrong(gateway.address)


async def test_the_direction_of_text_is_shown_and_not_obeyed(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """A body cannot show its members in another order than they have."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic)
    await gateway.publish(topic, '{"paid": "\u202e001\u202c"}'.encode())
    row = console.row("paid")
    await expect(row).to_contain_text(r'{"paid": "\u202e001\u202c"}')
    await row.click()
    await expect(console.page.locator("#detail-body")).to_contain_text(r'"\u202e001\u202c"')
    visitor.found_nothing_wrong(gateway.address)


async def test_rows_show_members_of_json(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """In place of the start of bodies that have them; the choice survives a reload."""
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    for body in (
        b'{"customer": {"name": "Ada\\u202e"}, "total": 12.50, "lines": [1]}',
        b'{"total": 3}',
        b'{"other": 1}',
        b"plain text",
    ):
        await gateway.publish(topic, body)
    await expect(console.rows).to_have_count(4)
    await console.page.fill("#message-members", ".customer.name .lines .total word")
    await expect(console.row("lines: [1]")).to_have_count(1)
    shown = [text.strip() for text in await console.bodies()]
    await console.page.reload()
    await expect(console.page.locator("#message-members")).to_have_value(
        ".customer.name .lines .total word"
    )
    await console.click_subscribe()
    await gateway.publish(topic, b'{"total": 4, "other": 2}')
    await expect(console.row("total: 4")).not_to_contain_text("other")
    await console.page.fill("#message-members", "")
    await expect(console.row('{"total": 4, "other": 2}')).to_have_count(1)

    assert [
        "plain text",
        '{"other": 1}',
        "total: 3",
        "customer.name: Ada\\u202e lines: [1] total: 12.50",
    ] == shown
    visitor.found_nothing_wrong(gateway.address)


async def test_the_list_says_how_many_are_kept_and_match(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Of 250 messages the newest 200."""
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    kept = console.page.locator("#list-count")
    bodies = [f"message-{number:03}" for number in range(250)]
    await gateway.post("/mpub", "\n".join(bodies[:150]).encode(), topic=topic)
    await console.page.fill("#message-filter", "message-14")
    await expect(kept).to_have_text("10 of 150 match")
    await gateway.post("/mpub", "\n".join(bodies[150:]).encode(), topic=topic)
    await expect(kept).to_have_text("10 of 200 match, newest 200 kept")
    await console.page.fill("#message-filter", "")
    await expect(kept).to_have_text("newest 200 kept")
    await console.page.click("#clear")
    await expect(kept).to_have_text("")
    visitor.found_nothing_wrong(gateway.address)
