"""The pages of examples/, unchanged, in a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.browser.browsers import Browsers, Device, Visitor
from tests.support.browser.example_page_gateway import gateway_with_pages
from tests.support.browser.example_workers import EXAMPLES
from tests.support.browser.fixtures import PAIRED, Visits
from tests.support.gateways.access_file import TokenIssuer, access_file, grant_claim

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOTHING_LEFT = (0, 0, 0)

_NOTE_THE_RATE = """() => {
  const shown = document.getElementById("rate");
  globalThis.firstRate = new Promise((resolve) => {
    const note = () => Number(shown.textContent) && resolve(Number(shown.textContent));
    new MutationObserver(note).observe(shown, { childList: true });
  });
}"""


async def is_connected(page: Page) -> Page:
    await expect(page.locator("#state")).to_have_text("connected")
    return page


@PAIRED
async def test_the_dashboard_counts(
    shared_broker: KillableBroker, topic: str, visitor: Visitor
) -> None:
    """Orders, their sums, and the last ten, newest first; markup in a message stays text."""
    markup = "<img src=x onerror=alert(1)>"
    orders = [b'{"product":"tea","amount":%d}' % (10 + number) for number in range(11)]
    async with gateway_with_pages(EXAMPLES / "dashboard", shared_broker) as gateway:
        page = await is_connected(await visitor.open(f"{gateway.url}/?topic={topic}"))
        await page.evaluate(_NOTE_THE_RATE)
        for order in [b'{"product":"milk","amount":1.5}', *orders, markup.encode()]:
            await gateway.publish(topic, order)
        await expect(page.locator("#count")).to_have_text("13")
        rows = await page.locator("#sums tr").all_inner_texts()
        last = await page.locator("#last li").all_inner_texts()
        rate = await page.evaluate("firstRate")
        await expect(page.locator("#rate")).to_have_text("0")
        visitor.found_nothing_wrong(gateway.address)

    assert ["milk\t1.50", "tea\t165.00"] == [row.strip() for row in rows]
    assert 1 <= rate <= 13
    assert [markup, *(order.decode() for order in reversed(orders[2:]))] == last


@PAIRED
async def test_the_dashboard_is_dark_where_that_is_liked(
    shared_broker: KillableBroker, topic: str, visits: Visits
) -> None:
    """Its text is light then, by the browser's own colors."""
    visitor = await visits(Device(is_dark=True))
    async with gateway_with_pages(EXAMPLES / "dashboard", shared_broker) as gateway:
        page = await is_connected(await visitor.open(f"{gateway.url}/?topic={topic}"))

        color = await page.evaluate("getComputedStyle(document.body).color")
        assert min(map(int, re.findall(r"\d+", color))) > 200, color
        visitor.found_nothing_wrong(gateway.address)


async def with_a_clock(visitor: Visitor, url: str) -> Page:
    """Return the page at *url*, connected, whose time the test may move."""
    page = await visitor.context.new_page()
    await page.clock.install()
    await page.goto(url)
    return await is_connected(page)


async def takes(page: Page) -> Locator:
    """Let *page* take a job; return the job once it is there."""
    taken = page.locator("#mine li")
    count = await taken.count()
    await page.get_by_role("button", name="Take a job").click()
    await expect(taken).to_have_count(count + 1)
    return taken.nth(count)


@PAIRED
async def test_a_job_is_taken_and_finished(
    shared_broker: KillableBroker, topic: str, visitor: Visitor
) -> None:
    """It appears on the page, is in flight after the click, and is gone after the last one."""
    async with gateway_with_pages(EXAMPLES / "work-queue", shared_broker) as gateway:
        page = await is_connected(await visitor.open(f"{gateway.url}/?topic={topic}&channel=c"))
        await page.get_by_label("New job").fill("call Ada back")
        await page.get_by_role("button", name="Add").click()
        waiting = await gateway.counts_become(topic, "c", (1, 0, 0))
        job = await takes(page)
        held = await gateway.counts_become(topic, "c", (0, 1, 0))
        text = await job.locator("strong").inner_text()
        await job.get_by_role("button", name="Finish").click()
        await expect(page.locator("#mine li")).to_have_count(0)
        left = await gateway.counts_become(topic, "c", NOTHING_LEFT)
        visitor.found_nothing_wrong(gateway.address)

    assert ((1, 0, 0), (0, 1, 0), "call Ada back") == (waiting, held, text)
    assert NOTHING_LEFT == left


