"""Tests of heartbeats, pauses and the end of a `BrokerConnection`."""

from __future__ import annotations

import asyncio

import pytest

from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.handshake import open_connection
from gateway.protocol.commands import (
    Nop,
    Publish,
    Requeue,
    StartClose,
)
from gateway.protocol.frames import HEARTBEAT_FRAME, OK, Response
from gateway.protocol.identify import IdentifyRequest
from tests.support.brokers.connection_listener import (
    HEARTBEAT_S,
    OPTIONS,
    SHORT_TIMEOUTS,
    Listener,
    publish_each,
)
from tests.support.brokers.scripted_broker import (
    Peer,
    Rule,
    ScriptedBroker,
    close,
    no_response,
    refuse,
    reset,
    respond,
)
from tests.support.manual_clock import ManualClock, turn
from tests.support.websocket.session_messages import message_id, messages

A, B = message_id(0xA), message_id(0xB)


# The peer's silence


async def test_a_heartbeat_is_answered(peer: Peer) -> None:
    """One NOP answers all heartbeats of a read, so that a flood of them costs little."""
    peer.beat()
    await peer.next(Nop)
    peer.send(*[HEARTBEAT_FRAME] * 1_000)
    await peer.next(Nop)
    peer.beat()
    await peer.next(Nop)

    assert 3 == len(peer.all(Nop))


async def test_a_heartbeat_stands_between_replies(peer: Peer, connection: BrokerConnection) -> None:
    """A heartbeat is a response frame, but no reply to a command."""
    peer._broker.on(Publish, respond(HEARTBEAT_FRAME, OK))

    reply = await connection.request(Publish("t", b"1"), timeout_ms=5_000)

    assert OK == reply


