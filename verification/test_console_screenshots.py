"""
The screenshots of the console in docs/images/.

With NSQ_GATEWAY_SCREENSHOTS=1 (``make screenshots``) they are written. Without it the same are
taken and thrown away, and those in docs/images/ must be there and as large: what is in them changes
with the time of day, so nothing else can be compared.
"""

from __future__ import annotations

import json
import os
import re
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.support.browser.browsers import DESKTOP, PHONE, Browsers, Device, run
from tests.support.browser.console_page import ConsolePage, make_channel, open_console, open_view
from tests.support.browser.png import compressed, size_px
from tests.support.gateways.gateway import RunningGateway, gateway_alone, poll_until
from tests.support.project import ROOT

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.chromium]

IMAGES = ROOT / "docs" / "images"
WRITES = os.environ.get("NSQ_GATEWAY_SCREENSHOTS") == "1"
LARGEST_BYTES = 150 * 1024
CUSTOMERS = (
    ("Ada Lovelace", "Lisbon"),
    ("Grace Hopper", "New York"),
    ("Alan Turing", "Manchester"),
    ("Katherine Johnson", "Hampton"),
    ("Edsger Dijkstra", "Rotterdam"),
    ("Barbara Liskov", "Boston"),
)
ITEMS = ("teapot", "lantern", "compass", "umbrella", "notebook")
FIRST_ORDER = 4711
LAST = 9
"""Orders that came just now."""
FINISH_ALL = """
for (const row of document.querySelectorAll('#message-rows [data-state="in flight"]'))
  row.querySelector('[data-answer="FIN"]').click();
"""
UNKNOWN = re.compile("^\N{EN DASH}$")
"""In place of a number: a rate is known with the second reading of /stats."""
SHARP = """
return [...document.querySelectorAll("canvas")]
  .filter(({ clientWidth }) => clientWidth > 0)
  .every(({ width, clientWidth }) => width === Math.round(clientWidth * devicePixelRatio));
"""
STEPS = 55 if WRITES else 2
STEP_MS = 3_000
AHEAD_MS = 50
"""What the page's clock gets in addition: it stands still while it is advanced."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One of them; the name says what is seen."""

    is_phone: bool
    is_dark: bool

    @property
    def path(self) -> Path:
        """Where it is."""
        where, color = (
            ("phone" if self.is_phone else "desktop"),
            ("dark" if self.is_dark else "light"),
        )
        return IMAGES / f"console-{where}-{color}.png"

    @property
    def scale(self) -> int:
        """Pixels of the picture for each of the page."""
        return 2 if self.is_phone else 1


@dataclass(frozen=True, kw_only=True)
class PagePicture(Picture):
    """A page of the cluster."""

    page: str
    address: str

    @property
    def path(self) -> Path:
        """Where it is."""
        return IMAGES / super().path.name.replace("console-", f"console-{self.page}-")


PAGES = {
    "overview": "#/",
    "topic": "#/topics/orders",
    "channel": "#/topics/orders/billing",
    "nodes": "#/nodes",
}
PAGE_PICTURES = [
    PagePicture(is_phone=is_phone, is_dark=is_dark, page=page, address=address)
    for page, address in PAGES.items()
    for is_phone, is_dark in ((False, False), (False, True), (True, False))
]
PICTURES = [
    Picture(is_phone=is_phone, is_dark=is_dark)
    for is_phone in (False, True)
    for is_dark in (False, True)
]


def order(number: int) -> bytes:
    """Return the body of an order."""
    name, city = CUSTOMERS[number % len(CUSTOMERS)]
    lines = [
        {"item": ITEMS[(number + each) % len(ITEMS)], "count": 1 + number % 3}
        for each in range(1 + number % 2)
    ]
    total = 10 * len(lines) + 3.5 * (number % 7)
    document = {
        "order": FIRST_ORDER + number,
        "customer": name,
        "city": city,
        "total": total,
        "lines": lines,
    }
    return json.dumps(document).encode()


@pytest_asyncio.fixture(loop_scope="session")
async def shop() -> AsyncIterator[RunningGateway]:
    """Return a gateway of a shop, with some topics and no consumers yet."""
    async with gateway_alone() as gateway:
        for topic, channel in (
            ("orders", "billing"),
            ("orders", "shipping"),
            ("payments", "ledger"),
            ("returns", "warehouse"),
            ("mails", "outbox"),
        ):
            await make_channel(gateway, topic, channel)
        for topic, count in (("payments", 3), ("mails", 128)):
            bodies = (json.dumps({"number": number}) for number in range(count))
            await gateway.post("/mpub", "\n".join(bodies).encode(), topic=topic)
        yield gateway


