"""Tests of `Subscription` with `is_gone`: channels deleted at nsqd, and lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.client.channel_monitor import ChannelMonitor
from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.nsqd_answers import INFO, NodeRequest, NodeResponse, parse_info
from gateway.client.nsqd_http import NsqdHttp
from gateway.client.subscription import IsGone, Subscription, SubscriptionOptions
from gateway.protocol.commands import Subscribe
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.killable_broker import killable_broker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.scripted_broker import ScriptedBroker
from tests.support.brokers.scripted_lookupd import scripted_lookupd
from tests.support.brokers.subscription_listener import SubscriptionListener
from tests.support.manual_clock import ManualClock, run_on, turn, until

KINDS = pytest.mark.parametrize("kind", [pytest.param("nsqd", marks=pytest.mark.nsqd), "embedded"])
"""Runs a test with nsqd and with the embedded broker."""
POLL_S = 60.0


class Oracle:
    """An `is_gone` whose result the test sets."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, str, str, float]] = asyncio.Queue()
        self.answers: asyncio.Queue[bool] = asyncio.Queue()

    async def __call__(self, address: str, topic: str, channel: str, since_s: float) -> bool:
        """Wait for the result set by the test."""
        self.asked.put_nowait((address, topic, channel, since_s))
        return await self.answers.get()


@pytest.fixture
def oracle() -> Oracle:
    """Return the `is_gone` of the test."""
    return Oracle()


@pytest.fixture
def listener() -> SubscriptionListener:
    return SubscriptionListener()


@asynccontextmanager
async def subscribed(
    listener: SubscriptionListener, is_gone: IsGone, discovery: Discovery
) -> AsyncIterator[Subscription]:
    """Run a subscription to channel c of topic t."""
    options = SubscriptionOptions(topic="t", channel="c", is_gone=is_gone)
    subscription = Subscription(discovery, options, listener)
    await subscription.start()
    try:
        yield subscription
    finally:
        run_on()
        await subscription.close()


async def told(listener: SubscriptionListener, what: str) -> object:
    """Wait for the callback *what*; return its arguments."""
    while (each := await listener.told.get())[0] != what:
        pass
    return each[2]


async def next_question(oracle: Oracle, clock: ManualClock) -> None:
    """Advance the clock until `is_gone` is called, shortly after a loss."""
    while oracle.asked.empty():
        await clock.advance(0.1)
    oracle.asked.get_nowait()


async def lose(broker: ScriptedBroker, listener: SubscriptionListener) -> None:
    """Close the next connection on the broker's side, as a deletion does."""
    (await broker.peer()).close()
    await told(listener, "lost")


async def test_a_channel_that_is_gone_is_told_and_not_subscribed_to_again(
    broker: ScriptedBroker, listener: SubscriptionListener, oracle: Oracle
) -> None:
    """Subscribing would create the channel again, so no attempt follows."""
    oracle.answers.put_nowait(True)
    async with subscribed(listener, oracle, Discovery([broker.address])):
        subscribed_at = asyncio.get_running_loop().time()
        await lose(broker, listener)
        where = await told(listener, "gone")
        clock = ManualClock()
        for _ in range(5):
            await clock.advance(30.0)

    address, topic, channel, since_s = oracle.asked.get_nowait()
    assert (broker.address, "t", "c", broker.address) == (address, topic, channel, where)
    assert abs(since_s - subscribed_at) < 1.0
    assert 1 == len(broker.all(Subscribe))


async def test_before_each_new_try_it_is_asked_again(
    broker: ScriptedBroker, listener: SubscriptionListener, oracle: Oracle
) -> None:
    """An `is_gone` that fails while the broker is down may succeed later."""
    clock = ManualClock()
    async with subscribed(listener, oracle, Discovery([broker.address])):
        await told(listener, "opened")
        port = broker.address
        await broker.stop()
        await told(listener, "lost")
        for answer in (False, False, True):
            await next_question(oracle, clock)
            oracle.answers.put_nowait(answer)

        assert port == await told(listener, "gone")


async def test_a_channel_that_is_there_is_subscribed_to_again(
    broker: ScriptedBroker, listener: SubscriptionListener, oracle: Oracle
) -> None:
    """A connection may be lost for many reasons."""
    oracle.answers.put_nowait(False)
    async with subscribed(listener, oracle, Discovery([broker.address])):
        await told(listener, "opened")
        await lose(broker, listener)
        await told(listener, "opened")

    assert 2 == len(broker.all(Subscribe))


