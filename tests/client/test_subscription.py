"""One subscription over several brokers: sources, the window, answers, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.client.connection import ConnectionOptions
from gateway.client.lookup import Discovery
from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.errors import BrokerRefused, NoBroker
from gateway.protocol.commands import (
    Finish,
    Identify,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.frames import CLOSE_WAIT, OK, ErrorFrame, Response
from gateway.protocol.identify import Answer
from tests.support.deliveries import message_id, messages
from tests.support.manual_clock import ManualClock, run_on, turn, until
from tests.support.scripted_broker import (
    Peer,
    ScriptedBroker,
    close,
    refuse,
    reset,
    say,
    silence,
    write,
)
from tests.support.subscription import SubscriptionListener

A, B, C = message_id(0xA), message_id(0xB), message_id(0xC)
IDLE_S = 10.0
IN_A_HURRY = ConnectionOptions(connect_timeout_ms=400, close_timeout_ms=400)


@pytest.fixture
def listener() -> SubscriptionListener:
    """Return who is told."""
    return SubscriptionListener()


def subscriber_of(
    listener: SubscriptionListener,
    *addresses: str,
    connection: ConnectionOptions | None = None,
) -> Subscription:
    """Return a subscriber of topic t, channel c, that has not been started."""
    options = SubscriptionOptions(
        topic="t", channel="c", connection=connection or ConnectionOptions()
    )
    return Subscription(Discovery(addresses), options, listener)


@asynccontextmanager
async def subscribed(
    listener: SubscriptionListener, *brokers: ScriptedBroker
) -> AsyncIterator[tuple[Subscription, list[Peer]]]:
    """Subscribe on *brokers*, in this order; yield the subscriber and the brokers' ends."""
    subscriber = subscriber_of(listener, *(broker.address for broker in brokers))
    for number, broker in enumerate(brokers, start=1):
        broker.identifies_as(Answer(msg_timeout=1_000 * number))
    await subscriber.start()
    peers = [await broker.peer() for broker in brokers]
    for _ in brokers:
        await listener.told.get()
    try:
        yield subscriber, peers
    finally:
        run_on()
        await subscriber.close()


def source_of(subscriber: Subscription, broker: ScriptedBroker) -> int:
    """Return the number of the source that *broker* is."""
    return next(
        number for number, place in subscriber._open.items() if place.address == broker.address
    )


async def ready_of(peer: Peer, count: int) -> list[int]:
    """Wait for *count* RDY and return all so far."""
    while len(peer.all(Ready)) < count:
        await peer.next(Ready)
    return [command.count for command in peer.all(Ready)]


# Opening


async def test_a_start_subscribes(broker: ScriptedBroker, listener: SubscriptionListener) -> None:
    """The source is told with the broker's answer; RDY comes with the window only."""
    broker.identifies_as(Answer(msg_timeout=5_000))
    subscriber = subscriber_of(listener, broker.address)

    await subscriber.start()

    peer = await broker.peer()
    assert Subscribe("t", "c") == await peer.next(Subscribe)
    assert [("opened", 1, 5_000)] == listener.all
    assert [] == peer.all(Ready)
    await subscriber.close()


