"""A page that loads the gateway's JavaScript module, controlled by a test."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page

from tests.support.browser.browser_page import BrowserPage
from tests.support.browser.browsers import Visitor, run
from tests.support.gateways.gateway import RunningGateway

_BEGIN = """
const [address, url] = given;
const nsq = await import(address);
globalThis.errors = [];
globalThis.NsqError = nsq.NsqError;
globalThis.pull = (options) => nsq.pull({ url, ...options });
globalThis.subscribe = (options, work) => {
  const subscription = nsq.subscribe({ url, ...options }, work);
  subscription.addEventListener("error", (event) => {
    event.preventDefault();
    errors.push({ code: event.detail.code, text: String(event.detail) });
  });
  return subscription;
};
"""


async def module_page(
    visitor: Visitor, pages: BrowserPage, gateway: RunningGateway, *, url: str | None = None
) -> Page:
    """
    Return a page with ``subscribe``, ``pull``, and ``errors``, which its subscriptions reported.

    Its origin is not the gateway's, and it finds the gateway at *url*, or where that listens.
    """
    page = await visitor.open(pages.ours)
    await run(page, _BEGIN, f"{gateway.url}/nsq.js", url or gateway.url)
    return page


def consumer(topic: str, **more: object) -> dict[str, Any]:
    """Return the options of a consumer of channel "c"."""
    return {"topic": topic, "channel": "c", **more}
