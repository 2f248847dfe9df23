"""Drive the console in a browser: clicks, keys, and the visible text."""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import urlencode

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.browser.browsers import Visitor, run
from tests.support.browser.javascript_tools import axe_source
from tests.support.gateways.gateway import RunningGateway, poll_until

Account: TypeAlias = dict[str, int]
"""A channel in nsqd's /stats."""

THEN = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
"""Between a topic and its channel."""
WAIT_S = 90.0
expect.set_options(timeout=WAIT_S * 1_000)

IN_CHROMIUM = pytest.mark.parametrize(
    "browser_name", [pytest.param("chromium", marks=pytest.mark.chromium)], indirect=True
)
"""Marker for tests that need only one browser."""

WITH_ONE_BROKER = pytest.mark.parametrize("kind", ["embedded"], indirect=True)
"""Marker for tests that do not depend on the broker."""

_FITS = """
return [...document.querySelectorAll("html, main, .panel, #side, dialog")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => `${each.tagName}#${each.id}: ${each.scrollWidth} in ${each.clientWidth} px`);
"""
_BARRIERS = """
await Promise.all(document.getAnimations().map(({ finished }) => finished.catch(() => {})));
const { violations } = await axe.run(document, { resultTypes: ["violations"] });
return violations.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) =>
  `${id}: ${target.join(" ")}: ${failureSummary}`));
"""
_CHART = """
const plot = document.querySelector(`#${given[0]} [data-part="plot"]`);
return plot.getAttribute("aria-valuetext");
"""


class ConsolePage:
    """A page that shows /console; make one with `open_console`."""

    def __init__(self, page: Page, gateway: RunningGateway) -> None:
        self.page = page
        self.gateway = gateway
        self.state = page.locator("#connection-state")
        """Element with the state, such as "connected" or "waiting"."""
        self.status = page.locator("#connection")
        """Element with the state and its details."""
        self.rows = page.locator("#message-rows .row")
        self.detail = page.locator("#detail")
        self.body = page.locator("#detail-body")
        self.published = page.locator("#publish-result")
        """The result of the last publish."""
        self.notice = page.locator("#topics [data-part=stats-notice] [data-part=what]")
        """Element above the list of topics with the reason for old or missing numbers."""
        self.page_notice = page.locator("#pages > [data-part=stats-notice] [data-part=what]")
        """The same on the pages of the cluster."""

    # Topics

    def choice(self, topic: str, channel: str | None = None) -> Locator:
        """Return the entry of a topic, or of a channel, in the list."""
        names = f'[data-topic="{topic}"]'
        names += ":not([data-channel])" if channel is None else f'[data-channel="{channel}"]'
        return self.page.locator(f"button{names}")

    async def choose(self, topic: str, channel: str | None = None) -> None:
        """Click a topic or a channel of the list, which is filtered first: it ends somewhere."""
        await self.page.fill("#filter", topic)
        await self.choice(topic, channel).click()

    # The subscription

    async def subscribe(self, topic: str, channel: str = "") -> None:
        """Fill in and submit the form; wait for messages."""
        await self.page.fill("#topic", topic)
        await self.page.fill("#channel", channel)
        await self.click_subscribe()

    async def click_subscribe(self) -> None:
        """Submit the form unchanged; wait for messages."""
        await self.page.click("#subscribe")
        await expect(self.state).to_have_text("connected")

    # Messages

    def row(self, body: str) -> Locator:
        """Return the rows of the messages with this in their bodies."""
        return self.rows.filter(has_text=body)

    async def bodies(self) -> list[str]:
        """Return the bodies in the list, newest first."""
        return await self.rows.locator('[data-part="body"]').all_inner_texts()

    async def answer(self, body: str, word: str) -> None:
        """Click FIN, REQ or TOUCH in the row of a message, once it is there."""
        await self.row(body).locator(f'[data-answer="{word}"]').click()

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            await self.page.keyboard.press(key)

    async def counted(self, name: str, expected: str) -> None:
        """Return once the gauge *name*, as ``finished``, shows *expected*."""
        await expect(self.page.locator(f"#count-{name}")).to_have_text(expected)

    # The rest

    async def open_tab(self, name: str) -> None:
        """On a phone: bring up topics, messages, publish or charts."""
        await self.page.click(f"#tab-{name}")

    async def publish(self, topic: str, body: str) -> None:
        """Fill in the form and click Publish."""
        await self.page.fill("#publish-topic", topic)
        await self.page.fill("#publish-body", body)
        await self.page.click("#publish")

    async def chart_says(self, chart: str) -> str:
        """Return a chart's text for screen readers, ``page-chart`` or ``queue-chart``."""
        return str(await run(self.page, _CHART, chart))

    async def too_wide(self) -> list[str]:
        """Return the elements that overflow horizontally, and by how much."""
        return list(await run(self.page, _FITS))

    async def barriers(self) -> list[str]:
        """Return the accessibility violations that axe-core finds, with their elements."""
        # A script that playwright hands in is no script of the page: its policy lets it be.
        await self.page.evaluate(axe_source())
        return list(await run(self.page, _BARRIERS))

    async def account_becomes(self, topic: str, channel: str, expected: Account) -> Account:
        """Return a channel's statistics from /stats once they are *expected*, or at the timeout."""

        async def look() -> Account:
            found = await self._account(topic, channel)
            return {name: found[name] for name in expected}

        return await poll_until(look, expected)

    async def _account(self, topic: str, channel: str) -> Account:
        query = {"format": "json", "topic": topic, "channel": channel}
        answer = await self.gateway.http.get("/stats", params=query)
        (found,) = answer.raise_for_status().json()["topics"]
        counts: dict[str, Any] = found["channels"][0]
        clients = counts["clients"] or []
        return {**counts, "finished": sum(client["finish_count"] for client in clients)}


async def open_console(visitor: Visitor, gateway: RunningGateway, **query: str) -> ConsolePage:
    """Open the messages of *gateway*'s console with *query*; return once its script runs."""
    return await open_view(visitor, gateway, "#/messages", **query)


async def open_view(
    visitor: Visitor, gateway: RunningGateway, view: str, **query: str
) -> ConsolePage:
    """Open the *view* (``#/…``) of *gateway*'s console; return once its script runs."""
    search = f"?{urlencode(query)}" if query else ""
    page = await visitor.open(f"{gateway.url}/console{search}{view}")
    await expect(page.locator("#connection-state")).not_to_have_text("loading")
    return ConsolePage(page, gateway)


async def make_channel(gateway: RunningGateway, topic: str, channel: str) -> None:
    """Create a topic with this channel through NSQ's HTTP API."""
    for path, names in (
        ("/topic/create", {"topic": topic}),
        ("/channel/create", {"topic": topic, "channel": channel}),
    ):
        (await gateway.http.post(path, params=names)).raise_for_status()