async def test_a_first_try_asks_nobody(
    broker: ScriptedBroker, listener: SubscriptionListener, oracle: Oracle
) -> None:
    """Subscribing creates a new channel, so `is_gone` is not called."""
    async with subscribed(listener, oracle, Discovery([broker.address])):
        await told(listener, "opened")

    assert oracle.asked.empty()


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_topic_that_is_deleted_at_the_lookups_first_is_asked_about(
    broker: ScriptedBroker, listener: SubscriptionListener, oracle: Oracle, *, is_gone: bool
) -> None:
    """Even if discovery has dropped the nsqd, `is_gone` is called; no attempt follows."""
    clock = ManualClock()
    async with scripted_lookupd(broker.address) as lookupd, AsyncExitStack() as life:
        lookup = LookupOptions(lookupd_http_addresses=(lookupd.address,), poll_interval_s=POLL_S)
        discovery = Discovery((), lookup)
        await discovery.start()
        life.push_async_callback(discovery.stop)
        subscription = await life.enter_async_context(subscribed(listener, oracle, discovery))
        await told(listener, "opened")
        lookupd.knows()
        await clock.advance(POLL_S)
        watch = subscription._watch
        assert watch is not None
        await until(lambda: not watch.addresses)
        await lose(broker, listener)
        await next_question(oracle, clock)
        oracle.answers.put_nowait(is_gone)
        if is_gone:
            await told(listener, "gone")
        await turn(3)
        await clock.advance(POLL_S)

    assert 1 == len(broker.all(Subscribe))
    assert oracle.asked.empty()


async def test_a_broker_that_is_named_anew_is_subscribed_on_though_its_channel_was_gone(
    broker: ScriptedBroker, listener: SubscriptionListener, oracle: Oracle
) -> None:
    oracle.answers.put_nowait(True)
    clock = ManualClock()
    async with scripted_lookupd(broker.address) as lookupd, AsyncExitStack() as life:
        lookup = LookupOptions(lookupd_http_addresses=(lookupd.address,), poll_interval_s=POLL_S)
        discovery = Discovery((), lookup)
        await discovery.start()
        life.push_async_callback(discovery.stop)
        subscription = await life.enter_async_context(subscribed(listener, oracle, discovery))
        await told(listener, "opened")
        lookupd.knows()
        await lose(broker, listener)
        await next_question(oracle, clock)
        await told(listener, "gone")
        await clock.advance(1.0)
        await until(lambda: not subscription._connections)
        lookupd.knows(broker.address)
        await clock.advance(POLL_S)

        await told(listener, "opened")


async def test_an_end_while_it_is_asked_leaves_nothing(
    broker: ScriptedBroker, listener: SubscriptionListener, oracle: Oracle
) -> None:
    """`close` does not wait for the result."""
    async with subscribed(listener, oracle, Discovery([broker.address])):
        await told(listener, "opened")
        await lose(broker, listener)
        await oracle.asked.get()

    assert 1 == len(broker.all(Subscribe))


# Real brokers


@asynccontextmanager
async def surveyed(http_address: str) -> AsyncIterator[tuple[NsqdHttp, ChannelMonitor]]:
    """Run a monitor of one broker."""
    discovery = Discovery(())
    nodes = NsqdHttp([http_address], discovery)
    await nodes.start()
    monitor = ChannelMonitor(nodes, discovery)
    try:
        yield nodes, monitor
    finally:
        await monitor.stop()
        await nodes.stop()


async def runs_for_long(nodes: NsqdHttp) -> None:
    """Wait until the broker has run for seconds, the resolution of its start time."""
    while True:
        (answer,) = await nodes.request_all(INFO)
        info = parse_info(answer)
        assert info is not None
        assert isinstance(answer, NodeResponse)
        now = asyncio.get_running_loop().time()
        process = ChannelMonitor._process(answer, info.start_time)
        assert process is not None
        if process.running_since_s < now:
            return


@KINDS
@pytest.mark.parametrize("what", ["channel", "topic"])
async def test_a_deletion_at_a_real_broker_is_told(
    kind: str, what: str, listener: SubscriptionListener
) -> None:
    """The broker closes the connection without a reason; the channel is not created again."""
    names = [("topic", b"t"), ("channel", b"c")]
    async with AsyncExitStack() as life:
        if kind == "nsqd":
            nsqd = await life.enter_async_context(real_nsqd())
            tcp, http = nsqd.tcp_address, nsqd.http_address
        else:
            broker = await life.enter_async_context(embedded_broker(has_http=True))
            tcp, http = broker.tcp_address, broker.http_address
        nodes, monitor = await life.enter_async_context(surveyed(http))
        await runs_for_long(nodes)
        await life.enter_async_context(subscribed(listener, monitor.is_gone, Discovery([tcp])))
        await told(listener, "opened")
        query = names if what == "channel" else names[:1]
        await nodes.request_all(NodeRequest(method="POST", path=f"/{what}/delete", query=query))

        assert tcp == await told(listener, "gone")
        stats = NodeRequest(method="GET", path="/stats", query=[("format", b"json")])
        (answer,) = await nodes.request_all(stats)
        assert isinstance(answer, NodeResponse)
        assert b'"c"' not in answer.body


@KINDS
async def test_a_broker_that_lost_its_memory_is_subscribed_on_again(
    kind: str, listener: SubscriptionListener
) -> None:
    """It lacks the channel, but nobody deleted it."""
    async with killable_broker(kind) as broker, surveyed(broker.http_address) as (nodes, monitor):
        await runs_for_long(nodes)
        discovery = Discovery([broker.tcp_address])
        async with subscribed(listener, monitor.is_gone, discovery):
            await told(listener, "opened")
            await broker.kill()
            await told(listener, "lost")
            await broker.start()

            await told(listener, "opened")
