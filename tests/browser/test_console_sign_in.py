"""The console in a real browser: signing in by the access file, and what the user's rights hide."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.browser.browsers import Device, Visitor, run
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    THEN,
    WITH_ONE_BROKER,
    ConsolePage,
    open_console,
)
from tests.support.browser.fixtures import Visits
from tests.support.gateways.access_file import KeyGrant, key_of, write_access_file
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd

pytestmark = [pytest.mark.asyncio(loop_scope="session"), IN_CHROMIUM, WITH_ONE_BROKER]

# What a browser writes when a request is refused; no page can keep it from that.
REFUSED = r"status of 40[13]"
ALL = ("publish", "subscribe", "watch", "admin")
KEYS = {
    "alice": [KeyGrant(".*", ALL, [".*"])],
    "watcher": [KeyGrant("^orders", ["watch"])],
    "billing": [KeyGrant("^orders$", ["subscribe"], ["^billing$"])],
    "shop": [KeyGrant("^orders$", ["publish"])],
}
FINGER_PX = 44
# Buttons and links that are smaller than a finger.
SMALL = """
return [...document.querySelectorAll("header button, header a, dialog[open] button")]
  .map((each) => [each.id || each.textContent, each.getBoundingClientRect()])
  .filter(([, { width, height }]) => width > 0 && Math.min(width, height) < given[0])
  .map(([name, { width, height }]) => `${name}: ${width} by ${height} px`);
"""
KEPT = "return JSON.stringify([localStorage, sessionStorage, document.cookie])"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def keyed(
    shared_broker: KillableBroker, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningGateway]:
    path = write_access_file(tmp_path_factory.mktemp("access") / "access.toml", KEYS)
    async with gateway_with_nsqd(
        [shared_broker.tcp_address], [shared_broker.http_address], f"--access-file={path}"
    ) as gateway:
        yield gateway


async def sign_in(console: ConsolePage, name: str) -> None:
    """Enter the key of *name* in the dialog; return once it is accepted."""
    await console.page.fill("#sign-in-secret", key_of(name))
    await console.page.press("#sign-in-secret", "Enter")
    await expect(console.page.locator("#sign-in")).to_be_hidden()
    await expect(console.page.locator("#account")).to_have_text(name)


async def signed_in(
    visitor: Visitor, gateway: RunningGateway, name: str, **query: str
) -> ConsolePage:
    console = await open_console(visitor, gateway, **query)
    await sign_in(console, name)
    return console


async def test_the_console_asks_who_the_user_is(
    visitor: Visitor, keyed: RunningGateway, topic: str
) -> None:
    """A wrong key is refused with a text, the right one shows topics, subscribes and publishes."""
    console = await open_console(visitor, keyed)
    await expect(console.page.locator("#sign-in")).to_be_visible()
    await expect(console.page.locator("#sign-in-secret")).to_be_focused()
    await expect(console.notice).to_have_text("Sign in to see the topics.")
    await console.page.fill("#sign-in-secret", "wrong")
    await console.page.press("#sign-in-secret", "Enter")
    await expect(console.page.locator("#sign-in-trouble")).to_contain_text("refused it")
    await sign_in(console, "alice")
    await expect(console.page.locator("#secret")).to_be_hidden()
    await console.publish(topic, "over HTTP")
    await expect(console.published).to_have_text(f"OK: 1 message to {topic}, 9 bytes, over HTTP.")
    await console.choose(topic)
    await console.subscribe(topic, "c")
    await console.answer("over HTTP", "FIN")
    await console.publish(topic, "over the socket")
    await console.answer("over the socket", "FIN")
    await console.counted("finished", "2")
    kept = await run(console.page, KEPT)

    assert '[{},{},""]' == kept
    assert [] == await visitor.context.cookies()
    assert key_of("alice") not in console.page.url
    visitor.found_nothing_wrong(keyed.address, besides=REFUSED)


async def test_the_user_sees_who_it_is_and_signs_out(
    visitor: Visitor, keyed: RunningGateway, topic: str
) -> None:
    """The page is loaded again: nothing of the user is left, and the form is filled in still."""
    console = await signed_in(visitor, keyed, "billing", topic=topic)
    await console.page.click("#account")
    told = console.page.locator("#sign-in-identity")
    await expect(told).to_contain_text("billing")
    await expect(told).to_contain_text("API key")
    await expect(told).to_contain_text("no end")
    await expect(told).to_contain_text("subscribe: topic ^orders$, channels ^billing$")
    await console.page.click("#sign-out")
    await expect(console.page.locator("#sign-in")).to_be_visible()
    await expect(console.page.locator("#account")).to_have_text("Sign in")
    await expect(console.page.locator("#topic")).to_have_value(topic)

    assert "" == await console.page.input_value("#sign-in-secret")
    visitor.found_nothing_wrong(keyed.address, besides=REFUSED)


async def test_a_key_of_somebody_else_needs_a_sign_out(
    visitor: Visitor, keyed: RunningGateway
) -> None:
    console = await signed_in(visitor, keyed, "alice")
    await console.page.click("#account")
    await console.page.fill("#sign-in-secret", key_of("shop"))
    await console.page.press("#sign-in-secret", "Enter")
    trouble = console.page.locator("#sign-in-trouble")
    await expect(trouble).to_have_text("It belongs to shop (key): sign out first.")
    await console.page.press("#sign-in-secret", "Escape")
    await expect(console.page.locator("#account")).to_have_text("alice")

    visitor.found_nothing_wrong(keyed.address, besides=REFUSED)


@pytest.mark.parametrize(
    "name, topic, channel, may_subscribe, may_publish",
    [
        ("watcher", "orders-2", "", True, False),
        ("watcher", "orders", "billing", False, False),
        ("watcher", "invoices", "", False, False),
        ("billing", "orders", "billing", True, False),
        ("billing", "orders", "billing-2", False, False),
        ("billing", "orders", "", False, False),
        ("shop", "orders", "billing", False, True),
        ("shop", "orders-2", "", False, False),
        ("alice", "orders", "billing", True, True),
    ],
)
async def test_what_the_user_may_not_do_is_disabled(  # noqa: PLR0913 - two buttons and two names
    visitor: Visitor,
    keyed: RunningGateway,
    *,
    name: str,
    topic: str,
    channel: str,
    may_subscribe: bool,
    may_publish: bool,
) -> None:
    """With the reason beside the button and as its tooltip."""
    console = await signed_in(visitor, keyed, name)
    await console.page.fill("#topic", topic)
    await console.page.fill("#channel", channel)
    subscribe, publish = (console.page.locator(f"#{each}") for each in ("subscribe", "publish"))
    await expect(subscribe).to_be_enabled(enabled=may_subscribe)
    await expect(publish).to_be_enabled(enabled=may_publish)
    act = f"subscribe to {topic} {THEN} {channel}" if channel else f"watch {topic}"
    why_not = {
        "subscribe": "" if may_subscribe else f"{name} may not {act}: no grant allows it.",
        "publish": "" if may_publish else f"{name} may not publish to {topic}: no grant allows it.",
    }
    await expect(subscribe).to_have_attribute("title", why_not["subscribe"])
    await expect(publish).to_have_attribute("title", why_not["publish"])
    await expect(console.page.locator("#publish-denied")).to_have_text(why_not["publish"])
    if not may_subscribe:
        hint = console.page.locator("#subscription-hint")
        await expect(hint).to_have_text(why_not["subscribe"])

    visitor.found_nothing_wrong(keyed.address, besides=REFUSED)


async def test_nobody_signs_in_without_an_access_file(
    visitor: Visitor, gateway: RunningGateway, topic: str
) -> None:
    """The page is as it was: with a field for nsqd's secret, and with topics."""
    await gateway.publish(topic, b"x")
    console = await open_console(visitor, gateway)
    await expect(console.choice(topic)).to_be_visible()
    await expect(console.page.locator("#account")).to_be_hidden()
    await expect(console.page.locator("#sign-in")).to_be_hidden()
    await expect(console.page.locator("#secret")).to_be_visible()

    visitor.found_nothing_wrong(gateway.address)


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("is_phone", [False, True], ids=["desktop", "phone"])
@pytest.mark.javascript
async def test_signing_in_has_no_barrier(
    visits: Visits, keyed: RunningGateway, *, is_dark: bool, is_phone: bool
) -> None:
    """In the dialog before and after, and in the page with what the user may not do."""
    visitor = await visits(Device(is_phone=is_phone, is_dark=is_dark))
    console = await open_console(visitor, keyed)
    await expect(console.page.locator("#sign-in")).to_be_visible()
    barriers = {"dialog": await console.barriers()}
    await sign_in(console, "watcher")
    barriers["page"] = await console.barriers()
    if is_phone:
        await console.open_tab("publish")
        barriers["publish"] = await console.barriers()
    await console.page.click("#account")
    barriers["identity"] = await console.barriers()

    assert {key: [] for key in barriers} == barriers
    visitor.found_nothing_wrong(keyed.address, besides=REFUSED)


