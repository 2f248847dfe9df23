"""The JavaScript module in a real browser, with tokens of a few seconds and messages flowing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.browser.browser_page import BrowserPage
from tests.support.browser.browsers import Visitor, run
from tests.support.browser.fixtures import PAIRED
from tests.support.browser.module_page import consumer, module_page
from tests.support.gateways.access_file import (
    TokenIssuer,
    access_file,
    api_key,
    grant,
    grant_claim,
    key_of,
)
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd, poll_until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), PAIRED]

LIFE_S = 4.0
LIVES = 3
NOTHING_LEFT = (0, 0, 0)

_CONSUME = """
globalThis.bodies = [];
globalThis.states = [];
const options = { ...given[0], secret: () => token() };
globalThis.s = subscribe(options, ({ body }) => void bodies.push(body));
s.addEventListener("state", ({ detail }) => states.push(detail.state));
await s.ready;
"""


class Guarded(NamedTuple):
    """A gateway with an access file, and the issuer that it trusts."""

    gateway: RunningGateway
    issuer: TokenIssuer


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def with_tokens(
    shared_broker: KillableBroker, pages: BrowserPage, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("access")
    issuer = TokenIssuer(folder)
    publisher = api_key("publisher", key_of("publisher"), grant(".*", "publish"))
    async with gateway_with_nsqd(
        [shared_broker.tcp_address],
        [shared_broker.http_address],
        f"--access-file={access_file(folder, issuer.entry, publisher)}",
        f"--allow-origin={pages.ours}",
    ) as gateway:
        gateway.http.headers["Authorization"] = f"Bearer {key_of('publisher')}"
        yield Guarded(gateway, issuer)


class Tokens:
    """What a page gets as ``token()``: a fresh token of alice at each call."""

    def __init__(self, issuer: TokenIssuer, topic: str) -> None:
        self._issuer = issuer
        self._topic = topic
        self.subject = "alice"
        self.given = 0

    def __call__(self) -> str:
        self.given += 1
        granted = ("subscribe", "publish")
        return self._issuer.token(self.subject, grant_claim(self._topic, *granted), life_s=LIFE_S)


async def test_a_subscription_outlives_its_tokens(
    visitor: Visitor, pages: BrowserPage, with_tokens: Guarded, topic: str
) -> None:
    """Over three lives on one socket: nothing is lost or doubled, and nothing reconnects."""
    gateway, issuer = with_tokens
    page = await module_page(visitor, pages, gateway)
    tokens = Tokens(issuer, topic)
    await page.expose_function("token", tokens)
    await run(page, _CONSUME, consumer(topic))
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + (LIVES + 0.5) * LIFE_S
    published: list[str] = []
    while loop.time() < ends_at:
        body = f"m{len(published)}"
        if len(published) % 2:
            await run(page, "await s.publish(...given)", topic, body)
        else:
            await gateway.publish(topic, body.encode())
        published.append(body)

    async def received() -> list[str]:
        return sorted(await run(page, "return bodies"))

    assert sorted(published) == await poll_until(received, sorted(published))
    assert NOTHING_LEFT == await gateway.counts_become(topic, "c", NOTHING_LEFT)
    # The first state came before the script could listen.
    assert [["connected"], []] == await run(page, "return [states, errors]")
    assert tokens.given > LIVES
    await run(page, "await s.close()")
    visitor.found_nothing_wrong(gateway.address, pages.ours.removeprefix("http://"))


async def test_a_token_of_somebody_else_does_not_renew(
    visitor: Visitor, pages: BrowserPage, with_tokens: Guarded, topic: str
) -> None:
    """The renewal is refused, the stream ends with its token, and reconnects as the other one."""
    gateway, issuer = with_tokens
    page = await module_page(visitor, pages, gateway)
    tokens = Tokens(issuer, topic)
    await page.expose_function("token", tokens)
    await run(page, _CONSUME, consumer(topic))
    tokens.subject = "bob"

    async def states() -> list[str]:
        return list(await run(page, "return states"))

    seen = ["connected", "waiting", "connecting", "connected"]
    assert seen == await poll_until(states, seen)
    codes = [each["code"] for each in await run(page, "return errors")]
    await gateway.publish(topic, b"after")

    async def bodies() -> list[str]:
        return list(await run(page, "return bodies"))

    assert ["after"] == await poll_until(bodies, ["after"])
    assert ["E_INVALID", "E_AUTH_FAILED"] == codes
    await run(page, "await s.close()")
    visitor.found_nothing_wrong(gateway.address, pages.ours.removeprefix("http://"))
