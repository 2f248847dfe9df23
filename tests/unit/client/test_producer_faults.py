"""Tests of `Producer` with lost connections, silent brokers, and at its stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from gateway.client.connection import ConnectionOptions
from gateway.client.producer import Producer, ProducerOptions
from gateway.credentials import Secret
from gateway.errors import NoBroker, OutcomeUnknown, PublishError
from gateway.protocol.commands import Identify, MultiPublish, Publish
from gateway.protocol.frames import OK, ErrorFrame, Response
from gateway.protocol.identify import IdentifyResponse
from tests.support.brokers.running_producer import (
    HeldPublishes,
    outcomes,
    refuse_bad_bodies,
    running_producer,
    start_publishes,
)
from tests.support.brokers.scripted_broker import (
    Peer,
    ScriptedBroker,
    close,
    no_response,
    refuse,
    respond,
)
from tests.support.manual_clock import ManualClock, turn, until

TIMEOUT_S = 5.0
SWEEP_S = 0.1
LONG_S = 20.0
"""Longer than any delay between two tries to connect."""


# Connections that are lost


@pytest.mark.parametrize("end", [Peer.close, Peer.reset], ids=["closed", "reset"])
async def test_what_was_written_is_unknown_and_what_waited_moves(
    broker: ScriptedBroker, other: ScriptedBroker, end: Callable[[Peer], None]
) -> None:
    """A written publish is never published twice without an error."""
    held = HeldPublishes(broker, other)
    async with running_producer(broker, other) as publisher:
        (written,) = start_publishes(publisher, b"1")
        peer = await held.peers.get()
        waiting = start_publishes(publisher, b"2", b"3")
        await turn(2)

        end(peer)
        unknown, *rest = await outcomes(written, *waiting)

    assert isinstance(unknown, OutcomeUnknown)
    assert "may or may not be published" in str(unknown)
    assert [None, None] == rest
    assert [Publish("t", b"1")] == broker.all(Publish) + other.all(Publish)
    moved = [broker, other][peer in broker.peers]
    assert [MultiPublish("t", [b"2", b"3"])] == moved.all(MultiPublish)


async def test_what_waited_fails_when_there_is_nowhere_to_move(broker: ScriptedBroker) -> None:
    """The error says that it was not published."""
    held = HeldPublishes(broker)
    async with running_producer(broker) as publisher:
        (written,) = start_publishes(publisher, b"1")
        peer = await held.peers.get()
        (waiting,) = start_publishes(publisher, b"2")
        await turn(2)

        peer.close()
        unknown, failed = await outcomes(written, waiting)

    assert (OutcomeUnknown, NoBroker) == (type(unknown), type(failed))
    reason = f"nsqd at {broker.address}: nsqd closed the connection"
    assert f"no nsqd can take the message; nothing was published ({reason})" == str(failed)


async def test_a_lost_connection_is_made_again(broker: ScriptedBroker) -> None:
    """Later publishes succeed."""
    async with running_producer(broker) as publisher:
        (await broker.peer()).close()
        await (await broker.peer()).next(Identify)
        await until(lambda: publisher.has_open_connection)

        await publisher.publish("t", b"1")

    assert [Publish("t", b"1")] == broker.peers[1].all(Publish)


async def test_a_broker_that_comes_later_is_found(broker: ScriptedBroker) -> None:
    """`start` does not wait for it and returns the reason; attempts continue."""
    await broker.stop()
    publisher = Producer([broker.address], ProducerOptions(connections_per_nsqd=2))
    lines = await publisher.start()

    await broker.start()
    await (await broker.peer()).next(Identify)
    await until(lambda: publisher.has_open_connection)

    await publisher.publish("t", b"1")
    await publisher.stop()
    assert [f"nsqd at {broker.address}: Connection refused"] == lines
    assert [Publish("t", b"1")] == broker.all(Publish)


async def test_a_broker_that_drops_everybody_is_tried_again(broker: ScriptedBroker) -> None:
    """Attempts continue until the broker keeps the connection."""
    broker.on(Identify, close)
    async with running_producer(broker) as publisher:
        for _ in range(3):
            await (await broker.peer()).gone()

        broker.identifies_as(IdentifyResponse())
        await (await broker.peer()).next(Identify)
        await until(lambda: publisher.has_open_connection)

        await publisher.publish("t", b"1")

    assert [Publish("t", b"1")] == broker.all(Publish)


async def test_without_a_broker_every_address_is_named(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The error is raised at once, with the reason for each address."""
    await broker.stop()
    other.on(Identify, refuse("E_BAD_BODY", "no"))
    async with running_producer(broker, other) as publisher:
        with pytest.raises(NoBroker) as caught:
            await publisher.publish("t", b"1")

    what, _, reasons = str(caught.value).partition(" (")
    assert "no nsqd can take the message; nothing was published" == what
    assert {
        f"nsqd at {broker.address}: Connection refused",
        f"nsqd at {other.address}: refused IDENTIFY: E_BAD_BODY no",
    } == set(reasons.removesuffix(")").split("; "))


