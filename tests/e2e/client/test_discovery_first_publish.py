"""Tests of `Discovery.topic_seen`: an nsqd is known to have a topic after a publish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.producer import Producer
from gateway.client.subscription import Subscription, SubscriptionOptions
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.brokers.scripted_lookupd import ScriptedLookupd, scripted_lookupd
from tests.support.brokers.subscription_listener import SubscriptionListener
from tests.support.manual_clock import ManualClock, turn, until

A = "10.0.0.1:4150"
B = "10.0.0.2:4150"
FIXED = "127.0.0.1:4150"
POLL_S = 60.0


@pytest_asyncio.fixture
async def lookupd() -> AsyncIterator[ScriptedLookupd]:
    """Return an nsqlookupd without any nsqd."""
    async with scripted_lookupd() as lookupd:
        yield lookupd


@asynccontextmanager
async def discovery(lookupd: str, *, max_nsqds: int = 1_000) -> AsyncIterator[Discovery]:
    """Run a discovery that polls once a minute."""
    options = LookupOptions(
        lookupd_http_addresses=(lookupd,),
        poll_interval_s=POLL_S,
        poll_jitter=0.0,
        max_nsqds=max_nsqds,
    )
    found = Discovery((FIXED,), options)
    await found.start()
    yield found
    await found.stop()


class Told:
    """A callback that records each set of addresses."""

    def __init__(self) -> None:
        self.sets: list[frozenset[str]] = []

    def __call__(self, addresses: frozenset[str]) -> None:
        """Record *addresses* without the fixed one."""
        self.sets.append(addresses - {FIXED})


async def test_a_watch_of_the_topic_is_told_at_once(lookupd: ScriptedLookupd) -> None:
    """It is called once; the watch of another topic is not called."""
    async with discovery(lookupd.address) as found:
        told, other = Told(), Told()
        await found.watch_topic("t", told).first_answer()
        found.watch_topic("other", other)
        for _ in range(3):
            found.topic_seen("t", A)
        found.topic_seen("t", FIXED)
        found.topic_seen("nobody's", A)
        await turn()

        assert [{A}] == told.sets
        assert [] == other.sets
        assert {None, "t", "other"} >= found._polls.keys()


async def test_without_any_nsqlookupd_there_is_nothing_to_learn() -> None:
    """Every broker is known and subscribed on from the start."""
    found = Discovery((FIXED,))
    told = Told()
    watch = found.watch_topic("t", told)

    found.topic_seen("t", A)
    await turn()

    assert {FIXED} == watch.addresses
    assert [] == told.sets


async def test_what_no_nsqlookupd_names_in_a_minute_counts_no_more(
    lookupd: ScriptedLookupd,
) -> None:
    """The nsqd may have lost the topic or its address meanwhile."""
    clock = ManualClock()
    async with discovery(lookupd.address) as found:
        told = Told()
        await found.watch_topic("t", told).first_answer()
        found.topic_seen("t", A)
        while len(told.sets) < 2:
            asked = len(lookupd.questions)
            await clock.advance(POLL_S)
            while len(lookupd.questions) == asked:
                await turn()
            await lookupd.questions[-1].gone.wait()
            await turn(5)

        assert [{A}, frozenset()] == told.sets


async def test_what_is_named_ends_with_its_name(lookupd: ScriptedLookupd) -> None:
    """Once an nsqlookupd has returned it, only answers count: the topic may be deleted."""
    clock = ManualClock()
    async with discovery(lookupd.address) as found:
        told = Told()
        watch = found.watch_topic("t", told)
        await watch.first_answer()
        found.topic_seen("t", A)
        lookupd.knows(A, B)
        watch.refresh()
        await clock.advance(1.0)
        await until(lambda: {A, B} in told.sets)
        lookupd.knows(B)
        watch.refresh()
        await clock.advance(1.0)
        await until(lambda: {B} in told.sets)

        assert [{A}, {A, B}, {B}] == told.sets


async def test_no_more_are_counted_on_than_are_allowed(lookupd: ScriptedLookupd) -> None:
    """The maximum applies to nsqds from publishes, too."""
    lookupd.knows(A)
    async with discovery(lookupd.address, max_nsqds=1) as found:
        told = Told()
        await found.watch_topic("t", told).first_answer()
        found.topic_seen("t", B)
        await turn(3)

        assert [{A}] == told.sets


@pytest.mark.nsqd
async def test_a_message_of_a_new_topic_is_delivered_at_once() -> None:
    """With real programs, a subscriber does not wait for the next poll."""
    async with AsyncExitStack() as life:
        lookupd = await life.enter_async_context(real_nsqlookupd())
        nsqd = await life.enter_async_context(
            real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}")
        )
        await registered(lookupd.http_address, nsqd.tcp_address)
        options = LookupOptions(lookupd_http_addresses=(lookupd.http_address,))
        found = Discovery((), options)
        await found.start()
        life.push_async_callback(found.stop)
        publisher = await life.enter_async_context(Producer(discovery=found))
        listener = SubscriptionListener()
        subscription = Subscription(found, SubscriptionOptions(topic="new", channel="c"), listener)
        await subscription.start()
        life.push_async_callback(subscription.close)
        subscription.set_window(10)
        before = listener.all

        async with asyncio.timeout(options.poll_interval_s / 10):
            await publisher.publish("new", b"first")
            while (told := await listener.told.get())[0] != "messages":
                pass

    assert [] == before
    assert isinstance(told[2], list)
    assert 1 == len(told[2])


async def registered(lookupd: str, nsqd: str) -> None:
    """Wait until the nsqlookupd returns the nsqd."""
    options = LookupOptions(lookupd_http_addresses=(lookupd,), poll_interval_s=0.05)
    found = Discovery((), options)
    await found.start()
    watch = found.watch_nodes(lambda _addresses: None)
    await until(lambda: nsqd in watch.addresses)
    await found.stop()
