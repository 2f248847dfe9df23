"""Which channels a real nsqd tells of."""

from __future__ import annotations

import httpx
import pytest

from gateway.pipeline.replay_channels import find_channels
from gateway.pipeline.replay_plan import NOBODY_TO_ASK
from gateway.settings_replay import ReplaySettings
from gateway.settings_sources import load
from tests.support.gateway import become
from tests.support.nsqd import real_nsqd, real_nsqlookupd


def _settings(**given: str) -> ReplaySettings:
    return load(ReplaySettings, {"input": "/archive", "checkpoint": "/checkpoint"} | given).settings


async def test_without_an_address_of_http_there_is_nobody_to_ask() -> None:
    """It is known where to publish, which says nothing of HTTP."""
    settings = _settings(nsqd_tcp_address="127.0.0.1:1")

    assert NOBODY_TO_ASK == await find_channels(settings, {"orders"})


async def test_an_nsqd_that_does_not_answer_is_named() -> None:
    """Somebody has to know of it."""
    settings = _settings(nsqd_tcp_address="127.0.0.1:1", nsqd_http_address="127.0.0.1:1")

    assert ["127.0.0.1:1"] == list((await find_channels(settings, {"orders"})).silent)


async def test_an_nsqlookupd_that_does_not_answer_is_named() -> None:
    """The nsqds that it would name may have consumers: somebody has to know of it."""
    settings = _settings(lookupd_http_address="127.0.0.1:1,127.0.0.1:2")

    channels = await find_channels(settings, {"orders"})

    silent = ["127.0.0.1:1", "127.0.0.1:2"]
    assert (True, silent) == (channels.is_known, list(channels.silent_lookupds))


@pytest.mark.nsqd
async def test_one_of_two_nsqlookupds_that_does_not_answer_is_named() -> None:
    """What the other one says is asked all the same."""
    async with real_nsqlookupd() as lookupd, real_nsqd() as nsqd:
        settings = _settings(
            lookupd_http_address=f"{lookupd.http_address},127.0.0.1:1",
            nsqd_http_address=nsqd.http_address,
        )
        channels = await find_channels(settings, {"orders"})

    silent = list(channels.silent_lookupds)
    assert ({"orders": set()}, ["127.0.0.1:1"]) == (channels.of_topics, silent)


@pytest.mark.nsqd
async def test_channels_are_those_of_the_topics_asked_for_over_all_nsqds() -> None:
    """Named here, and found by nsqlookupd."""
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

        assert await become(registered, expected=True)
        settings = _settings(
            lookupd_http_address=lookupd.http_address, nsqd_http_address=named.http_address
        )
        channels = await find_channels(settings, {"orders", "new"})

    assert {"orders": {"a-orders", "b-orders"}, "new": set()} == channels.of_topics
    assert (True, []) == (channels.is_known, list(channels.silent))
