"""The console in real browsers: messages come, are looked at and are answered."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.end_to_end.browser.conftest import Visits
from tests.support.browsers import Look, Visitor
from tests.support.console_page import IN_CHROMIUM, make_channel, open_console
from tests.support.gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOKS = [
    pytest.param(Look(is_phone=is_phone, is_dark=is_dark), id=f"{where}-{color}")
    for is_phone, where in ((False, "desk"), (True, "phone"))
    for is_dark, color in ((False, "light"), (True, "dark"))
]
NOTHING_LEFT = {"depth": 0, "in_flight_count": 0, "deferred_count": 0}


@pytest.mark.parametrize("look", LOOKS)
async def test_somebody_looks_finishes_and_publishes(
    visits: Visits, gateway: RunningGateway, topic: str, look: Look
) -> None:
    """From the list of topics to FIN, and back with the form: in each browser, size and color."""
    await gateway.publish(topic, b'{"order": 1}')
    await make_channel(gateway, topic, "c")
    visitor = await visits(look)
    console = await open_console(visitor, gateway)
    await console.choose(topic, "c")
    chosen = [await console.page.input_value(field) for field in ("#topic", "#channel", "#ack")]
    await console.click_subscribe()
    await console.row('{"order": 1}').click()
    shown = await console.body.inner_text()
    await console.page.click("#detail-close")
    await console.answer('{"order": 1}', "FIN")
    await console.counted("finished", "1")
    if look.is_phone:
        await console.open_tab("publish")
    await console.publish(topic, "from the page")
    await expect(console.published).to_have_text(re.compile("^OK: 1 message .* over the socket"))
    if look.is_phone:
        await console.open_tab("messages")
    await console.answer("from the page", "FIN")
    await console.counted("finished", "2")

    assert [topic, "c", "client"] == chosen
    assert '{\n  "order": 1\n}' == shown
    expected = {**NOTHING_LEFT, "finished": 2, "requeue_count": 0}
    assert expected == await console.account_becomes(topic, "c", expected)
    visitor.found_nothing_wrong(gateway.address)


# Answers


@IN_CHROMIUM
async def test_a_message_comes_back_after_req(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """With attempts 2; TOUCH gives it its whole time again; NSQ has counted the same."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await console.page.select_option("#req-delay", "0")
    await gateway.publish(topic, b"again")
    first = await console.row("again").locator('[data-part="attempts"]').inner_text()
    await console.answer("again", "REQ")
    second = console.row("again").filter(has=console.page.get_by_text("2", exact=True))
    await expect(second).to_be_visible()
    await second.locator('[data-answer="TOUCH"]').click()
    await second.locator('[data-answer="FIN"]').click()
    await console.counted("finished", "1")

    expected = {**NOTHING_LEFT, "finished": 1, "requeue_count": 1, "timeout_count": 0}
    assert ("1", expected) == (first, await console.account_becomes(topic, "c", expected))
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_touch_begins_the_time_anew(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """What was left runs down, and stands at a minute again."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await gateway.publish(topic, b"slow")
    left = console.row("slow").locator('[data-part="left-text"]')
    await expect(left).to_have_text(re.compile(r"^5[0-8] s$"))
    await console.answer("slow", "TOUCH")
    await expect(left).to_have_text(re.compile(r"^(60|59) s$"))
    await console.answer("slow", "FIN")

    expected = {**NOTHING_LEFT, "finished": 1, "timeout_count": 0}
    assert expected == await console.account_becomes(topic, "c", expected)
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_keys_choose_and_answer(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """J and k go through the list; t touches; f and r answer and go on to the next."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await console.page.select_option("#req-delay", "3600000")
    await gateway.post("/mpub", b"one\ntwo\nthree", topic=topic)
    await expect(console.rows).to_have_count(3)
    order = await console.bodies()
    await console.page.locator("h1").click()  # out of the form
    seen = []
    for key in ("j", "j", "k", "ArrowDown", "t"):
        await console.press(key)
        seen.append(await console.body.inner_text())
    await console.press("f")
    seen.append(await console.body.inner_text())
    await console.press("r")
    seen.append(await console.body.inner_text())
    await console.press("r")

    expected = {"depth": 0, "in_flight_count": 0, "deferred_count": 2, "finished": 1}
    assert {"one", "two", "three"} == set(order)
    assert [order[at] for at in (0, 1, 0, 1, 1, 2, 0)] == seen
    assert expected == await console.account_becomes(topic, "c", expected)
    await console.counted("requeued", "2")
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_an_answer_that_nsq_refuses_is_told(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The row stays, with the word of NSQ, and the refusal is counted."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await gateway.publish(topic, b"gone")
    await expect(console.rows).to_have_count(1)
    await gateway.empty_channel(topic, "c")
    await console.answer("gone", "FIN")

    await expect(console.row("gone")).to_contain_text("refused E_FIN_FAILED")
    await console.counted("refused", "1")
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_stop_gives_back_what_is_in_hand(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """NSQ has it again at once, for somebody else."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await gateway.publish(topic, b"held")
    await expect(console.rows).to_have_count(1)
    await console.page.click("#stop")
    await expect(console.state).to_have_text("closed")

    assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))
    visitor.found_nothing_wrong(gateway.address)


# What is shown


@IN_CHROMIUM
async def test_a_viewer_sees_and_takes_nothing(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Without a channel nothing can be answered, and the other consumer gets the message too."""
    async with gateway.subscribe(topic, "c") as other:
        console = await open_console(visitor, gateway, topic=topic)
        await console.click_subscribe()
        await gateway.publish(topic, b"for both")
        await expect(console.row("for both")).to_be_visible()
        has_answers = await console.row("for both").locator("[data-answer]").first.is_visible()
        delivery = await other.message()
        await other.send({"cmd": "FIN", "id": delivery["id"]})

    assert ("for both", False) == (delivery["body"], has_answers)
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_the_list_stands_still_while_it_is_held(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """What comes is counted and told; afterwards it is there; h is the same as the button."""
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    await gateway.publish(topic, b"before")
    await expect(console.rows).to_have_count(1)
    await console.page.click("#hold")
    await gateway.publish(topic, b"meanwhile")
    await expect(console.page.locator("#held-back")).to_have_text("1 more")
    await console.counted("received", "2")
    held = await console.rows.count()
    await console.press("h")
    await expect(console.rows).to_have_count(2)
    await expect(console.page.locator("#held-back")).to_have_text("")

    assert 1 == held
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_a_message_is_shown_in_full(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """As JSON with every digit, as text, as bytes; Copy takes what is shown."""
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    body = '{"id":9007199254740993,"name":"żółć"}'
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    await gateway.publish(topic, body.encode())
    await console.row("9007199254740993").click()
    json_view = await console.body.inner_text()
    await console.detail.get_by_role("button", name="Text").click()
    text = await console.body.inner_text()
    await console.detail.get_by_role("button", name="Copy").click()
    await expect(console.page.locator("#detail-copy")).to_have_text("Copied")
    copied = await console.page.evaluate("navigator.clipboard.readText()")
    await console.detail.get_by_role("button", name="Bytes").click()
    dump = await console.body.inner_text()

    assert '{\n  "id": 9007199254740993,\n  "name": "żółć"\n}' == json_view
    assert [body, body] == [text, copied]
    assert "000000  7b 22 69 64 22 3a 39 30" == dump[:31]
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_a_body_that_is_no_text_is_shown_as_bytes(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """At once, and exactly those that were published."""
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    await gateway.publish(topic, b"\xff\x00\x01binary")
    await console.row("binary").click()

    expected = "000000  ff 00 01 62 69 6e 61 72 79                       ...binary"
    assert expected == await console.body.inner_text()
    assert "9 bytes" == await console.detail.locator('[data-part="size"]').inner_text()
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
async def test_a_burst_makes_no_more_rows_than_200(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """2 000 messages at once are counted, and the newest are in the list, however far one goes."""
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    bodies = [f"message-{number}" for number in range(2_000)]
    await gateway.post("/mpub", "\n".join(bodies).encode(), topic=topic)
    await console.counted("received", "2,000")
    await expect(console.row("message-1999")).to_be_visible()
    await console.page.locator("h1").click()
    await console.press(*["j"] * 250)
    count = await console.rows.count()
    last = await console.body.inner_text()

    assert 200 == count
    assert "message-1800" == last
    visitor.found_nothing_wrong(gateway.address)
