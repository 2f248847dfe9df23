"""docs/flows.md is true: the modules that a publish, a delivery and a drain really pass."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import reduce
from pathlib import Path
from types import FrameType

import httpx
import pytest

import gateway
from gateway.server.service import Service
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.gateways.free_port_settings import serve_settings
from tests.support.gateways.gateway import poll_until
from tests.support.websocket.subscriber_client import subscribe

pytestmark = pytest.mark.nsqd

CODE = f"{Path(gateway.__file__).parent}/"
PAGE = (Path(gateway.__file__).parents[1] / "docs" / "flows.md").read_text()
ROUNDS = 5
"""What is seen in each of them belongs to the flow; timers come now and then."""

Passed = list[str]
"""Modules in the order in which they were first called."""


@contextmanager
def calls_recorded() -> Iterator[Passed]:
    """Return the modules of `gateway/` that this thread calls until the block ends."""
    passed: dict[str, None] = {}

    def record(frame: FrameType, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(CODE):
            passed.setdefault(path.removeprefix(CODE).removesuffix(".py"))

    modules: Passed = []
    sys.setprofile(record)
    try:
        yield modules
    finally:
        sys.setprofile(None)
        modules += passed


def documented(flow: str) -> tuple[Passed, set[str]]:
    """Return the modules on the way of *flow* in order, and those that the page sets beside it."""
    section = PAGE.partition(f"## {flow}\n")[2].partition("\n## ")[0]
    block, _, rest = section.partition("```\n")[2].partition("```\n")
    beside = rest.partition("Beside the way: ")[2].partition("\n\n")[0]
    way = re.findall(r"^ *([a-z_]+(?:/[a-z_]+)*)  ", block, re.MULTILINE)
    return list(dict.fromkeys(way)), set(re.findall(r"`([a-z_/]+)`", beside))


def common(rounds: list[Passed]) -> Passed:
    """Return the modules of every round, in the order of the first."""
    return reduce(lambda some, more: [each for each in some if each in more], rounds)


def check(flow: str, passed: Passed, at_most: int) -> None:
    """Compare with the page: its way in its order, and no module that it does not name."""
    way, beside = documented(flow)
    assert way == [module for module in passed if module in way]
    assert set() == set(passed) - set(way) - beside
    assert all((Path(CODE) / f"{name}.py").exists() for name in beside)
    assert 0 < len(way) <= at_most


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Service, RealNsqd, httpx.AsyncClient]]:
    """Run a gateway in this process, in front of an nsqd, with a client that keeps a connection."""
    async with real_nsqd() as nsqd:
        service = Service(
            serve_settings(nsqd_tcp_address=nsqd.tcp_address, nsqd_http_address=nsqd.http_address)
        )
        await service.start()
        try:
            url = f"http://{service.address}"
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                yield service, nsqd, client
        finally:
            await service.stop()


async def test_a_publish_passes_the_modules_of_the_page() -> None:
    """From the bytes of a request on a connection that is open to its 200."""
    async with running() as (_service, _nsqd, client):
        rounds = []
        for _ in range(1 + ROUNDS):
            with calls_recorded() as passed:
                answer = await client.post("/pub?topic=flows", content=b"hello")
            assert 200 == answer.status_code
            rounds.append(passed)

    check("A publish", common(rounds[1:]), at_most=14)


async def test_a_delivery_and_its_fin_pass_the_modules_of_the_page() -> None:
    """From the bytes of nsqd to the socket, and from the client's FIN to nsqd."""
    async with running() as (service, nsqd, _client):
        rounds = []
        async with (
            subscribe(f"http://{service.address}", "flows", "c") as subscriber,
            httpx.AsyncClient(base_url=f"http://{nsqd.http_address}", trust_env=False) as broker,
        ):

            async def finished() -> int:
                stats = (await broker.get("/stats?format=json&topic=flows")).json()
                return int(stats["topics"][0]["channels"][0]["clients"][0]["finish_count"])

            for count in range(1, 2 + ROUNDS):
                with calls_recorded() as passed:
                    (await broker.post("/pub?topic=flows", content=b"hello")).raise_for_status()
                    message = await subscriber.message()
                    await subscriber.send({"cmd": "FIN", "id": message["id"]})
                    assert count == await poll_until(finished, count)
                rounds.append(passed)

    check("A delivery and its FIN", common(rounds[1:]), at_most=14)


async def test_a_drain_passes_the_modules_of_the_page() -> None:
    """With one connection of HTTP and one socket that holds nothing."""
    async with running() as (service, _nsqd, client):
        (await client.post("/pub?topic=flows", content=b"hello")).raise_for_status()
        async with subscribe(f"http://{service.address}", "flows", "c"):
            with calls_recorded() as passed:
                await service.drain()

    check("A drain", passed, at_most=12)
