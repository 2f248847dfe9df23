"""The console in a real browser: tokens that end, and forms of other sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.browser.browser_page import BrowserPage
from tests.support.browser.browsers import Visitor, run
from tests.support.browser.console_page import (
    IN_CHROMIUM,
    WITH_ONE_BROKER,
    ConsolePage,
    open_console,
)
from tests.support.gateways.access_file import (
    TokenIssuer,
    access_file,
    api_key,
    grant,
    grant_claim,
    key_of,
)
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd

pytestmark = [pytest.mark.asyncio(loop_scope="session"), IN_CHROMIUM, WITH_ONE_BROKER]

# What a browser writes when a request is refused; no page can keep it from that.
REFUSED = r"status of 40[13]"
ALL = ("publish", "subscribe", "watch")
# Another site's form: its page cannot add headers, and cookies there are none.
_FORM = """
const form = document.createElement("form");
Object.assign(form, { method: "POST", enctype: "text/plain", action: given[0] });
form.append(Object.assign(document.createElement("input"), { name: "forged", value: "x" }));
document.body.append(form);
form.submit();
"""


class Guarded(NamedTuple):
    """A gateway with an access file, and the issuer that it trusts."""

    gateway: RunningGateway
    issuer: TokenIssuer

    def token(self, topic: str, *, life_s: float) -> str:
        """Return a token of alice for everything with *topic*, which ends in *life_s*."""
        return self.issuer.token("alice", grant_claim(topic, *ALL), life_s=life_s)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def with_tokens(
    shared_broker: KillableBroker, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("access")
    issuer = TokenIssuer(folder)
    publisher = api_key("publisher", key_of("publisher"), grant(".*", "publish"))
    async with gateway_with_nsqd(
        [shared_broker.tcp_address],
        [shared_broker.http_address],
        f"--access-file={access_file(folder, issuer.entry, publisher)}",
    ) as gateway:
        gateway.http.headers["Authorization"] = f"Bearer {key_of('publisher')}"
        yield Guarded(gateway, issuer)


async def enter(console: ConsolePage, token: str) -> None:
    """Enter a token in the dialog, which is open; return once it is accepted."""
    await console.page.fill("#sign-in-secret", token)
    await console.page.press("#sign-in-secret", "Enter")
    await expect(console.page.locator("#sign-in")).to_be_hidden()


async def test_a_newer_token_carries_the_subscription_on(
    visitor: Visitor, with_tokens: Guarded, topic: str
) -> None:
    """On the socket of the first one, past its end."""
    gateway = with_tokens.gateway
    life_s = 6.0
    loop = asyncio.get_running_loop()
    console = await open_console(visitor, gateway)
    ends_at = loop.time() + life_s
    await enter(console, with_tokens.token(topic, life_s=life_s))
    await console.subscribe(topic, "c")
    await console.page.click("#account")
    until = console.page.locator('#sign-in-identity [data-part="until"]')
    await expect(until).to_contain_text(", in ")
    await enter(console, with_tokens.token(topic, life_s=3_600))
    number = 0
    while loop.time() < ends_at + 3:
        await gateway.publish(topic, f"m{number}".encode())
        await console.answer(f"m{number}", "FIN")
        number += 1
    await console.counted("finished", str(number))
    await expect(console.state).to_have_text("connected")
    await expect(console.page.locator("#account")).to_have_text("alice")

    assert 1 == sum("/sub?" in each for each in visitor.asked)
    visitor.found_nothing_wrong(gateway.address, besides=REFUSED)


async def test_the_end_of_a_token_is_announced_and_a_newer_one_reconnects(
    visitor: Visitor, with_tokens: Guarded, topic: str
) -> None:
    """A warning before it; after it nothing can be done until the user signs in again."""
    gateway = with_tokens.gateway
    console = await open_console(visitor, gateway)
    await enter(console, with_tokens.token(topic, life_s=5))
    await console.subscribe(topic, "c")
    account = console.page.locator("#account")
    await expect(account).to_have_attribute("data-tone", "warn")
    warned = await account.inner_text()
    await expect(account).to_have_text("Sign in again")
    await expect(console.page.locator("#subscribe")).to_be_disabled()
    await expect(console.page.locator("#publish")).to_be_disabled()
    await expect(console.state).to_have_text("waiting")
    await account.click()
    await expect(console.page.locator("#sign-in-ended")).to_be_visible()
    barriers = await console.barriers()
    await enter(console, with_tokens.token(topic, life_s=3_600))
    await expect(console.state).to_have_text("connected")
    await gateway.publish(topic, b"after")
    await console.answer("after", "FIN")
    await console.counted("finished", "1")

    assert "alice" in warned
    assert warned.endswith(" left")
    assert [] == barriers
    visitor.found_nothing_wrong(gateway.address, besides=REFUSED)


async def test_a_form_of_another_site_publishes_nothing(
    visitor: Visitor, with_tokens: Guarded, pages: BrowserPage, topic: str
) -> None:
    """While the user is signed in, in the same browser."""
    gateway = with_tokens.gateway
    console = await open_console(visitor, gateway)
    await enter(console, with_tokens.token(topic, life_s=3_600))
    await gateway.publish(topic, b"wanted")
    other = await visitor.open(pages.ours)
    async with other.expect_response(lambda answer: "/pub" in answer.url) as answered:
        await run(other, _FORM, f"{gateway.url}/pub?topic={topic}")
    answer = await answered.value
    sent = await answer.request.all_headers()
    await console.subscribe(topic, "c")
    await console.answer("wanted", "FIN")
    await console.counted("received", "1")

    assert answer.status in (401, 403)
    assert ("POST", False, False) == (
        answer.request.method,
        "cookie" in sent,
        "authorization" in sent,
    )
    assert "set-cookie" not in await answer.all_headers()
