"""Tests of `Consumer`: handlers, lists, attempts, backoff and stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gateway.client import Consumer, ConsumerOptions, Delivery, DeliveryOptions, Producer
from gateway.errors import AlreadyResponded, InvalidRequest, NoBroker
from gateway.protocol.commands import Finish, Ready, Requeue, StartClose, Touch
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.scripted_broker import Peer, ScriptedBroker
from tests.support.manual_clock import ManualClock, run_on, turn, until
from tests.support.websocket.session_messages import message, message_id, messages

A, B, C = (message_id(number) for number in (1, 2, 3))


@asynccontextmanager
async def subscribed(
    broker: ScriptedBroker, options: ConsumerOptions | None = None
) -> AsyncIterator[tuple[Consumer, Peer]]:
    """Run a consumer on *broker*; yield it and the broker's connection after its first RDY."""
    options = options or ConsumerOptions(max_in_flight=10)
    async with Consumer("t", "c", [broker.address], options) as subscriber:
        peer = await broker.peer()
        await peer.next(Ready)
        try:
            yield subscriber, peer
        finally:
            run_on()


@asynccontextmanager
async def running(
    subscriber: Consumer, handle: Callable[[Delivery], object], *, concurrency: int = 1
) -> AsyncIterator[asyncio.Task[None]]:
    async def handler(delivery: Delivery) -> None:
        handle(delivery)

    run = asyncio.ensure_future(subscriber.run(handler, concurrency=concurrency))
    try:
        yield run
    finally:
        run.cancel()
        await asyncio.wait({run})


def written(peer: Peer) -> list[tuple[object, ...]]:
    """Return the RDY, FIN, REQ and CLS commands received, with their parameters."""
    said: list[tuple[object, ...]] = []
    for command in peer.received:
        match command:
            case Ready(count):
                said.append(("RDY", count))
            case Finish(each):
                said.append(("FIN", each))
            case Requeue(each, delay_ms):
                said.append(("REQ", each, delay_ms))
            case StartClose():
                said.append(("CLS",))
    return said


# Handlers


async def test_what_a_handler_returns_from_is_finished(broker: ScriptedBroker) -> None:
    """FINs are written in the order of handling."""
    async with subscribed(broker) as (subscriber, peer), running(subscriber, lambda _: None):
        peer.send(messages(1, 2))

        finished = [(await peer.next(Finish)).id for _ in range(2)]

    assert [A, B] == finished


async def test_what_a_handler_raises_for_goes_back_and_slows_all_down(
    broker: ScriptedBroker,
) -> None:
    """RDY 0 precedes the REQ, whose delay is the default times the attempts."""

    def fail(_: Delivery) -> None:
        raise ValueError

    async with subscribed(broker) as (subscriber, peer), running(subscriber, fail):
        peer.send([message(1, attempts=2)])
        await peer.next(Requeue)

        assert [("RDY", 10), ("RDY", 0), ("REQ", A, 180_000)] == written(peer)


async def test_a_handler_whose_own_wait_was_cancelled_has_failed(broker: ScriptedBroker) -> None:
    """`run` itself was not cancelled, so it goes on."""

    def cancelled(_: Delivery) -> None:
        raise asyncio.CancelledError

    async with subscribed(broker) as (subscriber, peer), running(subscriber, cancelled) as run:
        peer.send(messages(1))
        await peer.next(Requeue)

        assert not run.done()


async def test_after_a_backoff_one_message_decides(broker: ScriptedBroker) -> None:
    """After the period RDY is 1; a success restores the full window."""
    clock = ManualClock()

    def fail_first(delivery: Delivery) -> None:
        if delivery.id == A:
            raise ValueError

    async with subscribed(broker) as (subscriber, peer), running(subscriber, fail_first):
        peer.send(messages(1))
        await peer.next(Requeue)

        await clock.advance(2.0)
        await until(lambda: ("RDY", 1) in written(peer))
        peer.send(messages(2))
        await peer.next(Finish)

        expected = [("RDY", 1), ("RDY", 10), ("FIN", B)]
        assert expected == written(peer)[-3:]


