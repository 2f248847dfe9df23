"""The JavaScript module in real browsers, without WebSockets: event streams and pulls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page

from tests.support.browser.browser_page import BrowserPage
from tests.support.browser.browsers import Visitor, run
from tests.support.browser.fixtures import PAIRED
from tests.support.browser.module_page import consumer, module_page
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), PAIRED]

NOTHING_LEFT = (0, 0, 0)
TEXT = "żółć 漢字 🐇"


@pytest_asyncio.fixture(loop_scope="session")
async def page(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway
) -> AsyncIterator[Page]:
    """Return a page with the module, of another origin than the gateway; all must go well."""
    yield await module_page(visitor, pages, allowing)
    visitor.found_nothing_wrong(allowing.address, pages.ours.removeprefix("http://"))


async def test_a_page_without_websockets_consumes_a_stream(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """FIN, REQ and TOUCH; the messages that it holds when it closes are requeued at once."""
    await allowing.publish(topic, TEXT.encode())
    await allowing.post("/mpub", b"left\nleft", topic=topic)
    seen = await run(
        page,
        """
        delete globalThis.WebSocket;
        const subscription = subscribe(given[0]);
        const seen = [];
        let left = 0;
        for await (const message of subscription) {
          const { body, attempts } = message;
          if (body === "left") left++;
          else if (attempts === 1) seen.push(await message.touch(), await message.requeue());
          else seen.push(body, attempts, await message.finish());
          if (seen.length === 5 && left === 2) break;
        }
        return [seen, subscription.state, errors];
        """,
        consumer(topic, transport="sse", msgTimeoutMs=600_000),
    )
    counts = await allowing.counts_become(topic, "c", (2, 0, 0))
    async with allowing.subscribe(topic, "c") as other:
        attempts = [each["attempts"] for each in await other.messages(2)]

    assert [[True, True, TEXT, 2, True], "closed", []] == seen
    assert ((2, 0, 0), [2, 2]) == (counts, attempts)


async def test_a_page_pulls(page: Page, allowing: RunningGateway, topic: str) -> None:
    """And answers by lease; an abort is an AbortError, and takes no message."""
    await allowing.publish(topic, TEXT.encode())
    seen = await run(
        page,
        """
        const [message] = await pull({ ...given[0], waitMs: 20_000 });
        const touched = await message.touch();
        const isFinished = await message.finish();
        const ended = new AbortController();
        const next = pull({ ...given[0], waitMs: 20_000, signal: ended.signal });
        ended.abort();
        const { name } = await next.catch((error) => error);
        return [message.body, touched, isFinished, name];
        """,
        consumer(topic),
    )

    assert [TEXT, True, True, "AbortError"] == seen
    assert NOTHING_LEFT == await allowing.counts_become(topic, "c", NOTHING_LEFT)
