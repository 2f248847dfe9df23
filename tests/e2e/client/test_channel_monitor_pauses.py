"""Tests of `ChannelMonitor.watch`: pauses of channels at real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Generator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gateway.client import channel_monitor as monitor_module
from gateway.client.channel_monitor import ChannelMonitor, ChannelMonitorOptions
from gateway.client.discovery import Discovery
from gateway.client.nsqd_answers import (
    Channel,
    NodeAnswer,
    NodeRequest,
    is_ok,
    parse_pauses,
)
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.killable_broker import free_port
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.scripted_lookupd import respond, scripted_lookupd, silent
from tests.support.manual_clock import ManualClock, run_on, turn, until

ALONE = Discovery(())
POLL_S = 0.05
TOPIC = [("topic", b"t")]
CHANNEL = [*TOPIC, ("channel", b"c")]


class Watcher:
    """A callback that records its arguments."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[bool] = asyncio.Queue()

    def __call__(self, is_paused: bool) -> None:  # noqa: FBT001 - as it is told
        """Record the argument."""
        self.told.put_nowait(is_paused)

    async def next(self) -> bool:
        """Return the next recorded argument."""
        return await self.told.get()


class Cluster:
    """Some brokers, and a monitor that polls them often."""

    def __init__(self, nodes: NsqdHttp) -> None:
        self._nodes = nodes
        self.monitor = ChannelMonitor(nodes, ALONE, ChannelMonitorOptions(poll_interval_s=POLL_S))

    async def post(self, path: str, query: list[tuple[str, bytes]], *nodes: str) -> None:
        """Send a POST to all brokers, or to *nodes*."""
        question = NodeRequest(method="POST", path=path, query=query)
        for answer in await self._nodes.request_all(question, nodes=nodes or None):
            assert is_ok(answer), answer

    @property
    def open_requests(self) -> int:
        """Number of brokers that have not answered."""
        return NsqdHttpOptions().max_connections - self._nodes._connections._value

    async def make_channel(self, *nodes: str) -> None:
        """Create channel c of topic t."""
        await self.post("/topic/create", TOPIC, *nodes)
        await self.post("/channel/create", CHANNEL, *nodes)


@asynccontextmanager
async def cluster(*http_addresses: str) -> AsyncIterator[Cluster]:
    """Run a monitor of the brokers at *http_addresses*."""
    nodes = NsqdHttp(http_addresses, ALONE)
    await nodes.start()
    it = Cluster(nodes)
    try:
        yield it
    finally:
        await it.monitor.stop()
        await nodes.stop()


@pytest.mark.nsqd
@pytest.mark.parametrize("what", ["channel", "topic"])
async def test_a_pause_is_told_and_its_end(what: str) -> None:
    """A pause of the channel and one of its topic both stop messages."""
    query = CHANNEL if what == "channel" else TOPIC
    async with real_nsqd() as nsqd, cluster(nsqd.http_address) as it:
        await it.make_channel()
        await it.post(f"/{what}/pause", query)
        watcher = Watcher()
        it.monitor.watch("t", "c", watcher)
        paused = await watcher.next()
        await it.post(f"/{what}/unpause", query)

        assert (True, False) == (paused, await watcher.next())


async def test_a_look_that_fails_by_a_bug_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is logged, and the next poll reports the pause."""
    has_failed = asyncio.Event()

    def fail(answer: object, _channels: object) -> None:
        has_failed.set()
        raise ZeroDivisionError(answer)

    async with embedded_broker(has_http=True) as broker, cluster(broker.http_address) as it:
        await it.make_channel()
        await it.post("/channel/pause", CHANNEL)
        watcher = Watcher()
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(monitor_module, "parse_pauses", fail)
            it.monitor.watch("t", "c", watcher)
            await has_failed.wait()

        assert await watcher.next()
    assert "pause poll failed" in [line["event"] for line in lines]


async def test_pauses_that_take_longer_to_read_than_the_limit_of_a_poll_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is for the request: with many channels, reading the answers takes longer."""
    clock = ManualClock()
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    def parse_slowly(
        answer: NodeAnswer, channels: Collection[Channel]
    ) -> Generator[None, None, dict[Channel, bool] | None]:
        has_begun.set()
        while not may_end.is_set():
            yield
        return (yield from parse_pauses(answer, channels))

    monkeypatch.setattr(monitor_module, "parse_pauses", parse_slowly)
    async with scripted_lookupd() as node, cluster(node.address) as it:
        node.rule = respond(200, PAUSED % b'{"channel_name":"c"}')
        watcher = Watcher()
        it.monitor.watch("t", "c", watcher)
        await has_begun.wait()
        await clock.advance(ChannelMonitorOptions().timeout_s + 1.0)
        may_end.set()
        await turn(20)
        is_told = not watcher.told.empty()
        run_on()

    assert is_told