async def work(console: ConsolePage) -> None:
    """Have minutes pass in which orders come and are finished; answer some more, leave one open."""
    came = 0
    for step in range(STEPS):
        coming = 3 + step * step % 7 + (38 if step % 19 == 11 else 0)
        bodies = (order(came + each) for each in range(coming))
        await console.gateway.post("/mpub", b"\n".join(bodies), topic="orders")
        came += coming
        await console.page.clock.run_for(STEP_MS)
        await run(console.page, FINISH_ALL)
    while await console.page.locator("#count-finished").inner_text() != str(came):
        await run(console.page, FINISH_ALL)
        await console.page.clock.run_for(1_000)
    await catch_up(console)
    # What was answered fades away after a while: the picture is taken before that.
    await console.page.select_option("#req-delay", "60000")
    bodies = (order(came + each) for each in range(LAST))
    await console.gateway.post("/mpub", b"\n".join(bodies), topic="orders")
    await expect(console.row(f'"order": {FIRST_ORDER + came + LAST - 1}')).to_be_visible()
    await console.page.clock.run_for(1_000)
    await console.page.locator("h1").click()
    await console.press("j", *["k"] * LAST, "j", "f", "r", "f")
    await expect(console.detail).to_be_visible()
    published = await console.detail.locator('[data-part="published"]').inner_text()
    assert published <= await console.rows.locator('[data-part="time"]').first.inner_text()


async def catch_up(console: ConsolePage) -> None:
    """Advance the page's clock to ours: behind it, messages come before they are published."""
    while (page_ms := await console.page.evaluate("Date.now()")) < time.time() * 1_000:
        await console.page.clock.run_for(int(time.time() * 1_000) - page_ms + AHEAD_MS)


async def picture_of(console: ConsolePage, picture: Picture) -> bytes:
    """Return what is seen, as a PNG of a screen with so many pixels."""
    viewport = PHONE if picture.is_phone else DESKTOP
    metrics = {**viewport, "deviceScaleFactor": picture.scale, "mobile": False}
    devtools = await console.page.context.new_cdp_session(console.page)
    await devtools.send("Emulation.setDeviceMetricsOverride", metrics)
    assert await poll_until(lambda: run(console.page, SHARP), expected=True)
    taken = await devtools.send("Page.captureScreenshot", {"format": "png"})
    return b64decode(taken["data"])


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.path.stem)
async def test_a_picture_of_the_console_is_there(
    running_browsers: Browsers, shop: RunningGateway, picture: Picture
) -> None:
    """In docs/images/, as large as the page is now, and small enough for a README."""
    look = Device(is_phone=picture.is_phone, is_dark=picture.is_dark)
    async with running_browsers.visitor("chromium", look) as visitor:
        begin = datetime.now(UTC) - timedelta(milliseconds=STEPS * STEP_MS, seconds=8)
        await visitor.context.clock.install(time=begin)
        console = await open_console(visitor, shop)
        await console.choose("orders", "billing")
        await console.page.fill("#max-in-flight", "25")
        await console.click_subscribe()
        await work(console)
        taken = await picture_of(console, picture)
        visitor.found_nothing_wrong(shop.address)
    keep_and_compare(picture, taken)


@pytest.mark.parametrize("picture", PAGE_PICTURES, ids=lambda picture: picture.path.stem)
async def test_a_picture_of_each_page_is_there(
    running_browsers: Browsers, shop: RunningGateway, picture: PagePicture
) -> None:
    """While somebody consumes one channel of the orders, and nobody the others."""
    look = Device(is_phone=picture.is_phone, is_dark=picture.is_dark)
    await shop.post("/mpub", b"\n".join(map(order, range(60))), topic="orders")
    async with (
        shop.subscribe("orders", "billing", max_in_flight=25),
        running_browsers.visitor("chromium", look) as visitor,
    ):
        console = await open_view(visitor, shop, picture.address)
        await expect(console.page.locator("#pages tbody tr:visible").first).to_be_visible()
        unknown = console.page.locator("#pages dd:visible").filter(has_text=UNKNOWN)
        await expect(unknown).to_have_count(0)
        if picture.page == "channel":
            await expect(console.page.locator("#subject")).to_contain_text("nsq-gateway/")
        taken = await picture_of(console, picture)
        visitor.found_nothing_wrong(shop.address)
    keep_and_compare(picture, taken)


def keep_and_compare(picture: Picture, taken: bytes) -> None:
    """Write what was *taken* if that is wanted; check that the kept one is as large."""
    if WRITES:
        IMAGES.mkdir(exist_ok=True)
        picture.path.write_bytes(compressed(taken))
    kept = picture.path.read_bytes()

    viewport = PHONE if picture.is_phone else DESKTOP
    expected = (viewport["width"] * picture.scale, viewport["height"] * picture.scale)
    assert [expected, expected] == [size_px(taken), size_px(kept)]
    assert len(kept) < LARGEST_BYTES
