"""Pauses of channels that are watched, as brokers tell them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.client.channel_survey import ChannelSurvey, ChannelSurveyOptions
from gateway.client.lookup import Discovery
from gateway.client.node_answers import Question, is_done
from gateway.client.nsqd_http import NsqdHttp
from tests.support.embedded_broker import embedded_broker
from tests.support.mortal_broker import free_port
from tests.support.nsqd import real_nsqd
from tests.support.scripted_lookupd import answering, scripted_lookupd

ALONE = Discovery(())
POLL_S = 0.05
TOPIC = [("topic", b"t")]
CHANNEL = [*TOPIC, ("channel", b"c")]


class Watcher:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[bool] = asyncio.Queue()

    def __call__(self, is_paused: bool) -> None:  # noqa: FBT001 - as it is told
        """Keep it."""
        self.told.put_nowait(is_paused)

    async def next(self) -> bool:
        """Return what is told next."""
        return await self.told.get()


class Cluster:
    """Some brokers, and a survey of them that looks often."""

    def __init__(self, nodes: NsqdHttp) -> None:
        self._nodes = nodes
        self.survey = ChannelSurvey(nodes, ALONE, ChannelSurveyOptions(poll_interval_s=POLL_S))

    async def post(self, path: str, query: list[tuple[str, bytes]], *nodes: str) -> None:
        """Have all brokers, or *nodes*, do it."""
        question = Question(method="POST", path=path, query=query)
        for answer in await self._nodes.ask(question, nodes=nodes or None):
            assert is_done(answer), answer

    async def make_channel(self, *nodes: str) -> None:
        """Have channel c of topic t."""
        await self.post("/topic/create", TOPIC, *nodes)
        await self.post("/channel/create", CHANNEL, *nodes)


@asynccontextmanager
async def cluster(*http_addresses: str) -> AsyncIterator[Cluster]:
    """Look after the brokers at *http_addresses*."""
    nodes = NsqdHttp(http_addresses, ALONE)
    await nodes.start()
    it = Cluster(nodes)
    try:
        yield it
    finally:
        await it.survey.stop()
        await nodes.stop()


@pytest.mark.nsqd
@pytest.mark.parametrize("what", ["channel", "topic"])
async def test_a_pause_is_told_and_its_end(what: str) -> None:
    """Of the channel or of its topic: nothing comes in both cases."""
    query = CHANNEL if what == "channel" else TOPIC
    async with real_nsqd() as nsqd, cluster(nsqd.http_address) as it:
        await it.make_channel()
        await it.post(f"/{what}/pause", query)
        watcher = Watcher()
        it.survey.watch("t", "c", watcher)
        paused = await watcher.next()
        await it.post(f"/{what}/unpause", query)

        assert (True, False) == (paused, await watcher.next())


async def test_the_embedded_broker_tells_of_pauses_too() -> None:
    """As nsqd does."""
    async with embedded_broker(has_http=True) as broker, cluster(broker.http_address) as it:
        await it.make_channel()
        watcher = Watcher()
        it.survey.watch("t", "c", watcher)
        await it.post("/channel/pause", CHANNEL)

        assert await watcher.next()


@pytest.mark.nsqd
async def test_a_channel_that_is_paused_at_one_of_two_is_not_paused() -> None:
    """Messages come from the other one; a broker that has not the channel does not count."""
    async with real_nsqd() as one, real_nsqd() as two, real_nsqd() as without:
        addresses = (one.http_address, two.http_address)
        async with cluster(*addresses, without.http_address) as it:
            await it.make_channel(*addresses)
            await it.post("/channel/pause", CHANNEL, *addresses)
            watcher = Watcher()
            it.survey.watch("t", "c", watcher)
            at_both = await watcher.next()
            await it.post("/channel/unpause", CHANNEL, one.http_address)

            assert (True, False) == (at_both, await watcher.next())


@pytest.mark.nsqd
async def test_a_broker_that_is_away_says_nothing() -> None:
    """What is known stands, as the others say it."""
    away = f"127.0.0.1:{free_port()}"
    async with real_nsqd() as nsqd, cluster(nsqd.http_address, away) as it:
        await it.make_channel(nsqd.http_address)
        await it.post("/channel/pause", CHANNEL, nsqd.http_address)
        watcher = Watcher()
        it.survey.watch("t", "c", watcher)

        assert await watcher.next()


@pytest.mark.nsqd
async def test_whoever_comes_later_is_told_of_a_pause_that_is_known() -> None:
    """Not before the watch is there, and without another question."""
    async with real_nsqd() as nsqd, cluster(nsqd.http_address) as it:
        await it.make_channel()
        await it.post("/channel/pause", CHANNEL)
        first, later = Watcher(), Watcher()
        it.survey.watch("t", "c", first)
        await first.next()
        it.survey.watch("t", "c", later)
        at_once = later.told.qsize()

        assert (0, True) == (at_once, await later.next())


PAUSED = b'{"start_time":1,"topics":[{"topic_name":"t","paused":true,"channels":[%b]}]}'


async def test_all_that_is_watched_is_one_question() -> None:
    """For one topic no others are sent; a question is asked for as long as anybody watches."""
    async with scripted_lookupd() as node, cluster(node.address) as it:
        node.rule = answering(200, PAUSED % b'{"channel_name":"c"},{"channel_name":"d"}')
        watchers = [Watcher(), Watcher(), Watcher()]
        watches = [
            it.survey.watch("t", "c", watchers[0]),
            it.survey.watch("t", "c", watchers[1]),
            it.survey.watch("t", "d", watchers[2]),
        ]
        told = [await watcher.next() for watcher in watchers]
        first = [(await node.question()).target]
        watches.append(it.survey.watch("other", "c", watchers[0]))
        while (second := (await node.question()).target) in first:
            pass
        for watch in watches:
            watch.close()
            watch.close()
        polling = it.survey._polling
        assert polling is not None
        await polling

    path = "/stats?format=json&include_clients=false&include_mem=false"
    assert [True] * 3 == told
    assert ([f"{path}&topic=t"], path) == (first, second)


@pytest.mark.nsqd
async def test_a_watch_that_is_closed_is_told_nothing() -> None:
    """Though the answer was on its way."""
    async with real_nsqd() as nsqd, cluster(nsqd.http_address) as it:
        await it.make_channel()
        await it.post("/channel/pause", CHANNEL)
        closed, other = Watcher(), Watcher()
        watch = it.survey.watch("t", "c", closed)
        it.survey.watch("t", "c", other)
        watch.close()

        assert await other.next()
        assert 0 == closed.told.qsize()


@pytest.mark.nsqd
async def test_watches_may_end_in_any_order() -> None:
    """Each of them once, and those that are left are told as before."""
    async with real_nsqd() as nsqd, cluster(nsqd.http_address) as it:
        await it.make_channel()
        watchers = [Watcher() for _ in range(5)]
        watches = [it.survey.watch("t", "c", watcher) for watcher in watchers]
        for number in (1, 1, 4, 0):
            watches[number].close()
        await it.post("/channel/pause", CHANNEL)

        assert [True, True] == [await watchers[number].next() for number in (2, 3)]
        assert [0, 0, 0] == [watchers[number].told.qsize() for number in (0, 1, 4)]
