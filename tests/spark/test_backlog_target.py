"""Available-now runs: they read the messages present at their start, and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.backlog import ArrivalDeadline, AvailableNowTarget, ChannelBacklog
from gateway.protocol.frames import Message, RawMessages, encode_messages
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.brokers.restartable_nsqd import restartable_nsqd
from tests.support.gateways.gateway import poll_until
from tests.support.spark.stream_reader import CHANNEL, Stream, open_stream
from tests.support.websocket.raw_socket import raw_socket

Options: TypeAlias = dict[str, str]


def raw(*stamps: int) -> RawMessages:
    messages = [Message(stamp, 1, b"%016d" % stamp, b"x") for stamp in stamps]
    return RawMessages(encode_messages(messages), [message.id for message in messages])


@given(st.integers(0, 20), st.lists(st.integers(1, 6), max_size=8))
def test_as_many_belong_to_a_run_as_were_there(count: int, arrivals: list[int]) -> None:
    """The first messages that arrive count, whichever they are; surplus ones are requeued."""
    target, belong, back = AvailableNowTarget(count), 0, 0
    for arrival in arrivals:
        mine, rest = target.admit(raw(*range(arrival)))
        belong += len(mine.ids) if mine else 0
        back += len(rest.ids) if rest else 0

    assert min(count, sum(arrivals)) == belong
    assert sum(arrivals) == belong + back
    assert (belong == count) == target.is_reached


def test_forgotten_messages_are_expected_again() -> None:
    """Their connection was lost, so nsqd delivers them again."""
    target = AvailableNowTarget(3)
    target.admit(raw(1, 2))
    target.expect_again(2)

    assert (raw(1, 2, 3), None) == target.admit(raw(1, 2, 3))
    assert target.is_reached


def test_forgotten_messages_are_expected_again_after_the_end_was_seen() -> None:
    """Surplus messages were requeued; any of them may replace a lost one."""
    target = AvailableNowTarget(2)
    target.admit(raw(1, 2, 3))
    target.expect_again(2)

    assert not target.is_reached
    assert (raw(4, 5), None) == target.admit(raw(4, 5))
    assert target.is_reached


def test_a_run_without_an_account_ends_at_its_start() -> None:
    """The run ends at the first younger message; older ones just after it still belong."""
    target = AvailableNowTarget(None, started_ns=10)

    assert (raw(9, 10), None) == target.admit(raw(9, 10))
    assert (raw(8), raw(11, 9)) == target.admit(raw(8, 11, 9))
    assert target.is_reached
    assert (raw(7), None) == target.admit(raw(7))
    assert (None, raw(12)) == target.admit(raw(12))


@pytest.mark.parametrize(
    "account,held,over_at",
    [
        (ChannelBacklog(0, 0, 0), 0, 1.0),
        (ChannelBacklog(0, 5, 0), 5, 1.0),
        (ChannelBacklog(1, 0, 0), 0, 10.0),
        (ChannelBacklog(0, 0, 1), 0, 10.0),
        (ChannelBacklog(0, 6, 0), 5, 66.0),
        (None, 0, 10.0),
    ],
    ids=["nothing", "with us", "waits and does not come", "deferred", "with others", "untold"],
)
def test_a_run_waits_for_messages_that_may_arrive(
    account: ChannelBacklog | None, held: int, over_at: float
) -> None:
    """It waits while nsqd reports messages; for those in flight to others, until their timeout."""
    patience = ArrivalDeadline(idle_s=10, msg_timeout_s=60)
    patience.on_messages(0.0)
    at = 0.0
    while not patience.has_passed(at):
        at += 0.5
        if patience.is_poll_due(at):
            patience.on_backlog(account, held, at)

    assert over_at == at


@pytest.fixture(params=["commit", "spool"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    idle = {"idleS": "0.8"}
    spool = {"ackMode": "spool", "spoolDir": str(tmp_path)}
    return spool | idle if request.param == "spool" else idle


def told(broker: KillableBroker) -> Options:
    """Return the option nsqdHttpAddress, by which a run can count its messages."""
    return {"nsqdHttpAddress": broker.http_address, "idleS": "20"}


def untold(broker: KillableBroker) -> Options:
    """Return no options, so that a run cannot count its messages."""
    del broker
    return {}


@pytest.mark.parametrize("knowing", [told, untold])
async def test_two_runs_read_all_and_then_nothing(
    broker: KillableBroker, options: Options, knowing: Callable[[KillableBroker], Options]
) -> None:
    """The second run continues after the first; no message is left in flight."""
    offset = None
    for expected in (300, 0):
        async with open_stream(broker, **(options | knowing(broker))) as stream:
            if offset is None:
                await stream.publish(expected)
            else:
                stream.offset = offset
            bodies = await stream.run()
            offset = stream.offset
            assert (0, 0) == await poll_until(stream.counts, (0, 0))
        assert {b"%d" % number for number in range(expected)} == set(bodies)
        assert expected == len(bodies)


@asynccontextmanager
async def steady_traffic(stream: Stream, first: int) -> AsyncIterator[list[int]]:
    """Publish numbers from *first* in the background; yield the list of those published."""
    published: list[int] = []
    is_over = asyncio.Event()

    async def resume() -> None:
        number = first
        while not is_over.is_set():
            await stream.publish(range(number, number + 5))
            published.extend(range(number, number + 5))
            number += 5

    async with asyncio.TaskGroup() as group:
        group.create_task(resume())
        yield published
        is_over.set()


@pytest.mark.parametrize("knowing", [told, untold])
async def test_a_run_ends_under_steady_traffic(
    broker: KillableBroker, options: Options, knowing: Callable[[KillableBroker], Options]
) -> None:
    """Messages published after the start may be left for the next run."""
    async with open_stream(broker, **(options | knowing(broker))) as stream:
        await stream.publish(200)
        async with steady_traffic(stream, 200) as published:
            bodies = await stream.run()
            offset = stream.offset
    async with open_stream(broker, **(options | knowing(broker))) as stream:
        stream.offset = offset
        bodies += await stream.run()

    assert len(bodies) == len(set(bodies))
    assert {b"%d" % number for number in [*range(200), *published]} == set(bodies)


async def test_a_run_waits_for_messages_of_a_dead_consumer(
    broker: KillableBroker, options: Options
) -> None:
    """They return after their timeout, which is longer than idleS."""
    given = options | told(broker) | {"idleS": "0.3", "msgTimeoutMs": "3000"}
    async with open_stream(broker, **given) as stream:
        await stream.publish(2)
        async with raw_socket(broker.tcp_address) as consumer:
            await consumer.send(
                b'  V2IDENTIFY\n\x00\x00\x00\x14{"msg_timeout":2000}'
                b"SUB t " + CHANNEL.encode() + b"\nRDY 1\n"
            )
            assert (1, 1) == await poll_until(stream.counts, (1, 1))
            bodies = await stream.run()

    assert [b"0", b"1"] == sorted(bodies)


@pytest.mark.nsqd
async def test_a_run_reads_messages_lost_at_its_end_again() -> None:
    """An nsqd fails after all messages arrived; those without a batch are read again."""
    async with restartable_nsqd("--mem-queue-size=0") as nsqd:
        given = {"nsqdHttpAddress": nsqd.http_address, "idleS": "5", "maxInFlight": "40"}
        async with open_stream(nsqd, **given) as stream:
            await stream.publish(40)
            stream.reader.prepareForTriggerAvailableNow()
            bodies = await stream.next_rows(30)
            await nsqd.end()
            await nsqd.start()
            bodies += await stream.run()

    assert {b"%d" % number for number in range(40)} == set(bodies)


async def test_a_run_waits_for_deferred_messages(broker: KillableBroker, options: Options) -> None:
    async with open_stream(broker, **(options | told(broker))) as stream:
        query = {"topic": "t", "defer": "1500"}
        (await stream.http.post("/pub", params=query, content=b"0")).raise_for_status()
        bodies = await stream.run()

    assert [b"0"] == bodies