async def test_without_an_address_that_is_said() -> None:
    """The error says that no address is known."""
    async with running_producer() as publisher:
        with pytest.raises(NoBroker, match="no address of an nsqd is known"):
            await publisher.publish("t", b"1")


# Deadlines


async def test_a_broker_that_does_not_answer_is_cut(broker: ScriptedBroker) -> None:
    """Written publishes are unknown, queued ones are not published; a new connection follows."""
    clock = ManualClock()
    held = HeldPublishes(broker)
    async with running_producer(broker) as publisher:
        (written,) = start_publishes(publisher, b"1")
        peer = await held.peers.get()
        (waiting,) = start_publishes(publisher, b"2")
        await turn(2)

        await clock.advance(TIMEOUT_S - 0.01)
        was_done = written.done() or waiting.done()
        await clock.advance(SWEEP_S)
        unknown, failed = await outcomes(written, waiting)
        await peer.gone()
        await clock.advance(LONG_S)
        again = await broker.peer()
        again = again if again is not peer else await broker.peer()

        assert not was_done
        assert (OutcomeUnknown, NoBroker) == (type(unknown), type(failed))
        said = f"nsqd at {broker.address} did not answer within 5000 ms"
        assert f"{said}; the message may or may not be published" == str(unknown)
        assert "no nsqd accepted the message within 5000 ms; it was not published" == str(failed)


async def test_what_waited_long_does_not_cut_a_broker_that_answers(
    broker: ScriptedBroker,
) -> None:
    """The caller gets its error at the deadline; the time limit of nsqd counts from the write."""
    clock = ManualClock()
    held = HeldPublishes(broker)
    async with running_producer(broker) as publisher:
        (first,) = start_publishes(publisher, b"1")
        peer = await held.peers.get()
        (late,) = start_publishes(publisher, b"2")
        await turn(2)
        await clock.advance(TIMEOUT_S - 0.5)
        peer.send(OK)
        await held.peers.get()

        await clock.advance(1.0)
        await clock.advance(SWEEP_S)
        done = await outcomes(first, late)
        (third,) = start_publishes(publisher, b"3")
        peer.send(OK)
        await held.peers.get()
        peer.send(OK)

        assert [None, OutcomeUnknown] == [error and type(error) for error in done]
        assert [None] == await outcomes(third)
        assert 1 == len(broker.peers)


async def test_what_was_answered_is_not_sent_again(broker: ScriptedBroker) -> None:
    """If a batch is refused after some deadlines, only the other publishes are retried."""
    clock = ManualClock()
    broker.on(MultiPublish, no_response)
    broker.on(Publish, no_response)
    async with running_producer(broker) as publisher:
        peer = await broker.peer()
        (first,) = start_publishes(publisher, b"1")
        await peer.next(Publish)
        (early,) = start_publishes(publisher, b"2")
        await turn(2)
        await clock.advance(1.0)
        (late,) = start_publishes(publisher, b"3")
        await turn(2)
        peer.send(OK)
        await peer.next(MultiPublish)
        await clock.advance(TIMEOUT_S - 0.9)
        was_done = (early.done(), late.done())

        peer.send(ErrorFrame("E_BAD_MESSAGE", "no"))
        await peer.gone()
        broker.on(Publish, refuse_bad_bodies)
        await turn(2)
        await clock.advance(0.2)

        done = await outcomes(first, early, late)
        assert [None, OutcomeUnknown, None] == [error and type(error) for error in done]
        assert (True, False) == was_done
    assert [b"1", b"3"] == [command.body for command in broker.all(Publish)]


async def test_a_batch_refused_after_all_deadlines_is_forgotten(broker: ScriptedBroker) -> None:
    """All callers have their outcomes, so nothing is retried."""
    clock = ManualClock()
    broker.on(MultiPublish, no_response)
    broker.on(Publish, no_response)
    async with running_producer(broker) as publisher:
        peer = await broker.peer()
        (first,) = start_publishes(publisher, b"1")
        await peer.next(Publish)
        both = start_publishes(publisher, b"2", b"3")
        await turn(2)
        await clock.advance(1.0)
        peer.send(OK)
        await peer.next(MultiPublish)
        await clock.advance(TIMEOUT_S - 0.9)

        peer.send(ErrorFrame("E_BAD_MESSAGE", "no"))
        await peer.gone()
        done = await outcomes(first, *both)

    assert [None, OutcomeUnknown, OutcomeUnknown] == [error and type(error) for error in done]
    assert [b"1"] == [command.body for command in broker.all(Publish)]


# The end


async def test_stopping_waits_for_what_was_taken(broker: ScriptedBroker) -> None:
    """New publishes are refused meanwhile."""
    held = HeldPublishes(broker)
    publisher = Producer([broker.address], ProducerOptions(connections_per_nsqd=1))
    await publisher.start()
    (written,) = start_publishes(publisher, b"1")
    peer = await held.peers.get()
    (waiting,) = start_publishes(publisher, b"2")
    await turn(2)

    stopping = asyncio.ensure_future(publisher.stop())
    await turn(2)
    with pytest.raises(NoBroker, match="was stopped"):
        await publisher.publish("t", b"3")
    peer.send(OK)
    await held.peers.get()
    was_done = stopping.done()
    peer.send(OK)

    await stopping
    assert [None, None] == await outcomes(written, waiting)
    assert not was_done
    await peer.gone()


