"""Publishing over several brokers: checked, grouped, bounded; refusals go to whom they are for."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.client.publisher import PublisherOptions
from gateway.errors import BrokerRefused, GatewayError, InvalidRequest, OutcomeUnknown, Overloaded
from gateway.protocol.commands import DeferredPublish, MultiPublish, Publish
from gateway.protocol.frames import OK
from gateway.protocol.wire import Limits
from tests.support.manual_clock import turn, until
from tests.support.publishing import outcomes, publishing, refuse_bad_bodies, start
from tests.support.scripted_broker import ScriptedBroker, refuse, silence

# One publish


async def test_a_publish_is_done_when_the_broker_said_ok(broker: ScriptedBroker) -> None:
    """Not before; it goes out as PUB."""
    broker.on(Publish, silence)
    async with publishing(broker) as publisher:
        peer = await broker.peer()
        (publish,) = start(publisher, b"body")
        sent = await peer.next(Publish)
        was_done = publish.done()

        peer.send(OK)

        assert [None] == await outcomes(publish)
        assert (Publish("t", b"body"), False) == (sent, was_done)


async def test_a_deferred_publish_goes_as_dpub(broker: ScriptedBroker) -> None:
    """With its delay in milliseconds."""
    async with publishing(broker) as publisher:
        await publisher.publish("t", b"body", defer_ms=5_000)

    assert [DeferredPublish("t", 5_000, b"body")] == broker.all(DeferredPublish)


async def test_several_bodies_go_as_one_mpub(broker: ScriptedBroker) -> None:
    """All or none; no bodies are no command."""
    async with publishing(broker) as publisher:
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
    """Its refusal would end a connection that others use."""
    limits = Limits(max_msg_size_bytes=10, max_body_size_bytes=45, max_req_timeout_ms=1_000)
    options = PublisherOptions(connections_per_nsqd=1, limits=limits)
    async with publishing(broker, options=options) as publisher:
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
    """The limits themselves are allowed."""
    limits = Limits(max_msg_size_bytes=10, max_body_size_bytes=32, max_req_timeout_ms=1_000)
    options = PublisherOptions(connections_per_nsqd=1, limits=limits)
    async with publishing(broker, options=options) as publisher:
        await publisher.publish("t", b"x" * 10, defer_ms=1_000)
        await publisher.publish_many("t", [b"x" * 10] * 2)

    assert 3 == len(broker.peers[0].received)


# Many publishes


async def test_publishes_of_one_turn_go_together(broker: ScriptedBroker) -> None:
    """Sixty-four callers, one MPUB, in the order of the calls."""
    bodies = [b"%d" % number for number in range(64)]
    async with publishing(broker) as publisher:
        done = await outcomes(*start(publisher, *bodies))

    assert [None] * 64 == done
    assert [MultiPublish("t", bodies)] == broker.all(MultiPublish)
    assert [] == broker.all(Publish)


async def test_one_command_is_in_flight_and_the_rest_waits(broker: ScriptedBroker) -> None:
    """What comes meanwhile fills the next one, topic by topic, in as many commands as topics."""
    broker.on(Publish, silence)
    broker.on(MultiPublish, silence)
    async with publishing(broker) as publisher:
        peer = await broker.peer()
        first = start(publisher, b"1")
        await peer.next(Publish)
        behind = start(publisher, b"2", b"3") + start(publisher, b"4", b"5", topic="u")
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
    """Two topics use two brokers, and none of them uses both."""
    for each in (broker, other):
        each.on(Publish, silence)
        each.on(MultiPublish, silence)
    async with publishing(broker, other) as publisher:
        publishes = []
        for _ in range(3):
            publishes += start(publisher, b"x", topic="t") + start(publisher, b"x", topic="u")
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
    """One more is refused with both numbers, and room that is given free is used again."""
    broker.on(Publish, silence)
    broker.on(MultiPublish, silence)
    options = PublisherOptions(connections_per_nsqd=1, buffer_bytes=2 * (4 + 10))
    async with publishing(broker, options=options) as publisher:
        peer = await broker.peer()
        held = start(publisher, b"x" * 10, b"x" * 9)
        await turn(2)

        with pytest.raises(Overloaded) as caught:
            await publisher.publish("t", b"xx")
        await publisher.publish_many("t", [])
        await peer.next(MultiPublish)
        peer.send(OK)

        assert [None, None] == await outcomes(*held)
        (again,) = start(publisher, b"x" * 20)
        await peer.next(Publish)
        peer.send(OK)
        assert [None] == await outcomes(again)
        assert (27, 6, 28) == (
            caught.value.waiting_bytes,
            caught.value.size_bytes,
            caught.value.limit_bytes,
        )


async def test_a_caller_that_has_gone_costs_nothing(broker: ScriptedBroker) -> None:
    """Nobody is told, its bytes are given free, and its neighbours get their answers."""
    broker.on(Publish, silence)
    options = PublisherOptions(connections_per_nsqd=1, buffer_bytes=100)
    async with publishing(broker, options=options) as publisher:
        peer = await broker.peer()
        (gone,) = start(publisher, b"x" * 50)
        await peer.next(Publish)
        (stays,) = start(publisher, b"y")

        gone.cancel()
        peer.send(OK)
        await peer.next(Publish)
        peer.send(OK)

        assert [None] == await outcomes(stays)
        assert (True, 0) == (gone.cancelled(), publisher._held_bytes)


async def test_a_publish_can_be_begun_without_a_task(broker: ScriptedBroker) -> None:
    """Each outcome is told once; that of no bodies at once."""
    broker.on(DeferredPublish, refuse("E_DPUB_FAILED", "DPUB failed exiting"))
    told: list[GatewayError | None] = []
    async with publishing(broker) as publisher:
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
    """It is raised, and nobody is called; one body may be as long as a message may be."""
    limits = Limits(max_msg_size_bytes=20, max_body_size_bytes=20)
    told: list[GatewayError | None] = []
    async with publishing(broker, options=PublisherOptions(limits=limits)) as publisher:
        with pytest.raises(InvalidRequest, match="2 messages take 21 bytes, the limit is 20 byt"):
            publisher.begin("t", [b"x" * 4, b"x" * 5], told.append)
        publisher.begin("t", [b"x" * 4, b"x" * 4], told.append)
        publisher.begin("u", [b"x" * 20], told.append)
        await until(lambda: len(told) == 2)

    assert [None, None] == told


async def test_the_next_batch_is_written_before_the_callers_of_the_last_are_told(
    broker: ScriptedBroker,
) -> None:
    """The broker need not wait for what the callers do with their answers."""
    broker.on(Publish, silence)
    async with publishing(broker) as publisher:
        peer = await broker.peer()
        lane = publisher._pools._pools[None]._lanes[0]
        in_flight: list[bool] = []
        publisher.begin("t", (b"1",), lambda _: in_flight.append(not lane.is_idle))
        await peer.next(Publish)
        (second,) = start(publisher, b"2")
        await turn(2)

        peer.send(OK)
        await peer.next(Publish)
        peer.send(OK)

        assert [None] == await outcomes(second)
    assert [True] == in_flight


async def test_a_caller_that_fails_harms_no_other(broker: ScriptedBroker) -> None:
    """Those of its batch are told, the connection stays, and the log has what happened."""

    def fail(_error: GatewayError | None) -> None:
        msg = "a bug of the caller"
        raise RuntimeError(msg)

    with capture_logs() as lines:
        async with publishing(broker) as publisher:
            publisher.begin("t", (b"1",), fail)
            neighbours = start(publisher, b"2", b"3")

            assert [None, None] == await outcomes(*neighbours)
            await publisher.publish("t", b"4")
            assert 0 == publisher._held_bytes

    assert 1 == len(broker.peers)
    assert "a caller failed at the outcome of its publish" in [line["event"] for line in lines]


async def test_who_publishes_again_at_the_answer_is_served(broker: ScriptedBroker) -> None:
    """From inside the callback, as a client that pipelines its requests does."""
    told: list[int] = []
    async with publishing(broker) as publisher:

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
    """Each is sent again alone and gets its own answer, also where the refusal closed all lanes."""
    broker.on(MultiPublish, refuse_bad_bodies)
    broker.on(Publish, refuse_bad_bodies)
    options = PublisherOptions(connections_per_nsqd=connections)
    async with publishing(broker, options=options) as publisher:
        done = await outcomes(*start(publisher, b"1", b"bad", b"2", b"3"))

    assert [None, "E_BAD_MESSAGE message too big", None, None] == [
        error and str(error) for error in done
    ]
    assert isinstance(done[1], BrokerRefused)
    sent = [command.body for command in broker.all(Publish)]
    assert sorted([b"1", b"bad", b"2", b"3"]) == sorted(sent)


async def test_several_bodies_of_one_caller_are_refused_together(broker: ScriptedBroker) -> None:
    """They were one request: there is nothing to send one by one."""
    broker.on(MultiPublish, refuse_bad_bodies)
    async with publishing(broker) as publisher:
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
    """A broker that exits stored nothing; one whose disk fails may have stored a part."""
    broker.on(MultiPublish, refuse(code, description))
    async with publishing(broker) as publisher:
        done = await outcomes(*start(publisher, b"1", b"2"))

    assert [expected, expected] == [type(error) for error in done]
    assert all(f"{code} {description}" in str(error) for error in done)
    assert [] == broker.all(Publish)