async def test_a_handler_may_answer_by_itself(broker: ScriptedBroker) -> None:
    """Its answer is written once, and no other follows."""
    async with (
        subscribed(broker) as (subscriber, peer),
        running(subscriber, lambda delivery: delivery.requeue(500, backoff=False)),
    ):
        peer.send(messages(1))
        await peer.next(Requeue)
        await turn(3)

        assert [("RDY", 10), ("REQ", A, 500)] == written(peer)


async def test_handlers_run_beside_each_other_up_to_the_concurrency(
    broker: ScriptedBroker,
) -> None:
    """The third handler starts when one of two has returned."""
    release = asyncio.Event()
    begun: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        begun.append(delivery.id)
        await release.wait()

    async with subscribed(broker) as (subscriber, peer):
        run = asyncio.ensure_future(subscriber.run(handle, concurrency=2))
        await turn(3)  # both wait before anything is there
        peer.send(messages(1, 2, 3))
        await until(lambda: len(begun) == 2)
        await turn(3)
        before = list(begun)
        release.set()
        await until(lambda: len(begun) == 3)
        await subscriber.stop()
        await run

    assert [A, B] == sorted(before)


async def test_what_came_too_often_is_given_up(broker: ScriptedBroker) -> None:
    """The hook gets the delivery, the handler does not, and FIN is written."""
    handled: list[bytes] = []
    given_up: list[bytes] = []
    options = ConsumerOptions(
        max_in_flight=10,
        on_give_up=lambda delivery: given_up.append(delivery.id),
        delivery=DeliveryOptions(max_attempts=2),
    )
    async with (
        subscribed(broker, options) as (subscriber, peer),
        running(subscriber, lambda delivery: handled.append(delivery.id)),
    ):
        peer.send([message(1, attempts=3), message(2, attempts=2)])
        finished = [(await peer.next(Finish)).id for _ in range(2)]

    assert ([B], [A], [A, B]) == (handled, given_up, sorted(finished))


# Lists, one by one


async def test_a_list_is_all_that_one_read_brought(broker: ScriptedBroker) -> None:
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1, 2, 3))
        async for deliveries in subscriber.batches():
            subscriber.finish(deliveries)
            break
        finished = [(await peer.next(Finish)).id for _ in range(3)]

    assert [A, B, C] == finished


async def test_deliveries_come_one_by_one_with_what_nsq_says_of_them(
    broker: ScriptedBroker,
) -> None:
    """A delivery has its topic, channel, nsqd, attempts and deadline."""
    broker.identifies_as(IdentifyResponse(msg_timeout=5_000))
    clock = ManualClock()
    async with subscribed(broker) as (subscriber, peer):
        arrived_at = clock._time()
        peer.send([Message(17, 3, A, b"body")])
        delivery = await anext(aiter(subscriber))

        told = (delivery.body, delivery.id, delivery.timestamp_ns, delivery.attempts)
        assert (b"body", A, 17, 3) == told
        assert ("t", "c", broker.address) == (delivery.topic, delivery.channel, delivery.nsqd)
        # Since the event loop last polled its sockets, less nsqd's output buffer timeout.
        assert arrived_at + 5.0 - 0.5 <= delivery.deadline <= arrived_at + 5.0


async def test_a_delivery_is_answered_once(broker: ScriptedBroker) -> None:
    """Any second answer raises an error, alone or in a list."""
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1, 2))
        async for first, second in subscriber.batches():
            first.finish()
            for again in (first.finish, first.requeue, first.touch):
                with pytest.raises(AlreadyResponded):
                    again()
            with pytest.raises(AlreadyResponded):
                subscriber.finish([second, first])
            break

        assert not second.is_answered