async def test_stopping_ends_within_the_publish_timeout(broker: ScriptedBroker) -> None:
    """A silent broker does not delay the stop any longer."""
    clock = ManualClock()
    held = HeldPublishes(broker)
    publisher = Producer([broker.address], ProducerOptions(connections_per_nsqd=1))
    await publisher.start()
    (written,) = start_publishes(publisher, b"1")
    peer = await held.peers.get()

    stopping = asyncio.ensure_future(publisher.stop())
    await turn(2)
    await clock.advance(TIMEOUT_S + SWEEP_S)

    await stopping
    assert [OutcomeUnknown] == [type(error) for error in await outcomes(written)]
    await peer.gone()


@pytest.mark.parametrize("is_there", [False, True], ids=["refused", "silent"])
async def test_stopping_ends_the_tries_to_connect(
    broker: ScriptedBroker,
    is_there: bool,  # noqa: FBT001 - pytest gives it
) -> None:
    before = asyncio.all_tasks()
    await broker.stop()
    publisher = Producer([broker.address], ProducerOptions(connections_per_nsqd=2))
    await publisher.start()
    if is_there:
        broker.on(Identify, no_response)
        await broker.start()
        await (await broker.peer()).next(Identify)

    await publisher.stop()

    assert before == asyncio.all_tasks()
    for peer in broker.peers:
        await peer.gone()


async def test_a_cancelled_start_leaves_nothing_open_behind_a_stop(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    broker.on(Identify, no_response)
    options = ProducerOptions(connections_per_nsqd=1, connection=ConnectionOptions())
    publisher = Producer([broker.address, other.address], options)
    starting = asyncio.ensure_future(publisher.start())
    peers = [await broker.peer(), await other.peer()]
    for peer in peers:
        await peer.next(Identify)

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await publisher.stop()

    for peer in peers:
        await peer.gone()


async def test_a_cancelled_start_leaves_nothing_open(broker: ScriptedBroker) -> None:
    """A caller that cancels `start` need not call `stop`."""
    broker.on(Identify, no_response)
    tasks = asyncio.all_tasks()
    starting = asyncio.ensure_future(Producer([broker.address]).start())
    peer = await broker.peer()
    await peer.next(Identify)

    starting.cancel()
    await asyncio.wait({starting})

    await peer.gone()
    assert tasks == asyncio.all_tasks()


async def test_an_answer_that_is_not_ok_is_no_ok(broker: ScriptedBroker) -> None:
    """The outcome is unknown, and the connection is closed."""
    broker.on(Publish, respond(Response(b"MAYBE")))
    async with running_producer(broker) as publisher:
        peer = await broker.peer()
        with pytest.raises(OutcomeUnknown, match="b'MAYBE' to a publish, which is not OK"):
            await publisher.publish("t", b"1")

        await peer.gone()


async def test_a_batch_that_cannot_be_encoded_fails_alone(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other batches are written by the same connection, and the error is logged."""
    encode = Publish.encode

    def fail(command: Publish) -> bytes:
        if command.body == b"bad":
            raise ValueError
        return encode(command)

    monkeypatch.setattr(Publish, "encode", fail)
    with capture_logs() as lines:
        async with running_producer(broker) as publisher:
            first = start_publishes(publisher, b"bad", topic="a")
            others = start_publishes(publisher, b"bad", topic="b")
            others += start_publishes(publisher, b"good", topic="c")
            failed, *rest = await outcomes(*first, *others)
            await publisher.publish("a", b"good")
            held_bytes = publisher._held_bytes

    assert PublishError is type(failed)
    assert "unexpected ValueError while encoding" in str(failed)
    assert [PublishError, type(None)] == [type(outcome) for outcome in rest]
    assert (1, 0) == (len(broker.peers), held_bytes)
    assert 2 == [line["event"] for line in lines].count("publish not encoded")


async def test_an_error_that_is_of_no_publish_says_nothing_of_it(broker: ScriptedBroker) -> None:
    broker.on(Publish, refuse("E_FIN_FAILED", "FIN failed"))
    async with running_producer(broker) as publisher:
        with pytest.raises(OutcomeUnknown, match="E_FIN_FAILED"):
            await publisher.publish("t", b"1")


async def test_what_waits_at_a_pool_that_is_closed_is_answered(broker: ScriptedBroker) -> None:
    """Their bytes are freed, so that `stop` returns."""
    held = HeldPublishes(broker)
    async with running_producer(broker) as publisher:
        secret = Secret(b"s")
        publishes = [asyncio.ensure_future(publisher.publish("t", b"1", secret=secret))]
        await held.peers.get()
        publishes.append(asyncio.ensure_future(publisher.publish("t", b"2", secret=secret)))
        await turn(2)

        pools = publisher._pools
        pools._close_soon(pools._pools[secret])

        errors = await outcomes(*publishes)
        assert [OutcomeUnknown, NoBroker] == [type(error) for error in errors]
