"""An nsqd that hangs draws in nothing while another one answers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.client.lane import STALL_S
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.errors import OutcomeUnknown
from gateway.protocol.commands import Identify, MultiPublish, Nop, Publish
from gateway.protocol.frames import OK
from tests.support.manual_clock import ManualClock, turn, until
from tests.support.mortal_broker import mortal_broker
from tests.support.publishing import Held, outcomes, publishing, start
from tests.support.scripted_broker import Peer, ScriptedBroker, say, silence

TIMEOUT_S = 5.0
SWEEP_S = 0.1
LONG_S = 20.0
"""Longer than any delay between two tries to connect."""


async def hung(
    publisher: Publisher, brokers: tuple[ScriptedBroker, ScriptedBroker]
) -> tuple[asyncio.Task[None], Peer, ScriptedBroker, ScriptedBroker]:
    """Publish to topic t, unanswered; return that, its connection, its broker and the other one."""
    held = Held(*brokers)
    (written,) = start(publisher, b"1")
    peer = await held.peers.get()
    hanging, healthy = brokers if peer in brokers[0].peers else reversed(brokers)
    healthy.on(Publish, say(OK))
    return written, peer, hanging, healthy


async def test_what_waits_for_an_nsqd_that_hangs_moves_and_its_topic_too(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Half a second after the write; who was in flight hears at the deadline that nobody knows."""
    clock = ManualClock()
    async with publishing(broker, other) as publisher:
        written, _, hanging, healthy = await hung(publisher, (broker, other))
        waiting = start(publisher, b"2", b"3")
        await turn(2)
        await clock.advance(STALL_S - 0.01)
        early = healthy.all(MultiPublish)

        await clock.advance(SWEEP_S)
        moved = await outcomes(*waiting)
        later = await outcomes(*start(publisher, b"4"))
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
    """Nor after the one that hung was cut."""
    clock = ManualClock()
    options = PublisherOptions(connections_per_nsqd=4)
    async with publishing(broker, other, options=options) as publisher:
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
    """On any connection to the nsqd that owed an answer; all of them are taken again."""
    clock = ManualClock()
    options = PublisherOptions(connections_per_nsqd=2)
    async with publishing(broker, other, options=options) as publisher:
        written, peer, hanging, healthy = await hung(publisher, (broker, other))
        hanging.on(Identify, silence)
        await clock.advance(TIMEOUT_S)
        await outcomes(written)
        await peer.gone()
        (idle,) = [each for each in hanging.peers if each is not peer]
        await clock.advance(SWEEP_S)

        idle.beat()
        await idle.next(Nop)
        healthy.on(Publish, silence)
        (unanswered,) = start(publisher, b"2")
        await until(lambda: bool(healthy.all(Publish)))
        await clock.advance(SWEEP_S)
        hanging.on(Publish, say(OK))
        await publisher.publish("u", b"3")

        assert [Publish("u", b"3")] == idle.all(Publish)
        assert not unanswered.done()


async def test_an_nsqd_that_answers_again_is_taken_again(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The late answer is one all the same, and its topic may come back."""
    clock = ManualClock()
    async with publishing(broker, other) as publisher:
        written, peer, hanging, healthy = await hung(publisher, (broker, other))
        await clock.advance(STALL_S)
        for _ in range(4):
            await publisher.publish("t", b"2")
        meanwhile = len(hanging.all(Publish))

        hanging.on(Publish, say(OK))
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
    """Its answer to IDENTIFY is a sign of life."""
    clock = ManualClock()
    async with publishing(broker, other) as publisher:
        written, peer, hanging, _ = await hung(publisher, (broker, other))
        await clock.advance(TIMEOUT_S + SWEEP_S)
        await outcomes(written)
        await peer.gone()
        hanging.on(Publish, say(OK))
        while len(hanging.peers) < 2:
            await clock.advance(LONG_S)
        before = len(hanging.all(Publish))

        while len(hanging.all(Publish)) == before:
            await publisher.publish("t", b"2")

    assert 1 == before


async def test_the_only_nsqd_is_waited_for(broker: ScriptedBroker) -> None:
    """There is nowhere else to go: topic, order and deadline stay what they were."""
    clock = ManualClock()
    held = Held(broker)
    options = PublisherOptions(connections_per_nsqd=2)
    async with publishing(broker, options=options) as publisher:
        (written,) = start(publisher, b"1")
        peer = await held.peers.get()
        waiting = start(publisher, b"2", b"3")
        await turn(2)
        for _ in range(10):
            await clock.advance(SWEEP_S)
        late = start(publisher, b"4")
        await turn(2)
        meanwhile = len(broker.all(Publish))

        peer.send(OK)

        assert [None] * 4 == await outcomes(written, *waiting, *late)
        assert 1 == meanwhile
        assert [MultiPublish("t", [b"2", b"3", b"4"])] == peer.all(MultiPublish)


async def test_two_that_hang_are_both_waited_for(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """What waits is not moved to and fro."""
    clock = ManualClock()
    held = Held(broker, other)
    async with publishing(broker, other) as publisher:
        first = start(publisher, b"1") + start(publisher, b"1", topic="u")
        peers = [await held.peers.get() for _ in range(2)]
        behind = start(publisher, b"2") + start(publisher, b"2", topic="u")
        await turn(2)
        for _ in range(10):
            await clock.advance(SWEEP_S)

        for each in (broker, other):
            each.on(Publish, say(OK))
        for peer in peers:
            peer.send(OK)

        assert [None] * 4 == await outcomes(*first, *behind)
    assert {"t"} == {command.topic for command in peers[0].all(Publish)}
    assert {"u"} == {command.topic for command in peers[1].all(Publish)}


async def test_no_more_moves_than_others_have_room_for(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The rest waits where it is, and moves as soon as there is room."""
    clock = ManualClock()
    options = PublisherOptions(connections_per_nsqd=1, buffer_per_nsqd_bytes=10 * (4 + 10))
    async with publishing(broker, other, options=options) as publisher:
        written, _, hanging, healthy = await hung(publisher, (broker, other))
        healthy.on(Publish, silence)
        busy = start(publisher, b"u" * 94, topic="u")
        await until(lambda: len(healthy.all(Publish)) == 1)
        waiting = start(publisher, *[b"x" * 10] * 9)
        await turn(2)

        await clock.advance(STALL_S)
        await clock.advance(0.0)
        in_between = [publish.done() for publish in waiting]
        healthy.on(MultiPublish, say(OK))
        healthy.on(Publish, say(OK))
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
    """SIGSTOP on one of two: publishing to its topic goes on within a second, with no error."""
    async with mortal_broker("nsqd") as stopped, mortal_broker("nsqd") as running:
        addresses = [stopped.tcp_address, running.tcp_address]
        async with Publisher(addresses, PublisherOptions(timeout_ms=20_000)) as publisher:
            stopped.freeze()
            topics = ["t", "u", "v", "w"]
            written = [task for topic in topics for task in start(publisher, b"1", topic=topic)]
            await turn(3)
            async with asyncio.timeout(10):
                for topic in topics * 3:
                    await publisher.publish(topic, b"2")
            owed = sum(not publish.done() for publish in written)
            stopped.thaw()

            assert [None] * 4 == await outcomes(*written)
            assert 2 == owed
