"""The console in real browsers: messages arrive, are inspected, and are answered."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import WebSocketRoute, expect

from tests.support.browser.browsers import Device, Visitor, run
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    THEN,
    WITH_ONE_BROKER,
    make_channel,
    open_console,
)
from tests.support.browser.fixtures import PAIRED, Visits
from tests.support.gateways.gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOKS = [
    pytest.param(Device(is_phone=is_phone, is_dark=is_dark), id=f"{where}-{color}")
    for is_phone, where in ((False, "desk"), (True, "phone"))
    for is_dark, color in ((False, "light"), (True, "dark"))
]
MOST_BELOW = 11
"""Rows below those that fit: eight, one that is cut, one for the head, and the open message's."""
ROWS = """
const rows = [...document.querySelectorAll("#message-rows .row")];
const { clientHeight } = document.querySelector("#message-grid");
return [rows.length, Math.floor(clientHeight / rows[0].offsetHeight) - 1];
"""
NOTHING_LEFT = {"depth": 0, "in_flight_count": 0, "deferred_count": 0}


@PAIRED
@pytest.mark.parametrize("look", LOOKS)
async def test_a_visitor_subscribes_finishes_and_publishes(
    visits: Visits, gateway: RunningGateway, topic: str, look: Device
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
@WITH_ONE_BROKER
async def test_touch_restarts_the_message_timeout(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The remaining time runs down, and is a minute again."""
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
@WITH_ONE_BROKER
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
async def test_an_ack_that_nsqd_refuses_is_shown(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The row stays, with NSQ's error code, and the refusal is counted."""
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
@WITH_ONE_BROKER
async def test_a_row_that_timed_out_has_no_buttons(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """It has no buttons, counts as lost and not as held, and its place in the window is free."""
    console = await open_console(visitor, gateway)
    await console.page.clock.install()
    await console.page.fill("#channel", "c")
    await console.page.fill("#max-in-flight", "1")
    await console.subscribe(topic, "c")
    await gateway.publish(topic, b"slow")
    await expect(console.row("slow")).to_have_count(1)
    await console.counted("in-flight", "1")
    await console.page.clock.fast_forward(61_000)

    await expect(console.row("slow").last).to_contain_text("timed out: NSQ delivers it again")
    await console.counted("lost", "1")
    has_answers = await console.row("slow").last.locator("[data-answer]").first.is_visible()
    again = console.row("slow").filter(has=console.page.get_by_text("2", exact=True))
    await again.locator('[data-answer="FIN"]').click()
    await console.counted("finished", "1")
    await console.counted("in-flight", "0")

    assert has_answers is False
    assert NOTHING_LEFT == await console.account_becomes(topic, "c", NOTHING_LEFT)
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_a_double_click_answers_one_message(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Its second click would hit the next message, which nobody has read."""
    await make_channel(gateway, topic, "c")
    for number in range(3):
        await gateway.publish(topic, b"%d" % number)
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    rows = console.page.locator("#message-rows .row")
    await expect(rows).to_have_count(3)
    await rows.first.click()
    await console.page.locator('#detail-answers [data-answer="FIN"]').dblclick()
    # The page counts an answer before nsqd has it: both clicks have come.
    await expect(console.page.locator("#finish-all")).to_have_text("FIN all 2")
    account = {"finished": 1, "in_flight_count": 2}

    assert account == await console.account_becomes(topic, "c", account)
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_stop_says_where_the_messages_are(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """They leave the list, and wait in the channel again."""
    await make_channel(gateway, topic, "c")
    await gateway.publish(topic, b"x")
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await expect(console.page.locator("#message-rows .row")).to_have_count(1)
    await console.page.get_by_role("button", name="Stop", exact=True).click()
    title = console.page.locator("#empty-title")
    await expect(title).to_have_text(f"No longer subscribed to {topic} {THEN} c")
    await expect(console.page.locator("#empty-left")).to_be_visible()

    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_an_answer_that_is_not_confirmed_is_no_answer(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Behind a browser that is offline FIN, REQ and TOUCH are counted nowhere; the row is lost."""
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await gateway.publish(topic, b"held")
    await expect(console.rows).to_have_count(1)
    await visitor.context.set_offline(offline=True)
    await expect(console.row("held")).to_contain_text("connection ended: NSQ delivers it again")
    await visitor.context.set_offline(offline=False)
    await expect(console.state).to_have_text("connected")

    await console.counted("lost", "1")
    await console.counted("finished", "0")
    visitor.found_nothing_wrong(gateway.address, besides="ERR_INTERNET_DISCONNECTED")


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_stop_requeues_messages_in_flight(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """NSQ can deliver them at once to another consumer."""
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
@WITH_ONE_BROKER
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
@WITH_ONE_BROKER
async def test_the_list_is_frozen_while_it_is_paused(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """New messages are counted, and shown afterwards; the key h works like the button."""
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    await gateway.publish(topic, b"before")
    await expect(console.rows).to_have_count(1)
    await console.page.click("#pause")
    await gateway.publish(topic, b"meanwhile")
    await expect(console.page.locator("#paused-count")).to_have_text("1 more")
    await console.counted("received", "2")
    held = await console.rows.count()
    await console.press("h")
    await expect(console.rows).to_have_count(2)
    await expect(console.page.locator("#paused-count")).to_have_text("")

    assert 1 == held
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
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
    await expect(console.detail.get_by_role("button", name="Copied")).to_be_visible()
    copied = await console.page.evaluate("navigator.clipboard.readText()")
    await console.detail.get_by_role("button", name="Bytes").click()
    dump = await console.body.inner_text()

    assert '{\n  "id": 9007199254740993,\n  "name": "żółć"\n}' == json_view
    assert [body, body] == [text, copied]
    assert "000000  7b 22 69 64 22 3a 39 30" == dump[:31]
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_copy_takes_the_body_as_it_was_published(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Also where JSON is shown indented: spaces, digits and order are the publisher's."""
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    body = '{ "b":1.0,\t"a":  [] }'
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    await gateway.publish(topic, body.encode())
    await console.rows.first.click()
    shown = await console.body.inner_text()
    await console.detail.get_by_role("button", name="Copy").click()
    await expect(console.detail.get_by_role("button", name="Copied")).to_be_visible()

    assert '{\n  "b": 1.0,\n  "a": []\n}' == shown
    assert body == await console.page.evaluate("navigator.clipboard.readText()")
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_the_example_publishes_to_the_chosen_topic(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Until one is chosen it is `orders`."""
    console = await open_console(visitor, gateway)
    example = console.page.locator("#no-messages [data-example]")
    await expect(example).to_have_text(f"curl -d 'hello' '{gateway.url}/pub?topic=orders'")
    await console.page.fill("#topic", topic)
    await expect(example).to_have_text(f"curl -d 'hello' '{gateway.url}/pub?topic={topic}'")
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@pytest.mark.parametrize("pauses", ["topic", "channel"])
async def test_a_pause_is_shown_with_the_backlog(
    visitor: Visitor, gateway: RunningGateway, topic: str, pauses: str
) -> None:
    """In place of "No message yet"; and its end."""
    await make_channel(gateway, topic, "c")
    names = {"topic": topic, **({"channel": "c"} if pauses == "channel" else {})}
    (await gateway.http.post(f"/{pauses}/pause", params=names)).raise_for_status()
    await gateway.post("/mpub", b"\n".join([b"x"] * 1_002), topic=topic)
    console = await open_console(visitor, gateway)
    await console.page.fill("#channel", "c")
    await console.page.fill("#topic", topic)
    await console.page.click("#subscribe")

    await expect(console.page.locator("#empty-title")).to_have_text(f"{topic} {THEN} c is paused")
    waits = "1,002 messages wait in NSQ until the pause ends."
    await expect(console.page.locator("#empty-paused")).to_have_text(waits)
    (await gateway.http.post(f"/{pauses}/unpause", params=names)).raise_for_status()
    await console.counted("received", "10")
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_stop_and_publish_keep_the_focus(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """A button that is disabled would lose it: Subscribe has it after Stop."""
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    await console.page.fill("#publish-body", "x")
    await console.page.focus("#publish")
    await console.press("Enter")
    await expect(console.published).to_contain_text("OK: 1 message")
    await expect(console.page.locator("#publish")).to_be_focused()
    await console.page.focus("#stop")
    await console.press("Enter")
    await expect(console.state).to_have_text("closed")
    await expect(console.page.locator("#subscribe")).to_be_focused()
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_an_error_disappears_after_the_next_success(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """It is shown until an answer is accepted."""
    gateways: list[WebSocketRoute] = []

    def pass_on(page: WebSocketRoute) -> None:
        gateways.append(page)
        page.connect_to_server()

    await visitor.context.route_web_socket(re.compile("/sub"), pass_on)
    console = await open_console(visitor, gateway)
    await console.subscribe(topic, "c")
    await gateway.publish(topic, b"x")
    await expect(console.rows).to_have_count(1)
    gateways[0].send('{"type":"error","cmd":null,"ref":null,"code":"E_INVALID","message":"no"}')
    notice = console.page.locator("#messages-notice")
    await expect(notice).to_have_text("E_INVALID: no")
    await console.answer("x", "TOUCH")
    await expect(notice).to_be_hidden()


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_automatic_asks_before_it_finishes_a_backlog(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """With the number that waits; Cancel and Escape subscribe to nothing."""
    await make_channel(gateway, topic, "c")
    await gateway.post("/mpub", b"a\nb\nc", topic=topic)
    console = await open_console(visitor, gateway, topic=topic, channel="c")
    await expect(console.choice(topic, "c")).to_be_visible()
    await console.page.select_option("#ack", "auto")
    dialog = console.page.locator("#automatic")
    for leave in ("cancel", "Escape"):
        await console.page.click("#subscribe")
        await expect(dialog).to_contain_text(f"3 messages in {topic} {THEN} c would be finished")
        if leave == "cancel":
            await console.page.click("#automatic-cancel")
        else:
            await console.press("Escape")
        await expect(dialog).to_be_hidden()
        await expect(console.state).to_have_text("not subscribed")
    assert (3, 0, 0) == await gateway.counts_become(topic, "c", (3, 0, 0))
    await console.page.click("#subscribe")
    barriers = await console.barriers()
    await console.page.click("#automatic-go")
    await console.counted("received", "3")

    assert [] == barriers
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
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
@WITH_ONE_BROKER
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


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_no_more_rows_are_drawn_than_the_list_shows(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """But for some below; so with an open message, and after it is closed."""
    console = await open_console(visitor, gateway, topic=topic)
    await console.click_subscribe()
    await gateway.publish(topic, b"one row tells how high they are")
    await expect(console.rows).to_have_count(1)
    for when in ("at first", "open", "closed"):
        bodies = [f"{when}-{number}" for number in range(200)]
        await gateway.post("/mpub", "\n".join(bodies).encode(), topic=topic)
        newest = console.row(f"{when}-199")
        await expect(newest).to_be_visible()
        drawn, fitting = await run(console.page, ROWS)
        assert fitting <= drawn <= fitting + MOST_BELOW, when
        if when == "at first":
            await newest.click()
            await expect(console.detail).to_be_visible()
        else:
            await console.page.mouse.move(0, 0)
            await console.press("Escape")

    visitor.found_nothing_wrong(gateway.address)