@pytest.mark.parametrize("width_px", [320, 390, 1280])
async def test_signing_in_fits_the_page(
    visits: Visits, keyed: RunningGateway, width_px: int
) -> None:
    """Nothing is wider than the page, and on a phone nothing is smaller than a finger."""
    is_phone = width_px < 860
    visitor = await visits(Device(is_phone=is_phone))
    console = await open_console(visitor, keyed)
    await console.page.set_viewport_size({"width": width_px, "height": 700})
    await expect(console.page.locator("#sign-in")).to_be_visible()
    wide = {"dialog": await console.too_wide()}
    small = {"dialog": await run(console.page, SMALL, FINGER_PX)}
    await sign_in(console, "billing")
    wide["page"] = await console.too_wide()
    await console.page.click("#account")
    wide["identity"] = await console.too_wide()
    small["identity"] = await run(console.page, SMALL, FINGER_PX)

    assert {key: [] for key in wide} == wide
    if is_phone:
        assert {key: [] for key in small} == small
    visitor.found_nothing_wrong(keyed.address, besides=REFUSED)


@pytest.mark.parametrize("name, is_allowed", [("alice", True), ("billing", False)])
async def test_only_an_administrator_may_manage(
    visitor: Visitor, keyed: RunningGateway, name: str, *, is_allowed: bool
) -> None:
    """Others see why not, and cannot press anything."""
    console = await signed_in(visitor, keyed, name, topic="orders", channel="billing")
    await console.page.click("#manage-open")
    denied = console.page.locator('#manage [data-part="denied"]').first
    actions = console.page.locator("#manage [data-action]:visible")
    await expect(actions.first).to_be_visible()

    if is_allowed:
        await expect(denied).to_be_hidden()
        await expect(actions.first).to_be_enabled()
    else:
        await expect(denied).to_contain_text(f"may not administer orders {THEN} billing")
        await expect(console.page.locator("#manage [data-action]:enabled")).to_have_count(0)
    visitor.found_nothing_wrong(keyed.address, besides=REFUSED)
