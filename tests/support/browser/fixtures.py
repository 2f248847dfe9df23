"""Fixtures: visitors with both browsers, and servers of pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest
import pytest_asyncio

from tests.support.brokers.auth_server import AuthServer, Grant, auth_server
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.browser.browser_page import BrowserPage, browser_page
from tests.support.browser.browsers import BROWSERS, DESK, Browsers, Device, Visitor, browsers
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd

__all__ = [
    "allowing",
    "auths",
    "browser_name",
    "guarded",
    "pages",
    "running_browsers",
    "visitor",
    "visits",
]
"""What a conftest.py gets; others import by name."""

SECRET = "s3cret-of-alice"

Visits: TypeAlias = Callable[[Device], Awaitable[Visitor]]

PAIRED = pytest.mark.parametrize(
    "browser_name,kind",
    [
        pytest.param("chromium", "embedded", marks=pytest.mark.chromium),
        pytest.param("firefox", "nsqd", marks=[pytest.mark.firefox, pytest.mark.nsqd]),
    ],
    indirect=True,
)
"""Each browser once, each broker once: for what hangs on one of the two, and not on which both."""


@pytest.fixture(
    scope="session",
    params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in BROWSERS],
)
def browser_name(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running_browsers() -> AsyncIterator[Browsers]:
    """Return the browsers of this process, which run until its last test has ended."""
    async with browsers() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def visits(running_browsers: Browsers, browser_name: str) -> AsyncIterator[Visits]:
    """Return a factory of visitors with a given device, until the test ends."""
    async with AsyncExitStack() as life:

        async def visit(look: Device) -> Visitor:
            return await life.enter_async_context(running_browsers.visitor(browser_name, look))

        yield visit


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(visits: Visits) -> Visitor:
    return await visits(DESK)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pages() -> AsyncIterator[BrowserPage]:
    """Return where the page of a subscriber is, with an origin and a foreign one."""
    async with browser_page() as pages:
        yield pages


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def allowing(
    shared_broker: KillableBroker, pages: BrowserPage
) -> AsyncIterator[RunningGateway]:
    async with gateway_with_nsqd(
        [shared_broker.tcp_address],
        [shared_broker.http_address],
        f"--allow-origin={pages.ours}",
    ) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def auths() -> AsyncIterator[AuthServer]:
    """Return who knows the secret of alice, which is good for everything."""
    async with auth_server() as server:
        server.grant(SECRET, Grant(), identity="alice")
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def guarded(auths: AuthServer, pages: BrowserPage) -> AsyncIterator[RunningGateway]:
    """Return a gateway in front of an nsqd that asks *auths*, which the page may use."""
    async with (
        real_nsqd(f"--auth-http-address={auths.address}") as nsqd,
        gateway_with_nsqd(
            [nsqd.tcp_address], [nsqd.http_address], f"--allow-origin={pages.ours}"
        ) as gateway,
    ):
        yield gateway
