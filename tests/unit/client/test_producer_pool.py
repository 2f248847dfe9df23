"""Tests of the log lines about a producer's connections to one broker."""

from __future__ import annotations

import logging
import re

import pytest
from structlog.testing import capture_logs

from gateway.client.producer import Producer, ProducerOptions
from gateway.client.producer_pool import ProducerConnection, ProducerPool
from gateway.client.reconnect import AUTH_MISSING_DELAY_S
from gateway.credentials import Secret
from gateway.errors import BrokerRefused, NoBroker, OutcomeUnknown
from gateway.protocol.commands import Auth, Identify, Publish
from gateway.protocol.frames import Response
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.running_producer import (
    outcomes,
    refuse_bad_bodies,
    running_producer,
    start_publishes,
)
from tests.support.brokers.scripted_broker import Peer, ScriptedBroker, no_response, refuse, respond
from tests.support.manual_clock import ManualClock, turn, until

FOUR = ProducerOptions(connections_per_nsqd=4)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return event and count of each line about connections."""
    pattern = r"publisher (connected|disconnected).*connections=(\S+)"
    return [found.groups() for each in caplog.messages if (found := re.search(pattern, each))]  # type: ignore[misc]


def connections_of(publisher: Producer) -> list[ProducerConnection]:
    pool = publisher._pools._pools[None]
    return pool._connections


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def test_all_that_open_at_a_start_are_one_line(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has the number of open connections and the total."""
    async with running_producer(broker, options=FOUR):
        await until(lambda: bool(told(caplog)))
        await turn(20)
        after_start = told(caplog)
        levels = [each.levelname for each in caplog.records if "publisher" in each.getMessage()]

    assert [("connected", "4/4")] == after_start
    assert ["INFO"] == levels, "no line for each of them"


