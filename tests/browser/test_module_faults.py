"""The JavaScript module in real browsers: offline, restarted, frozen, many tabs."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page

from tests.support.brokers.killable_broker import KillableBroker, free_port
from tests.support.brokers.toxiproxy import FaultyNetwork, toxiproxy
from tests.support.browser.browser_page import BrowserPage
from tests.support.browser.browsers import Visitor, frozen_tabs, run
from tests.support.browser.fixtures import PAIRED
from tests.support.browser.module_page import consumer, module_page
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), PAIRED]

NOTHING_LEFT = (0, 0, 0)
TABS = {"chromium": 50, "firefox": 5}  # Firefox takes seconds for each
MESSAGES = 500
# What a browser writes when a socket or a request is refused; no page can keep it from that.
REFUSED = (
    r"WebSocket connection to|can.t establish a connection|interrupted|ERR_|NetworkError"
    r"|status of 503"  # of a gateway that drains still
    r"|status of 426"  # nsq.js asks why by a plain GET, and the gateway is up again by then
    r"|CORS request did not succeed"  # Firefox's words for a server that is gone, no policy of ours
)

# A consumer ``s`` that notes bodies and states.
_CONSUME = """
globalThis.bodies = [];
globalThis.states = [];
globalThis.s = subscribe(given[0], ({ body }) => void bodies.push(body));
s.addEventListener("state", ({ detail }) => states.push(detail));
await s.ready;
"""


async def consume(page: Page, topic: str, **options: object) -> None:
    """Finish every message of channel "c" in *page*."""
    await run(page, _CONSUME, consumer(topic, **options))


async def state_becomes(page: Page, expected: str) -> str:
    """Return the state of the consumer, once it is *expected* or time is up."""

    async def look() -> str:
        return str(await run(page, "return s.state"))

    return await poll_until(look, expected)


async def bodies_become(page: Page, expected: list[str]) -> list[str]:
    """Return what the consumer has had, once it is *expected* or time is up."""

    async def look() -> list[str]:
        return list(await run(page, "return bodies"))

    return await poll_until(look, expected)


@asynccontextmanager
async def gateway_at(
    listen: str, broker: KillableBroker, pages: BrowserPage
) -> AsyncIterator[RunningGateway]:
    async with gateway_with_nsqd(
        [broker.tcp_address],
        [broker.http_address],
        f"--allow-origin={pages.ours}",
        f"--listen={listen}",
        "--drain-window-s=0.2",
        "--drain-in-flight-s=0.2",
    ) as gateway:
        yield gateway


# Cut off


@asynccontextmanager
async def consumer_behind_a_way(
    visitor: Visitor, pages: BrowserPage, gateway: RunningGateway, topic: str
) -> AsyncIterator[tuple[Page, FaultyNetwork]]:
    """Consume *topic* in a page through a proxy that can be cut; return both."""
    async with toxiproxy() as proxy:
        way = await proxy.in_front_of(gateway.address)
        page = await module_page(visitor, pages, gateway, url=f"http://{way.address}")
        await consume(page, topic)
        yield page, way


async def test_a_page_that_goes_offline_disconnects_at_once(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway, topic: str
) -> None:
    """What it holds is lost, its deadline stands still, and nothing is left unhandled."""
    page = await module_page(visitor, pages, allowing)
    await allowing.publish(topic, b"held")
    await run(
        page,
        """
        globalThis.s = subscribe(given[0]);
        const { value } = await s[Symbol.asyncIterator]().next();
        const { deadline } = value;
        globalThis.seen = new Promise((resolve) => {
          addEventListener("offline", async () => {
            const { state } = s;
            const answers = [await value.touch(), await value.finish()];
            resolve([state, value.signal.aborted, value.deadline === deadline, answers]);
          });
        });
        """,
        consumer(topic),
    )
    await visitor.context.set_offline(offline=True)
    seen = await run(page, "return seen")
    await visitor.context.set_offline(offline=False)

    assert ["waiting", True, True, [False, False]] == seen
    assert "connected" == await state_becomes(page, "connected")
    visitor.found_nothing_wrong(
        allowing.address, pages.ours.removeprefix("http://"), besides=REFUSED
    )


@pytest.mark.toxiproxy
async def test_a_page_that_was_offline_reconnects(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway, topic: str
) -> None:
    """It finishes what was published meanwhile as soon as the browser is online."""
    async with consumer_behind_a_way(visitor, pages, allowing, topic) as (page, way):
        # Browsers cut no socket that is open: the network does.
        await visitor.context.set_offline(offline=True)
        await way.go_down()
        waiting = await state_becomes(page, "waiting")
        await allowing.publish(topic, b"meanwhile")
        await way.come_back()
        await visitor.context.set_offline(offline=False)

        assert ("waiting", ["meanwhile"]) == (waiting, await bodies_become(page, ["meanwhile"]))
        assert NOTHING_LEFT == await allowing.counts_become(topic, "c", NOTHING_LEFT)


@pytest.mark.toxiproxy
async def test_a_publish_without_a_connection_waits_for_one(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway, topic: str
) -> None:
    """It is sent once there is one; with less patience it is NO_CONNECTION, and nothing is sent."""
    async with consumer_behind_a_way(visitor, pages, allowing, topic) as (page, way):
        await way.go_down()
        waiting = await state_becomes(page, "waiting")
        code, retryable = await run(
            page,
            """
            globalThis.published = s.publish(given[0], "patient");
            const impatient = s.publish(given[0], "impatient", { timeoutMs: 1 });
            const { code, retryable } = await impatient.catch((error) => error);
            return [code, retryable];
            """,
            topic,
        )
        await way.come_back()
        await run(page, "await published")

        assert ("waiting", "NO_CONNECTION", True) == (waiting, code, retryable)
        assert ["patient"] == await bodies_become(page, ["patient"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_page_outlives_its_gateway(
    visitor: Visitor, pages: BrowserPage, shared_broker: KillableBroker, topic: str, number: int
) -> None:
    """Drained or killed, and started again at its address: the page goes on by itself."""
    listen = f"127.0.0.1:{free_port()}"
    async with gateway_at(listen, shared_broker, pages) as gateway:
        page = await module_page(visitor, pages, gateway)
        await consume(page, topic)
        await gateway.publish(topic, b"before")
        before = await bodies_become(page, ["before"])
        # Who is killed passes nothing on that it may have read.
        finished = await gateway.counts_become(topic, "c", NOTHING_LEFT)
        gateway.program.signal(signal.Signals(number))
        await gateway.program.ended()
    assert "waiting" == await state_becomes(page, "waiting")
    async with gateway_at(listen, shared_broker, pages) as gateway:
        await gateway.publish(topic, b"after")
        after = await bodies_become(page, ["before", "after"])
        left = await gateway.counts_become(topic, "c", NOTHING_LEFT)
        await run(page, "await s.close()")

    assert (["before"], NOTHING_LEFT) == (before, finished)
    assert (["before", "after"], NOTHING_LEFT) == (after, left)
    visitor.found_nothing_wrong(
        gateway.address, pages.ours.removeprefix("http://"), besides=REFUSED
    )


# Asleep


async def test_a_frozen_tab_loses_nothing(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway, topic: str
) -> None:
    """
    What it was given is somebody else's when its time is over; afterwards the tab goes on.

    A second of message timeout stands for the minute that nsqd gives: what matters is that it is
    over before the tab wakes, which then finds stale messages, and answers them too late.
    """
    page = await module_page(visitor, pages, allowing)
    await consume(page, topic, msgTimeoutMs=1_000, maxInFlight=5)
    bodies = [f"{each}" for each in range(20)]
    with frozen_tabs():
        await allowing.post("/mpub", "\n".join(bodies).encode(), topic=topic)
        async with allowing.subscribe(topic, "c", max_in_flight=20) as other:
            finished: list[str] = []
            while len(finished) < len(bodies):
                delivery = await other.message()
                await other.send({"cmd": "FIN", "id": delivery["id"]})
                finished.append(delivery["body"])
            left = await allowing.counts_become(topic, "c", NOTHING_LEFT)
    await allowing.publish(topic, b"awake")

    async def is_awake() -> bool:
        return bool(await run(page, "return bodies.includes('awake')"))

    assert await poll_until(is_awake, expected=True)
    assert (sorted(bodies), NOTHING_LEFT) == (sorted(finished), left)
    assert NOTHING_LEFT == await allowing.counts_become(topic, "c", NOTHING_LEFT)
    errors = await run(page, "return errors.map(({ code }) => code)")
    assert {"E_FIN_FAILED"} >= set(errors)


async def test_a_hidden_tab_answers_without_timers(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway, topic: str
) -> None:
    """
    A tab whose timers never fire finishes what comes, as it comes.

    Browsers run the timers of a hidden tab once a second, later once a minute. Playwright keeps
    its tabs visible, so the page here has none that work, and says that it is hidden.
    """
    await visitor.context.add_init_script("""
        for (const name of ["setTimeout", "setInterval", "requestAnimationFrame",
                            "requestIdleCallback"]) globalThis[name] = () => 0;
        Object.defineProperty(Document.prototype, "hidden", { get: () => true });
        Object.defineProperty(Document.prototype, "visibilityState", { get: () => "hidden" });
    """)
    page = await module_page(visitor, pages, allowing)
    await consume(page, topic)
    bodies = [f"{each}" for each in range(100)]
    await allowing.post("/mpub", "\n".join(bodies).encode(), topic=topic)
    left = await allowing.counts_become(topic, "c", NOTHING_LEFT)
    seen = await run(page, "return [bodies.sort(), errors, document.hidden]")

    assert ([sorted(bodies), [], True], NOTHING_LEFT) == (seen, left)


# Many


async def test_many_tabs_share_a_channel(
    browser_name: str, visitor: Visitor, pages: BrowserPage, allowing: RunningGateway, topic: str
) -> None:
    """Each message is finished by one of them, none is lost, and most get some."""
    count = TABS[browser_name]
    opened = (module_page(visitor, pages, allowing) for _ in range(count))
    tabs = await asyncio.gather(*opened)
    await asyncio.gather(*(consume(tab, topic, maxInFlight=1) for tab in tabs))
    bodies = [f"{each}" for each in range(MESSAGES)]
    await allowing.post("/mpub", "\n".join(bodies).encode(), topic=topic)
    left = await allowing.counts_become(topic, "c", NOTHING_LEFT)
    had = [await run(tab, "return [bodies, errors]") for tab in tabs]

    assert Counter(bodies) == Counter(body for bodies, _ in had for body in bodies)
    assert ([], NOTHING_LEFT) == ([errors for _, errors in had if errors], left)
    assert count / 2 < len([bodies for bodies, _ in had if bodies]), json.dumps(had)
