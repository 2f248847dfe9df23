"""A consumer for programs: handlers, lists, attempts, backoff, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gateway.client import ConsumptionOptions, Delivery, Publisher, Subscriber, SubscriberOptions
from gateway.errors import AlreadyAnswered, NoBroker
from gateway.protocol.commands import Finish, Ready, Requeue, StartClose, Touch
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer
from tests.support.deliveries import message, message_id, messages
from tests.support.manual_clock import ManualClock, run_on, turn, until
from tests.support.nsqd import real_nsqd
from tests.support.scripted_broker import Peer, ScriptedBroker

A, B, C = (message_id(number) for number in (1, 2, 3))


@asynccontextmanager
async def subscribed(
    broker: ScriptedBroker, options: SubscriberOptions | None = None
) -> AsyncIterator[tuple[Subscriber, Peer]]:
    """Run a subscriber on *broker*; yield it and the broker's end, which has had its RDY."""
    options = options or SubscriberOptions(max_in_flight=10)
    async with Subscriber("t", "c", [broker.address], options) as subscriber:
        peer = await broker.peer()
        await peer.next(Ready)
        try:
            yield subscriber, peer
        finally:
            run_on()


@asynccontextmanager
async def running(
    subscriber: Subscriber, handle: Callable[[Delivery], object], *, concurrency: int = 1
) -> AsyncIterator[asyncio.Task[None]]:
    """Have *subscriber* run a handler that calls *handle*."""

    async def handler(delivery: Delivery) -> None:
        handle(delivery)

    run = asyncio.ensure_future(subscriber.run(handler, concurrency=concurrency))
    try:
        yield run
    finally:
        run.cancel()
        await asyncio.wait({run})


def written(peer: Peer) -> list[tuple[object, ...]]:
    """Return RDY, FIN, REQ and CLS in the order in which they came, with what they say."""
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
    """In the order in which it was handled."""
    async with subscribed(broker) as (subscriber, peer), running(subscriber, lambda _: None):
        peer.send(messages(1, 2))

        finished = [(await peer.next(Finish)).id for _ in range(2)]

    assert [A, B] == finished


async def test_what_a_handler_raises_for_goes_back_and_slows_all_down(
    broker: ScriptedBroker,
) -> None:
    """RDY 0 goes out before the REQ, which waits for the default times the attempts."""

    def fail(_: Delivery) -> None:
        raise ValueError

    async with subscribed(broker) as (subscriber, peer), running(subscriber, fail):
        peer.send([message(1, attempts=2)])
        await peer.next(Requeue)

        assert [("RDY", 10), ("RDY", 0), ("REQ", A, 180_000)] == written(peer)


async def test_a_handler_whose_own_wait_was_cancelled_has_failed(broker: ScriptedBroker) -> None:
    """The run goes on: nobody has cancelled it."""

    def cancelled(_: Delivery) -> None:
        raise asyncio.CancelledError

    async with subscribed(broker) as (subscriber, peer), running(subscriber, cancelled) as run:
        peer.send(messages(1))
        await peer.next(Requeue)

        assert not run.done()


async def test_after_a_backoff_one_message_decides(broker: ScriptedBroker) -> None:
    """RDY 1 when the period is over; a success brings the whole window back."""
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
    """What it says counts, and nothing is said twice."""
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
    """The third waits until one of two has ended."""
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
    """The hook sees it, the handler does not, and it is finished."""
    handled: list[bytes] = []
    given_up: list[bytes] = []
    options = SubscriberOptions(
        max_in_flight=10,
        gave_up=lambda delivery: given_up.append(delivery.id),
        consumption=ConsumptionOptions(max_attempts=2),
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
    """And it is finished as a list."""
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
    """Where it is from, how often it came, and when it must have been answered."""
    broker.identifies_as(Answer(msg_timeout=5_000))
    clock = ManualClock()
    async with subscribed(broker) as (subscriber, peer):
        arrived_at = clock._time()
        peer.send([Message(17, 3, A, b"body")])
        delivery = await anext(aiter(subscriber))

        told = (delivery.body, delivery.id, delivery.timestamp_ns, delivery.attempts)
        assert (b"body", A, 17, 3) == told
        assert ("t", "c", broker.address) == (delivery.topic, delivery.channel, delivery.nsqd)
        assert arrived_at + 5.0 == delivery.deadline


async def test_a_delivery_is_answered_once(broker: ScriptedBroker) -> None:
    """Whatever the second answer is; alone or in a list."""
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1, 2))
        async for first, second in subscriber.batches():
            first.finish()
            for again in (first.finish, first.requeue, first.touch):
                with pytest.raises(AlreadyAnswered):
                    again()
            with pytest.raises(AlreadyAnswered):
                subscriber.finish([second, first])
            break

        assert not second.is_answered


