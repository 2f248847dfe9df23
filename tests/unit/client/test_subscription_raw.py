"""A `Subscription` with `on_raw_messages`, and what it hands back, decoded or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.client.discovery import Discovery
from gateway.client.rdy import SETTLE_S
from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.protocol.commands import Ready, Requeue, Subscribe
from gateway.protocol.frames import OK, RawMessages
from tests.support.brokers.scripted_broker import Peer, ScriptedBroker, respond
from tests.support.brokers.subscription_listener import SubscriptionListener
from tests.support.manual_clock import ManualClock, until
from tests.support.websocket.session_messages import message_id, messages

A, B = message_id(0xA), message_id(0xB)


class Taken:
    """Keep source and ids of messages that arrive undecoded."""

    def __init__(self) -> None:
        self.ids: list[tuple[int, list[bytes]]] = []
        self.data = b""

    def __call__(self, source: int, messages: RawMessages, _sent_after: float) -> None:
        """Keep them."""
        self.ids.append((source, messages.ids))
        self.data += messages.data


@asynccontextmanager
async def subscribed(
    taken: Taken | None, *brokers: ScriptedBroker
) -> AsyncIterator[tuple[Subscription, SubscriptionListener, list[Peer]]]:
    """Subscribe on *brokers*; yield the subscription, its listener and the connections."""
    listener = SubscriptionListener()
    options = SubscriptionOptions(topic="t", channel="c", on_raw_messages=taken)
    subscription = Subscription(
        Discovery([broker.address for broker in brokers]), options, listener
    )
    await subscription.start()
    for _ in brokers:
        await listener.told.get()
    try:
        yield subscription, listener, [await broker.peer() for broker in brokers]
    finally:
        await subscription.close()


async def test_messages_arrive_undecoded(broker: ScriptedBroker) -> None:
    taken = Taken()
    async with subscribed(taken, broker) as (subscription, listener, (peer,)):
        subscription.set_window(5)
        await peer.next(Ready)
        sent = messages(0xA, 0xB)
        peer.send(sent)
        await until(lambda: bool(taken.ids))

        assert listener.told.empty()
    assert [(1, [A, B])] == taken.ids
    assert taken.data.count(A) == taken.data.count(B) == 1


async def test_undecoded_messages_that_come_with_the_answer_to_sub_go_back(
    broker: ScriptedBroker,
) -> None:
    broker.on(Subscribe, respond(OK, messages(0xA)))
    taken = Taken()
    async with subscribed(taken, broker) as (_, _, (peer,)):
        assert Requeue(A, 0) == await peer.next(Requeue)

    assert [] == taken.ids


@pytest.mark.parametrize("is_raw", [False, True], ids=["decoded", "undecoded"])
async def test_a_message_at_rdy_0_without_room_in_the_window_goes_back(
    broker: ScriptedBroker,
    other: ScriptedBroker,
    is_raw: bool,  # noqa: FBT001 - a case
) -> None:
    """The window was made smaller, and is that of the other source."""
    clock, taken = ManualClock(), Taken()
    async with subscribed(taken if is_raw else None, broker, other) as (subscription, listener, _):
        subscription.set_window(2)
        await until(lambda: bool(broker.all(Ready) and other.all(Ready)))
        subscription.set_window(1)
        await until(lambda: Ready(0) in broker.all(Ready) + other.all(Ready))
        (without,) = (each for each in (broker, other) if Ready(0) in each.all(Ready))
        await clock.advance(SETTLE_S)
        peer = without.peers[-1]
        peer.send(messages(0xA))
        clock.run_on()

        assert Requeue(A, 0) == await peer.next(Requeue)
        assert listener.told.empty()
    assert [] == taken.ids
