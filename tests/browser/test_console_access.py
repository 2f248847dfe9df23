"""The console in a real browser: secrets, and a gateway that stops and restarts."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.support.brokers.killable_broker import KillableBroker, free_port
from tests.support.browser.browsers import Visitor
from tests.support.browser.console_page import IN_CHROMIUM, open_console, open_view
from tests.support.browser.fixtures import SECRET
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd

pytestmark = [pytest.mark.asyncio(loop_scope="session"), IN_CHROMIUM]

ADMIN_SECRET = "s3cret-of-the-administrator"
# What a browser writes when a request or a socket is refused; no page can keep it from that.
REFUSED = r"status of 40[13]"
UNREACHABLE = r"WebSocket connection to|ERR_|status of (426|503)"
"""The module asks why a socket did not open: a gateway that is back by then answers 426."""


@pytest_asyncio.fixture(loop_scope="session")
async def administered(
    shared_broker: KillableBroker, tmp_path: Path
) -> AsyncIterator[RunningGateway]:
    secret_file = tmp_path / "secret"
    secret_file.write_text(ADMIN_SECRET)
    async with gateway_with_nsqd(
        [shared_broker.tcp_address],
        [shared_broker.http_address],
        f"--admin-secret-file={secret_file}",
    ) as gateway:
        yield gateway


async def test_topics_want_the_administrators_secret(
    visitor: Visitor, administered: RunningGateway, topic: str
) -> None:
    """Asked for, refused when it is wrong, and the list is there when it is right."""
    await administered.publish(topic, b"x")
    console = await open_console(visitor, administered)
    await expect(console.notice).to_contain_text("Subscribing and publishing do not need it.")
    await console.page.fill("#topics [data-part=admin-secret]", "wrong")
    await console.page.press("#topics [data-part=admin-secret]", "Enter")
    await expect(console.notice).to_contain_text("FORBIDDEN: ")
    await console.page.fill("#topics [data-part=admin-secret]", ADMIN_SECRET)
    await console.page.click("#topics [data-part=secret-form] button")
    await expect(console.choice(topic)).to_be_visible()
    await expect(console.notice).to_be_hidden()
    await expect(console.page.locator("#topics [data-part=admin-secret]")).to_be_hidden()

    visitor.found_nothing_wrong(administered.address, besides=REFUSED)


async def test_a_page_asks_for_the_administrators_secret(
    visitor: Visitor, administered: RunningGateway, topic: str
) -> None:
    """A link to a topic says what is missing, and shows the topic once it has it."""
    await administered.publish(topic, b"x")
    console = await open_view(visitor, administered, f"#/topics/{topic}")
    await expect(console.page_notice).to_contain_text("Topics are shown to administrators only.")
    await console.page.fill("#pages [data-part=admin-secret]", ADMIN_SECRET)
    await console.press("Enter")
    await expect(console.page.locator("#subject dl [data-part=depth]")).to_have_text("1")
    await expect(console.page_notice).to_be_hidden()

    visitor.found_nothing_wrong(administered.address, besides=REFUSED)


@pytest.mark.nsqd
async def test_a_secret_is_asked_for(visitor: Visitor, guarded: RunningGateway, topic: str) -> None:
    """4501 without one, 4503 with a wrong one, each with a text; the right one subscribes."""
    console = await open_console(visitor, guarded, topic=topic, channel="c")
    await console.page.click("#subscribe")
    await expect(console.status).to_contain_text("4501: a secret is required")
    await expect(console.page.locator("#secret")).to_be_focused()
    await console.page.fill("#secret", "wrong")
    await console.page.click("#subscribe")
    await expect(console.status).to_contain_text("4503: the secret was refused")
    await console.page.fill("#secret", SECRET)
    await console.click_subscribe()
    await console.publish(topic, "let in")
    await console.answer("let in", "FIN")
    await console.counted("finished", "1")
    kept = await console.page.evaluate("JSON.stringify([localStorage, sessionStorage])")

    assert SECRET not in kept + console.page.url
    visitor.found_nothing_wrong(guarded.address, besides=REFUSED)


@pytest.mark.nsqd
async def test_a_publish_brings_the_secret(
    visitor: Visitor, guarded: RunningGateway, topic: str
) -> None:
    """Over HTTP too: refused with its code when it is wrong, taken when it is right."""
    console = await open_console(visitor, guarded, topic=topic)
    await console.page.fill("#secret", "wrong")
    await console.publish(topic, "x")
    refused = re.compile(r"^AUTH_FAILED: .*Nothing was published\.$")
    await expect(console.published).to_have_text(refused)
    await console.page.fill("#secret", SECRET)
    await console.publish(topic, "x")
    await expect(console.published).to_have_text(f"OK: 1 message to {topic}, 1 byte, over HTTP.")

    visitor.found_nothing_wrong(guarded.address, besides=REFUSED)


async def test_the_console_outlives_its_gateway(
    visitor: Visitor, shared_broker: KillableBroker, topic: str
) -> None:
    """It tells why it waits and how long, comes back by itself, and goes on."""
    brokers = [shared_broker.tcp_address], [shared_broker.http_address]
    flags = (f"--listen=127.0.0.1:{free_port()}", "--drain-window-s=0.2")
    async with gateway_with_nsqd(*brokers, *flags) as gateway:
        console = await open_console(visitor, gateway)
        await console.subscribe(topic, "c")
        gateway.program.signal(signal.SIGTERM)
        await gateway.program.ended()
    await expect(console.state).to_have_text("waiting")
    await expect(console.status).to_have_text(re.compile(r"reconnecting in \d+ s"))
    await expect(console.notice).to_have_text(
        re.compile(r"The gateway does not respond at all\. Retrying in \d+ s")
    )
    async with gateway_with_nsqd(*brokers, *flags) as gateway:
        await expect(console.state).to_have_text("connected")
        await gateway.publish(topic, b"after")
        await console.answer("after", "FIN")
        await console.counted("finished", "1")
        await expect(console.notice).to_be_hidden()
        await console.page.close()

        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
    visitor.found_nothing_wrong(gateway.address, besides=UNREACHABLE)