@PAIRED
async def test_a_requeued_job_goes_to_another_page(
    shared_broker: KillableBroker, topic: str, visitor: Visitor
) -> None:
    async with gateway_with_pages(EXAMPLES / "work-queue", shared_broker) as gateway:
        url = f"{gateway.url}/?topic={topic}&channel=c"
        one = await is_connected(await visitor.open(url))
        other = await is_connected(await visitor.open(url))
        await gateway.publish(topic, b"call Ada back")
        job = await takes(one)
        await other.get_by_role("button", name="Take a job").click()
        await expect(other.locator("#note")).to_have_text("Waiting for a job")
        seen = await other.locator("#mine li").count()
        await job.get_by_role("button", name="Requeue").click()
        await expect(other.locator("#mine strong")).to_have_text("call Ada back")
        await expect(other.locator("#mine span")).to_contain_text("attempt 2")
        await expect(one.locator("#mine li")).to_have_count(0)
        await other.get_by_role("button", name="Finish").click()
        left = await gateway.counts_become(topic, "c", NOTHING_LEFT)
        visitor.found_nothing_wrong(gateway.address)

    assert (0, NOTHING_LEFT) == (seen, left)


@PAIRED
async def test_a_user_signs_in_to_the_queue(
    shared_broker: KillableBroker, topic: str, visitor: Visitor, tmp_path: Path
) -> None:
    """A token that is not valid is asked for again; a right one takes jobs, and adds none."""
    issuer = TokenIssuer(tmp_path)
    token = issuer.token("bob", grant_claim(f"^{topic}$", "subscribe", channels=["^c$"]))
    flags = f"--access-file={access_file(tmp_path, issuer.entry)}"
    async with gateway_with_pages(EXAMPLES / "work-queue", shared_broker, flags) as gateway:
        page = await visitor.open(f"{gateway.url}/?topic={topic}&channel=c")
        await page.get_by_label("Token or key").fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#note")).to_contain_text("the token or key is not valid here")
        await page.get_by_label("Token or key").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await is_connected(page)
        await expect(page.locator("#who")).to_have_text("bob")
        await expect(page.locator("#sign-in")).to_be_hidden()
        await page.get_by_label("New job").fill("call Ada back")
        await page.get_by_role("button", name="Add").click()
        await expect(page.locator("#note")).to_contain_text('"bob" may not publish to topic')
        publisher = issuer.token("alice", grant_claim(f"^{topic}$", "publish"))
        await gateway.http.post(
            "/pub",
            content=b"call Ada back",
            params={"topic": topic},
            headers={"Authorization": f"Bearer {publisher}"},
        )
        job = await takes(page)
        await job.get_by_role("button", name="Finish").click()
        left = await gateway.counts_become(topic, "c", NOTHING_LEFT)
        visitor.found_nothing_wrong(gateway.address, besides="status of 401")

    assert NOTHING_LEFT == left


