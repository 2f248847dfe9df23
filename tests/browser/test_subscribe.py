"""A page in a real browser as a consumer, with only the browser's own WebSocket."""

from __future__ import annotations

import base64
import json
import signal

import pytest
import pytest_asyncio
from playwright.async_api import Page

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.browser.browser_page import BrowserPage
from tests.support.browser.browsers import Visitor, run
from tests.support.browser.fixtures import PAIRED, SECRET
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd

pytestmark = pytest.mark.asyncio(loop_scope="session")

SUBPROTOCOL = "nsq.json.v1"
ENTRY = "nsq.auth." + base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("=")
TEXT = "żółć 漢字 🐇"
DELAY_MS = 300


@pytest_asyncio.fixture(loop_scope="session")
async def page(visitor: Visitor, pages: BrowserPage) -> Page:
    """Return the page, from the origin that gateways here allow."""
    return await visitor.open(pages.ours)


async def subscribe(page: Page, gateway: RunningGateway, topic: str, **query: int) -> None:
    """Create a subscriber ``s`` of *topic*, channel "c", in *page*."""
    url = json.dumps(gateway.sub_url(topic, "c", **query))
    answer = await run(page, f"globalThis.s = new Subscriber({url}); return s.next()")
    assert "SUB" == answer["cmd"]


