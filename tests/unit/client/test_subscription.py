"""Tests of `Subscription` over several brokers: sources, window, answers and close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gateway.client.connection import ConnectionOptions
from gateway.client.discovery import Discovery
from gateway.client.rdy import SETTLE_S
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
from gateway.protocol.identify import IdentifyResponse
from gateway.telemetry import REGISTRY
from tests.support.brokers.scripted_broker import (
    Peer,
    ScriptedBroker,
    close,
    no_response,
    refuse,
    reset,
    respond,
    respond_raw,
)
from tests.support.brokers.subscription_listener import SubscriptionListener
from tests.support.manual_clock import ManualClock, run_on, turn, until
from tests.support.websocket.session_messages import message_id, messages

A, B, C = message_id(0xA), message_id(0xB), message_id(0xC)
IDLE_S = 10.0
IN_A_HURRY = ConnectionOptions(connect_timeout_ms=400, close_timeout_ms=400)


@pytest.fixture
def listener() -> SubscriptionListener:
    return SubscriptionListener()


def subscriber_of(
    listener: SubscriptionListener,
    *addresses: str,
    connection: ConnectionOptions | None = None,
) -> Subscription:
    """Return a subscriber of topic t and channel c, not started."""
    options = SubscriptionOptions(
        topic="t", channel="c", connection=connection or ConnectionOptions()
    )
    return Subscription(Discovery(addresses), options, listener)


@asynccontextmanager
async def subscribed(
    listener: SubscriptionListener, *brokers: ScriptedBroker
) -> AsyncIterator[tuple[Subscription, list[Peer]]]:
    """Subscribe on *brokers* in this order; yield the subscriber and the brokers' connections."""
    subscriber = subscriber_of(listener, *(broker.address for broker in brokers))
    for number, broker in enumerate(brokers, start=1):
        broker.identifies_as(IdentifyResponse(msg_timeout=1_000 * number))
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
    return next(
        number for number, place in subscriber._sources.items() if place.address == broker.address
    )


async def ready_of(peer: Peer, count: int) -> list[int]:
    """Wait until *count* RDY commands were received, and return all so far."""
    while len(peer.all(Ready)) < count:
        await peer.next(Ready)
    return [command.count for command in peer.all(Ready)]


# Opening


async def test_a_start_subscribes(broker: ScriptedBroker, listener: SubscriptionListener) -> None:
    """The listener gets the broker's answer to IDENTIFY; RDY is written only with a window."""
    broker.identifies_as(IdentifyResponse(msg_timeout=5_000))
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
    """At RDY 0 nsqd sends none; a broker that does gets them back by REQ."""
    broker.on(Subscribe, respond(OK, messages(0xA)))
    subscriber = subscriber_of(listener, broker.address)

    await subscriber.start()

    assert Requeue(A, 0) == await (await broker.peer()).next(Requeue)
    assert ["opened"] == [what for what, _, _ in listener.all]
    await subscriber.close()


