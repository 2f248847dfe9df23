"""Publishing for many secrets: none ever shares a connection with another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.client.connection import ConnectionOptions
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.errors import AuthRequired, BrokerRefused, Full, OutcomeUnknown
from gateway.protocol.commands import Auth, Publish
from gateway.secret import Secret
from tests.support.guarded_broker import GuardedBroker
from tests.support.manual_clock import ManualClock, until
from tests.support.publishing import publishing
from tests.support.scripted_broker import Peer, ScriptedBroker, silence

ALICE, BOB, EVE = Secret(b"alice"), Secret(b"bob"), Secret(b"eve")


@pytest_asyncio.fixture
async def guarded() -> AsyncIterator[GuardedBroker]:
    """Return a broker that wants AUTH; Alice may publish to t and u, Bob to t."""
    broker = GuardedBroker()
    broker.grants = {b"alice": {"t", "u"}, b"bob": {"t"}}
    await broker.start()
    yield broker
    await broker.stop()


def published_by(broker: ScriptedBroker) -> dict[bytes, list[bytes]]:
    """Return the bodies that came over connections of each secret."""
    bodies: dict[bytes, list[bytes]] = {}
    for peer in broker.peers:
        secrets = [command.secret for command in peer.all(Auth)]
        for command in peer.all(Publish):
            assert 1 == len(secrets)
            bodies.setdefault(secrets[0], []).append(command.body)
    return bodies


async def test_two_secrets_never_share_a_connection(guarded: GuardedBroker) -> None:
    """What was published for one went over connections that have said its secret."""
    async with publishing(guarded) as publisher:
        await asyncio.gather(
            *(publisher.publish("t", b"for alice", secret=ALICE) for _ in range(3)),
            *(publisher.publish("t", b"for bob", secret=BOB) for _ in range(2)),
        )
        await publisher.publish("u", b"for alice", secret=ALICE)
        await publisher.publish("t", b"for bob", secret=BOB)

    by_secret = published_by(guarded)
    assert {b"for alice"} == set(by_secret[b"alice"])
    assert {b"for bob"} == set(by_secret[b"bob"])


async def test_without_a_secret_nothing_is_written(guarded: GuardedBroker) -> None:
    """The broker has seen IDENTIFY and no more."""
    async with publishing(guarded) as publisher:
        with pytest.raises(AuthRequired, match=guarded.address):
            await publisher.publish("t", b"1")

    assert {"Identify"} == {type(each).__name__ for peer in guarded.peers for each in peer.received}


async def test_a_broker_that_asks_for_a_secret_is_not_out_of_reach(guarded: GuardedBroker) -> None:
    """A start has nothing to say about it: who publishes will bring one."""
    async with Publisher([guarded.address]) as publisher:
        assert [] == await publisher._pools._pools[None].first_tries()


async def test_that_a_broker_asks_for_auth_can_be_told(
    broker: ScriptedBroker, guarded: GuardedBroker
) -> None:
    """One is enough; it may have refused for want of a secret, or have been told one."""
    asks = []
    for addresses in ([broker.address], [broker.address, guarded.address]):
        async with Publisher(addresses, PublisherOptions(connections_per_nsqd=1)) as publisher:
            asks.append(publisher.asks_for_auth)
    options = PublisherOptions(connection=ConnectionOptions(secret=ALICE))
    async with Publisher([guarded.address], options) as publisher:
        asks.append(publisher.asks_for_auth)

    assert [False, True, True] == asks


async def test_a_broker_may_ask_for_auth_later_or_no_more(guarded: GuardedBroker) -> None:
    """What it said last counts, also while it cannot be reached."""
    clock = ManualClock()
    guarded.wants_auth(wants=False)
    async with publishing(guarded) as publisher:
        asks = [publisher.asks_for_auth]
        guarded.wants_auth(wants=True)
        (await guarded.peer()).close()
        while not publisher.asks_for_auth:
            await clock.advance(20.0)
        await guarded.stop()
        await clock.advance(20.0)
        asks.append(publisher.asks_for_auth)
        guarded.wants_auth(wants=False)
        await guarded.start()
        while not publisher.has_open_lane:
            await clock.advance(20.0)
        asks.append(publisher.asks_for_auth)

    assert [False, True, False] == asks


async def test_a_broker_that_asks_for_no_secret_is_told_none(broker: ScriptedBroker) -> None:
    """The publish is taken all the same."""
    async with publishing(broker) as publisher:
        await publisher.publish("t", b"1", secret=ALICE)

    assert [] == broker.all(Auth)
    assert [b"1"] == [command.body for command in broker.all(Publish)]


async def test_an_unknown_secret_is_refused_and_soon_asked_about_again(
    guarded: GuardedBroker,
) -> None:
    """For a second the broker is not asked; once it knows the secret, it is taken."""
    clock = ManualClock()
    async with publishing(guarded) as publisher:
        for _ in range(3):
            with pytest.raises(BrokerRefused, match="E_AUTH_FAILED"):
                await publisher.publish("t", b"1", secret=EVE)
        asked = len(guarded.all(Auth))
        guarded.grants[b"eve"] = {"t"}
        await clock.advance(1.1)

        await publisher.publish("t", b"2", secret=EVE)

    assert 1 == asked
    assert [b"2"] == published_by(guarded)[b"eve"]


async def test_a_topic_that_is_not_granted_fails_no_neighbour(guarded: GuardedBroker) -> None:
    """The broker closes the connection behind its refusal; the others wait for the next."""
    async with publishing(guarded) as publisher:
        first = asyncio.ensure_future(publisher.publish("u", b"denied", secret=BOB))
        others = [
            asyncio.ensure_future(publisher.publish("t", b"%d" % number, secret=BOB))
            for number in range(5)
        ]
        with pytest.raises(BrokerRefused, match='E_UNAUTHORIZED AUTH failed for PUB on "u"'):
            await first
        await asyncio.gather(*others)


async def test_a_refused_topic_is_answered_from_memory(guarded: GuardedBroker) -> None:
    """For a second; other topics of the secret are not meant."""
    async with publishing(guarded) as publisher:
        for _ in range(3):
            with pytest.raises(BrokerRefused, match="E_UNAUTHORIZED"):
                await publisher.publish("u", b"1", secret=BOB)
        await publisher.publish("t", b"2", secret=BOB)

    assert 1 == sum(command.topic == "u" for command in guarded.all(Publish))


async def test_the_secret_least_recently_used_makes_room(guarded: GuardedBroker) -> None:
    """One that is at work does not."""
    options = PublisherOptions(connections_per_nsqd=1, max_secrets=2)
    guarded.grants[b"eve"] = {"t"}
    async with publishing(guarded, options=options) as publisher:
        await publisher.publish("t", b"1", secret=ALICE)
        alices = guarded.peers[-1]
        await publisher.publish("t", b"2", secret=BOB)
        await publisher.publish("t", b"3", secret=EVE)

        await alices.gone()

    assert 3 == len(published_by(guarded))


async def test_secrets_that_are_all_at_work_leave_no_room(broker: ScriptedBroker) -> None:
    """One more is refused at once; nothing of it was written."""
    broker.on(Publish, silence)
    options = PublisherOptions(connections_per_nsqd=1, max_secrets=1)
    async with publishing(broker, options=options) as publisher:
        waiting = asyncio.ensure_future(publisher.publish("t", b"1", secret=ALICE))
        await until(lambda: bool(broker.all(Publish)))

        with pytest.raises(Full, match="1 secrets publish at this moment"):
            await publisher.publish("t", b"2", secret=BOB)
        publisher.abort()
        with pytest.raises(OutcomeUnknown):
            await waiting


async def test_made_up_secrets_take_no_place_from_one_that_was_taken(
    guarded: GuardedBroker,
) -> None:
    """However many there are, and however slowly they are refused."""
    options = PublisherOptions(connections_per_nsqd=1, max_secrets=8)
    async with publishing(guarded, options=options) as publisher:
        await publisher.publish("t", b"1", secret=ALICE)
        guarded.on(Auth, silence)
        made_up = [
            asyncio.ensure_future(publisher.publish("t", b"x", secret=Secret(b"%d" % number)))
            for number in range(20)
        ]
        await until(lambda: sum(each.done() for each in made_up) == 18)

        await publisher.publish("t", b"2", secret=ALICE)

        refusals = {str(each.exception()) for each in made_up if each.done()}
        assert {"2 new secrets wait for a broker's answer, which is the limit"} == {
            text.partition(";")[0] for text in refusals
        }
        for each in made_up:
            each.cancel()
        publisher.abort()
    assert [b"1", b"2"] == published_by(guarded)[b"alice"]


async def test_a_secret_that_nobody_uses_has_no_connection_for_long(
    guarded: GuardedBroker,
) -> None:
    """It gets a new one when it is used again."""
    clock = ManualClock()
    options = PublisherOptions(connections_per_nsqd=1, secret_idle_s=60.0)
    async with publishing(guarded, options=options) as publisher:
        await publisher.publish("t", b"1", secret=ALICE)
        peer: Peer = guarded.peers[-1]
        await clock.advance(61.0)
        await peer.gone()

        await publisher.publish("t", b"2", secret=ALICE)

    assert [b"1", b"2"] == published_by(guarded)[b"alice"]


async def test_a_second_connection_comes_with_work_for_it(broker: ScriptedBroker) -> None:
    """While one topic keeps the first one busy, another topic is not held up for long."""
    broker.on(Publish, silence)
    options = PublisherOptions(connections_per_nsqd=2)
    async with publishing(broker, options=options) as publisher:
        before = len(broker.peers)
        publishes = [
            asyncio.ensure_future(publisher.publish(topic, b"1", secret=ALICE))
            for topic in ("t", "u", "v")
        ]
        await until(lambda: len(broker.peers) == before + 1)
        await until(lambda: len(broker.all(Publish)) == 1)
        publishes.append(asyncio.ensure_future(publisher.publish("w", b"1", secret=ALICE)))

        await until(lambda: len(broker.peers) == before + 2)
        publisher.abort()
        await asyncio.wait(publishes)
        assert all(isinstance(each.exception(), Exception) for each in publishes)


async def test_stopping_ends_every_connection(guarded: GuardedBroker) -> None:
    """Nothing of any secret stays."""
    tasks = asyncio.all_tasks()
    publisher = Publisher([guarded.address])
    await publisher.start()
    await asyncio.gather(*(publisher.publish("t", b"1", secret=each) for each in (ALICE, BOB)))

    await publisher.stop()

    for peer in guarded.peers:
        await peer.gone()
    assert tasks == asyncio.all_tasks()