async def test_a_touch_puts_the_deadline_off(broker: ScriptedBroker) -> None:
    """The new deadline is one message timeout from now."""
    broker.identifies_as(IdentifyResponse(msg_timeout=5_000))
    clock = ManualClock()
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1))
        delivery = await anext(aiter(subscriber))
        await clock.advance(3.0)

        delivery.touch()

        assert A == (await peer.next(Touch)).id
        assert clock._time() + 5.0 == delivery.deadline


async def test_what_nobody_took_in_time_is_not_handed_out(broker: ScriptedBroker) -> None:
    """The broker delivers it again, so handling it would be handling it twice."""
    broker.identifies_as(IdentifyResponse(msg_timeout=5_000))
    clock = ManualClock()
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1))
        await until(lambda: subscriber.in_flight == 1)
        await clock.advance(6.0)
        peer.send(messages(2))
        delivery = await anext(aiter(subscriber))

        assert (B, 1) == (delivery.id, subscriber.in_flight)


async def test_a_window_that_is_used_up_is_told(broker: ScriptedBroker) -> None:
    """`is_starved` tells a program that collects a batch to finish it."""
    options = ConsumerOptions(max_in_flight=2)
    async with subscribed(broker, options) as (subscriber, peer):
        before = subscriber.is_starved
        peer.send(messages(1, 2))
        await until(lambda: subscriber.in_flight == 2)

        assert (False, True) == (before, subscriber.is_starved)


async def test_a_pause_is_a_window_of_0(broker: ScriptedBroker) -> None:
    async with subscribed(broker) as (subscriber, peer):
        subscriber.set_max_in_flight(0)
        subscriber.set_max_in_flight(7)
        await until(lambda: len(written(peer)) == 3)

        assert [("RDY", 10), ("RDY", 0), ("RDY", 7)] == written(peer)


async def test_a_late_refusal_is_told_with_its_message(broker: ScriptedBroker) -> None:
    """The connection stays open."""
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1))
        async for delivery in subscriber:
            delivery.finish()
            break
        await peer.next(Finish)
        with capture_logs() as logs:
            peer.send(ErrorFrame("E_FIN_FAILED", f"FIN {A.decode()} failed ID not in flight"))
            await until(lambda: bool(logs))

        assert ["nsqd refused FIN, REQ or TOUCH"] == [line["event"] for line in logs]
        assert broker.address == logs[0]["nsqd"]


async def test_an_answer_to_a_broker_that_is_gone_is_nothing(broker: ScriptedBroker) -> None:
    """The broker delivers the message again, so nothing is written."""
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1))
        delivery = await anext(aiter(subscriber))
        peer.close()
        await until(lambda: subscriber.in_flight == 0)

        delivery.finish()

        assert [] == peer.all(Finish)


# The end


async def test_a_stop_waits_for_the_handlers_and_hands_the_rest_back(
    broker: ScriptedBroker,
) -> None:
    """RDY 0, REQ for deliveries not taken, the handler's answer, CLS."""
    release = asyncio.Event()
    tasks = asyncio.all_tasks()

    async def handle(_: Delivery) -> None:
        await release.wait()

    async with subscribed(broker) as (subscriber, peer):
        run = asyncio.ensure_future(subscriber.run(handle))
        peer.send(messages(1, 2))
        await until(lambda: subscriber.in_flight == 2)
        await turn(2)
        stopping = asyncio.ensure_future(subscriber.stop())
        await peer.next(Requeue)
        release.set()
        await stopping
        await run
        await peer.gone()

    expected = [("RDY", 10), ("RDY", 0), ("REQ", B, 0), ("FIN", A), ("CLS",)]
    assert expected == written(peer)
    assert tasks == asyncio.all_tasks()


async def test_a_handler_that_does_not_end_is_not_waited_for_for_ever(
    broker: ScriptedBroker,
) -> None:
    """Its message is requeued for another consumer."""
    options = ConsumerOptions(max_in_flight=10, stop_timeout_s=0.01)
    async with subscribed(broker, options) as (subscriber, peer):
        run = asyncio.ensure_future(subscriber.run(lambda _: asyncio.Event().wait()))
        peer.send(messages(1))
        await until(lambda: subscriber.in_flight == 1)
        await subscriber.stop()
        run.cancel()
        await asyncio.wait({run})

    assert [("RDY", 10), ("RDY", 0), ("REQ", A, 0), ("CLS",)] == written(peer)