async def test_a_broker_that_does_not_say_ok_to_sub_is_not_subscribed_to(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Such a broker would never send a message."""
    broker.on(Subscribe, respond(Response(b"MAYBE")))

    with pytest.raises(NoBroker, match="b'MAYBE' to SUB, which is not OK"):
        await subscriber_of(listener, broker.address).start()


async def test_a_start_waits_for_the_first_broker_only(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The other brokers join when they answer."""
    other.on(Subscribe, no_response)
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
        (close, "nsqd closed the connection"),
        (reset, "connection lost ([Errno 104] Connection reset by peer)"),
        (no_response, "no answer to SUB within 400 ms"),
        (respond_raw(b"garbage!garbage!"), "does not speak NSQ V2"),
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
    """The error names each address with its reason; the listener gets no source."""
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
    """A refusal is preferred to the error of an unreachable broker."""
    await other.stop()
    broker.on(Subscribe, refuse("E_BAD_CHANNEL", "no"))
    subscriber = subscriber_of(listener, broker.address, other.address, connection=IN_A_HURRY)

    with pytest.raises(BrokerRefused, match="E_BAD_CHANNEL no"):
        await subscriber.start()

    await (await broker.peer()).gone()


async def test_a_start_without_addresses_says_so(listener: SubscriptionListener) -> None:
    with pytest.raises(NoBroker, match="no address of an nsqd is known"):
        await subscriber_of(listener).start()


async def test_a_cancelled_start_leaves_nothing_open(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Nothing is left, whether the answer to IDENTIFY or to SUB is pending."""
    broker.on(Identify, no_response)
    other.on(Subscribe, no_response)
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
    """An attempt to connect ends as well."""
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
    """Attempts continue until the broker answers; then it gets its share."""
    other.on(Identify, close)
    subscriber = subscriber_of(listener, broker.address, other.address)
    await subscriber.start()
    subscriber.set_window(2)
    await listener.told.get()

    for _ in range(2):
        await (await other.peer()).gone()
    other.identifies_as(IdentifyResponse(msg_timeout=5_000))

    what, source, msg_timeout = await listener.told.get()
    assert ("opened", True, 5_000) == (what, source > 1, msg_timeout)
    assert [1] == await ready_of(other.peers[-1], 1)
    await subscriber.close()


# Messages and answers


async def test_answers_go_out_where_the_message_came_in(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """nsqd accepts answers only on the connection that delivered the message."""
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
    """nsqd delivers the message again, and would refuse the answer on a new connection."""
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
    """The connection stays open."""
    async with subscribed(listener, broker) as (_, (peer,)):
        peer.send(ErrorFrame("E_FIN_FAILED", "FIN failed"), messages(1))

        told = [await listener.told.get(), await listener.told.get()]

    assert [("refused", 1, "E_FIN_FAILED"), ("messages", 1, [message_id(1)])] == told


# Sources that go and come


async def test_a_lost_source_comes_back_as_another(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Its number is new, and it gets its share of the window at once."""
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        subscriber.set_window(7)
        await ready_of(peer, 1)

        peer.close()

        lost, back = await listener.told.get(), await listener.told.get()
        assert ("lost", 1, "nsqd closed the connection") == lost
        assert ("opened", 2, 1_000) == back
        assert [7] == await ready_of(broker.peers[-1], 1)


async def test_a_lost_source_is_counted_as_lost_and_not_as_open(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    labels = {"role": "subscriber", "nsqd": broker.address}
    async with subscribed(listener, broker) as (_, (peer,)):
        peer.close()
        for _ in ("lost", "opened"):
            await listener.told.get()

        assert (1, 1) == (
            REGISTRY.get_sample_value("nsq_gateway_nsqd_connections", labels),
            REGISTRY.get_sample_value("nsq_gateway_nsqd_connections_lost_total", labels),
        )


async def test_the_share_of_a_lost_source_goes_to_the_others(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The others get it at once, and return it when the source is back."""
    async with subscribed(listener, broker, other) as (subscriber, (peer, gone)):
        subscriber.set_window(10)
        other.on(Identify, no_response)

        gone.close()
        alone = await ready_of(peer, 2)
        waiting = await other.peer()
        await waiting.next(Identify)
        waiting.send(Response(IdentifyResponse().to_json()))

        assert [5, 10] == alone
        assert [5] == await ready_of(waiting, 1)
        assert [5, 10, 5] == await ready_of(peer, 3)


# The window


async def test_the_window_is_split_over_the_sources(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The sum of RDY never exceeds the window, and an unchanged RDY is not written again."""
    async with subscribed(listener, broker, other) as (subscriber, peers):
        subscriber.set_window(11)
        subscriber.set_window(11)
        subscriber.set_window(0)

        ready = [await ready_of(peer, 2) for peer in peers]

    assert [[5, 0], [6, 0]] == sorted(ready)


async def test_no_share_is_above_the_brokers_own_limit(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """nsqd closes a connection whose RDY exceeds max_rdy_count."""
    broker.identifies_as(IdentifyResponse(max_rdy_count=3))
    subscriber = subscriber_of(listener, broker.address)
    await subscriber.start()

    subscriber.set_window(10)

    assert [3] == await ready_of(await broker.peer(), 1)
    await subscriber.close()


async def test_more_sources_than_window_take_turns(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """RDY 1 moves from one source to another; decreases are written before increases."""
    clock = ManualClock()
    async with subscribed(listener, broker, other) as (subscriber, peers):
        order: list[tuple[Peer, int]] = []
        for each in (broker, other):
            each.on(Ready, lambda peer, command: order.append((peer, command.count)))  # type: ignore[union-attr]
        subscriber.set_window(1)
        await until(lambda: len(order) == 1)

        for turns in (1, 2):
            await clock.advance(IDLE_S)
            await until(lambda turns=turns: len(order) == 2 * turns)  # type: ignore[misc]
            await clock.advance(SETTLE_S)
            await until(lambda turns=turns: len(order) == 1 + 2 * turns)  # type: ignore[misc]

        first = order[0][0]
        second = peers[1 - peers.index(first)]
        assert [1, 0, 1] == [count for peer, count in order if peer is first]
        assert [1, 0] == [count for peer, count in order if peer is second]


async def test_a_window_for_everybody_needs_no_turns(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """A larger window is split once, and RDY does not move any more."""
    clock = ManualClock()
    async with subscribed(listener, broker, other) as (subscriber, peers):
        subscriber.set_window(1)
        subscriber.set_window(2)
        await clock.advance(IDLE_S)
        await clock.advance(IDLE_S)

        assert [1, 1] == [(await ready_of(peer, 1))[-1] for peer in peers]
        assert None is subscriber.rdy.next_wake()


async def test_what_was_on_its_way_when_the_window_was_made_smaller_lowers_the_others(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Five messages of one nsqd fill a window of 5: the other nsqd loses its RDY of 3."""
    ManualClock()
    async with subscribed(listener, broker, other) as (subscriber, peers):
        subscriber.set_window(10)
        subscriber.set_window(5)
        before = [await ready_of(peer, 2) for peer in peers]
        loser = next(peer for peer, ready in zip(peers, before, strict=True) if ready == [5, 3])
        bringer = next(peer for peer in peers if peer is not loser)

        listener.in_flight = {source_of(subscriber, other if bringer is peers[1] else broker): 5}
        bringer.send(messages(1, 2, 3, 4, 5))

        assert [5, 3, 0] == await ready_of(loser, 3)
        assert [5, 2] == await ready_of(bringer, 2)


async def test_while_nothing_is_read_nothing_arrives(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The message stays in the socket until reading resumes."""
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
    """A pause holds for every source, including new ones."""
    other.on(Subscribe, no_response)
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
    """In this order, requeued messages are not delivered to the same consumer again."""
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
    """The messages were on their way; the listener does not get them."""
    broker.on(StartClose, respond(messages(0xA, 0xB)))
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
    """Reading resumes for CLS, so that the messages are received and requeued."""
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        subscriber.pause_reading()
        peer.send(messages(0xA))

        await subscriber.close()

        await peer.gone()
        assert [Requeue(A, 0)] == peer.all(Requeue)


async def test_the_end_leaves_nothing_open(
    broker: ScriptedBroker, other: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """Neither a first attempt nor a reconnect goes on; closing again does nothing."""
    tasks = asyncio.all_tasks()
    other.on(Subscribe, no_response)
    subscriber = subscriber_of(listener, broker.address, other.address)
    await subscriber.start()
    await (await other.peer()).next(Subscribe)
    broker.on(Identify, no_response)
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
    """No attempt follows after the close."""
    tasks = asyncio.all_tasks()
    await other.stop()
    subscriber = subscriber_of(listener, broker.address, other.address)
    await subscriber.start()
    await subscriber._connections[other.address].attempted.wait()

    await subscriber.close()
    await turn(5)

    assert tasks == asyncio.all_tasks()


async def test_an_end_of_the_connection_after_the_end_is_not_told(
    broker: ScriptedBroker, listener: SubscriptionListener
) -> None:
    """The listener is not called after the close."""
    broker.on(StartClose, close)
    async with subscribed(listener, broker) as (subscriber, (peer,)):
        await subscriber.close()
        await peer.gone()

    assert [] == listener.all


# Bugs


class _FailingListener(SubscriptionListener):
    """Raises from `on_source_opened` once, before or after it has recorded the source."""

    def __init__(self, *, is_recorded: bool) -> None:
        super().__init__()
        self.failures = [ZeroDivisionError("a bug")]
        self._is_recorded = is_recorded

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Fail the first time."""
        if self._is_recorded or not self.failures:
            super().on_source_opened(source, answer)
        if self.failures:
            raise self.failures.pop()


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_a_bug_behind_sub_leaves_no_subscription(
    broker: ScriptedBroker, *, is_recorded: bool
) -> None:
    """The first subscription is closed and gives its share back."""
    broker.identifies_as(IdentifyResponse(msg_timeout=1_000))
    listener = _FailingListener(is_recorded=is_recorded)
    subscriber = subscriber_of(listener, broker.address)
    subscriber.set_window(7)
    with capture_logs() as lines, pytest.raises(NoBroker, match="unexpected ZeroDivisionError"):
        await subscriber.start()
    first = await broker.peer()
    await first.gone()
    assert 1 == [line["event"] for line in lines].count("connection attempt failed")
    assert [] == first.all(Ready)
    assert 0 == subscriber.rdy.total
    reason = "unexpected ZeroDivisionError while subscribing, which is in the log"
    recorded = [("opened", 1, 1_000)] if is_recorded else []
    assert [*recorded, ("lost", 1, reason)] == listener.all


async def test_a_bug_behind_sub_at_one_nsqd_is_retried_beside_the_others(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """It gets its share of the window when the next attempt has succeeded."""
    listener = _FailingListener(is_recorded=False)
    listener.failures.clear()
    other.on(Identify, no_response)
    subscriber = subscriber_of(listener, broker.address, other.address)
    await subscriber.start()
    subscriber.set_window(4)
    clock = ManualClock()
    listener.failures.append(ZeroDivisionError("a bug"))
    first = await other.peer()
    await first.next(Identify)
    other.identifies_as(IdentifyResponse())

    with capture_logs() as lines:
        first.send(Response(IdentifyResponse().to_json()))
        await first.gone()
        for _ in range(100):
            await clock.advance(0.2)
            await turn(5)

    assert 1 == [line["event"] for line in lines].count("connection attempt failed")
    assert 2 == len(other.peers)
    assert [Ready(2)] == other.peers[1].all(Ready)
    run_on()
    await subscriber.close()
    assert [StartClose()] == other.peers[1].all(StartClose)