@pytest.mark.chromium
@pytest.mark.parametrize("browser_name,kind", [("chromium", "embedded")], indirect=True)
async def test_the_queue_asks_for_another_token_when_one_has_ended(
    shared_broker: KillableBroker, topic: str, visitor: Visitor, tmp_path: Path
) -> None:
    issuer = TokenIssuer(tmp_path)
    flags = f"--access-file={access_file(tmp_path, issuer.entry)}"
    async with gateway_with_pages(EXAMPLES / "work-queue", shared_broker, flags) as gateway:
        page = await visitor.open(f"{gateway.url}/?topic={topic}&channel=c")
        for life_s in (3, 3_600):
            token = issuer.token("bob", grant_claim(f"^{topic}$", "subscribe"), life_s=life_s)
            await page.get_by_label("Token or key").fill(token)
            await page.get_by_role("button", name="Sign in").click()
            await is_connected(page)
            if life_s == 3:
                await expect(page.locator("#sign-in")).to_be_visible(timeout=30_000)
        visitor.found_nothing_wrong(gateway.address, besides="status of 401")


@PAIRED
async def test_a_click_extends_the_deadline(
    shared_broker: KillableBroker, topic: str, visitor: Visitor
) -> None:
    """The remaining time counts down, and restarts at a click."""
    async with gateway_with_pages(EXAMPLES / "work-queue", shared_broker) as gateway:
        page = await with_a_clock(visitor, f"{gateway.url}/?topic={topic}&channel=c")
        await gateway.publish(topic, b"call Ada back")
        job = await takes(page)
        await page.clock.fast_forward(25_000)
        await expect(job.locator("span")).to_have_text(re.compile("^[23]. s left"))
        await job.get_by_role("button", name="More time").click()
        await expect(job.locator("span")).to_have_text(re.compile("^(5.|60) s left"))
        await job.get_by_role("button", name="Finish").click()
        left = await gateway.counts_become(topic, "c", NOTHING_LEFT)
        visitor.found_nothing_wrong(gateway.address)

    assert NOTHING_LEFT == left


@PAIRED
async def test_a_job_that_timed_out_is_redelivered(
    shared_broker: KillableBroker, topic: str, visitor: Visitor
) -> None:
    """When its minute is over it leaves the page, and waits for whoever takes the next one."""
    async with gateway_with_pages(EXAMPLES / "work-queue", shared_broker) as gateway:
        page = await with_a_clock(visitor, f"{gateway.url}/?topic={topic}&channel=c")
        await gateway.publish(topic, b"call Ada back")
        await takes(page)
        await page.clock.fast_forward(61_000)
        await expect(page.locator("#note")).to_contain_text(
            "Expired, the job will be delivered again"
        )
        await expect(page.locator("#mine li")).to_have_count(0)
        waiting = await gateway.counts_become(topic, "c", (1, 0, 0))
        again = await takes(page)
        await expect(again.locator("span")).to_contain_text("attempt 2")
        await again.get_by_role("button", name="Finish").click()
        left = await gateway.counts_become(topic, "c", NOTHING_LEFT)
        visitor.found_nothing_wrong(gateway.address)

    assert ((1, 0, 0), NOTHING_LEFT) == (waiting, left)


@pytest.mark.chromium
@pytest.mark.firefox
async def test_two_browsers_share_a_queue(
    shared_broker: KillableBroker, topic: str, running_browsers: Browsers
) -> None:
    """Chromium and Firefox take turns: every job is finished once, by one of them."""
    jobs = [f"job {number}" for number in range(10)]
    async with (
        gateway_with_pages(EXAMPLES / "work-queue", shared_broker) as gateway,
        running_browsers.visitor("chromium") as one,
        running_browsers.visitor("firefox") as other,
    ):
        url = f"{gateway.url}/?topic={topic}&channel=c"
        pages = [await is_connected(await visitor.open(url)) for visitor in (one, other)]
        await gateway.post("/mpub", "\n".join(jobs).encode(), topic=topic)
        finished: list[str] = []
        for _ in range(len(jobs) // 2):
            for job in [await takes(page) for page in pages]:
                finished.append(await job.locator("strong").inner_text())
                await job.get_by_role("button", name="Finish").click()
        left = await gateway.counts_become(topic, "c", NOTHING_LEFT)
        one.found_nothing_wrong(gateway.address)
        other.found_nothing_wrong(gateway.address)

    assert (jobs, NOTHING_LEFT) == (sorted(finished), left)