@PAIRED
async def test_a_page_receives_and_finishes(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """JavaScript reads what was published; the broker has nothing left after FIN."""
    await subscribe(page, allowing, topic)
    await allowing.publish(topic, TEXT.encode())
    delivery, answer = await run(
        page,
        """
        const delivery = await s.next();
        return [delivery, await s.ask({cmd: "FIN", id: delivery.id, ref: 1})];
    """,
    )

    assert (TEXT, 1) == (delivery["body"], delivery["attempts"])
    assert {"type": "response", "cmd": "FIN", "ref": 1, "data": "OK"} == answer
    assert (0, 0, 0) == await allowing.counts_become(topic, "c", (0, 0, 0))


@PAIRED
async def test_a_page_that_requeues_gets_it_later(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """After its delay, with one more attempt, as another delivery."""
    await subscribe(page, allowing, topic)
    await allowing.publish(topic, b"later")
    first, second, elapsed_ms = await run(
        page,
        f"""
        const first = await s.next();
        const since = performance.now();
        s.send({{cmd: "REQ", id: first.id, timeout_ms: {DELAY_MS}}});
        const second = await s.next();
        const elapsed_ms = performance.now() - since;
        await s.ask({{cmd: "FIN", id: second.id, ref: 1}});
        return [first, second, elapsed_ms];
    """,
    )

    assert ("later", 1, 2) == (second["body"], first["attempts"], second["attempts"])
    assert first["id"] != second["id"]
    assert elapsed_ms >= DELAY_MS


@PAIRED
async def test_a_late_fin_is_an_error(page: Page, allowing: RunningGateway, topic: str) -> None:
    """E_FIN_FAILED with the id; the message comes again, and then it can be finished."""
    await subscribe(page, allowing, topic, msg_timeout_ms=2_000)
    await allowing.publish(topic, b"slow")
    first, refused, second = await run(
        page,
        """
        const first = await s.next();
        const second = await s.next();  // the broker has waited long enough
        const refused = await s.ask({cmd: "FIN", id: first.id, ref: "late"});
        await s.ask({cmd: "FIN", id: second.id, ref: "in time"});
        return [first, refused, second];
    """,
    )

    assert ("error", "FIN", "late", "E_FIN_FAILED", first["id"]) == tuple(
        refused[name] for name in ("type", "cmd", "ref", "code", "id")
    )
    assert (1, 2) == (first["attempts"], second["attempts"])
    assert (0, 0, 0) == await allowing.counts_become(topic, "c", (0, 0, 0))


@PAIRED
async def test_a_page_publishes_over_its_socket(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """It is answered, and reads its own message."""
    await subscribe(page, allowing, topic)
    received = await run(
        page,
        f"""
        s.send({{cmd: "PUB", topic: {json.dumps(topic)}, body: {json.dumps(TEXT)}, ref: "p"}});
        return s.take(2);
    """,
    )

    answers = [each for each in received if each["type"] == "response"]
    assert [{"type": "response", "cmd": "PUB", "ref": "p", "data": "OK"}] == answers
    assert [TEXT] == [each["body"] for each in received if each["type"] == "message"]


@PAIRED
async def test_a_page_is_told_when_the_gateway_drains(
    page: Page, pages: BrowserPage, shared_broker: KillableBroker, topic: str
) -> None:
    """CLOSE_WAIT with the time to come back, then 1012."""
    async with gateway_with_nsqd(
        [shared_broker.tcp_address],
        [shared_broker.http_address],
        f"--allow-origin={pages.ours}",
        "--drain-window-s=0.2",
        "--drain-in-flight-s=0.2",
    ) as gateway:
        await subscribe(page, gateway, topic)
        gateway.program.signal(signal.SIGTERM)
        told, closed = await run(page, "return [await s.next(), await s.closed]")

    assert ("CLS", "CLOSE_WAIT", "drain") == (
        told["cmd"],
        told["data"]["state"],
        told["data"]["reason"],
    )
    assert told["data"]["reconnect_after_ms"] >= 0
    assert 1012 == closed["code"]


@PAIRED
async def test_closing_a_page_requeues_its_messages(
    visitor: Visitor, pages: BrowserPage, page: Page, allowing: RunningGateway, topic: str
) -> None:
    """Another tab gets what it held, at once."""
    other = await visitor.open(pages.ours)
    await subscribe(other, allowing, topic)
    await allowing.publish(topic, b"held")
    await run(other, "await s.next()")
    await subscribe(page, allowing, topic)
    await other.close()
    delivery = await run(
        page, "const d = await s.next(); await s.ask({cmd: 'FIN', id: d.id, ref: 1}); return d"
    )

    assert ("held", 2) == (delivery["body"], delivery["attempts"])


@PAIRED
async def test_a_page_of_another_origin_cannot_subscribe(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway, topic: str
) -> None:
    """The same page under another name is another origin: its socket never opens."""
    foreign = await visitor.open(pages.foreign)
    url = json.dumps(allowing.sub_url(topic, "c"))
    opened, closed = await run(
        foreign, f"const s = new Subscriber({url}); return [await s.opened, await s.closed]"
    )

    assert ("closed before it was open", 1006) == (opened, closed["code"])
    assert [] == await allowing.channels_become(topic, [])


@pytest.mark.nsqd
async def test_a_page_may_say_its_secret_first(
    page: Page, guarded: RunningGateway, topic: str
) -> None:
    """AUTH is answered, then the subscription."""
    url = json.dumps(guarded.sub_url(topic, "c"))
    auth, sub = await run(
        page,
        f"""
        const s = new Subscriber({url});
        await s.opened;
        s.send({{cmd: "AUTH", secret: {json.dumps(SECRET)}, ref: 1}});
        return s.take(2);
    """,
    )

    assert ("AUTH", 1, "alice") == (auth["cmd"], auth["ref"], auth["data"]["identity"])
    assert ("response", "SUB") == (sub["type"], sub["cmd"])


@pytest.mark.nsqd
async def test_a_page_may_bring_its_secret_as_a_subprotocol(
    page: Page, guarded: RunningGateway, topic: str
) -> None:
    """The server selects the other entry, as browsers require, and subscribes the page."""
    url = json.dumps(guarded.sub_url(topic, "c"))
    protocol, sub = await run(
        page,
        f"""
        const s = new Subscriber({url}, {json.dumps([SUBPROTOCOL, ENTRY])});
        return [await s.opened, await s.next()];
    """,
    )

    assert (SUBPROTOCOL, "SUB") == (protocol, sub["cmd"])