async def test_a_broker_that_goes_and_comes_back_is_told_by_the_sum(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """One line each: no connection left, one again, all again."""
    clock = ManualClock()
    async with running_producer(broker, options=FOUR):
        await until(lambda: bool(told(caplog)))
        await broker.stop()
        await until(lambda: told(caplog)[-1] == ("disconnected", "0/4"))
        lost = len(told(caplog))
        await broker.start()
        while told(caplog)[-1] != ("connected", "4/4"):
            await clock.advance(1.0)
        back = told(caplog)[lost:]

    assert {"connected"} == {event for event, _ in back}
    assert len(back) <= 2


async def test_why_nobody_can_connect_is_told_once(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per outage, however many connections and attempts."""

    def failures() -> list[str]:
        return [each for each in caplog.messages if "nsqd unreachable" in each]

    clock = ManualClock()
    counts = []
    async with running_producer(broker, options=FOUR):
        await until(lambda: told(caplog)[-1:] == [("connected", "4/4")])
        for _ in range(2):
            await broker.stop()
            await until(lambda: told(caplog)[-1] == ("disconnected", "0/4"))
            for _ in range(60):
                await clock.advance(2.0)
            counts.append(len(failures()))
            await broker.start()
            while told(caplog)[-1] != ("connected", "4/4"):
                await clock.advance(1.0)

    assert [1, 2] == counts
    assert all(broker.address in line and "refused" in line for line in failures())


async def test_a_connection_behind_a_refusal_is_no_line(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker closes the connection after each publish that it refuses."""
    broker.on(Publish, refuse_bad_bodies)
    async with running_producer(broker) as publisher:
        await until(lambda: bool(told(caplog)))
        for _ in range(3):
            with pytest.raises(BrokerRefused):
                await publisher.publish("t", b"bad")
        await publisher.publish("t", b"good")

    assert [("connected", "1/1")] == told(caplog)


async def test_connections_of_a_caller_have_the_fingerprint_of_its_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log never has the secret itself."""
    broker = AuthBroker()
    broker.grants = {b"alice-knows": {"t"}}
    await broker.start()
    secret = Secret(b"alice-knows")
    async with running_producer(broker) as publisher:
        await publisher.publish("t", b"1", secret=secret)
        await turn(3)
    await broker.stop()

    [line] = [each for each in caplog.messages if "publisher connected" in each]
    assert secret.fingerprint in line
    assert "alice-knows" not in "".join(caplog.messages)


async def test_after_auth_is_no_longer_required_all_connections_are_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While nsqd requires AUTH, one connection is enough; a later loss has no long delay."""
    broker = AuthBroker()
    await broker.start()
    clock = ManualClock()
    async with running_producer(broker, options=FOUR) as publisher:
        while_required = publisher.nsqds_requiring_auth, len(connections_of(publisher))
        broker.wants_auth(wants=False)
        await clock.advance(AUTH_MISSING_DELAY_S)
        await until(lambda: told(caplog)[-1:] == [("connected", "4/4")])

        for peer in broker.peers:
            peer.close()
        await until(lambda: told(caplog)[-1] == ("disconnected", "0/4"))
        for _ in range(3):
            await clock.advance(0.5)
        await until(lambda: told(caplog)[-1] == ("connected", "4/4"))
    await broker.stop()

    assert (1, 1) == while_required


async def test_the_loss_of_an_nsqd_that_is_no_longer_found_is_logged(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason; once it is found again, it is a new nsqd."""
    async with running_producer(broker, options=FOUR) as publisher:
        await until(lambda: told(caplog) == [("connected", "4/4")])
        publisher._pools.set_addresses([])
        for peer in broker.peers:
            peer.close()
        await until(lambda: not connections_of(publisher))
        await turn(2)
        lost = caplog.messages[-1]
        publisher._pools.set_addresses([broker.address])
        await until(lambda: told(caplog)[-1] == ("connected", "4/4"))
        back = told(caplog)[-1:]
        pool = publisher._pools._pools[None]
        publisher._pools.set_addresses([])
        await broker.stop()
        await until(lambda: not connections_of(publisher))
        await turn(2)
        logged_counts = pool._logged_counts

    assert "publisher disconnected" in lost
    assert "connections=0/0" in lost
    assert "nsqd closed the connection" in lost
    assert [("connected", "4/4")] == back
    assert {} == logged_counts, "an entry for each address that was ever found"
    assert not [each for each in caplog.messages if re.search(r"disconnected.*reason=(''|$)", each)]


async def test_an_nsqd_that_goes_while_it_is_being_reopened_is_logged(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """After a refused publish it is reopened, until discovery no longer returns the nsqd."""
    broker.on(Publish, refuse_bad_bodies)
    async with running_producer(broker) as publisher:
        await until(lambda: told(caplog) == [("connected", "1/1")])
        broker.on(Identify, no_response)
        with pytest.raises(BrokerRefused):
            await publisher.publish("t", b"bad")
        await until(lambda: len(broker.peers) == 2)
        publisher._pools.set_addresses([])
        await turn(2)

    assert [("connected", "1/1"), ("disconnected", "0/0")] == told(caplog)
    assert "discovery no longer returns the nsqd" in caplog.text


async def test_connections_that_are_reopened_after_refusals_are_not_logged_as_lost(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of four at once: when the first is back, the second is not lost."""
    broker.on(Publish, no_response)
    async with running_producer(broker, options=FOUR) as publisher:
        await until(lambda: told(caplog) == [("connected", "4/4")])
        publishes = [
            *start_publishes(publisher, b"bad", topic="t"),
            *start_publishes(publisher, b"bad", topic="u"),
        ]
        await until(lambda: len(broker.all(Publish)) == 2)
        held = [peer for peer in broker.peers if peer.all(Publish)]
        waiting: list[Peer] = []
        broker.on(Identify, lambda peer, _: waiting.append(peer))
        for peer in held:
            refuse("E_BAD_MESSAGE", "too big")(peer, Publish("t", b""))
        errors = await outcomes(*publishes)
        await until(lambda: len(waiting) == 2)
        for peer in waiting:
            peer.send(Response(IdentifyResponse().to_json()))
            count = sum(each.is_connected for each in connections_of(publisher))
            await until(
                lambda: sum(each.is_connected for each in connections_of(publisher)) > count  # noqa: B023
            )
            await turn(2)

    assert [True, True] == [isinstance(error, BrokerRefused) for error in errors]
    assert [("connected", "4/4")] == told(caplog)


async def test_a_refused_publish_is_logged_with_nsqds_message_once_a_minute(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """However many clients send the same nonsense; another code is another line."""
    broker.on(Publish, refuse("E_INVALID", "PUB is not what it was"))
    clock = ManualClock()

    def lines() -> list[str]:
        return [each for each in caplog.messages if "nsqd refused a publish" in each]

    counts = []
    async with running_producer(broker) as publisher:
        for code in ("E_INVALID", "E_INVALID", "E_BAD_TOPIC"):
            broker.on(Publish, refuse(code, "PUB is not what it was"))
            with pytest.raises(BrokerRefused):
                await publisher.publish("t", b"1")
            counts.append(len(lines()))
        await clock.advance(60.0)
        with pytest.raises(BrokerRefused):
            await publisher.publish("t", b"1")
        counts.append(len(lines()))

    assert [1, 1, 2, 3] == counts
    assert {"INFO"} == {each.levelname for each in caplog.records if "refused a" in each.message}
    assert all(broker.address in each and "PUB is not what it was" in each for each in lines())


@pytest.mark.parametrize("has_secret", [False, True])
async def test_after_a_bug_behind_the_handshake_the_next_attempt_succeeds(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, *, has_secret: bool
) -> None:
    """The first connection is closed, and no assertion fails in each later attempt."""
    if has_secret:
        broker.identifies_as(IdentifyResponse(auth_required=True))
        broker.on(Auth, respond(Response(AuthResponse(identity="me").to_json())))
    options = ProducerOptions(
        connections_per_nsqd=1, own_secret=Secret(b"mine") if has_secret else None
    )
    failures = [ZeroDivisionError("a bug")]
    on_connected = ProducerPool.on_connected

    def fail_once(pool: ProducerPool, connection: ProducerConnection) -> None:
        if failures:
            raise failures.pop()
        on_connected(pool, connection)

    monkeypatch.setattr(ProducerPool, "on_connected", fail_once)
    clock = ManualClock()
    with capture_logs() as lines:
        async with running_producer(broker, options=options) as publisher:
            await until(lambda: not failures)
            await broker.peers[0].gone()
            for _ in range(5):
                await clock.advance(1.0)
                await turn(30)
            [connection] = connections_of(publisher)
            is_connected, is_open = connection.is_connected, connection.can_publish

    assert (True, not has_secret) == (is_connected, is_open)
    assert 2 == len(broker.peers)
    assert 1 == [line["event"] for line in lines].count("connection attempt failed")


async def test_a_publish_that_waits_for_an_attempt_that_fails_by_a_bug_fails_at_once(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error names the bug, and says that nothing was published."""
    monkeypatch.setattr(ProducerPool, "on_connected", lambda *_: 1 / 0)
    async with running_producer(broker) as publisher:
        with pytest.raises(NoBroker, match=r"nothing was published.*unexpected ZeroDivisionError"):
            await publisher.publish("t", b"1")


async def test_an_abort_ends_the_connection_at_once() -> None:
    broker = ScriptedBroker()
    await broker.start()
    broker.on(Publish, no_response)
    async with running_producer(broker) as publisher:
        [waiting] = start_publishes(publisher, b"1")
        await until(lambda: bool(broker.all(Publish)))

        publisher.abort()
        await turn(10)

        assert waiting.done()
        assert [OutcomeUnknown] == [type(error) for error in await outcomes(waiting)]
    await broker.stop()
