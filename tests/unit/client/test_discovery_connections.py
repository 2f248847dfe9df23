"""Tests of producers and subscriptions with brokers that discovery finds and loses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.producer import Producer, ProducerOptions
from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.errors import NoBroker
from gateway.protocol.commands import Publish, Subscribe
from gateway.protocol.identify import IdentifyResponse
from tests.support.brokers.scripted_broker import ScriptedBroker
from tests.support.brokers.scripted_lookupd import ScriptedLookupd, silent
from tests.support.brokers.subscription_listener import SubscriptionListener
from tests.support.manual_clock import ManualClock, run_on, turn, until

POLL_S = 10.0


@pytest_asyncio.fixture
async def lookupd() -> AsyncIterator[ScriptedLookupd]:
    """Return an nsqlookupd without any nsqd."""
    lookupd = ScriptedLookupd()
    await lookupd.start()
    yield lookupd
    await lookupd.stop()


@asynccontextmanager
async def found_by(lookupd: ScriptedLookupd, *fixed: str) -> AsyncIterator[Discovery]:
    options = LookupOptions(lookupd_http_addresses=(lookupd.address,), poll_interval_s=POLL_S)
    discovery = Discovery(fixed, options)
    await discovery.start()
    yield discovery
    await discovery.stop()


@asynccontextmanager
async def publishing(discovery: Discovery) -> AsyncIterator[Producer]:
    """Run a producer with one connection to each broker."""
    options = ProducerOptions(connections_per_nsqd=1)
    async with Producer(options=options, discovery=discovery) as publisher:
        yield publisher


@asynccontextmanager
async def subscribed(
    discovery: Discovery, listener: SubscriptionListener
) -> AsyncIterator[Subscription]:
    options = SubscriptionOptions(topic="t", channel="c")
    subscription = Subscription(discovery, options, listener)
    await subscription.start()
    yield subscription
    run_on()
    await subscription.close()


async def test_a_publisher_takes_the_brokers_that_are_found(
    broker: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """They are used from the first answer on."""
    lookupd.knows(broker.address)
    async with found_by(lookupd) as discovery, publishing(discovery) as publisher:
        await publisher.publish("t", b"1")

    assert [b"1"] == [command.body for command in broker.all(Publish)]


async def test_a_publisher_takes_a_broker_that_comes_later(
    broker: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """It is found within one interval; an earlier publish raises an error."""
    clock = ManualClock()
    async with found_by(lookupd) as discovery, publishing(discovery) as publisher:
        with pytest.raises(NoBroker, match="no address of an nsqd is known"):
            await publisher.publish("t", b"1")
        lookupd.knows(broker.address)
        await clock.advance(POLL_S)
        await until(lambda: publisher.has_open_connection)

        await publisher.publish("t", b"2")

    assert [b"2"] == [command.body for command in broker.all(Publish)]


async def test_a_publish_that_finds_no_nsqd_asks_for_one(
    broker: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """A gateway that starts before the first nsqd learns of it within a second, not a minute."""
    clock = ManualClock()
    async with found_by(lookupd) as discovery, publishing(discovery) as publisher:
        lookupd.knows(broker.address)
        with pytest.raises(NoBroker):
            await publisher.publish("t", b"1")
        await clock.advance(1.0)
        await until(lambda: publisher.has_open_connection)
        await publisher.publish("t", b"2")

    assert [b"2"] == [command.body for command in broker.all(Publish)]


async def test_a_connection_is_kept_although_no_lookup_names_its_broker(
    broker: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """An nsqlookupd that has just started returns no nsqd yet."""
    clock = ManualClock()
    lookupd.knows(broker.address)
    listener = SubscriptionListener()
    async with (
        found_by(lookupd) as discovery,
        publishing(discovery) as publisher,
        subscribed(discovery, listener),
    ):
        lookupd.knows()
        asked = len(lookupd.questions)
        await clock.advance(POLL_S)
        await until(lambda: len(lookupd.questions) >= asked + 2)
        await until(lambda: not publisher._pools._addresses)

        await publisher.publish("t", b"1")

    assert "lost" not in [what for what, _, _ in listener.all]


async def test_a_broker_that_is_not_named_any_more_asks_for_no_auth(
    broker: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """It no longer counts as an nsqd that requires AUTH."""
    clock = ManualClock()
    broker.identifies_as(IdentifyResponse(auth_required=True))
    lookupd.knows(broker.address)
    async with found_by(lookupd) as discovery, publishing(discovery) as publisher:
        before = publisher.requires_auth
        lookupd.knows()
        await clock.advance(POLL_S)
        await until(lambda: not publisher.requires_auth)

    assert before


async def test_a_broker_that_is_lost_and_not_named_is_not_tried_again(
    broker: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """Attempts would never succeed, because pods return with other addresses."""
    clock = ManualClock()
    lookupd.knows(broker.address)
    listener = SubscriptionListener()
    async with found_by(lookupd) as discovery, subscribed(discovery, listener) as subscription:
        lookupd.knows()
        await clock.advance(POLL_S)
        await until(lambda: not discovery.watch_topic("t", lambda _: None).addresses)
        (await broker.peer()).close()
        await until(lambda: not subscription._connections)
        before = len(broker.peers)
        for _ in range(10):
            await clock.advance(15.0)
            await turn(5)

    assert before == len(broker.peers)


async def test_a_broker_that_was_never_reached_and_is_not_named_is_not_tried_again(
    broker: ScriptedBroker, other: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    clock = ManualClock()
    await other.stop()
    lookupd.knows(broker.address, other.address)
    listener = SubscriptionListener()
    async with found_by(lookupd) as discovery, subscribed(discovery, listener) as subscription:
        await until(lambda: subscription._connections[other.address].error is not None)
        lookupd.knows(broker.address)
        await clock.advance(POLL_S)
        await until(lambda: other.address not in subscription._connections)
        await other.start()
        for _ in range(10):
            await clock.advance(15.0)
            await turn(5)

    assert [] == other.peers


async def test_a_broker_that_comes_back_elsewhere_is_found(
    broker: ScriptedBroker, other: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """The loss requests a poll, long before the interval has elapsed."""
    clock = ManualClock()
    lookupd.knows(broker.address)
    listener = SubscriptionListener()
    async with found_by(lookupd) as discovery, subscribed(discovery, listener):
        lookupd.knows(other.address)
        await broker.stop()
        while (await listener.told.get())[0] != "lost":
            pass
        await clock.advance(1.0)

        peer = await other.peer()
        assert Subscribe("t", "c") == await peer.next(Subscribe)


async def test_a_subscription_to_what_nobody_has_yet_waits_for_it(
    broker: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """TOPIC_NOT_FOUND is an answer and no failure."""
    clock = ManualClock()
    listener = SubscriptionListener()
    async with found_by(lookupd) as discovery, subscribed(discovery, listener) as subscription:
        subscription.set_window(5)
        before = listener.all
        lookupd.knows(broker.address)
        await clock.advance(POLL_S)

        assert "opened" == (await listener.told.get())[0]
        assert [] == before


async def test_a_subscription_without_any_answer_fails(lookupd: ScriptedLookupd) -> None:
    """Without any answer, it is unknown if a broker exists."""
    await lookupd.stop()
    async with found_by(lookupd) as discovery:
        with pytest.raises(NoBroker):
            async with subscribed(discovery, SubscriptionListener()):
                pass
    await lookupd.start(lookupd.port)


async def test_a_lookup_that_hangs_holds_up_no_broker_that_is_given(
    broker: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """The subscription is open as soon as the broker has answered OK."""
    lookupd.rule = silent
    async with (
        found_by(lookupd, broker.address) as discovery,
        subscribed(discovery, SubscriptionListener()),
    ):
        assert 1 == len(broker.all(Subscribe))


async def test_no_more_brokers_are_counted_on_than_are_allowed(
    broker: ScriptedBroker, other: ScriptedBroker, lookupd: ScriptedLookupd
) -> None:
    """An nsqlookupd that returns thousands of nsqds uses up no file descriptors."""
    lookupd.knows(broker.address, other.address)
    options = LookupOptions(lookupd_http_addresses=(lookupd.address,), max_nsqds=1)
    publisher_options = ProducerOptions(connections_per_nsqd=1)
    async with Producer(options=publisher_options, lookup=options) as publisher:
        await publisher.publish("t", b"1")

    first, second = sorted([broker, other], key=lambda each: each.address)
    assert (1, 0) == (len(first.peers), len(second.peers))
