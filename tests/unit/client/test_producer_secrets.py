"""Tests of `Producer` with many secrets, which never share a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.client.connection import ConnectionOptions
from gateway.client.producer import Producer, ProducerOptions
from gateway.credentials import Secret
from gateway.errors import AuthRequired, BrokerRefused, LimitReached, OutcomeUnknown
from gateway.protocol.commands import Auth, Publish
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.running_producer import running_producer
from tests.support.brokers.scripted_broker import Peer, ScriptedBroker, no_response
from tests.support.manual_clock import ManualClock, until

ALICE, BOB, EVE = Secret(b"alice"), Secret(b"bob"), Secret(b"eve")


@pytest_asyncio.fixture
async def guarded() -> AsyncIterator[AuthBroker]:
    """Return a broker with AUTH: Alice may publish to t and u, Bob to t."""
    broker = AuthBroker()
    broker.grants = {b"alice": {"t", "u"}, b"bob": {"t"}}
    await broker.start()
    yield broker
    await broker.stop()


def published_by(broker: ScriptedBroker) -> dict[bytes, list[bytes]]:
    """Return by secret the bodies received over its connections."""
    bodies: dict[bytes, list[bytes]] = {}
    for peer in broker.peers:
        secrets = [command.secret for command in peer.all(Auth)]
        for command in peer.all(Publish):
            assert 1 == len(secrets)
            bodies.setdefault(secrets[0], []).append(command.body)
    return bodies


async def test_two_secrets_never_share_a_connection(guarded: AuthBroker) -> None:
    """Each message arrives over a connection that sent AUTH with its secret."""
    async with running_producer(guarded) as publisher:
        await asyncio.gather(
            *(publisher.publish("t", b"for alice", secret=ALICE) for _ in range(3)),
            *(publisher.publish("t", b"for bob", secret=BOB) for _ in range(2)),
        )
        await publisher.publish("u", b"for alice", secret=ALICE)
        await publisher.publish("t", b"for bob", secret=BOB)

    by_secret = published_by(guarded)
    assert {b"for alice"} == set(by_secret[b"alice"])
    assert {b"for bob"} == set(by_secret[b"bob"])


async def test_without_a_secret_nothing_is_written(guarded: AuthBroker) -> None:
    """The broker has received IDENTIFY only."""
    async with running_producer(guarded) as publisher:
        with pytest.raises(AuthRequired, match=guarded.address):
            await publisher.publish("t", b"1")

    assert {"Identify"} == {type(each).__name__ for peer in guarded.peers for each in peer.received}


async def test_a_broker_that_asks_for_a_secret_is_not_out_of_reach(guarded: AuthBroker) -> None:
    """`start` returns no line for it, because callers bring their secrets."""
    async with Producer([guarded.address]) as publisher:
        assert [] == await publisher._pools._pools[None].first_attempts()


async def test_a_broker_that_wants_a_secret_is_seldom_asked_without(guarded: AuthBroker) -> None:
    """One connection retries at long intervals, in case nsqd was restarted without AUTH."""
    clock = ManualClock()
    options = ProducerOptions(connections_per_nsqd=4)
    async with running_producer(guarded, options=options) as publisher:
        await publisher._pools._pools[None].first_attempts()
        first = len(guarded.peers)
        for _ in range(600):
            await clock.advance(0.5)
        later = len(guarded.peers) - first
        requiring = publisher.nsqds_requiring_auth

    assert first <= 4
    assert 1 <= later <= 10, "5 minutes, 30 to 60 s between tries"
    assert 1 == requiring


async def test_with_a_secret_of_its_own_a_publisher_stays_connected(guarded: AuthBroker) -> None:
    """Each broker has one connection, which never publishes; other callers get AuthRequired."""
    clock = ManualClock()
    guarded.grants[b"ours"] = {"t"}
    options = ProducerOptions(connections_per_nsqd=4, own_secret=Secret(b"ours"))
    async with running_producer(guarded, options=options) as publisher:
        await publisher._pools._pools[None].first_attempts()
        with pytest.raises(AuthRequired, match=guarded.address):
            await publisher.publish("t", b"nobody's")
        await publisher.publish("t", b"hers", secret=ALICE)
        await clock.advance(25.0)
        requiring = publisher.nsqds_requiring_auth

    assert [b"alice", b"ours"] == sorted(command.secret for command in guarded.all(Auth))
    assert {b"alice": [b"hers"]} == published_by(guarded)
    assert (0, 2) == (requiring, len(guarded.peers))


async def test_a_secret_of_its_own_stands_in_nobodys_way(broker: ScriptedBroker) -> None:
    """Where no AUTH is required, publishes without a secret use all connections."""
    options = ProducerOptions(connections_per_nsqd=2, own_secret=Secret(b"ours"))
    async with running_producer(broker, options=options) as publisher:
        await publisher.publish("t", b"1")

    assert [] == broker.all(Auth)
    assert [b"1"] == [command.body for command in broker.all(Publish)]


async def test_a_secret_of_its_own_that_is_refused_is_no_fault_of_the_caller(
    guarded: AuthBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers without a secret get AuthRequired, and the refusal is logged once."""
    clock = ManualClock()
    options = ProducerOptions(connections_per_nsqd=1, own_secret=Secret(b"old"))
    async with running_producer(guarded, options=options) as publisher:
        await publisher._pools._pools[None].first_attempts()
        with pytest.raises(AuthRequired):
            await publisher.publish("t", b"1")
        while len(guarded.all(Auth)) < 3:
            await clock.advance(20.0)
        requiring = publisher.nsqds_requiring_auth

    refused = [each for each in caplog.messages if "refused the gateway's own secret" in each]
    assert 1 == len(refused)
    assert "old" not in refused[0]
    assert 1 == requiring


