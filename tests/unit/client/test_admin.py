"""Tests of `Administration`: which nodes get a request, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.client.admin import Administration
from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import InvalidRequest, NoNsqdHttpAddress, PartialFailure
from tests.support.brokers.scripted_lookupd import (
    LookupRequest,
    ScriptedLookupd,
    respond,
    scripted_lookupd,
)

NO_TOPIC = respond(404, b'{"message":"TOPIC_NOT_FOUND"}')
DONE = respond(200, b"")


class Cluster:
    """An nsqd and an nsqlookupd that answer OK and record requests in order."""

    def __init__(self, nsqd: ScriptedLookupd, lookupd: ScriptedLookupd) -> None:
        self.nsqd, self.lookupd = nsqd, lookupd
        self.told: list[str] = []
        self.nsqd_says = self.lookupd_says = DONE
        nsqd.rule = self._nsqd
        lookupd.rule = self._lookupd

    async def _nsqd(self, question: LookupRequest) -> None:
        self.told.append(f"nsqd {question.target}")
        await self.nsqd_says(question)

    async def _lookupd(self, question: LookupRequest) -> None:
        if question.target.startswith("/nodes"):
            await respond(200, b'{"producers":[]}')(question)
            return
        self.told.append(f"nsqlookupd {question.target}")
        await self.lookupd_says(question)


@asynccontextmanager
async def cluster(*, has_nsqd: bool = True) -> AsyncIterator[tuple[Cluster, Administration]]:
    """Run a cluster and an `Administration` for it."""
    async with scripted_lookupd() as nsqd, scripted_lookupd() as lookupd:
        both = Cluster(nsqd, lookupd)
        options = LookupOptions(lookupd_http_addresses=(lookupd.address,))
        discovery = Discovery((), options)
        await discovery.start()
        nsqds = NsqdHttp([nsqd.address] if has_nsqd else [], discovery)
        await nsqds.start()
        try:
            yield both, Administration(nsqds, discovery)
        finally:
            await nsqds.stop()
            await discovery.stop()


@pytest.mark.parametrize("action", ["create", "delete"])
async def test_nsqlookupd_is_told_first_of_what_comes_and_goes(action: str) -> None:
    """Consumers must not find a topic that is being deleted."""
    async with cluster() as (both, administration):
        await administration.change_topic(action, b"t#ephemeral")

    target = f"/topic/{action}?topic=t%23ephemeral"
    assert [f"nsqlookupd {target}", f"nsqd {target}"] == both.told


@pytest.mark.parametrize("action", ["empty", "pause", "unpause"])
async def test_nsqlookupd_knows_nothing_of_the_rest(action: str) -> None:
    async with cluster() as (both, administration):
        await administration.change_topic(action, b"t")
        await administration.change_channel(action, "t", "c")

    assert [
        f"nsqd /topic/{action}?topic=t",
        f"nsqd /channel/{action}?topic=t&channel=c",
    ] == both.told


async def test_a_channel_comes_with_its_topic() -> None:
    """nsqlookupd creates both with one request, nsqd with two."""
    async with cluster() as (both, administration):
        await administration.change_channel("create", "t", "c")

    assert [
        "nsqlookupd /channel/create?topic=t&channel=c",
        "nsqd /topic/create?topic=t",
        "nsqd /channel/create?topic=t&channel=c",
    ] == both.told


async def test_a_channel_goes_without_its_topic() -> None:
    """The request goes to nsqlookupd first."""
    async with cluster() as (both, administration):
        await administration.change_channel("delete", "t", "c")

    assert [
        "nsqlookupd /channel/delete?topic=t&channel=c",
        "nsqd /channel/delete?topic=t&channel=c",
    ] == both.told


async def test_an_nsqlookupd_that_fails_keeps_no_nsqd_from_its_work() -> None:
    """The error names it at the end."""
    async with cluster() as (both, administration):
        both.lookupd_says = respond(500, b'{"message":"INTERNAL_ERROR"}')
        with pytest.raises(PartialFailure) as caught:
            await administration.change_topic("delete", b"t")

    assert (f"nsqlookupd {both.lookupd.address}: answered 500",) == caught.value.lines
    assert "nsqd /topic/delete?topic=t" == both.told[-1]


async def test_an_nsqlookupd_that_has_gone_is_named() -> None:
    async with cluster() as (both, administration):
        await both.lookupd.stop()
        with pytest.raises(PartialFailure) as caught:
            await administration.change_topic("create", b"t")

    assert (f"nsqlookupd {both.lookupd.address}: Connection refused",) == caught.value.lines


async def test_what_no_nsqd_has_is_not_found_though_nsqlookupd_says_done() -> None:
    """nsqlookupd answers OK for any topic."""
    async with cluster() as (both, administration):
        both.nsqd_says = NO_TOPIC
        with pytest.raises(InvalidRequest, match="no nsqd has the topic"):
            await administration.change_topic("delete", b"t")


async def test_without_an_nsqd_nobody_is_told() -> None:
    """The error says that nothing was done, so no request may be sent."""
    async with cluster(has_nsqd=False) as (both, administration):
        with pytest.raises(NoNsqdHttpAddress):
            await administration.change_topic("create", b"t")

    assert [] == both.told


async def test_two_at_a_time_do_not_meet() -> None:
    """Each request names its own topic."""
    async with cluster() as (both, administration):
        topics = (administration.change_topic("create", name) for name in (b"a", b"b"))
        await asyncio.gather(*topics)

    assert {"nsqd /topic/create?topic=a", "nsqd /topic/create?topic=b"} <= set(both.told)
