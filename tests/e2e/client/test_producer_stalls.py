"""Tests of `Producer` with an nsqd that hangs while another one answers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.client.producer import Producer, ProducerOptions
from gateway.client.producer_pool import STALL_S
from gateway.errors import OutcomeUnknown
from gateway.protocol.commands import Identify, MultiPublish, Nop, Publish
from gateway.protocol.frames import OK
from tests.support.brokers.killable_broker import killable_broker
from tests.support.brokers.running_producer import (
    HeldPublishes,
    outcomes,
    running_producer,
    start_publishes,
)
from tests.support.brokers.scripted_broker import Peer, ScriptedBroker, no_response, respond
from tests.support.manual_clock import ManualClock, turn, until

TIMEOUT_S = 5.0
SWEEP_S = 0.1
LONG_S = 20.0
"""Longer than any delay between two tries to connect."""


async def hung(
    publisher: Producer, brokers: tuple[ScriptedBroker, ScriptedBroker]
) -> tuple[asyncio.Task[None], Peer, ScriptedBroker, ScriptedBroker]:
    """Publish to topic t without an answer; return that task, its connection and both brokers."""
    held = HeldPublishes(*brokers)
    (written,) = start_publishes(publisher, b"1")
    peer = await held.peers.get()
    hanging, healthy = brokers if peer in brokers[0].peers else reversed(brokers)
    healthy.on(Publish, respond(OK))
    return written, peer, hanging, healthy


async def test_what_waits_for_an_nsqd_that_hangs_moves_and_its_topic_too(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Queued publishes move after half a second; the written one is unknown at its deadline."""
    clock = ManualClock()
    async with running_producer(broker, other) as publisher:
        written, _, hanging, healthy = await hung(publisher, (broker, other))
        waiting = start_publishes(publisher, b"2", b"3")
        await turn(2)
        await clock.advance(STALL_S - 0.01)
        early = healthy.all(MultiPublish)

        await clock.advance(SWEEP_S)
        moved = await outcomes(*waiting)
        later = await outcomes(*start_publishes(publisher, b"4"))
        was_done = written.done()
        await clock.advance(TIMEOUT_S)
        (unknown,) = await outcomes(written)

    assert [] == early
    assert [None] * 3 == moved + later
    assert [MultiPublish("t", [b"2", b"3"])] == healthy.all(MultiPublish)
    assert [Publish("t", b"4")] == healthy.all(Publish)
    assert [Publish("t", b"1")] == hanging.all(Publish)
    assert (False, OutcomeUnknown) == (was_done, type(unknown))