async def test_a_lost_connection_of_its_own_comes_back(guarded: AuthBroker) -> None:
    clock = ManualClock()
    guarded.grants[b"ours"] = set()
    options = ProducerOptions(connections_per_nsqd=1, own_secret=Secret(b"ours"))
    async with running_producer(guarded, options=options) as publisher:
        await publisher._pools._pools[None].first_attempts()
        (await guarded.peer()).close()
        while len(guarded.all(Auth)) < 2:
            await clock.advance(1.0)

    assert {b"ours"} == {command.secret for command in guarded.all(Auth)}


async def test_that_a_broker_asks_for_auth_can_be_told(
    broker: ScriptedBroker, guarded: AuthBroker
) -> None:
    """One nsqd is enough, whether it accepted a secret or the client had none."""
    asks = []
    for addresses in ([broker.address], [broker.address, guarded.address]):
        async with Producer(addresses, ProducerOptions(connections_per_nsqd=1)) as publisher:
            asks.append(publisher.requires_auth)
    options = ProducerOptions(connection=ConnectionOptions(secret=ALICE))
    async with Producer([guarded.address], options) as publisher:
        asks.append(publisher.requires_auth)

    assert [False, True, True] == asks


async def test_a_broker_may_ask_for_auth_later_or_no_more(guarded: AuthBroker) -> None:
    """The last answer to IDENTIFY counts, also while nsqd is unreachable."""
    clock = ManualClock()
    guarded.wants_auth(wants=False)
    async with running_producer(guarded) as publisher:
        asks = [publisher.requires_auth]
        guarded.wants_auth(wants=True)
        (await guarded.peer()).close()
        while not publisher.requires_auth:
            await clock.advance(20.0)
        await guarded.stop()
        await clock.advance(20.0)
        asks.append(publisher.requires_auth)
        guarded.wants_auth(wants=False)
        await guarded.start()
        while not publisher.has_open_connection:
            await clock.advance(20.0)
        asks.append(publisher.requires_auth)

    assert [False, True, False] == asks


async def test_a_broker_that_asks_for_no_secret_is_told_none(broker: ScriptedBroker) -> None:
    """AUTH is not sent, and the message is published."""
    async with running_producer(broker) as publisher:
        await publisher.publish("t", b"1", secret=ALICE)

    assert [] == broker.all(Auth)
    assert [b"1"] == [command.body for command in broker.all(Publish)]


async def test_an_unknown_secret_is_refused_and_soon_asked_about_again(
    guarded: AuthBroker,
) -> None:
    """The refusal is cached for a second; after that an accepted secret is used."""
    clock = ManualClock()
    async with running_producer(guarded) as publisher:
        for _ in range(3):
            with pytest.raises(BrokerRefused, match="E_AUTH_FAILED"):
                await publisher.publish("t", b"1", secret=EVE)
        asked = len(guarded.all(Auth))
        guarded.grants[b"eve"] = {"t"}
        await clock.advance(1.1)

        await publisher.publish("t", b"2", secret=EVE)

    assert 1 == asked
    assert [b"2"] == published_by(guarded)[b"eve"]


async def test_a_topic_that_is_not_granted_fails_no_neighbour(guarded: AuthBroker) -> None:
    """nsqd closes the connection after its refusal; other publishes wait for the next one."""
    async with running_producer(guarded) as publisher:
        first = asyncio.ensure_future(publisher.publish("u", b"denied", secret=BOB))
        others = [
            asyncio.ensure_future(publisher.publish("t", b"%d" % number, secret=BOB))
            for number in range(5)
        ]
        with pytest.raises(BrokerRefused, match='E_UNAUTHORIZED AUTH failed for PUB on "u"'):
            await first
        await asyncio.gather(*others)


