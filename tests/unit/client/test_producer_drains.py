"""Tests of `Producer.set_draining`: publishes avoid an nsqd that is to be removed."""

from __future__ import annotations

from gateway.errors import BrokerRefused
from gateway.protocol.commands import MultiPublish, Publish
from gateway.protocol.frames import OK
from tests.support.brokers.running_producer import (
    HeldPublishes,
    outcomes,
    running_producer,
    start_publishes,
)
from tests.support.brokers.scripted_broker import ScriptedBroker, refuse
from tests.support.manual_clock import until


async def test_a_drained_nsqd_gets_nothing_until_the_drain_ends(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    async with running_producer(broker, other) as publisher:
        publisher.set_draining(frozenset({broker.address}))
        for _ in range(10):
            await publisher.publish("t", b"1")
        before = len(broker.all(Publish)), len(other.all(Publish))
        publisher.set_draining(frozenset())
        for _ in range(10):
            await publisher.publish("t", b"2")

    assert (0, 10) == before
    assert broker.all(Publish)
    assert 20 == len(broker.all(Publish)) + len(other.all(Publish))


async def test_a_drained_nsqd_is_better_than_none(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The publish succeeds while no other nsqd is connected."""
    async with running_producer(broker, other) as publisher:
        publisher.set_draining(frozenset({broker.address, other.address}))
        await publisher.publish("t", b"1")

    assert 1 == len(broker.all(Publish)) + len(other.all(Publish))


async def test_what_waits_for_a_drained_nsqd_moves(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Only what was written stays, because its outcome is not known yet."""
    held = HeldPublishes(broker, other)
    async with running_producer(broker, other) as publisher:
        written = start_publishes(publisher, b"1")
        peer = await held.peers.get()
        drained, free = (broker, other) if broker.all(Publish) else (other, broker)
        waiting = start_publishes(publisher, b"2", b"3")
        await until(lambda: publisher.waiting_bytes > 10)
        publisher.set_draining(frozenset({drained.address}))
        moved = await outcomes(*waiting)
        peer.send(OK)
        done = await outcomes(*written)

    assert [None] * 3 == moved + done
    assert [MultiPublish("t", [b"2", b"3"])] == free.all(MultiPublish)
    assert [] == drained.all(MultiPublish)


async def test_what_another_nsqd_refuses_does_not_go_to_a_drained_one(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The caller gets the refusal, instead of a publish that goes round for ever."""
    broker.on(Publish, refuse("E_PUB_FAILED", "exiting"))
    async with running_producer(broker, other) as publisher:
        publisher.set_draining(frozenset({other.address}))
        (error,) = await outcomes(*start_publishes(publisher, b"1"))

    assert isinstance(error, BrokerRefused)
    assert [] == other.all(Publish)
