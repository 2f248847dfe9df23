"""
A rolling update under load: gateways on one nsqd, replaced one by one.

The kubelet and the balancer are the test's own, with endpoints that go a while after the deletion.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.support.brokers.nsqd import real_nsqd
from tests.support.chart.fake_kubelet import Kubelet, PodEnd, PodOptions, fake_cluster
from tests.support.gateways.gateway import Counts, poll_until
from tests.support.gateways.steady_load import Consumer, Publisher
from tests.support.manual_clock import turn

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.nsqd]

_END = PodOptions(pre_stop_s=1.2, grace_s=12, endpoint_delay_s=1)
_FLAGS = ("--drain-in-flight-s=5", "--drain-window-s=1")


@dataclass
class Update:
    """A rolling update, and what clients saw of it."""

    publishers: list[Publisher]
    consumers: list[Consumer]
    ends: list[PodEnd] = field(default_factory=list)
    refused: int = 0
    """Connections that no gateway took."""
    counts: Counts = (0, 0, 0)
    """Of the channel, after the last publish."""

    @property
    def failures(self) -> list[str]:
        """Return everything that went wrong for a client."""
        clients: list[Publisher | Consumer] = [*self.publishers, *self.consumers]
        return [failure for client in clients for failure in client.failures]

    @property
    def lost(self) -> set[str]:
        """Return messages that were answered OK and reached no consumer."""
        published = set().union(*(each.published for each in self.publishers))
        return published.difference(*(each.received for each in self.consumers))

    async def roll(self, kubelet: Kubelet, pods: int) -> None:
        """Start a new gateway and delete an old one, for each of *pods*, under load."""
        for _ in range(pods):
            await kubelet.run_pod(*_FLAGS)
        left, stop = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as consuming:
            for consumer in self.consumers:
                consuming.create_task(consumer.run(left))
            await self._all_are_connected()
            async with asyncio.TaskGroup() as publishing:
                for publisher in self.publishers:
                    publishing.create_task(publisher.run(stop))
                for old in list(kubelet.pods):
                    await kubelet.run_pod(*_FLAGS)
                    self.ends.append(await kubelet.delete(old))
                stop.set()
            await self._all_are_connected()
            if self.consumers:
                topic = self.consumers[0].topic
                self.counts = await kubelet.pods[0].counts_become(topic, "c", (0, 0, 0))
            left.set()
        self.refused = kubelet.balancer.refused

    async def _all_are_connected(self) -> None:
        async def connected() -> int:
            await turn()
            return sum(consumer.is_connected for consumer in self.consumers)

        assert len(self.consumers) == await poll_until(connected, len(self.consumers))


async def rolled(topic: str, *, pods: int, consumers: int) -> Update:
    chance = Random(topic)
    async with (
        real_nsqd() as nsqd,
        fake_cluster(_END, (nsqd.tcp_address, nsqd.http_address), chance) as kubelet,
    ):
        url = f"http://{kubelet.balancer.address}"
        update = Update(
            [Publisher(url, topic, f"p{number}") for number in range(4)],
            [Consumer(url, topic, "c", Random(number), hastes=0.2) for number in range(consumers)],
        )
        await update.roll(kubelet, pods)
    return update


async def test_a_rolling_update_under_load_loses_and_refuses_nothing(topic: str) -> None:
    """Each publish is answered 200 and finished once; each socket goes with 1012 and comes back."""
    update = await rolled(topic, pods=3, consumers=12)

    goodbyes = [goodbye for consumer in update.consumers for goodbye in consumer.goodbyes]
    assert [PodEnd(status=0, was_killed=False)] * 3 == update.ends
    assert ([], 0) == (update.failures, update.refused)
    assert (set(), (0, 0, 0)) == (update.lost, update.counts)
    assert all(consumer.goodbyes for consumer in update.consumers)
    assert {("drain", 1012)} == {(goodbye.reason, goodbye.code) for goodbye in goodbyes}
    assert any(publisher.closes for publisher in update.publishers)


async def test_publishers_get_connection_close_before_the_gateway_exits(topic: str) -> None:
    """Also where no socket keeps it: none of them meets a connection that is just being closed."""
    update = await rolled(topic, pods=2, consumers=0)

    assert [PodEnd(status=0, was_killed=False)] * 2 == update.ends
    assert ([], 0) == (update.failures, update.refused)
    assert all(publisher.closes for publisher in update.publishers)
