"""Tests of `Producer` over several brokers: checks, batches, limits and refusals."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.client.producer import ProducerOptions
from gateway.errors import BrokerRefused, GatewayError, InvalidRequest, OutcomeUnknown, Overloaded
from gateway.protocol.commands import DeferredPublish, MultiPublish, Publish
from gateway.protocol.frames import OK
from gateway.protocol.wire import Limits
from gateway.telemetry import REGISTRY
from tests.support.brokers.running_producer import (
    outcomes,
    refuse_bad_bodies,
    running_producer,
    start_publishes,
)
from tests.support.brokers.scripted_broker import ScriptedBroker, no_response, refuse
from tests.support.manual_clock import turn, until

# One publish


async def test_a_publish_is_done_when_the_broker_said_ok(broker: ScriptedBroker) -> None:
    """`publish` returns only after OK; the command is PUB."""
    broker.on(Publish, no_response)
    async with running_producer(broker) as publisher:
        peer = await broker.peer()
        (publish,) = start_publishes(publisher, b"body")
        sent = await peer.next(Publish)
        was_done = publish.done()

        peer.send(OK)

        assert [None] == await outcomes(publish)
        assert (Publish("t", b"body"), False) == (sent, was_done)


async def test_the_log_tells_what_a_connection_carried(broker: ScriptedBroker) -> None:
    with capture_logs() as logs:
        async with running_producer(broker) as publisher:
            await publisher.publish("t", b"a")
            await publisher.publish_many("t", [b"b", b"c"])

    (line,) = (line for line in logs if line["event"] == "publisher connection closed")
    assert 3 == line["messages"]
    assert line["bytes_in"] > 0 < line["bytes_out"]


async def test_the_duration_of_a_publish_is_that_until_its_answer(broker: ScriptedBroker) -> None:
    name, labels = "nsq_gateway_publish_duration_seconds", {"nsqd": broker.address}
    async with running_producer(broker) as publisher:
        await publisher.publish("t", b"a")

    assert 1 == REGISTRY.get_sample_value(f"{name}_count", labels)
    assert 0 < (REGISTRY.get_sample_value(f"{name}_sum", labels) or 0) < 60


async def test_a_deferred_publish_goes_as_dpub(broker: ScriptedBroker) -> None:
    """DPUB carries the delay in milliseconds."""
    async with running_producer(broker) as publisher:
        await publisher.publish("t", b"body", defer_ms=5_000)

    assert [DeferredPublish("t", 5_000, b"body")] == broker.all(DeferredPublish)


async def test_several_bodies_go_as_one_mpub(broker: ScriptedBroker) -> None:
    """One MPUB publishes all or none; without bodies nothing is written."""
    async with running_producer(broker) as publisher:
        await publisher.publish_many("t", [b"a", b"b"])
        await publisher.publish_many("t", [])

    assert [MultiPublish("t", [b"a", b"b"])] == broker.all(MultiPublish)
    assert 2 == len(broker.peers[0].received)


@pytest.mark.parametrize(
    "topic, bodies, defer_ms, token",
    [
        ("", [b"a"], 0, "INVALID_TOPIC"),
        ("t\n", [b"a"], 0, "INVALID_TOPIC"),
        ("x" * 65, [b"a"], 0, "INVALID_TOPIC"),
        ("\ud800", [b"a"], 0, "INVALID_TOPIC"),
        ("t", [b""], 0, "MSG_EMPTY"),
        ("t", [b"x" * 11], 0, "MSG_TOO_BIG"),
        ("t", [b"a"], -1, "INVALID_DEFER"),
        ("t", [b"a"], 1_001, "INVALID_DEFER"),
        ("t", [b"a", b""], 0, "MSG_EMPTY"),
        ("t", [b"a", b"x" * 11], 0, "MSG_TOO_BIG"),
        ("t", [b"x" * 10] * 3, 0, "BODY_TOO_BIG"),
        ("t\n", [], 0, "INVALID_TOPIC"),
    ],
)
async def test_what_a_broker_would_refuse_is_not_written(
    broker: ScriptedBroker, topic: str, bodies: list[bytes], defer_ms: int, token: str
) -> None:
    """The refusal would close a connection that other publishes use."""
    limits = Limits(max_msg_size_bytes=10, max_body_size_bytes=45, max_req_timeout_ms=1_000)
    options = ProducerOptions(connections_per_nsqd=1, limits=limits)
    async with running_producer(broker, options=options) as publisher:
        publish = (
            publisher.publish(topic, bodies[0], defer_ms=defer_ms)
            if len(bodies) == 1
            else publisher.publish_many(topic, bodies)
        )
        with pytest.raises(InvalidRequest) as caught:
            await publish

    assert token == caught.value.token
    assert 1 == len(broker.peers[0].received)


async def test_what_just_fits_is_written(broker: ScriptedBroker) -> None:
    """Sizes equal to the limits are allowed."""
    limits = Limits(max_msg_size_bytes=10, max_body_size_bytes=32, max_req_timeout_ms=1_000)
    options = ProducerOptions(connections_per_nsqd=1, limits=limits)
    async with running_producer(broker, options=options) as publisher:
        await publisher.publish("t", b"x" * 10, defer_ms=1_000)
        await publisher.publish_many("t", [b"x" * 10] * 2)

    assert 3 == len(broker.peers[0].received)


# Many publishes


async def test_publishes_of_one_turn_go_together(broker: ScriptedBroker) -> None:
    """Sixty-four publishes of one turn form one MPUB, in the order of the calls."""
    bodies = [b"%d" % number for number in range(64)]
    async with running_producer(broker) as publisher:
        done = await outcomes(*start_publishes(publisher, *bodies))

    assert [None] * 64 == done
    assert [MultiPublish("t", bodies)] == broker.all(MultiPublish)
    assert [] == broker.all(Publish)


async def test_one_command_is_in_flight_and_the_rest_waits(broker: ScriptedBroker) -> None:
    """Publishes that arrive meanwhile form the next commands, one per topic."""
    broker.on(Publish, no_response)
    broker.on(MultiPublish, no_response)
    async with running_producer(broker) as publisher:
        peer = await broker.peer()
        first = start_publishes(publisher, b"1")
        await peer.next(Publish)
        behind = start_publishes(publisher, b"2", b"3") + start_publishes(
            publisher, b"4", b"5", topic="u"
        )
        await turn(3)
        meanwhile = len(peer.received)

        peer.send(OK)
        second = await peer.next(MultiPublish)
        only_one = len(peer.received)
        peer.send(OK)
        third = await peer.next(MultiPublish)
        peer.send(OK)

        assert [None] * 5 == await outcomes(*first, *behind)
        assert (2, 3) == (meanwhile, only_one)
        assert [MultiPublish("t", [b"2", b"3"]), MultiPublish("u", [b"4", b"5"])] == [second, third]


async def test_a_topic_stays_where_it_has_work_and_others_spread(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Two topics use two brokers, and neither topic uses both."""
    for each in (broker, other):
        each.on(Publish, no_response)
        each.on(MultiPublish, no_response)
    async with running_producer(broker, other) as publisher:
        publishes = []
        for _ in range(3):
            publishes += start_publishes(publisher, b"x", topic="t") + start_publishes(
                publisher, b"x", topic="u"
            )
            await turn(3)
        busy = [await each.peer() for each in (broker, other)]
        first = [await peer.next(Publish) for peer in busy]
        for peer in busy:
            peer.send(OK)
        rest = [await peer.next(MultiPublish) for peer in busy]
        for peer in busy:
            peer.send(OK)

        assert [None] * 6 == await outcomes(*publishes)
        assert {"t", "u"} == {command.topic for command in first}
        assert [command.topic for command in first] == [command.topic for command in rest]