async def test_no_other_connection_to_an_nsqd_that_hangs_is_taken(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """They are avoided even after the connection that hung was aborted."""
    clock = ManualClock()
    options = ProducerOptions(connections_per_nsqd=4)
    async with running_producer(broker, other, options=options) as publisher:
        written, peer, hanging, _ = await hung(publisher, (broker, other))
        await clock.advance(STALL_S)
        for _ in range(8):
            await publisher.publish("t", b"2")
        await clock.advance(TIMEOUT_S)
        await outcomes(written)
        await peer.gone()
        for _ in range(8):
            await publisher.publish("t", b"3")

    assert [Publish("t", b"1")] == hanging.all(Publish)


async def test_a_heartbeat_is_a_sign_of_life(broker: ScriptedBroker, other: ScriptedBroker) -> None:
    """It is enough on any connection to the nsqd; then all of them are used again."""
    clock = ManualClock()
    options = ProducerOptions(connections_per_nsqd=2)
    async with running_producer(broker, other, options=options) as publisher:
        written, peer, hanging, healthy = await hung(publisher, (broker, other))
        hanging.on(Identify, no_response)
        await clock.advance(TIMEOUT_S)
        await outcomes(written)
        await peer.gone()
        (idle,) = [each for each in hanging.peers if each is not peer]
        await clock.advance(SWEEP_S)

        idle.beat()
        await idle.next(Nop)
        healthy.on(Publish, no_response)
        (unanswered,) = start_publishes(publisher, b"2")
        await until(lambda: bool(healthy.all(Publish)))
        await clock.advance(SWEEP_S)
        hanging.on(Publish, respond(OK))
        await publisher.publish("u", b"3")

        assert [Publish("u", b"3")] == idle.all(Publish)
        assert not unanswered.done()


async def test_an_nsqd_that_answers_again_is_taken_again(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """A late answer ends the suspicion, and topics may return to the nsqd."""
    clock = ManualClock()
    async with running_producer(broker, other) as publisher:
        written, peer, hanging, healthy = await hung(publisher, (broker, other))
        await clock.advance(STALL_S)
        for _ in range(4):
            await publisher.publish("t", b"2")
        meanwhile = len(hanging.all(Publish))

        hanging.on(Publish, respond(OK))
        peer.send(OK)
        answered = await outcomes(written)
        for _ in range(4):
            await publisher.publish("t", b"3")

    assert (1, 3) == (meanwhile, len(hanging.all(Publish)))
    assert [None] == answered
    assert 6 == len(healthy.all(Publish))


async def test_an_nsqd_that_was_cut_is_taken_again_once_it_is_back(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Its answer to IDENTIFY ends the suspicion."""
    clock = ManualClock()
    async with running_producer(broker, other) as publisher:
        written, peer, hanging, _ = await hung(publisher, (broker, other))
        await clock.advance(TIMEOUT_S + SWEEP_S)
        await outcomes(written)
        await peer.gone()
        hanging.on(Publish, respond(OK))
        while len(hanging.peers) < 2:
            await clock.advance(LONG_S)
        before = len(hanging.all(Publish))

        while len(hanging.all(Publish)) == before:
            await publisher.publish("t", b"2")

    assert 1 == before


async def test_the_only_nsqd_is_waited_for(broker: ScriptedBroker) -> None:
    """Without another nsqd, topic, order and deadline do not change."""
    clock = ManualClock()
    held = HeldPublishes(broker)
    options = ProducerOptions(connections_per_nsqd=2)
    async with running_producer(broker, options=options) as publisher:
        (written,) = start_publishes(publisher, b"1")
        peer = await held.peers.get()
        waiting = start_publishes(publisher, b"2", b"3")
        await turn(2)
        for _ in range(10):
            await clock.advance(SWEEP_S)
        late = start_publishes(publisher, b"4")
        await turn(2)
        meanwhile = len(broker.all(Publish))

        peer.send(OK)

        assert [None] * 4 == await outcomes(written, *waiting, *late)
        assert 1 == meanwhile
        assert [MultiPublish("t", [b"2", b"3", b"4"])] == peer.all(MultiPublish)


async def test_two_that_hang_are_both_waited_for(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Queued publishes do not move back and forth."""
    clock = ManualClock()
    held = HeldPublishes(broker, other)
    async with running_producer(broker, other) as publisher:
        first = start_publishes(publisher, b"1") + start_publishes(publisher, b"1", topic="u")
        peers = [await held.peers.get() for _ in range(2)]
        behind = start_publishes(publisher, b"2") + start_publishes(publisher, b"2", topic="u")
        await turn(2)
        for _ in range(10):
            await clock.advance(SWEEP_S)

        for each in (broker, other):
            each.on(Publish, respond(OK))
        for peer in peers:
            peer.send(OK)

        assert [None] * 4 == await outcomes(*first, *behind)
    assert {"t"} == {command.topic for command in peers[0].all(Publish)}
    assert {"u"} == {command.topic for command in peers[1].all(Publish)}


async def test_no_more_moves_than_others_have_room_for(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The rest stays queued, and moves as soon as there is room."""
    clock = ManualClock()
    options = ProducerOptions(connections_per_nsqd=1, buffer_per_nsqd_bytes=10 * (4 + 10))
    async with running_producer(broker, other, options=options) as publisher:
        written, _, hanging, healthy = await hung(publisher, (broker, other))
        healthy.on(Publish, no_response)
        busy = start_publishes(publisher, b"u" * 94, topic="u")
        await until(lambda: len(healthy.all(Publish)) == 1)
        waiting = start_publishes(publisher, *[b"x" * 10] * 9)
        await turn(2)

        await clock.advance(STALL_S)
        await clock.advance(0.0)
        in_between = [publish.done() for publish in waiting]
        healthy.on(MultiPublish, respond(OK))
        healthy.on(Publish, respond(OK))
        healthy.peers[0].send(OK)
        await outcomes(*busy)
        for _ in range(5):
            await clock.advance(SWEEP_S)

        assert [None] * 9 == await outcomes(*waiting)
        assert [False] * 9 == in_between
        assert not written.done()
        assert [b"1"] == [command.body for command in hanging.all(Publish)]


@pytest.mark.nsqd
async def test_a_real_nsqd_that_is_stopped_holds_up_only_what_was_written_to_it() -> None:
    """After SIGSTOP of one of two nsqds, publishes to its topic succeed within a second."""
    async with killable_broker("nsqd") as stopped, killable_broker("nsqd") as running:
        addresses = [stopped.tcp_address, running.tcp_address]
        async with Producer(addresses, ProducerOptions(timeout_ms=20_000)) as publisher:
            stopped.freeze()
            topics = ["t", "u", "v", "w"]
            written = [
                task for topic in topics for task in start_publishes(publisher, b"1", topic=topic)
            ]
            await turn(3)
            async with asyncio.timeout(10):
                for topic in topics * 3:
                    await publisher.publish(topic, b"2")
            owed = sum(not publish.done() for publish in written)
            stopped.thaw()

            assert [None] * 4 == await outcomes(*written)
            assert 2 == owed
