"""`find_channels` with a real nsqd and nsqlookupd."""

from __future__ import annotations

import httpx
import pytest

from gateway.pipeline.jobs.replay import find_channels
from gateway.pipeline.jobs.replay_plan import NO_HTTP_ADDRESS
from gateway.settings.loader import load
from gateway.settings.pipeline import ReplaySettings
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.gateways.gateway import poll_until


def _settings(**given: str) -> ReplaySettings:
    return load(ReplaySettings, {"input": "/archive", "checkpoint": "/checkpoint"} | given).settings


async def test_without_an_http_address_no_nsqd_is_asked() -> None:
    settings = _settings(nsqd_tcp_address="127.0.0.1:1")

    assert NO_HTTP_ADDRESS == await find_channels(settings, {"orders"})


async def test_an_nsqd_that_does_not_answer_is_named() -> None:
    """The user must learn that its channels are unknown."""
    settings = _settings(nsqd_tcp_address="127.0.0.1:1", nsqd_http_address="127.0.0.1:1")

    assert ["127.0.0.1:1"] == list((await find_channels(settings, {"orders"})).unreachable)


async def test_an_nsqlookupd_that_does_not_answer_is_named() -> None:
    """The user must learn that some nsqds, with their consumers, may be unknown."""
    settings = _settings(lookupd_http_address="127.0.0.1:1,127.0.0.1:2")

    channels = await find_channels(settings, {"orders"})

    unreachable = ["127.0.0.1:1", "127.0.0.1:2"]
    assert (True, unreachable) == (channels.was_queried, list(channels.unreachable_lookupds))


@pytest.mark.nsqd
async def test_one_of_two_nsqlookupds_that_does_not_answer_is_named() -> None:
    """The nsqds of the other one are queried all the same."""
    async with real_nsqlookupd() as lookupd, real_nsqd() as nsqd:
        settings = _settings(
            lookupd_http_address=f"{lookupd.http_address},127.0.0.1:1",
            nsqd_http_address=nsqd.http_address,
        )
        channels = await find_channels(settings, {"orders"})

    unreachable = list(channels.unreachable_lookupds)
    assert ({"orders": set()}, ["127.0.0.1:1"]) == (channels.by_topic, unreachable)


@pytest.mark.nsqd
async def test_channels_are_those_of_the_topics_asked_for_over_all_nsqds() -> None:
    """At nsqds that are configured, and at those found by nsqlookupd."""
    async with (
        real_nsqlookupd() as lookupd,
        real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as found,
        real_nsqd() as named,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        for nsqd, channel in ((found, "a"), (named, "b")):
            for topic in ("orders", "others"):
                url = f"http://{nsqd.http_address}"
                names = {"topic": topic, "channel": f"{channel}-{topic}"}
                for path in ("/topic/create", "/channel/create"):
                    (await http.post(url + path, params=names)).raise_for_status()

        async def registered() -> bool:
            nodes = await http.get(f"http://{lookupd.http_address}/nodes")
            return bool(nodes.json()["producers"])

        assert await poll_until(registered, expected=True)
        settings = _settings(
            lookupd_http_address=lookupd.http_address, nsqd_http_address=named.http_address
        )
        channels = await find_channels(settings, {"orders", "new"})

    assert {"orders": {"a-orders", "b-orders"}, "new": set()} == channels.by_topic
    assert (True, []) == (channels.was_queried, list(channels.unreachable))