async def test_a_touch_puts_the_deadline_off(broker: ScriptedBroker) -> None:
    """By a whole message timeout from now."""
    broker.identifies_as(Answer(msg_timeout=5_000))
    clock = ManualClock()
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1))
        delivery = await anext(aiter(subscriber))
        await clock.advance(3.0)

        delivery.touch()

        assert A == (await peer.next(Touch)).id
        assert clock._time() + 5.0 == delivery.deadline


async def test_what_nobody_took_in_time_is_not_handed_out(broker: ScriptedBroker) -> None:
    """The broker delivers it again; to handle it as well would be to handle it twice."""
    broker.identifies_as(Answer(msg_timeout=5_000))
    clock = ManualClock()
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1))
        await until(lambda: subscriber.in_flight == 1)
        await clock.advance(6.0)
        peer.send(messages(2))
        delivery = await anext(aiter(subscriber))

        assert (B, 1) == (delivery.id, subscriber.in_flight)


async def test_a_window_that_is_used_up_is_told(broker: ScriptedBroker) -> None:
    """A program that gathers a batch had better end it then."""
    options = SubscriberOptions(max_in_flight=2)
    async with subscribed(broker, options) as (subscriber, peer):
        before = subscriber.is_starved
        peer.send(messages(1, 2))
        await until(lambda: subscriber.in_flight == 2)

        assert (False, True) == (before, subscriber.is_starved)


async def test_a_pause_is_a_window_of_0(broker: ScriptedBroker) -> None:
    """And it ends with the next window."""
    async with subscribed(broker) as (subscriber, peer):
        subscriber.set_max_in_flight(0)
        subscriber.set_max_in_flight(7)
        await until(lambda: len(written(peer)) == 3)

        assert [("RDY", 10), ("RDY", 0), ("RDY", 7)] == written(peer)


async def test_a_late_refusal_is_told_with_its_message(broker: ScriptedBroker) -> None:
    """The connection goes on."""
    async with subscribed(broker) as (subscriber, peer):
        peer.send(messages(1))
        async for delivery in subscriber:
            delivery.finish()
            break
        await peer.next(Finish)
        with capture_logs() as logs:
            peer.send(ErrorFrame("E_FIN_FAILED", f"FIN {A.decode()} failed ID not in flight"))
            await until(lambda: bool(logs))

        assert ["answer refused"] == [line["event"] for line in logs]
        assert broker.address == logs[0]["nsqd"]


async def test_an_answer_to_a_broker_that_is_gone_is_nothing(broker: ScriptedBroker) -> None:
    """The broker will deliver it again, to somebody."""
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
    """RDY 0, what nobody took, what the handler says, CLS."""
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
    """Its message goes back, for somebody else."""
    options = SubscriberOptions(max_in_flight=10, stop_timeout_s=0.01)
    async with subscribed(broker, options) as (subscriber, peer):
        run = asyncio.ensure_future(subscriber.run(lambda _: asyncio.Event().wait()))
        peer.send(messages(1))
        await until(lambda: subscriber.in_flight == 1)
        await subscriber.stop()
        run.cancel()
        await asyncio.wait({run})

    assert [("RDY", 10), ("RDY", 0), ("REQ", A, 0), ("CLS",)] == written(peer)


async def test_a_stop_that_is_cancelled_goes_on(broker: ScriptedBroker) -> None:
    """The next one waits for its end, and nothing is left open."""
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
    """At once, and the consumer is not slowed down for it."""
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
    """It says which brokers it tried."""
    await broker.stop()
    tasks = asyncio.all_tasks()

    with pytest.raises(NoBroker, match=broker.address):
        await Subscriber("t", "c", [broker.address]).start()

    assert tasks == asyncio.all_tasks()


# The real nsqd


@pytest.mark.nsqd
@pytest.mark.parametrize("way", ["lists", "handler"])
async def test_everything_that_was_published_is_consumed_once(way: str) -> None:
    """nsqd counts no message twice, and none is left."""
    count = 2_000
    bodies: list[bytes] = []
    done = asyncio.Event()

    def take(delivery: Delivery) -> None:
        bodies.append(delivery.body)
        if len(bodies) == count:
            done.set()

    async with (
        real_nsqd() as nsqd,
        Publisher([nsqd.tcp_address]) as publisher,
        Subscriber(
            "t", "c", [nsqd.tcp_address], SubscriberOptions(max_in_flight=200)
        ) as subscriber,
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