async def test_an_nsqd_that_hangs_does_not_hide_the_pauses_at_another() -> None:
    """The time limit of a poll is for each nsqd."""
    clock = ManualClock()
    async with (
        scripted_lookupd() as node,
        scripted_lookupd() as hung,
        cluster(node.address, hung.address) as it,
    ):
        node.rule, hung.rule = respond(200, PAUSED % b'{"channel_name":"c"}'), silent
        watcher = Watcher()
        it.monitor.watch("t", "c", watcher)
        await hung.question()
        await until(lambda: it.open_requests == 1)
        await clock.advance(ChannelMonitorOptions().timeout_s)
        await turn(20)
        is_told = not watcher.told.empty()
        run_on()

    assert is_told


async def test_the_embedded_broker_tells_of_pauses_too() -> None:
    """The embedded broker reports pauses as nsqd does."""
    async with embedded_broker(has_http=True) as broker, cluster(broker.http_address) as it:
        await it.make_channel()
        watcher = Watcher()
        it.monitor.watch("t", "c", watcher)
        await it.post("/channel/pause", CHANNEL)

        assert await watcher.next()


@pytest.mark.nsqd
async def test_a_channel_that_is_paused_at_one_of_two_is_not_paused() -> None:
    """The other nsqd still delivers; an nsqd without the channel does not count."""
    async with real_nsqd() as one, real_nsqd() as two, real_nsqd() as without:
        addresses = (one.http_address, two.http_address)
        async with cluster(*addresses, without.http_address) as it:
            await it.make_channel(*addresses)
            await it.post("/channel/pause", CHANNEL, *addresses)
            watcher = Watcher()
            it.monitor.watch("t", "c", watcher)
            at_both = await watcher.next()
            await it.post("/channel/unpause", CHANNEL, one.http_address)

            assert (True, False) == (at_both, await watcher.next())


@pytest.mark.nsqd
async def test_a_broker_that_is_away_says_nothing() -> None:
    """The answers of the other brokers count."""
    away = f"127.0.0.1:{free_port()}"
    async with real_nsqd() as nsqd, cluster(nsqd.http_address, away) as it:
        await it.make_channel(nsqd.http_address)
        await it.post("/channel/pause", CHANNEL, nsqd.http_address)
        watcher = Watcher()
        it.monitor.watch("t", "c", watcher)

        assert await watcher.next()


@pytest.mark.nsqd
async def test_whoever_comes_later_is_told_of_a_pause_that_is_known() -> None:
    """The callback comes after `watch` has returned, without another request."""
    async with real_nsqd() as nsqd, cluster(nsqd.http_address) as it:
        await it.make_channel()
        await it.post("/channel/pause", CHANNEL)
        first, later = Watcher(), Watcher()
        it.monitor.watch("t", "c", first)
        await first.next()
        it.monitor.watch("t", "c", later)
        at_once = later.told.qsize()

        assert (0, True) == (at_once, await later.next())


PAUSED = b'{"start_time":1,"topics":[{"topic_name":"t","paused":true,"channels":[%b]}]}'


async def test_all_that_is_watched_is_one_question() -> None:
    """The request has the topic if there is only one, and is sent while a watch exists."""
    async with scripted_lookupd() as node, cluster(node.address) as it:
        node.rule = respond(200, PAUSED % b'{"channel_name":"c"},{"channel_name":"d"}')
        watchers = [Watcher(), Watcher(), Watcher()]
        watches = [
            it.monitor.watch("t", "c", watchers[0]),
            it.monitor.watch("t", "c", watchers[1]),
            it.monitor.watch("t", "d", watchers[2]),
        ]
        told = [await watcher.next() for watcher in watchers]
        first = [(await node.question()).target]
        watches.append(it.monitor.watch("other", "c", watchers[0]))
        while (second := (await node.question()).target) in first:
            pass
        for watch in watches:
            watch.close()
            watch.close()
        polling = it.monitor._polling
        assert polling is not None
        await polling

    path = "/stats?format=json&include_clients=false&include_mem=false"
    assert [True] * 3 == told
    assert ([f"{path}&topic=t"], path) == (first, second)


@pytest.mark.nsqd
async def test_a_watch_that_is_closed_is_told_nothing() -> None:
    async with real_nsqd() as nsqd, cluster(nsqd.http_address) as it:
        await it.make_channel()
        await it.post("/channel/pause", CHANNEL)
        closed, other = Watcher(), Watcher()
        watch = it.monitor.watch("t", "c", closed)
        it.monitor.watch("t", "c", other)
        watch.close()

        assert await other.next()
        assert 0 == closed.told.qsize()


@pytest.mark.nsqd
async def test_watches_may_end_in_any_order() -> None:
    """Each watch is closed once, and the others are still called."""
    async with real_nsqd() as nsqd, cluster(nsqd.http_address) as it:
        await it.make_channel()
        watchers = [Watcher() for _ in range(5)]
        watches = [it.monitor.watch("t", "c", watcher) for watcher in watchers]
        for number in (1, 1, 4, 0):
            watches[number].close()
        await it.post("/channel/pause", CHANNEL)

        assert [True, True] == [await watchers[number].next() for number in (2, 3)]
        assert [0, 0, 0] == [watchers[number].told.qsize() for number in (0, 1, 4)]
