"""The console in a real browser: overview, topic, channel and nodes, each with its own address."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Locator, Route, expect

from gateway.broker.broker import Broker
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.browser.browsers import Device, Visitor, run
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    THEN,
    WITH_ONE_BROKER,
    ConsolePage,
    make_channel,
    open_view,
)
from tests.support.browser.fixtures import Visits
from tests.support.gateways.gateway import (
    RunningGateway,
    gateway_alone,
    gateway_by_lookup,
    gateway_with_nsqd,
)
from tests.support.http.raw_http import exchange

pytestmark = pytest.mark.asyncio(loop_scope="session")

NONE = "\N{EN DASH}"
"""In place of what is not there."""
CHANNELS = "#overview [data-part=channels-part]"
TOPICS = "#overview [data-part=topics-part]"
# Pixels of the chart that have the colour of the line of the depth.
DRAWN = """
const canvas = document.querySelector("#subject-chart canvas");
const context = canvas.getContext("2d");
context.fillStyle = getComputedStyle(document.querySelector("#subject-chart .swatch.first")).color;
context.fillRect(0, 0, 1, 1);
const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
let found = -1;
for (let at = 0; at < data.length; at += 4)
  found += Number([0, 1, 2, 3].every((part) => data[at + part] === data[part]));
return found;
"""
LIGHT_AND_DARK = pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])


def row(console: ConsolePage, table: str, name: str) -> Locator:
    """Return the row that *name* is the head of, in the table at *table*."""
    head = console.page.get_by_role("rowheader", name=name, exact=True)
    return console.page.locator(f"{table} tbody tr").filter(has=head)


async def cells(found: Locator) -> list[str]:
    """Return the texts of a row, with its head."""
    await expect(found).to_be_visible()
    return await found.locator("th, td").all_inner_texts()


async def test_what_falls_behind_is_first_and_says_why(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """From there a link leads to the channel, one more to its topic, and back goes back."""
    await make_channel(gateway, topic, "left")
    await make_channel(gateway, topic, "empty")
    await gateway.post("/mpub", b"one\ntwo\nthree", topic=topic)
    await gateway.empty_channel(topic, "empty")
    console = await open_view(visitor, gateway, "#/")
    await console.page.locator("#overview [data-part=filter]").fill(topic)
    rows = console.page.locator(f"{CHANNELS} tbody tr")
    await expect(rows).to_have_count(2)
    left = await cells(rows.nth(0))
    empty = await cells(rows.nth(1))
    await rows.nth(0).get_by_role("link", name="left").click()
    await expect(console.page.locator("#subject-title")).to_have_text("Channel left")
    await console.page.get_by_role("link", name=topic).click()
    await expect(console.page.locator("#subject-title")).to_have_text(f"Topic {topic}")
    await console.page.go_back()
    await expect(console.page.locator("#subject-title")).to_have_text("Channel left")

    assert [topic, "left", "no consumers", "3"] == left[:4]
    assert [topic, "empty", "", "0"] == empty[:4]
    assert console.page.url.endswith(f"#/topics/{topic}/left")
    visitor.found_nothing_wrong(gateway.address)


@WITH_ONE_BROKER
async def test_a_trail_leads_to_topic_and_channel(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """On their pages, and in the head where they are subscribed."""
    await make_channel(gateway, topic, "c")
    console = await open_view(visitor, gateway, f"#/topics/{topic}/c")
    trail = console.page.get_by_role("navigation", name="Breadcrumb")
    await expect(trail).to_have_text(f"Overview {THEN} {topic} {THEN} c")
    await expect(trail.locator("[aria-current=page]")).to_have_text("c")
    await trail.get_by_role("link", name=topic).click()
    await expect(trail).to_have_text(f"Overview {THEN} {topic}")
    await console.page.click("#subject [data-part=messages]")
    await console.subscribe(topic, "c")
    subscribed = console.page.locator("#connection-what")
    await expect(subscribed).to_have_text(f"{topic} {THEN} c")
    await subscribed.get_by_role("link", name="c", exact=True).click()
    await expect(console.page.locator("#subject-title")).to_have_text("Channel c")
    visitor.found_nothing_wrong(gateway.address)


async def test_a_topic_without_channels_is_no_secret(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Its messages wait for the first channel."""
    await gateway.publish(topic, b"x")
    console = await open_view(visitor, gateway, "#/")
    await console.page.locator("#overview [data-part=filter]").fill(topic)
    shown = console.page.locator(f"{CHANNELS} tbody tr")
    await expect(shown).to_have_count(1)

    assert [topic, NONE, "no channels", "1"] == (await cells(shown))[:4]
    visitor.found_nothing_wrong(gateway.address)