async def test_a_silent_peer_is_cut_after_two_heartbeats(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """The time counts from the last byte received."""
    clock = ManualClock()
    connection = await open_connection(broker.address, OPTIONS, listener)
    peer = await broker.peer()
    await clock.advance(HEARTBEAT_S)
    peer.beat()
    await peer.next(Nop)

    await clock.advance(2 * HEARTBEAT_S - 0.001)
    was_open = connection.is_open
    await clock.advance(0.001)

    assert (True, False) == (was_open, connection.is_open)
    assert "silent for two heartbeats (60 s)" == (await listener.ends.get()).reason
    await peer.gone()


async def test_a_heartbeat_in_time_keeps_the_connection(
    broker: ScriptedBroker, listener: Listener
) -> None:
    clock = ManualClock()
    connection = await open_connection(broker.address, OPTIONS, listener)
    peer = await broker.peer()

    for _ in range(10):
        await clock.advance(1.9 * HEARTBEAT_S)
        peer.beat()
        await peer.next(Nop)

    assert (True, 0) == (connection.is_open, listener.heard)
    connection.abort()


async def test_without_heartbeats_silence_is_no_sign(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """With heartbeats disabled in IDENTIFY, silence is not measured."""
    clock = ManualClock()
    options = ConnectionOptions(offer=IdentifyRequest(heartbeat_interval=-1))
    connection = await open_connection(broker.address, options, listener)

    await clock.advance(1_000_000.0)

    assert (True, 0) == (connection.is_open, listener.heard)
    connection.abort()


async def test_while_nothing_is_read_the_broker_hears_from_us(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """A NOP is written at once and in every interval; silence does not count."""
    clock = ManualClock()
    connection = await open_connection(broker.address, OPTIONS, listener)
    peer = await broker.peer()
    await connection.subscribe("t", "c")

    connection.pause_reading()
    connection.pause_reading()
    await peer.next(Nop)
    for _ in range(5):
        peer.beat()
        await clock.advance(HEARTBEAT_S)
        await peer.next(Nop)

    assert (True, 6) == (connection.is_open, len(peer.all(Nop)))
    connection.abort()


async def test_reading_again_gives_what_had_come(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """Unread bytes arrive, and silence counts from then on."""
    clock = ManualClock()
    connection = await open_connection(broker.address, OPTIONS, listener)
    peer = await broker.peer()
    await connection.subscribe("t", "c")
    connection.pause_reading()
    await clock.advance(HEARTBEAT_S)
    peer.send(messages(1))
    await turn(3)
    unread = listener.heard

    connection.resume_reading()
    arrived = await listener.messages.get()
    await clock.advance(2 * HEARTBEAT_S)

    assert (0, messages(1)) == (unread, arrived)
    assert "silent for two heartbeats (60 s)" == (await listener.ends.get()).reason


# The end


async def test_closing_says_goodbye_where_subscribed(
    subscribed: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """CLS is sent and CLOSE_WAIT received, for which a paused connection is read."""
    connection.pause_reading()

    await connection.close()

    assert [StartClose()] == subscribed.all(StartClose)
    await subscribed.gone()
    assert False is connection.is_open
    assert 1 == listener.ends.qsize()


async def test_closing_a_connection_for_publishing_is_just_that(
    peer: Peer, connection: BrokerConnection
) -> None:
    """CLS is for subscriptions only; commands written before arrive."""
    publish_each(connection, b"x" * 500_000)

    await connection.close()

    await peer.gone()
    assert ([1], []) == (
        [len(each.body) // 500_000 for each in peer.all(Publish)],
        peer.all(StartClose),
    )


async def test_messages_that_come_while_closing_are_told(
    broker: ScriptedBroker, subscribed: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """They were on their way, so the listener gets them and can still requeue them."""
    broker.on(StartClose, no_response)
    closing = asyncio.ensure_future(connection.close())
    await subscribed.next(StartClose)

    subscribed.send(messages(0xA))
    await listener.messages.get()
    connection.requeue([A], delay_ms=0)
    requeued = await subscribed.next(Requeue)
    subscribed.send(Response(b"CLOSE_WAIT"))

    await closing
    assert Requeue(A, 0) == requeued


async def test_a_message_behind_close_wait_is_told(
    broker: ScriptedBroker, subscribed: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """nsqd may send a message that it took before CLS; it can still be answered."""
    broker.on(StartClose, no_response)
    connection.ready(1)
    closing = asyncio.ensure_future(connection.close())
    await subscribed.next(StartClose)

    subscribed.send(Response(b"CLOSE_WAIT"))
    subscribed.send(messages(0xA))
    await listener.messages.get()
    connection.requeue([A], delay_ms=0)

    assert Requeue(A, 0) == await subscribed.next(Requeue)
    await closing


@pytest.mark.parametrize(
    "rule",
    [no_response, close, reset, refuse("E_INVALID", "cannot CLS in current state")],
    ids=["silence", "close", "reset", "refusal"],
)
async def test_closing_ends_whatever_the_broker_does(
    broker: ScriptedBroker, listener: Listener, rule: Rule
) -> None:
    """`close` returns within its time limit, without an error or an open connection."""
    broker.on(StartClose, rule)
    connection = await open_connection(broker.address, SHORT_TIMEOUTS, listener)
    await connection.subscribe("t", "c")

    await connection.close()

    await (await broker.peer()).gone()
    assert 1 == listener.ends.qsize()


async def test_closing_does_not_wait_for_a_broker_that_reads_nothing(
    broker: ScriptedBroker, listener: Listener
) -> None:
    """Unwritten bytes are dropped at the time limit."""
    connection = await open_connection(broker.address, SHORT_TIMEOUTS, listener)
    peer = await broker.peer()
    peer.transport.pause_reading()
    publish_each(connection, b"x" * 50_000_000)

    await connection.close()
    await listener.ends.get()

    assert not connection.is_open
    peer.transport.abort()


async def test_closing_twice_is_closing_once(
    subscribed: Peer, connection: BrokerConnection
) -> None:
    """A second `close` waits for no more than the first."""
    await asyncio.gather(connection.close(), connection.close())

    await connection.close()

    assert [StartClose()] == subscribed.all(StartClose)


async def test_a_cancelled_closing_leaves_nothing_open(
    broker: ScriptedBroker, subscribed: Peer, connection: BrokerConnection
) -> None:
    broker.on(StartClose, no_response)
    closing = asyncio.ensure_future(connection.close())
    await subscribed.next(StartClose)

    closing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await closing
    await subscribed.gone()


async def test_an_abort_says_why(
    peer: Peer, connection: BrokerConnection, listener: Listener
) -> None:
    """The listener and later callers get the reason; the first reason counts."""
    replies = publish_each(connection, b"1")

    connection.abort("no patience")
    connection.abort("no patience at all")

    end = await listener.ends.get()
    assert ("no patience", [end]) == (end.reason, replies)
    await peer.gone()