async def test_a_refused_topic_is_answered_from_memory(guarded: AuthBroker) -> None:
    """The cache lasts a second and does not affect other topics of the secret."""
    async with running_producer(guarded) as publisher:
        for _ in range(3):
            with pytest.raises(BrokerRefused, match="E_UNAUTHORIZED"):
                await publisher.publish("u", b"1", secret=BOB)
        await publisher.publish("t", b"2", secret=BOB)

    assert 1 == sum(command.topic == "u" for command in guarded.all(Publish))


async def test_the_secret_least_recently_used_makes_room(guarded: AuthBroker) -> None:
    """A secret with pending publishes is not replaced."""
    options = ProducerOptions(connections_per_nsqd=1, max_secrets=2)
    guarded.grants[b"eve"] = {"t"}
    async with running_producer(guarded, options=options) as publisher:
        await publisher.publish("t", b"1", secret=ALICE)
        alices = guarded.peers[-1]
        await publisher.publish("t", b"2", secret=BOB)
        await publisher.publish("t", b"3", secret=EVE)

        await alices.gone()

    assert 3 == len(published_by(guarded))


async def test_secrets_that_are_all_at_work_leave_no_room(broker: ScriptedBroker) -> None:
    """A further secret is refused at once, and nothing is written."""
    broker.on(Publish, no_response)
    options = ProducerOptions(connections_per_nsqd=1, max_secrets=1)
    async with running_producer(broker, options=options) as publisher:
        waiting = asyncio.ensure_future(publisher.publish("t", b"1", secret=ALICE))
        await until(lambda: bool(broker.all(Publish)))

        with pytest.raises(LimitReached, match="1 secrets have publishes pending"):
            await publisher.publish("t", b"2", secret=BOB)
        publisher.abort()
        with pytest.raises(OutcomeUnknown):
            await waiting


async def test_made_up_secrets_take_no_place_from_one_that_was_taken(
    guarded: AuthBroker,
) -> None:
    """Many invented secrets, refused slowly, do not displace an accepted one."""
    options = ProducerOptions(connections_per_nsqd=1, max_secrets=8)
    async with running_producer(guarded, options=options) as publisher:
        await publisher.publish("t", b"1", secret=ALICE)
        guarded.on(Auth, no_response)
        made_up = [
            asyncio.ensure_future(publisher.publish("t", b"x", secret=Secret(b"%d" % number)))
            for number in range(20)
        ]
        await until(lambda: sum(each.done() for each in made_up) == 18)

        await publisher.publish("t", b"2", secret=ALICE)

        refusals = {str(each.exception()) for each in made_up if each.done()}
        assert {"2 new secrets wait for nsqd to accept them, which is the limit"} == {
            text.partition(";")[0] for text in refusals
        }
        for each in made_up:
            each.cancel()
        publisher.abort()
    assert [b"1", b"2"] == published_by(guarded)[b"alice"]


async def test_a_secret_that_nobody_uses_has_no_connection_for_long(
    guarded: AuthBroker,
) -> None:
    clock = ManualClock()
    options = ProducerOptions(connections_per_nsqd=1, secret_idle_s=60.0)
    async with running_producer(guarded, options=options) as publisher:
        await publisher.publish("t", b"1", secret=ALICE)
        peer: Peer = guarded.peers[-1]
        await clock.advance(61.0)
        await peer.gone()

        await publisher.publish("t", b"2", secret=ALICE)

    assert [b"1", b"2"] == published_by(guarded)[b"alice"]


async def test_a_second_connection_comes_with_work_for_it(broker: ScriptedBroker) -> None:
    """While one topic keeps the first connection busy, another topic gets a second one."""
    clock = ManualClock()
    broker.on(Publish, no_response)
    options = ProducerOptions(connections_per_nsqd=2)
    async with running_producer(broker, options=options) as publisher:
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
        while not all(each.done() for each in publishes):
            await clock.advance(1.0)
        assert all(isinstance(each.exception(), Exception) for each in publishes)


async def test_stopping_ends_every_connection(guarded: AuthBroker) -> None:
    tasks = asyncio.all_tasks()
    publisher = Producer([guarded.address])
    await publisher.start()
    await asyncio.gather(*(publisher.publish("t", b"1", secret=each) for each in (ALICE, BOB)))

    await publisher.stop()

    for peer in guarded.peers:
        await peer.gone()
    assert tasks == asyncio.all_tasks()