async def test_a_channel_shows_who_consumes_it(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """With RDY and what is in flight; and that nobody does."""
    await make_channel(gateway, topic, "c")
    await gateway.publish(topic, b"x")
    console = await open_view(visitor, gateway, f"#/topics/{topic}/c")
    await expect(console.page.locator("#subject [data-part=no-consumers]")).to_be_visible()
    async with gateway.subscribe(topic, "c", max_in_flight=7) as client:
        assert b"x" == (await client.message())["body"].encode()
        consumer = console.page.locator("#subject [data-part=consumers-table] tbody tr")
        await expect(consumer).to_have_count(1)
        await expect(consumer).to_contain_text("nsq-gateway/")
        numbers = (await cells(consumer))[3:6]
        node = await cells(console.page.locator("#subject [data-part=nodes] tbody tr"))

    assert ["1", "7", "1"] == numbers
    assert gateway.broker_http_address == node[0]
    visitor.found_nothing_wrong(gateway.address)


async def test_a_topic_adds_up_its_channels(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Each is a link; "Manage…" and "Messages" are about the topic."""
    await make_channel(gateway, topic, "a")
    await make_channel(gateway, topic, "b")
    await gateway.post("/mpub", b"one\ntwo", topic=topic)
    console = await open_view(visitor, gateway, f"#/topics/{topic}")
    await expect(console.page.locator("#subject dl [data-part=depth]")).to_have_text("4")
    a = await cells(row(console, "#subject [data-part=channels]", "a"))
    await console.page.click("#subject [data-part=manage]")
    await expect(console.page.locator("#manage-subjects h3")).to_have_text(f"topic {topic}")
    await console.page.click("#manage-close")
    await console.page.click("#subject [data-part=messages]")
    await expect(console.page.locator("#topic")).to_have_value(topic)
    await expect(console.page.locator("#subscribe")).to_be_visible()

    assert ["a", "2", "0", "0", "0", "0", "0", "no consumers"] == a
    visitor.found_nothing_wrong(gateway.address)


async def test_a_peek_says_what_it_costs(
    visitor: Visitor, gateway: RunningGateway, topic: str, kind: str
) -> None:
    """The embedded broker shows messages for free; nsqd has to deliver them, and get them back."""
    await make_channel(gateway, topic, "c")
    await gateway.post("/mpub", b"one\ntwo", topic=topic)
    console = await open_view(visitor, gateway, f"#/topics/{topic}/c")
    result = console.page.locator("#subject [data-part=peek-result]")
    await console.page.click("#subject [data-part=peek]")
    if kind == "embedded":
        await expect(result).to_have_text("2 messages. Nothing has changed.")
    else:
        await expect(result).to_contain_text("that adds 1 to their attempts")
        # A second Enter would take them.
        await expect(console.page.locator("#subject [data-part=take]")).not_to_be_focused()
        await console.page.click("#subject [data-part=take]")
        await expect(result).to_have_text("2 messages. They were taken and given back.")
    rows = console.page.locator("#subject [data-part=peeked] tbody tr")
    await expect(rows).to_have_count(2)
    account = {"depth": 2, "in_flight_count": 0, "requeue_count": 0 if kind == "embedded" else 2}

    assert {"one", "two"} == {(await cells(rows.nth(number)))[5] for number in range(2)}
    assert account == await console.account_becomes(topic, "c", account)
    visitor.found_nothing_wrong(gateway.address, besides="409")


async def test_a_peek_at_a_broker_with_a_data_path_is_free(
    visitor: Visitor, tmp_path: Path
) -> None:
    async with gateway_alone(f"--broker-data-path={tmp_path}") as gateway:
        await make_channel(gateway, "orders", "c")
        await gateway.post("/mpub", b"one\ntwo\nthree", topic="orders")
        console = await open_view(visitor, gateway, "#/topics/orders/c")
        await console.page.click("#subject [data-part=peek]")
        result = console.page.locator("#subject [data-part=peek-result]")
        await expect(result).to_have_text("3 messages. Nothing has changed.")
        visitor.found_nothing_wrong(gateway.address)


# The overview


async def test_every_topic_is_on_the_overview(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """One without channels and messages too; each leads to its page."""
    await make_channel(gateway, f"{topic}-u", "a")
    await make_channel(gateway, f"{topic}-u", "b")
    await gateway.post("/mpub", b"one\ntwo", topic=f"{topic}-u")
    (await gateway.http.post("/topic/create", params={"topic": topic})).raise_for_status()
    console = await open_view(visitor, gateway, f"#/?filter={topic}")
    rows = console.page.locator(f"{TOPICS} tbody tr")
    await expect(rows).to_have_count(2)
    used, empty = await cells(rows.nth(0)), await cells(rows.nth(1))
    await rows.nth(1).get_by_role("link", name=topic).click()
    await expect(console.page.locator("#subject-title")).to_have_text(f"Topic {topic}")

    assert [f"{topic}-u", "2 channels fall behind"] == used[:2]
    assert ["4", "2", "1"] == used[3:]
    assert [topic, "no channels"] == empty[:2]
    assert ["0", "0", "1"] == empty[3:]
    visitor.found_nothing_wrong(gateway.address)


async def test_a_topic_is_created_from_the_overview(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """By its name, alone or with a channel; one that is there is not created again."""
    console = await open_view(visitor, gateway, f"#/?filter={topic}")
    create = console.page.locator(f"{TOPICS} [data-part=create]")
    result = console.page.locator("#manage-result")
    await create.click()
    await expect(console.page.locator("#manage-topic")).to_be_focused()
    await console.page.keyboard.type(topic)
    await console.press("Enter")
    await expect(result).to_have_text(f"Created topic {topic} on every nsqd.")
    await console.page.click("#manage-close")
    await expect(row(console, TOPICS, topic)).to_contain_text("no channels")
    await create.click()
    await expect(console.page.locator("#manage-topic")).to_have_value("")
    await console.page.fill("#manage-topic", topic)
    await console.page.click("#manage-create")
    await expect(result).to_have_text(f"There is a topic {topic} already.")
    await console.page.fill("#manage-channel", "c")
    await console.page.click("#manage-create")
    await expect(result).to_have_text(f"Created channel c of topic {topic} on every nsqd.")
    await console.page.click("#manage-close")
    await expect(row(console, CHANNELS, "c")).to_be_visible()

    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_the_overview_begins_with_twenty_rows(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    for number in range(23):
        await make_channel(gateway, topic, f"c{number}")
    console = await open_view(visitor, gateway, f"#/?filter={topic}")
    rows = console.page.locator(f"{CHANNELS} tbody tr")
    more = console.page.locator(f"{CHANNELS} [data-part=more]")
    await expect(more).to_contain_text("3 more channels.")
    await expect(rows).to_have_count(20)
    await more.get_by_role("button").click()
    await expect(rows).to_have_count(23)
    await expect(more).to_be_hidden()
    await console.page.fill("#overview [data-part=filter]", f"{topic}-not")
    await expect(more).to_contain_text("No channel matches.")

    visitor.found_nothing_wrong(gateway.address)


# Orders


async def uneven(gateway: RunningGateway, topic: str) -> None:
    """Have channels "c10", "c2" and "c1" of *topic*, with 3, 2 and 1 messages."""
    for channel in ("c10", "c2", "c1"):
        await make_channel(gateway, topic, channel)
        await gateway.publish(topic, b"x")


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_a_table_is_sorted_by_its_head(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """Three presses go around; the address has it, with the filter, for a reload."""
    await uneven(gateway, topic)
    console = await open_view(visitor, gateway, "#/")
    await console.page.fill("#overview [data-part=filter]", topic)
    names = console.page.locator(f"{CHANNELS} tbody th")
    head = console.page.locator(f"{CHANNELS} thead")
    by_name = head.get_by_role("button", name="channel")
    await expect(names).to_have_text(["c10", "c2", "c1"])
    await by_name.focus()
    await console.press("Enter")
    await expect(names).to_have_text(["c1", "c2", "c10"])
    cell = head.get_by_role("columnheader", name="channel")
    await expect(cell).to_have_attribute("aria-sort", "ascending")
    await console.press("Enter")
    await expect(names).to_have_text(["c10", "c2", "c1"])
    await head.get_by_role("button", name="depth").click()
    await head.get_by_role("button", name="depth").click()
    await expect(names).to_have_text(["c1", "c2", "c10"])
    await console.page.reload()
    await expect(names).to_have_text(["c1", "c2", "c10"])
    await expect(console.page.locator("#overview [data-part=filter]")).to_have_value(topic)
    asked = console.page.url
    await head.get_by_role("button", name="depth").click()
    await expect(names).to_have_text(["c10", "c2", "c1"])

    assert asked.endswith(f"#/?filter={topic}&channels=depth")
    assert console.page.url.endswith(f"#/?filter={topic}")
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_a_narrow_table_is_sorted_by_a_choice(
    visits: Visits, gateway: RunningGateway, topic: str
) -> None:
    """Its head is out of sight there."""
    await uneven(gateway, topic)
    visitor = await visits(Device(is_phone=True))
    console = await open_view(visitor, gateway, f"#/topics/{topic}")
    names = console.page.locator("#subject [data-part=channels] tbody th")
    await expect(names).to_have_count(3)
    choice = console.page.locator("#subject [data-part=channels] select")
    await choice.select_option("depth, least first")
    await expect(names).to_have_text(["c1", "c2", "c10"])

    assert console.page.url.endswith(f"#/topics/{topic}?channels=depth")
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
@pytest.mark.parametrize("by", ["pointer", "keyboard"])
async def test_rows_hold_their_places_while_they_are_used(
    visitor: Visitor, gateway: RunningGateway, topic: str, by: str
) -> None:
    """Their numbers change meanwhile; when pointer and focus have left them, so do their places."""
    await uneven(gateway, topic)
    console = await open_view(visitor, gateway, f"#/?filter={topic}")
    names = console.page.locator(f"{CHANNELS} tbody th")
    depth = row(console, CHANNELS, "c1").locator("[data-label=depth]")
    await expect(names).to_have_text(["c10", "c2", "c1"])
    if by == "pointer":
        await names.first.hover()
    else:
        await names.first.get_by_role("link").focus()
    await gateway.post("/mpub", b"1\n2", topic=topic)
    await gateway.empty_channel(topic, "c10")
    await expect(depth).to_have_text("3")
    await expect(names).to_have_text(["c10", "c2", "c1"])
    if by == "pointer":
        await console.page.mouse.move(1, 1)
    else:
        await console.page.locator("#overview [data-part=filter]").focus()
    await expect(names).to_have_text(["c2", "c1", "c10"])

    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_the_title_names_the_page(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    console = await open_view(visitor, gateway, "#/")
    titles = {}
    for view in ("#/", "#/nodes", "#/messages", f"#/topics/{topic}", f"#/topics/{topic}/c"):
        await console.page.goto(f"{gateway.url}/console{view}")
        titles[view] = await console.page.title()

    assert {
        "#/": f"Overview {NONE} nsq-gateway",
        "#/nodes": f"Nodes {NONE} nsq-gateway",
        "#/messages": f"Messages {NONE} nsq-gateway",
        f"#/topics/{topic}": f"{topic} {NONE} nsq-gateway",
        f"#/topics/{topic}/c": f"{topic} {THEN} c {NONE} nsq-gateway",
    } == titles
    visitor.found_nothing_wrong(gateway.address)


# The chart


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_a_chart_has_what_was_read_before_its_page_was_opened(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    await make_channel(gateway, topic, "c")
    console = await open_view(visitor, gateway, f"#/?filter={topic}")
    depth = row(console, CHANNELS, "c").locator("[data-label=depth]")
    await expect(depth).to_have_text("0")
    await gateway.publish(topic, b"x")
    await expect(depth).to_have_text("1")
    await row(console, CHANNELS, "c").get_by_role("link", name="c", exact=True).click()
    reading = console.page.locator("#subject-chart [data-part=reading]")
    await expect(reading).to_have_text(f"depth 0{NONE}1, in flight 0")

    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_a_single_reading_is_drawn(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """As a dot: a line needs a second one."""
    await gateway.publish(topic, b"x")
    page = await visitor.context.new_page()
    readings = 0

    async def answer_once(route: Route) -> None:
        nonlocal readings
        readings += 1
        await (route.continue_() if readings == 1 else route.abort())

    await page.route("**/stats?*include_clients=false*", answer_once)
    await page.goto(f"{gateway.url}/console#/topics/{topic}")
    await expect(page.locator("#subject-chart [data-part=depth]")).to_have_text("1")

    assert 0 < await run(page, DRAWN)
    visitor.found_nothing_wrong(gateway.address, besides="ERR_FAILED")


# Old numbers


@IN_CHROMIUM
@WITH_ONE_BROKER
@pytest.mark.parametrize("is_phone", [False, True], ids=["desk", "phone"])
async def test_every_page_says_that_its_numbers_are_old(
    visits: Visits, gateway: RunningGateway, topic: str, *, is_phone: bool
) -> None:
    """Of when they are and why, until they are new again."""
    await make_channel(gateway, topic, "c")
    visitor = await visits(Device(is_phone=is_phone))
    for view in ("#/", f"#/topics/{topic}", f"#/topics/{topic}/c", "#/nodes"):
        console = await open_view(visitor, gateway, view)
        await expect(console.page.locator("#pages tbody tr:visible").first).to_be_visible()
        await console.page.route("**/stats?*", lambda route: route.abort())
        await expect(console.page_notice).to_have_text(
            re.compile(
                r"^Numbers as of \d\d:\d\d:\d\d\. The gateway does not respond at all\. "
                r"Retrying in \d+ s\.$"
            )
        )
        await expect(console.page_notice).to_be_in_viewport()
        await console.page.unroute_all()
        await expect(console.page_notice).to_be_hidden()
        await console.page.close()

    visitor.found_nothing_wrong(gateway.address, besides="ERR_FAILED")


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_a_page_says_that_its_own_numbers_are_old(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The nodes and the clients are read by requests of their own, and each can fail alone."""
    await make_channel(gateway, topic, "c")
    console = await open_view(visitor, gateway, "#/nodes")
    for view, target, what in (
        ("#/nodes", "**/nodes", "Nodes"),
        (f"#/topics/{topic}", "**/stats?*include_clients=true*", "Producers"),
        (f"#/topics/{topic}/c", "**/stats?*include_clients=true*", "Consumers"),
    ):
        await console.page.goto(f"{gateway.url}/console{view}")
        await expect(console.page.locator("#pages tbody tr:visible").first).to_be_visible()
        await console.page.route(target, lambda route: route.abort())
        await expect(console.page_notice).to_have_text(
            re.compile(rf"^({what} as of [\d:]+\. )?The gateway does not respond\. Trying again\.$")
        )
        await console.page.unroute_all()
        await expect(console.page_notice).to_be_hidden()

    visitor.found_nothing_wrong(gateway.address, besides="ERR_FAILED")


@IN_CHROMIUM
async def test_a_page_says_which_nsqd_is_missing_in_its_numbers(visitor: Visitor) -> None:
    async with two_nodes() as (gateway, (lost, other)):
        await post(other, "/pub?topic=orders", b"x")
        console = await open_view(visitor, gateway, "#/topics/orders")
        await expect(console.page.locator("#subject tbody tr:visible").first).to_be_visible()
        await lost.stop()
        await expect(console.page_notice).to_contain_text(
            f"Numbers are missing: nsqd {lost.http_address}: "
        )
        visitor.found_nothing_wrong(gateway.address)


async def test_a_name_of_any_kind_is_in_the_address(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """A name with a # is encoded, and one that no nsqd has says so."""
    name = f"{topic}#ephemeral"
    console = await open_view(visitor, gateway, f"#/topics/{name.replace('#', '%23')}")

    await expect(console.page.locator("#subject-title")).to_have_text(f"Topic {name}")
    await expect(console.page.locator("#subject [data-part=trouble]")).to_contain_text(
        "No nsqd has this topic."
    )
    visitor.found_nothing_wrong(gateway.address)


# Nodes


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[RunningGateway, list[Broker]]]:
    """Run two brokers and a gateway in front of them."""
    async with AsyncExitStack() as life:
        enter = life.enter_async_context
        brokers = [await enter(embedded_broker(has_http=True)) for _ in range(2)]
        tcp = [broker.tcp_address for broker in brokers]
        http = [broker.http_address for broker in brokers]
        yield await enter(gateway_with_nsqd(tcp, http)), brokers


async def post(broker: Broker, target: str, body: bytes = b"") -> None:
    assert 200 == (await exchange(broker.http_address, "POST", target, body)).status


async def test_a_node_is_drained_and_the_drain_ends(visitor: Visitor) -> None:
    """Until it has no message left; the last node is refused with the reason."""
    async with two_nodes() as (gateway, (drained, other)):
        await post(drained, "/pub?topic=t", b"x")
        console = await open_view(visitor, gateway, "#/nodes")
        here = row(console, "#nodes [data-part=table]", drained.http_address)
        there = row(console, "#nodes [data-part=table]", other.http_address)
        result = console.page.locator("#nodes [data-part=result]")
        what = console.page.locator("#nodes [data-part=drains] [data-part=what]")
        await here.get_by_role("button", name="Drain").click()
        await expect(here).to_contain_text("draining")
        await expect(what).to_contain_text("still has 1 message waiting")
        places = console.page.locator("#nodes [data-part=drains] [data-part=places] li")
        await expect(places).to_have_text("t: 1 message, in no channel yet")
        await post(drained, "/channel/create?topic=t&channel=c")
        await expect(places).to_have_text(f"t {THEN} c: 1 message, no consumer")
        await there.get_by_role("button", name="Drain").click()
        await expect(result).to_contain_text("no other nsqd could take the messages")
        await post(drained, "/channel/empty?topic=t&channel=c")
        await expect(here).to_contain_text("drained")
        await expect(what).to_contain_text("has no message left")
        await here.get_by_role("button", name="End drain").click()
        await expect(here).to_contain_text("active")

        visitor.found_nothing_wrong(gateway.address, besides="409")


@IN_CHROMIUM
@pytest.mark.nsqd
async def test_an_nsqd_has_one_name(visitor: Visitor) -> None:
    """Its HTTP address, also where an nsqlookupd does not know it."""
    async with AsyncExitStack() as life:
        enter = life.enter_async_context
        knowing, other = [await enter(real_nsqlookupd()) for _ in range(2)]
        where = f"--lookupd-tcp-address={knowing.tcp_address}"
        nsqd = await enter(real_nsqd("--broadcast-address=127.0.0.1", where))
        gateway = await enter(
            gateway_by_lookup(
                knowing.http_address,
                nsqd.http_address,
                f"--lookupd-http-address={other.http_address}",
                "--lookupd-poll-interval-s=0.2",
            )
        )
        console = await open_view(visitor, gateway, "#/nodes")
        await expect(row(console, "#nodes [data-part=table]", nsqd.http_address)).to_be_visible()
        missing = row(console, "#nodes [data-part=lookupds]", other.http_address)
        await expect(missing).to_contain_text(nsqd.http_address)
        await expect(missing).not_to_contain_text(nsqd.tcp_address)

        visitor.found_nothing_wrong(gateway.address)


async def test_a_topic_leaves_one_node_once_its_name_is_typed(visitor: Visitor) -> None:
    async with two_nodes() as (gateway, brokers):
        for broker in brokers:
            await post(broker, "/pub?topic=orders", b"x")
        console = await open_view(visitor, gateway, "#/topics/orders")
        node = brokers[0].http_address
        here = row(console, "#subject [data-part=nodes]", node)
        await here.get_by_role("button", name="Tombstone…").click()
        dialog = console.page.locator("#tombstone")
        await expect(dialog.locator("[data-part=what]")).to_contain_text(
            f"Deletes topic orders on {node} only: 1 message in 0 channels."
        )
        go = dialog.locator("[data-part=go]")
        await expect(go).to_be_disabled()
        await dialog.locator("[data-part=typed]").fill("orders")
        await go.click()
        await expect(dialog).to_be_hidden()
        await expect(here).to_be_hidden()
        await expect(
            row(console, "#subject [data-part=nodes]", brokers[1].http_address)
        ).to_be_visible()

        visitor.found_nothing_wrong(gateway.address)


# For everyone


@IN_CHROMIUM
@WITH_ONE_BROKER
@LIGHT_AND_DARK
@pytest.mark.javascript
@pytest.mark.parametrize("is_phone", [False, True], ids=["desk", "phone"])
async def test_no_page_has_a_barrier(
    visits: Visits, gateway: RunningGateway, topic: str, *, is_dark: bool, is_phone: bool
) -> None:
    """axe-core finds nothing, and nothing overflows to the side."""
    await make_channel(gateway, topic, "c")
    await gateway.publish(topic, b"x")
    visitor = await visits(Device(is_phone=is_phone, is_dark=is_dark))
    found = {}
    for view in ("#/", f"#/topics/{topic}", f"#/topics/{topic}/c", "#/nodes"):
        console = await open_view(visitor, gateway, view)
        await expect(console.page.locator("#pages tbody tr:visible").first).to_be_visible()
        found[view] = await console.barriers() + await console.too_wide()

    assert {view: [] for view in found} == found
    visitor.found_nothing_wrong(gateway.address)


@IN_CHROMIUM
@WITH_ONE_BROKER
async def test_the_keyboard_reaches_a_channel(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """From the filter to the link, and the focus stays where it is while numbers change."""
    await make_channel(gateway, topic, "c")
    console = await open_view(visitor, gateway, "#/")
    await console.page.locator("#overview [data-part=filter]").fill(topic)
    row_ = console.page.locator(f"{CHANNELS} tbody tr")
    await expect(row_).to_have_count(1)
    await console.press("Tab", "Tab", "Tab")
    link = row_.get_by_role("link", name="c", exact=True)
    await expect(link).to_be_focused()
    await gateway.publish(topic, b"x")
    await expect(row_).to_contain_text("no consumers")
    await expect(link).to_be_focused()
    await console.press("Enter")

    await expect(console.page.locator("#subject-title")).to_have_text("Channel c")
    visitor.found_nothing_wrong(gateway.address)
