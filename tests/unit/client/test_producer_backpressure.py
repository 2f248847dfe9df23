"""Tests of the limits on bytes in a `Producer`, for each nsqd and in total."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from gateway.client.producer import Producer, ProducerOptions
from gateway.credentials import Secret
from gateway.errors import GatewayError, NoBroker, OutcomeUnknown, Overloaded
from gateway.protocol.commands import Identify, MultiPublish, Publish
from gateway.protocol.frames import OK
from gateway.protocol.wire import Limits
from tests.support.brokers.running_producer import outcomes, running_producer, start_publishes
from tests.support.brokers.scripted_broker import ScriptedBroker, no_response
from tests.support.manual_clock import ManualClock, turn, until

FIFTY = b"x" * 46
"""A body that takes 50 bytes with its size."""


SMALL = ProducerOptions(connections_per_nsqd=1, buffer_bytes=200, buffer_per_nsqd_bytes=100)


def silent(*brokers: ScriptedBroker) -> None:
    for broker in brokers:
        broker.on(Publish, no_response)
        broker.on(MultiPublish, no_response)


async def test_what_is_too_much_for_one_nsqd_goes_to_another(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """A topic stays on one nsqd until the limit of that nsqd is reached."""
    silent(broker, other)
    async with running_producer(broker, other, options=SMALL) as publisher:
        start_publishes(publisher, FIFTY)
        await until(lambda: len(broker.all(Publish) + other.all(Publish)) == 1)
        first, second = (broker, other) if broker.all(Publish) else (other, broker)
        start_publishes(publisher, FIFTY)
        await turn(3)
        before = len(second.all(Publish))
        start_publishes(publisher, FIFTY)
        await until(lambda: len(second.all(Publish)) == 1)

    assert 0 == before
    assert 1 == len(first.all(Publish))


async def test_when_every_nsqd_has_enough_a_publish_is_refused_at_once(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The error names the limit, the bytes that wait, and the size of the publish."""
    silent(broker, other)
    options = ProducerOptions(connections_per_nsqd=1, buffer_per_nsqd_bytes=100)
    async with running_producer(broker, other, options=options) as publisher:
        held = start_publishes(publisher, FIFTY, FIFTY, FIFTY, b"x" * 36)
        await turn(2)

        with pytest.raises(Overloaded) as caught:
            await publisher.publish("t", FIFTY)
        await publisher.publish_many("t", [])

        error = caught.value
        assert (90, 50, 100) == (error.waiting_bytes, error.size_bytes, error.limit_bytes)
        assert str(error) == (
            "90 bytes are queued for each connected nsqd, and this publish has 50 bytes; "
            "the limit is 100 bytes; nothing was published, try again later"
        )
        assert not any(publish.done() for publish in held)