async def test_what_waits_is_bounded_in_bytes(broker: ScriptedBroker) -> None:
    """The error has the size and the limit; freed bytes can be used again."""
    broker.on(Publish, no_response)
    broker.on(MultiPublish, no_response)
    options = ProducerOptions(connections_per_nsqd=1, buffer_bytes=2 * (4 + 10))
    async with running_producer(broker, options=options) as publisher:
        peer = await broker.peer()
        held = start_publishes(publisher, b"x" * 10, b"x" * 9)
        await turn(2)

        with pytest.raises(Overloaded) as caught:
            await publisher.publish("t", b"xx")
        await publisher.publish_many("t", [])
        await peer.next(MultiPublish)
        peer.send(OK)

        assert [None, None] == await outcomes(*held)
        (again,) = start_publishes(publisher, b"x" * 20)
        await peer.next(Publish)
        peer.send(OK)
        assert [None] == await outcomes(again)
        assert (27, 6, 28) == (
            caught.value.waiting_bytes,
            caught.value.size_bytes,
            caught.value.limit_bytes,
        )


async def test_a_caller_that_has_gone_costs_nothing(broker: ScriptedBroker) -> None:
    """Its outcome is dropped, its bytes are freed, and others of the batch get their outcomes."""
    broker.on(Publish, no_response)
    options = ProducerOptions(connections_per_nsqd=1, buffer_bytes=100)
    async with running_producer(broker, options=options) as publisher:
        peer = await broker.peer()
        (gone,) = start_publishes(publisher, b"x" * 50)
        await peer.next(Publish)
        (stays,) = start_publishes(publisher, b"y")

        gone.cancel()
        peer.send(OK)
        await peer.next(Publish)
        peer.send(OK)

        assert [None] == await outcomes(stays)
        assert (True, 0) == (gone.cancelled(), publisher._held_bytes)