async def test_a_stop_that_is_cancelled_goes_on(broker: ScriptedBroker) -> None:
    """A second `stop` waits for the first, and no connection is left."""
    tasks = asyncio.all_tasks()
    release = asyncio.Event()
    async with subscribed(broker) as (subscriber, peer):
        run = asyncio.ensure_future(subscriber.run(lambda _: release.wait()))
        peer.send(messages(1))
        await until(lambda: subscriber.in_flight == 1)
        await turn(2)
        first = asyncio.ensure_future(subscriber.stop())
        await turn(2)
        first.cancel()
        second = asyncio.ensure_future(subscriber.stop())
        await turn(2)
        was_done = second.done()
        release.set()
        await second
        await run

    assert (True, False) == (first.cancelled(), was_done)
    await peer.gone()
    assert tasks == asyncio.all_tasks()


async def test_a_cancelled_run_hands_back_what_it_handles(broker: ScriptedBroker) -> None:
    """They are requeued at once, without backoff."""
    async with subscribed(broker) as (subscriber, peer):
        run = asyncio.ensure_future(subscriber.run(lambda _: asyncio.Event().wait()))
        peer.send(messages(1))
        await until(lambda: subscriber.in_flight == 1)
        await turn(2)
        run.cancel()
        await asyncio.wait({run})
        await peer.next(Requeue)

        assert [("RDY", 10), ("REQ", A, 0)] == written(peer)


async def test_a_start_without_a_broker_leaves_nothing_open(broker: ScriptedBroker) -> None:
    """The error names the brokers that were tried."""
    await broker.stop()
    tasks = asyncio.all_tasks()

    with pytest.raises(NoBroker, match=broker.address):
        await Consumer("t", "c", [broker.address]).start()

    assert tasks == asyncio.all_tasks()


# What was read late


async def test_a_second_broker_that_requires_auth_is_logged(broker: ScriptedBroker) -> None:
    """`start` needs one broker only, so that it raises no error."""
    guarded = AuthBroker()
    await guarded.start()
    expected = "nsqd requires AUTH and no secret is configured"
    clock = ManualClock()
    with capture_logs() as logs:
        async with Consumer("t", "c", [broker.address, guarded.address]):
            while expected not in {line["event"] for line in logs}:
                await clock.advance(20.0)
            clock.run_on()
    await guarded.stop()

    assert "warning" in {line["log_level"] for line in logs if line["event"] == expected}


async def test_what_timed_out_unread_is_not_handed_out(broker: ScriptedBroker) -> None:
    """It waited in the socket for 8 s of a pause; the broker delivers it again."""
    broker.identifies_as(IdentifyResponse(msg_timeout=5_000))
    clock = ManualClock()
    async with subscribed(broker) as (subscriber, peer):
        subscriber._subscription.pause_reading()
        peer.send(messages(1, 2))
        await turn(5)
        await clock.advance(8.0)
        subscriber._subscription.resume_reading()
        await turn(5)
        unread = subscriber.in_flight
        await clock.advance(0.3)
        await clock.advance(0.3)
        peer.send(messages(3))
        delivery = await anext(aiter(subscriber))

    assert (0, C) == (unread, delivery.id)


async def test_a_deadline_counts_from_the_begin_of_a_pause(broker: ScriptedBroker) -> None:
    """The broker may have sent it at that time, so the ceiling of TOUCH counts from it, too."""
    broker.identifies_as(IdentifyResponse(msg_timeout=60_000, max_msg_timeout=60_000))
    clock = ManualClock()
    async with subscribed(broker) as (subscriber, peer):
        begin = clock._time()
        subscriber._subscription.pause_reading()
        await clock.advance(8.0)
        peer.send(messages(1))
        subscriber._subscription.resume_reading()
        delivery = await anext(aiter(subscriber))
        at_first = delivery.deadline
        delivery.touch()

    assert begin + 59.0 <= at_first <= begin + 60.0
    assert at_first == delivery.deadline