async def test_what_waits_in_all_is_bounded_too(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The total is limited even if each nsqd has room."""
    silent(broker, other)
    options = ProducerOptions(connections_per_nsqd=1, buffer_bytes=120, buffer_per_nsqd_bytes=100)
    async with running_producer(broker, other, options=options) as publisher:
        start_publishes(publisher, FIFTY, FIFTY)
        await turn(2)

        with pytest.raises(Overloaded, match="100 bytes are queued for publishing, and this"):
            await publisher.publish("u", FIFTY)


async def test_room_that_is_given_free_is_used_again(broker: ScriptedBroker) -> None:
    """An answer frees exactly the bytes of its publishes."""
    silent(broker)
    async with running_producer(broker, options=SMALL) as publisher:
        peer = await broker.peer()
        for _ in range(3):
            both = start_publishes(publisher, FIFTY, FIFTY)
            await peer.next(MultiPublish)
            with pytest.raises(Overloaded):
                await publisher.publish("t", b"x")
            peer.send(OK)

            assert [None, None] == await outcomes(*both)


async def test_the_bound_of_an_nsqd_holds_for_all_secrets_together(broker: ScriptedBroker) -> None:
    """Many secrets get no more bytes than one."""
    silent(broker)
    async with running_producer(broker, options=SMALL) as publisher:
        publishes = [
            asyncio.ensure_future(publisher.publish("t", FIFTY, secret=Secret(name)))
            for name in (b"alice", b"bob")
        ]
        await until(lambda: len(broker.all(Publish)) == 2)

        with pytest.raises(Overloaded):
            await publisher.publish("t", b"x")
        with pytest.raises(Overloaded):
            await publisher.publish("t", b"x", secret=Secret(b"eve"))

        assert not any(publish.done() for publish in publishes)


async def test_what_no_nsqd_has_room_for_when_one_is_lost_is_refused(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The error says that the publish was not written."""
    silent(broker, other)
    async with running_producer(broker, other, options=SMALL) as publisher:
        publishes = start_publishes(publisher, FIFTY) + start_publishes(publisher, FIFTY, topic="u")
        await until(lambda: len(broker.all(Publish) + other.all(Publish)) == 2)
        publishes += start_publishes(publisher, FIFTY) + start_publishes(
            publisher, FIFTY, topic="u"
        )
        await turn(2)

        broker.peers[0].close()
        await until(lambda: sum(publish.done() for publish in publishes) == 2)

        errors = [publish.exception() for publish in publishes if publish.done()]
        assert 1 == sum(isinstance(error, Overloaded) for error in errors)


async def test_a_body_that_is_arriving_counts_among_what_waits(broker: ScriptedBroker) -> None:
    """It counts until it is released; a body beyond the limit is not counted."""
    silent(broker)
    async with running_producer(broker, options=SMALL) as publisher:
        publisher.reserve(120)
        (waiting,) = start_publishes(publisher, FIFTY)
        await turn(2)

        with pytest.raises(Overloaded) as held:
            publisher.reserve(31)
        with pytest.raises(Overloaded) as published:
            await publisher.publish("t", b"x" * 27)
        publisher.reserve(30)
        publisher.unreserve(150)
        publisher.reserve(150)

        for error in (held.value, published.value):
            assert (170, 31, 200) == (error.waiting_bytes, error.size_bytes, error.limit_bytes)
        assert "170 bytes are queued for publishing, and this publish has 31" in str(held.value)
        assert not waiting.done()


async def test_bodies_that_are_arriving_leave_half_of_the_room(broker: ScriptedBroker) -> None:
    """Clients that stall in the middle of a body keep no others from publishing."""
    limits = Limits(max_msg_size_bytes=50, max_body_size_bytes=100)
    options = replace(SMALL, buffer_per_nsqd_bytes=200, limits=limits)
    silent(broker)
    async with running_producer(broker, options=options) as publisher:
        publisher.reserve_arriving(70)
        publisher.reserve_arriving(30)
        with pytest.raises(Overloaded) as caught:
            publisher.reserve_arriving(1)
        waiting = start_publishes(publisher, FIFTY, FIFTY)
        await turn(2)
        full_bytes = publisher.waiting_bytes
        refused = start_publishes(publisher, b"x")
        await turn(1)
        publisher.unreserve_arriving(100)
        left_bytes = publisher.waiting_bytes
        publisher.reserve_arriving(100)

        assert (200, 100) == (full_bytes, left_bytes)
        assert [False, False, True] == [each.done() for each in waiting + refused]
        assert [Overloaded] == [type(error) for error in await outcomes(*refused)]
    assert [OutcomeUnknown, NoBroker] == [type(error) for error in await outcomes(*waiting)]
    assert (
        "100 bytes are in bodies that are still arriving, and this publish has 1 bytes; "
        "the limit is 100 bytes" in str(caught.value)
    )


async def test_a_body_of_the_largest_size_has_room_to_arrive(broker: ScriptedBroker) -> None:
    """The maximum size is allowed even if it is more than half of the limit."""
    limits = Limits(max_msg_size_bytes=50, max_body_size_bytes=180)
    async with running_producer(broker, options=replace(SMALL, limits=limits)) as publisher:
        publisher.reserve_arriving(180)
        with pytest.raises(Overloaded, match="still arriving"):
            publisher.reserve_arriving(1)


async def test_a_body_that_is_arriving_holds_up_no_stop(broker: ScriptedBroker) -> None:
    """The rest of the body may never arrive."""
    publisher = Producer([broker.address], SMALL)
    await publisher.start()
    publisher.reserve(100)

    async with asyncio.timeout(10):
        await publisher.stop()

    publisher.unreserve(100)


async def test_what_waits_for_a_connection_is_bounded_too(broker: ScriptedBroker) -> None:
    """The limit of an nsqd applies while it is being connected to."""
    broker.on(Identify, no_response)
    publisher = Producer([broker.address], SMALL)
    starting = asyncio.ensure_future(publisher.start())
    await (await broker.peer()).next(Identify)
    waiting = start_publishes(publisher, FIFTY, FIFTY)
    await turn(1)

    with pytest.raises(Overloaded, match="for each connected nsqd"):
        await publisher.publish("t", b"x")

    broker.peers[0].close()
    await starting
    assert [NoBroker, NoBroker] == [type(error) for error in await outcomes(*waiting)]
    await publisher.stop()


async def test_each_caller_is_told_in_time(broker: ScriptedBroker) -> None:
    """Each caller gets its error within 0.1 s after its own deadline, whatever the batch."""
    clock = ManualClock()
    silent(broker)
    loop = asyncio.get_running_loop()
    told: dict[int, float] = {}
    due: dict[int, float] = {}

    def note(number: int, _error: GatewayError | None) -> None:
        told[number] = loop.time()

    async with running_producer(broker) as publisher:
        peer = await broker.peer()
        (first,) = start_publishes(publisher, b"x")
        await peer.next(Publish)
        for number in range(10):
            await clock.advance(0.05)
            due[number] = loop.time() + 5.0
            publisher.begin("t", (b"x",), partial(note, number))
        await clock.advance(4.0)
        peer.send(OK)
        await peer.next(MultiPublish)

        for _ in range(100):
            await clock.advance(0.02)

        assert [None] == await outcomes(first)
        assert 0 == publisher._held_bytes
    late_s = [told[number] - due[number] for number in range(10)]
    assert all(0.0 <= late <= 0.1 + 0.02 for late in late_s), late_s


async def test_nothing_is_left_of_topics_that_had_work(broker: ScriptedBroker) -> None:
    """New topics do not accumulate memory."""
    clock = ManualClock()
    async with running_producer(broker) as publisher:
        pool = publisher._pools._pools[None]
        for number in range(20):
            await publisher.publish(f"topic-{number}", b"x")
        after_answers = dict(pool._by_topic)

        silent(broker)
        written = start_publishes(publisher, b"x")
        peer = await broker.peer()
        await until(lambda: len(broker.all(Publish)) == 21)
        waiting = [
            task for n in range(20) for task in start_publishes(publisher, b"x", topic=f"late-{n}")
        ]
        await turn(2)
        at_work = len(pool._by_topic)
        await clock.advance(3.0)
        peer.send(OK)
        await until(lambda: len(broker.all(Publish)) == 22)
        await clock.advance(2.1)
        await outcomes(*written, *waiting)

        assert ({}, 21, ["late-0"]) == (after_answers, at_work, list(pool._by_topic))
        peer.close()
        await until(lambda: not pool._by_topic)


async def test_before_a_start_and_after_a_stop_nothing_is_taken(broker: ScriptedBroker) -> None:
    """The error is raised at once and has the reason."""
    publisher = Producer([broker.address])
    errors: list[GatewayError | None] = []
    for _ in range(2):
        publisher.begin("t", (b"x",), errors.append)
        await publisher.start()
        await publisher.stop()
    publisher.begin("t", (b"x",), errors.append)

    assert [NoBroker] * 3 == [type(error) for error in errors]
    assert {"the publisher has not been started, or was stopped; nothing was published"} == set(
        map(str, errors)
    )