async def test_a_publish_can_be_begun_without_a_task(broker: ScriptedBroker) -> None:
    """The callback gets the outcome once; without bodies it is called at once."""
    broker.on(DeferredPublish, refuse("E_DPUB_FAILED", "DPUB failed exiting"))
    told: list[GatewayError | None] = []
    async with running_producer(broker) as publisher:
        publisher.begin("t", (), told.append)
        at_once = told[:]
        publisher.begin("t", (b"1",), told.append)
        publisher.begin("t", [b"2", b"3"], told.append)
        await until(lambda: len(told) == 3)
        publisher.begin("t", (b"4",), told.append, defer_ms=5)
        await until(lambda: len(told) == 4)

    assert [None] == at_once
    assert [None] * 3 == told[:3]
    assert "E_DPUB_FAILED DPUB failed exiting" == str(told[3])
    assert [MultiPublish("t", [b"1", b"2", b"3"])] == broker.all(MultiPublish)


async def test_what_is_too_much_for_one_mpub_is_not_begun(broker: ScriptedBroker) -> None:
    """An error is raised and no callback called; one body of the maximum size is allowed."""
    limits = Limits(max_msg_size_bytes=20, max_body_size_bytes=20)
    told: list[GatewayError | None] = []
    async with running_producer(broker, options=ProducerOptions(limits=limits)) as publisher:
        with pytest.raises(InvalidRequest, match="2 messages take 21 bytes, the limit is 20 byt"):
            publisher.begin("t", [b"x" * 4, b"x" * 5], told.append)
        publisher.begin("t", [b"x" * 4, b"x" * 4], told.append)
        publisher.begin("u", [b"x" * 20], told.append)
        await until(lambda: len(told) == 2)

    assert [None, None] == told


async def test_the_next_batch_is_written_before_the_callers_of_the_last_are_told(
    broker: ScriptedBroker,
) -> None:
    """The broker must not wait for the callbacks of the last batch."""
    broker.on(Publish, no_response)
    async with running_producer(broker) as publisher:
        peer = await broker.peer()
        lane = publisher._pools._pools[None]._connections[0]
        in_flight: list[bool] = []
        publisher.begin("t", (b"1",), lambda _: in_flight.append(not lane.is_idle))
        await peer.next(Publish)
        (second,) = start_publishes(publisher, b"2")
        await turn(2)

        peer.send(OK)
        await peer.next(Publish)
        peer.send(OK)

        assert [None] == await outcomes(second)
    assert [True] == in_flight