# Several brokers


async def test_a_window_of_1_is_1_over_two_brokers(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The other broker has no RDY for a minute, and gets it once the message is answered."""
    addresses = [broker.address, other.address]
    async with Consumer("t", "c", addresses, ConsumerOptions(max_in_flight=1)) as subscriber:
        peers = [await each.peer() for each in (broker, other)]
        await until(lambda: any(written(peer) for peer in peers))
        first = next(peer for peer in peers if written(peer))
        second = peers[1 - peers.index(first)]
        clock = ManualClock()
        first.send(messages(1))
        (delivery,) = await anext(aiter(subscriber.batches()))
        for _ in range(58):
            await clock.advance(1.0)
        held = written(second)

        delivery.finish()
        await second.next(Ready)

        assert ([], [("RDY", 1)]) == (held, written(second))
        assert [("RDY", 1), ("RDY", 0), ("FIN", A)] == written(first)
        clock.run_on()


async def test_a_broker_that_joins_gets_rdy_as_the_other_is_answered(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Messages in flight at the first and RDY of the second never exceed the window together."""
    await other.stop()
    addresses = [broker.address, other.address]
    async with Consumer("t", "c", addresses, ConsumerOptions(max_in_flight=4)) as subscriber:
        peer = await broker.peer()
        peer.send(messages(1, 2, 3, 4))
        deliveries = await anext(aiter(subscriber.batches()))
        await other.start()
        joined = await other.peer()
        await until(lambda: ("RDY", 2) in written(peer))
        clock = ManualClock()
        for _ in range(5):
            await clock.advance(1.0)
        at_first = written(joined)

        subscriber.finish(deliveries[:2])
        await joined.next(Ready)

        assert ([], [("RDY", 2)]) == (at_first, written(joined))
        clock.run_on()


# The real nsqd


@pytest.mark.nsqd
@pytest.mark.parametrize("way", ["lists", "handler"])
async def test_everything_that_was_published_is_consumed_once(way: str) -> None:
    """nsqd counts no redelivery, and its channel is empty."""
    count = 2_000
    bodies: list[bytes] = []
    done = asyncio.Event()

    def take(delivery: Delivery) -> None:
        bodies.append(delivery.body)
        if len(bodies) == count:
            done.set()

    async with (
        real_nsqd() as nsqd,
        Producer([nsqd.tcp_address]) as publisher,
        Consumer("t", "c", [nsqd.tcp_address], ConsumerOptions(max_in_flight=200)) as subscriber,
    ):
        await publisher.publish_many("t", [b"%d" % number for number in range(count)])
        if way == "handler":
            async with running(subscriber, take, concurrency=4):
                await done.wait()
        else:
            async for deliveries in subscriber.batches():
                for delivery in deliveries:
                    take(delivery)
                subscriber.finish(deliveries)
                if done.is_set():
                    break

    assert sorted(b"%d" % number for number in range(count)) == sorted(bodies)


# Names


@pytest.mark.parametrize(
    "topic, channel, token",
    [
        ("secret other", "x", "INVALID_TOPIC"),
        ("t\nPUB u", "c", "INVALID_TOPIC"),
        ("t", "c\n", "INVALID_ARG_CHANNEL"),
        ("t", "", "INVALID_ARG_CHANNEL"),
        ("t", "c" * 65, "INVALID_ARG_CHANNEL"),
    ],
)
def test_a_name_that_is_none_is_refused_at_the_door(topic: str, channel: str, token: str) -> None:
    """`SUB secret other x` would read another topic; the error quotes the invalid name."""
    with pytest.raises(InvalidRequest) as caught:
        Consumer(topic, channel, ["127.0.0.1:4150"])

    wrong = topic if token == "INVALID_TOPIC" else channel
    assert token == caught.value.token
    assert repr(wrong) in str(caught.value)
