"""Tests of `Producer` with an nsqd that stores nothing (full disk, exit) beside another."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.client.nsqd_node import REFUSAL_S
from gateway.client.producer import ProducerOptions
from gateway.errors import BrokerRefused, OutcomeUnknown
from gateway.protocol.commands import DeferredPublish, MultiPublish, Nop, Publish
from gateway.protocol.frames import OK
from tests.support.brokers.running_producer import outcomes, running_producer, start_publishes
from tests.support.brokers.scripted_broker import ScriptedBroker, refuse, respond
from tests.support.manual_clock import ManualClock

NO_SPACE = "PUB failed write t.diskqueue.000000.dat: no space left on device"
SWEEP_S = 0.1


async def test_what_an_nsqd_did_not_store_goes_to_another(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Callers get no error, and later publishes avoid that nsqd."""
    broker.on(Publish, refuse("E_PUB_FAILED", NO_SPACE))
    broker.on(DeferredPublish, refuse("E_DPUB_FAILED", NO_SPACE))
    async with running_producer(broker, other) as publisher:
        for _ in range(10):
            await publisher.publish("t", b"1")
        await publisher.publish("t", b"2", defer_ms=5)

    assert [Publish("t", b"1")] * 10 == other.all(Publish)
    assert 1 == len(broker.all(Publish)) + len(broker.all(DeferredPublish))


async def test_a_batch_that_an_exiting_nsqd_did_not_store_goes_to_another(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """The order of the messages is kept."""
    broker.on(MultiPublish, refuse("E_MPUB_FAILED", "MPUB failed exiting"))
    async with running_producer(broker, other) as publisher:
        done = []
        for _ in range(2):
            done += await outcomes(*start_publishes(publisher, b"1", b"2", b"3"))

    assert [None] * 6 == done
    assert [MultiPublish("t", [b"1", b"2", b"3"])] * 2 == other.all(MultiPublish)


async def test_a_batch_of_which_a_part_may_be_stored_goes_nowhere_else(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """A retry could publish the stored part twice; later publishes use the other nsqd."""
    broker.on(MultiPublish, refuse("E_MPUB_FAILED", NO_SPACE))
    done = []
    async with running_producer(broker, other) as publisher:
        for _ in range(3):
            done += await outcomes(*start_publishes(publisher, b"1", b"2"))

    assert [OutcomeUnknown] * 2 == [type(error) for error in done if error is not None]
    assert 2 == len(other.all(MultiPublish))


async def test_where_each_nsqd_refuses_the_caller_hears_it(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Each nsqd is tried once, also if there is only one."""
    for each in (broker, other):
        each.on(Publish, refuse("E_PUB_FAILED", NO_SPACE))
    async with running_producer(broker, other) as publisher:
        with pytest.raises(BrokerRefused, match="no space left"):
            await publisher.publish("t", b"1")

    assert [1, 1] == [len(each.all(Publish)) for each in (broker, other)]


async def test_an_nsqd_that_refused_is_taken_again_after_a_while(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """Bytes received after that time end the suspicion, earlier ones do not."""
    clock = ManualClock()
    broker.on(Publish, refuse("E_PUB_FAILED", NO_SPACE))
    options = ProducerOptions(connections_per_nsqd=2)
    async with running_producer(broker, other, options=options) as publisher:
        for _ in range(4):
            await publisher.publish("t", b"1")
        (refused,) = [peer for peer in broker.peers if Publish("t", b"1") in peer.received]
        (idle,) = [peer for peer in broker.peers[:2] if peer is not refused]
        broker.on(Publish, respond(OK))
        idle.beat()
        await idle.next(Nop)
        for _ in range(4):
            await publisher.publish("t", b"2")
        await clock.advance(REFUSAL_S)
        idle.beat()
        await idle.next(Nop)
        await publisher.publish("t", b"3")
        await clock.advance(SWEEP_S)
        for _ in range(4):
            await publisher.publish("t", b"4")

    assert [Publish("t", b"2")] * 4 == [
        command for command in other.all(Publish) if command.body == b"2"
    ]
    assert Publish("t", b"4") in broker.all(Publish)


async def test_the_log_names_the_nsqd_that_stores_nothing(broker: ScriptedBroker) -> None:
    """One line has the address and nsqd's text."""
    broker.on(Publish, refuse("E_PUB_FAILED", NO_SPACE))
    with capture_logs() as lines:
        async with running_producer(broker) as publisher:
            for _ in range(3):
                with pytest.raises(BrokerRefused):
                    await publisher.publish("t", b"1")

    expected = {
        "event": "nsqd not storing messages",
        "log_level": "warning",
        "nsqd": broker.address,
        "code": "E_PUB_FAILED",
        "reason": NO_SPACE,
    }
    assert [expected] == [line for line in lines if line["event"] == expected["event"]]