async def test_a_caller_that_fails_harms_no_other(broker: ScriptedBroker) -> None:
    """Other callbacks of the batch are called, the connection stays, and the error is logged."""

    def fail(_error: GatewayError | None) -> None:
        msg = "a bug of the caller"
        raise RuntimeError(msg)

    with capture_logs() as lines:
        async with running_producer(broker) as publisher:
            publisher.begin("t", (b"1",), fail)
            neighbours = start_publishes(publisher, b"2", b"3")

            assert [None, None] == await outcomes(*neighbours)
            await publisher.publish("t", b"4")
            assert 0 == publisher._held_bytes

    assert 1 == len(broker.peers)
    assert "publish callback failed" in [line["event"] for line in lines]


async def test_who_publishes_again_at_the_answer_is_served(broker: ScriptedBroker) -> None:
    """A callback may publish again, as a pipelining HTTP client causes."""
    told: list[int] = []
    async with running_producer(broker) as publisher:

        def again(_error: GatewayError | None) -> None:
            told.append(len(told))
            if len(told) < 5:
                publisher.begin("t", (b"%d" % len(told),), again)

        publisher.begin("t", (b"0",), again)
        await until(lambda: len(told) == 5)

        assert 0 == publisher._held_bytes
    assert [b"0", b"1", b"2", b"3", b"4"] == [command.body for command in broker.all(Publish)]


# Refusals


@pytest.mark.parametrize("connections", [1, 4])
async def test_of_a_refused_batch_only_the_bad_one_fails(
    broker: ScriptedBroker, connections: int
) -> None:
    """Each publish is retried alone, even if the refusal closed all connections."""
    broker.on(MultiPublish, refuse_bad_bodies)
    broker.on(Publish, refuse_bad_bodies)
    options = ProducerOptions(connections_per_nsqd=connections)
    async with running_producer(broker, options=options) as publisher:
        done = await outcomes(*start_publishes(publisher, b"1", b"bad", b"2", b"3"))

    assert [None, "E_BAD_MESSAGE message too big", None, None] == [
        error and str(error) for error in done
    ]
    assert isinstance(done[1], BrokerRefused)
    sent = [command.body for command in broker.all(Publish)]
    assert sorted([b"1", b"bad", b"2", b"3"]) == sorted(sent)


async def test_several_bodies_of_one_caller_are_refused_together(broker: ScriptedBroker) -> None:
    """They are one publish, so they cannot be retried one by one."""
    broker.on(MultiPublish, refuse_bad_bodies)
    async with running_producer(broker) as publisher:
        with pytest.raises(BrokerRefused, match="E_BAD_MESSAGE"):
            await publisher.publish_many("t", [b"1", b"bad"])

    assert 1 == len(broker.all(MultiPublish))


@pytest.mark.parametrize(
    "code, description, expected",
    [
        ("E_MPUB_FAILED", "MPUB failed exiting", BrokerRefused),
        ("E_MPUB_FAILED", "MPUB failed no space left on device", OutcomeUnknown),
        ("E_INVALID", "what", BrokerRefused),
    ],
)
async def test_what_is_nobodys_fault_is_everybodys_answer(
    broker: ScriptedBroker, code: str, description: str, expected: type[GatewayError]
) -> None:
    """An nsqd that exits stored nothing; after a disk error some messages may be stored."""
    broker.on(MultiPublish, refuse(code, description))
    async with running_producer(broker) as publisher:
        done = await outcomes(*start_publishes(publisher, b"1", b"2"))

    assert [expected, expected] == [type(error) for error in done]
    assert all(f"{code} {description}" in str(error) for error in done)
    assert [] == broker.all(Publish)


@pytest.mark.parametrize("topic", ["t\nPUB u", "a b", ""])
async def test_a_publish_by_callback_is_refused_too_when_its_topic_is_no_name(
    broker: ScriptedBroker, topic: str
) -> None:
    """Nothing is written, and the callback is not called."""
    outcomes: list[GatewayError | None] = []
    async with running_producer(broker) as publisher:
        with pytest.raises(InvalidRequest, match="not a valid topic name"):
            publisher.begin(topic, [b"body"], outcomes.append)

    assert ([], []) == (outcomes, broker.all(Publish))