async def test_messages_that_come_with_the_answer_to_sub_go_back(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """RDY is 0 then, so no broker sends them; one that does harms nothing."""
    broker.on(Subscribe, say(OK, messages(0xA)))
    subscriber = subscriber_of(listener, broker.address)

    await subscriber.start()

    assert Requeue(A, 0) == await (await broker.peer()).next(Requeue)
    assert ["opened"] == [what for what, _, _ in listener.all]
    await subscriber.close()


async def test_a_broker_that_does_not_say_ok_to_sub_is_not_subscribed_to(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Nothing would ever come from there."""
    broker.on(Subscribe, say(Response(b"MAYBE")))

    with pytest.raises(NoBroker, match="b'MAYBE' to SUB, which is not OK"):
        await subscriber_of(listener, broker.address).start()


async def test_a_start_waits_for_the_first_broker_only(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The others join when they answer."""
    other.on(Subscribe, silence)
    subscriber = subscriber_of(listener, other.address, broker.address)

    await subscriber.start()
    subscriber.set_window(2)
    first = listener.all
    peer = await other.peer()
    await peer.next(Subscribe)
    peer.send(Response(b"OK"))

    assert 1 == len(first)
    assert "opened" == (await listener.told.get())[0]
    assert [1] == await ready_of(peer, 1)
    await subscriber.close()


@pytest.mark.parametrize(
    "rule, reason",
    [
        (close, "the broker closed the connection"),
        (reset, "connection lost ([Errno 104] Connection reset by peer)"),
        (silence, "no answer to SUB within 400 ms"),
        (write(b"garbage!garbage!"), "does not speak NSQ V2"),
    ],
    ids=["closed", "reset", "silent", "garbage"],
)
async def test_a_start_without_any_broker_fails_and_leaves_nothing_open(
    broker: ScriptedBroker,
    other: ScriptedBroker,
    listener: SubscriptionListener,
    rule: object,
    reason: str,
) -> None:
    """Every address is named with what is wrong there; nobody is told of a source."""
    await other.stop()
    broker.on(Subscribe, rule)  # type: ignore[arg-type]
    tasks = asyncio.all_tasks()
    subscriber = subscriber_of(listener, broker.address, other.address, connection=IN_A_HURRY)

    with pytest.raises(NoBroker) as caught:
        await subscriber.start()

    assert f"{broker.address}: {reason}" in str(caught.value)
    assert f"{other.address}: Connection refused" in str(caught.value)
    await (await broker.peer()).gone()
    await subscriber.close()
    assert (tasks, []) == (asyncio.all_tasks(), listener.all)


async def test_a_refused_start_says_what_the_broker_said(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """A refusal tells more than another broker that is away."""
    await other.stop()
    broker.on(Subscribe, refuse("E_BAD_CHANNEL", "no"))
    subscriber = subscriber_of(listener, broker.address, other.address, connection=IN_A_HURRY)

    with pytest.raises(BrokerRefused, match="E_BAD_CHANNEL no"):
        await subscriber.start()

    await (await broker.peer()).gone()


async def test_a_start_without_addresses_says_so(listener: SubscriptionListener) -> None:
    """There is nowhere to subscribe."""
    with pytest.raises(NoBroker, match="no address of an nsqd is known"):
        await subscriber_of(listener).start()


async def test_a_cancelled_start_leaves_nothing_open(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Whether the broker owes the answer to IDENTIFY or to SUB."""
    broker.on(Identify, silence)
    other.on(Subscribe, silence)
    tasks = asyncio.all_tasks()
    subscriber = subscriber_of(listener, broker.address, other.address)
    starting = asyncio.ensure_future(subscriber.start())
    peers = [await broker.peer(), await other.peer()]
    await peers[0].next(Identify)
    await peers[1].next(Subscribe)

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    for peer in peers:
        await peer.gone()
    assert tasks == asyncio.all_tasks()


async def test_a_cancelled_close_leaves_nothing_open(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Nor does a try go on for ever that was to end with it."""
    subscriber = subscriber_of(listener, broker.address)
    await subscriber.start()
    peer = await broker.peer()
    closing = asyncio.ensure_future(subscriber.close())
    # Right behind its first step.
    asyncio.get_running_loop().call_soon(closing.cancel)

    with pytest.raises(asyncio.CancelledError):
        await closing
    await peer.gone()


async def test_a_broker_that_is_not_there_is_tried_again(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Until it is there, and then it has its share."""
    other.on(Identify, close)
    subscriber = subscriber_of(listener, broker.address, other.address)
    await subscriber.start()
    subscriber.set_window(2)
    await listener.told.get()

    for _ in range(2):
        await (await other.peer()).gone()
    other.identifies_as(Answer(msg_timeout=5_000))

    what, source, msg_timeout = await listener.told.get()
    assert ("opened", True, 5_000) == (what, source > 1, msg_timeout)
    assert [1] == await ready_of(other.peers[-1], 1)
    await subscriber.close()


# Messages and answers


async def test_answers_go_out_where_the_message_came_in(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """NSQ knows a message only on its connection."""
    async with subscribed(listener, broker, other) as (subscriber, peers):
        sources = [source_of(subscriber, each) for each in (broker, other)]
        peers[0].send(messages(0xA, 0xB, 0xC))
        from_first = await listener.told.get()
        peers[1].send(messages(0xA))
        from_second = await listener.told.get()

        subscriber.finish(sources[0], [A])
        subscriber.requeue(sources[0], [B], delay_ms=5)
        subscriber.touch(sources[0], [C])
        subscriber.touch(sources[1], [A])

        assert ("messages", sources[0], [A, B, C]) == from_first
        assert ("messages", sources[1], [A]) == from_second
        await peers[0].next(Touch)
        await peers[1].next(Touch)
        assert [Finish(A), Requeue(B, 5), Touch(C)] == peers[0].received[2:]
        assert [Touch(A)] == peers[1].received[2:]


async def test_answers_for_a_source_that_is_gone_are_dropped(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Its messages are somebody else's; on the new connection nsqd would refuse them."""
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        peer.close()
        await listener.told.get()
        await listener.told.get()

        subscriber.finish(1, [A])
        subscriber.requeue(1, [A], delay_ms=0)
        subscriber.touch(1, [A])
        subscriber.touch(2, [B])

        again = broker.peers[-1]
        assert Touch(B) == await again.next(Touch)
        assert [Touch(B)] == again.received[2:]


async def test_a_late_refusal_is_told_with_its_source(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The connection goes on."""
    async with subscribed(listener, broker) as (_, (peer,)):
        peer.send(ErrorFrame("E_FIN_FAILED", "FIN failed"), messages(1))

        told = [await listener.told.get(), await listener.told.get()]

    assert [("refused", 1, "E_FIN_FAILED"), ("messages", 1, [message_id(1)])] == told


# Sources that go and come


async def test_a_lost_source_comes_back_as_another(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Numbers are never used again; the window is the new one's from the start."""
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        subscriber.set_window(7)
        await ready_of(peer, 1)

        peer.close()

        lost, back = await listener.told.get(), await listener.told.get()
        assert ("lost", 1, "the broker closed the connection") == lost
        assert ("opened", 2, 1_000) == back
        assert [7] == await ready_of(broker.peers[-1], 1)


async def test_the_share_of_a_lost_source_goes_to_the_others(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """At once, and it is given back when the source is."""
    async with subscribed(listener, broker, other) as (subscriber, (peer, gone)):
        subscriber.set_window(10)
        other.on(Identify, silence)

        gone.close()
        alone = await ready_of(peer, 2)
        waiting = await other.peer()
        await waiting.next(Identify)
        waiting.send(Response(Answer().to_json()))

        assert [5, 10] == alone
        assert [5] == await ready_of(waiting, 1)
        assert [5, 10, 5] == await ready_of(peer, 3)


# The window


async def test_the_window_is_split_over_the_sources(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Together they never have more, and what does not change is not sent again."""
    async with subscribed(listener, broker, other) as (subscriber, peers):
        subscriber.set_window(11)
        subscriber.set_window(11)
        subscriber.set_window(0)

        ready = [await ready_of(peer, 2) for peer in peers]

    assert [[5, 0], [6, 0]] == sorted(ready)


async def test_no_share_is_above_the_brokers_own_limit(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """RDY above max_rdy_count would end the connection."""
    broker.identifies_as(Answer(max_rdy_count=3))
    subscriber = subscriber_of(listener, broker.address)
    await subscriber.start()

    subscriber.set_window(10)

    assert [3] == await ready_of(await broker.peer(), 1)
    await subscriber.close()


async def test_more_sources_than_window_take_turns(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """One of two has RDY 1, after a while the other; what sinks is written before what rises."""
    clock = ManualClock()
    async with subscribed(listener, broker, other) as (subscriber, peers):
        order: list[tuple[Peer, int]] = []
        for each in (broker, other):
            each.on(Ready, lambda peer, command: order.append((peer, command.count)))  # type: ignore[union-attr]
        subscriber.set_window(1)
        await until(lambda: len(order) == 1)

        for turns in (1, 2):
            await clock.advance(IDLE_S)
            await until(lambda turns=turns: len(order) == 1 + 2 * turns)  # type: ignore[misc]

        first = order[0][0]
        second = peers[1 - peers.index(first)]
        assert [1, 0, 1] == [count for peer, count in order if peer is first]
        assert [1, 0] == [count for peer, count in order if peer is second]


async def test_a_window_for_everybody_needs_no_turns(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Raised while somebody waited, it is split once, and nothing moves any more."""
    clock = ManualClock()
    async with subscribed(listener, broker, other) as (subscriber, peers):
        subscriber.set_window(1)
        subscriber.set_window(2)
        await clock.advance(IDLE_S)
        await clock.advance(IDLE_S)

        assert [1, 1] == [(await ready_of(peer, 1))[-1] for peer in peers]
        assert None is subscriber.plan.next_wake()


async def test_while_nothing_is_read_nothing_arrives(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """It stays in the socket until it is read again."""
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        subscriber.pause_reading()
        peer.send(messages(0xA))
        await turn(5)
        unread = listener.all

        subscriber.resume_reading()

        assert ([], ("messages", 1, [A])) == (unread, await listener.told.get())


async def test_a_source_that_comes_during_a_pause_is_not_read_either(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The client takes nothing, wherever it comes from."""
    other.on(Subscribe, silence)
    subscriber = subscriber_of(listener, broker.address, other.address)
    await subscriber.start()
    late = await other.peer()
    await late.next(Subscribe)
    subscriber.pause_reading()
    late.send(Response(b"OK"))
    await until(lambda: listener.told.qsize() == 2)

    late.send(messages(0xA))
    await turn(5)
    unread = [what for what, _, _ in listener.all]
    subscriber.resume_reading()

    assert (["opened", "opened"], "messages") == (unread, (await listener.told.get())[0])
    await subscriber.close()


# The end


async def test_the_end_is_rdy_0_then_req_then_cls(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """In this order on the wire, so that what is handed back does not come straight back."""
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        subscriber.set_window(5)
        subscriber.set_window(0)
        subscriber.requeue(1, [A, B], delay_ms=0)
        await subscriber.close()

        await peer.gone()
        assert [Ready(5), Ready(0), Requeue(A, 0), Requeue(B, 0), StartClose()] == peer.received[2:]


async def test_messages_that_come_during_the_end_are_handed_back(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """They were on their way; nobody is told of them."""
    broker.on(StartClose, say(messages(0xA, 0xB)))
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        closing = asyncio.ensure_future(subscriber.close())
        requeued = [await peer.next(Requeue), await peer.next(Requeue)]
        peer.send(CLOSE_WAIT)
        await closing

    assert [Requeue(A, 0), Requeue(B, 0)] == requeued
    assert [] == listener.all


async def test_what_was_not_read_is_handed_back_at_the_end(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """A paused socket is read for the goodbye."""
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        subscriber.pause_reading()
        peer.send(messages(0xA))

        await subscriber.close()

        await peer.gone()
        assert [Requeue(A, 0)] == peer.all(Requeue)


async def test_the_end_leaves_nothing_open(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Neither a first try that goes on, nor one to get a source back; a second end is nothing."""
    tasks = asyncio.all_tasks()
    other.on(Subscribe, silence)
    subscriber = subscriber_of(listener, broker.address, other.address)
    await subscriber.start()
    await (await other.peer()).next(Subscribe)
    broker.on(Identify, silence)
    (await broker.peer()).close()
    await (await broker.peer()).next(Identify)

    await subscriber.close()
    await subscriber.close()

    for peer in broker.peers + other.peers:
        await peer.gone()
    assert tasks == asyncio.all_tasks()


async def test_a_try_that_fails_in_the_moment_of_the_end_is_the_last(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Nothing is tried again once the subscription is over."""
    tasks = asyncio.all_tasks()
    await other.stop()
    subscriber = subscriber_of(listener, broker.address, other.address)
    await subscriber.start()
    await subscriber._places[other.address].tried.wait()

    await subscriber.close()
    await turn(5)

    assert tasks == asyncio.all_tasks()


async def test_an_end_of_the_connection_after_the_end_is_not_told(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The subscription was over before."""
    broker.on(StartClose, close)
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        await subscriber.close()
        await peer.gone()

    assert [] == listener.all
