"""
Rounds of mixed load on one gateway, and the resources that remain afterwards.

A round ends as it began, without sockets or messages. Growth from round to round is a leak.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
from asyncio import TaskGroup
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import httpx

from tests.support.gateways.gateway import RunningGateway, poll_until
from tests.support.websocket.random_subscriber import run_random_subscriber
from tests.support.websocket.raw_socket import raw_socket
from tests.support.websocket.subscriber_client import SubscriberClient, refused_upgrade

_PUBLISHERS = 2
_PUBLISHES = 25
_SUBSCRIBERS = 4
_LIVES = 3
_VIEWERS = 3
_STRANGERS = 8
_NO_TOPIC = "no topic!"
_HALF_REQUESTS = (
    b"POST /pub?topic=soak HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
    b"GET /sub?topic=soak HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnec",
    b"\x16\x03\x01\x02\x00\x01\x00",
)
_MOST_SAMPLES = 200
"""Maximum number of samples; all pairs of them are compared."""


@dataclass(frozen=True)
class HeldResources:
    """The resources of a process while no client is connected."""

    descriptors: int
    tasks: int
    resident_kib: float

    def is_within(self, other: HeldResources) -> bool:
        """Return whether there are at most as many descriptors and tasks as in *other*."""
        return self.descriptors <= other.descriptors and self.tasks <= other.tasks


async def run_round(gateway: RunningGateway, topic: str, chance: random.Random) -> None:
    """Run all kinds of clients at the same time; return when they are done."""
    async with TaskGroup() as group:
        for _ in range(_PUBLISHERS):
            group.create_task(_publish(gateway, topic, chance))
        for _ in range(_SUBSCRIBERS):
            group.create_task(_live(gateway, topic, random.Random(chance.random())))
        for _ in range(_VIEWERS):
            group.create_task(_view(gateway, topic))
        for _ in range(_STRANGERS):
            group.create_task(_be_a_stranger(gateway, chance))
    await _finish_all(gateway, topic)


async def _publish(gateway: RunningGateway, topic: str, chance: random.Random) -> None:
    """Publish by POST on one connection: one message, many, and invalid ones."""
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as http:
        for _ in range(_PUBLISHES):
            body = chance.randbytes(chance.randint(1, 2_000)).replace(b"\n", b" ")
            for path, content, name, expected in (
                ("/pub", body, topic, 200),
                ("/mpub", b"\n".join([b"one", b"two", body, b"four"]), topic, 200),
                ("/pub", b"", topic, 400),
                ("/pub", body, _NO_TOPIC, 400),
            ):
                answer = await http.post(path, content=content, params={"topic": name})
                assert expected == answer.status_code, answer.text


async def _live(gateway: RunningGateway, topic: str, chance: random.Random) -> None:
    """Run a random subscriber several times."""
    for _ in range(_LIVES):
        await run_random_subscriber(gateway, topic, chance)


async def _view(gateway: RunningGateway, topic: str) -> None:
    """Watch a topic, publish over the socket, and leave."""
    async with gateway.subscribe(topic) as viewer:
        await viewer.send({"cmd": "PUB", "topic": topic, "body": "seen", "ref": "published"})
        await viewer.receive_until("published")


async def _be_a_stranger(gateway: RunningGateway, chance: random.Random) -> None:
    """Send requests that are refused, or abort requests."""
    if chance.choice((True, False)):
        status, _ = await refused_upgrade(gateway.sub_url(_NO_TOPIC))
        assert 400 == status
        return
    async with raw_socket(gateway.address) as stranger:
        await stranger.send(chance.choice(_HALF_REQUESTS))


async def _finish_all(gateway: RunningGateway, topic: str) -> None:
    """Finish the remaining messages, until the broker has none."""
    async with gateway.subscribe(topic, "c", max_in_flight=1_000, ack="auto") as last:
        reading = asyncio.ensure_future(_read_on(last))
        try:
            counts = await gateway.counts_become(topic, "c", (0, 0, 0))
            assert (0, 0, 0) == counts, f"{counts} are left: depth, in flight, deferred"
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading


async def _read_on(client: SubscriberClient) -> None:
    """Read until cancelled."""
    while True:
        with suppress(TimeoutError):
            await client.receive()


async def held_resources(
    gateway: RunningGateway, at_rest: HeldResources | None = None
) -> HeldResources:
    """Return the resources of *gateway* once they are at most *at_rest*, or time is up."""
    async with httpx.AsyncClient(base_url=gateway.management_url, trust_env=False) as http:

        async def is_at_rest() -> bool:
            return at_rest is None or (await _look(gateway, http)).is_within(at_rest)

        await poll_until(is_at_rest, expected=True)
        return await _look(gateway, http)


async def _look(gateway: RunningGateway, http: httpx.AsyncClient) -> HeldResources:
    metrics = (await http.get("/metrics")).raise_for_status().text
    [tasks] = re.findall(r"^nsq_gateway_tasks (\S+)$", metrics, re.MULTILINE)
    process = Path(f"/proc/{gateway.program.pid}")
    return HeldResources(
        descriptors=len(list((process / "fd").iterdir())),
        tasks=int(float(tasks)),
        resident_kib=int((process / "statm").read_text().split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / 1_024,
    )


def growth_kib(rounds: Sequence[HeldResources]) -> float:
    """
    Return the trend of memory over *rounds*, in KiB.

    The median of the slopes of all pairs (Theil and Sen), times the number of rounds. A temporary
    peak and a single step are not a trend.
    """
    step = max(1, len(rounds) // _MOST_SAMPLES)
    taken = list(enumerate(rounds))[::step]
    slopes = [
        (later.resident_kib - sooner.resident_kib) / (j - i)
        for (i, sooner), (j, later) in combinations(taken, 2)
    ]
    return statistics.median(slopes) * len(rounds)
