"""A run that reads what is there: it has all of that, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.depth_account import Account
from gateway.pipeline.goal import Goal, Patience
from gateway.protocol.frames import Message, encode_messages
from gateway.protocol.raw_messages import RawMessages
from tests.support.gateway import become
from tests.support.lasting_nsqd import lasting_nsqd
from tests.support.mortal_broker import MortalBroker
from tests.support.raw_socket import raw_socket
from tests.support.streams import CHANNEL, Stream, streaming

Options: TypeAlias = dict[str, str]


def raw(*stamps: int) -> RawMessages:
    """Return messages that were published at *stamps*."""
    messages = [Message(stamp, 1, b"%016d" % stamp, b"x") for stamp in stamps]
    return RawMessages(encode_messages(messages), [message.id for message in messages])


@given(st.integers(0, 20), st.lists(st.integers(1, 6), max_size=8))
def test_as_many_belong_to_a_run_as_were_there(count: int, arrivals: list[int]) -> None:
    """Whichever they are; what is more goes back."""
    goal, belong, back = Goal(count), 0, 0
    for arrival in arrivals:
        mine, rest = goal.admit(raw(*range(arrival)))
        belong += len(mine.ids) if mine else 0
        back += len(rest.ids) if rest else 0

    assert min(count, sum(arrivals)) == belong
    assert sum(arrivals) == belong + back
    assert (belong == count) == goal.is_reached


def test_what_is_forgotten_is_expected_again() -> None:
    """A connection that was lost had brought it; nsqd sends it once more."""
    goal = Goal(3)
    goal.admit(raw(1, 2))
    goal.forgot(2)

    assert (raw(1, 2, 3), None) == goal.admit(raw(1, 2, 3))
    assert goal.is_reached


def test_what_is_forgotten_is_expected_again_though_the_end_was_seen() -> None:
    """More had come than belongs to the run, and gone back; any of it will do."""
    goal = Goal(2)
    goal.admit(raw(1, 2, 3))
    goal.forgot(2)

    assert not goal.is_reached
    assert (raw(4, 5), None) == goal.admit(raw(4, 5))
    assert goal.is_reached


def test_a_run_without_an_account_ends_at_its_start() -> None:
    """With the first message that is younger; older ones that come a moment later belong to it."""
    goal = Goal(None, started_ns=10)

    assert (raw(9, 10), None) == goal.admit(raw(9, 10))
    assert (raw(8), raw(11, 9)) == goal.admit(raw(8, 11, 9))
    assert goal.is_reached
    assert (raw(7), None) == goal.admit(raw(7))
    assert (None, raw(12)) == goal.admit(raw(12))


@pytest.mark.parametrize(
    "account,held,over_at",
    [
        (Account(0, 0, 0), 0, 1.0),
        (Account(0, 5, 0), 5, 1.0),
        (Account(1, 0, 0), 0, 10.0),
        (Account(0, 0, 1), 0, 10.0),
        (Account(0, 6, 0), 5, 66.0),
        (None, 0, 10.0),
    ],
    ids=["nothing", "with us", "waits and does not come", "deferred", "with others", "untold"],
)
def test_a_run_waits_for_what_may_come(account: Account | None, held: int, over_at: float) -> None:
    """As nsqd says; for what is in flight to others, until it has timed out."""
    patience = Patience(idle_s=10, msg_timeout_s=60)
    patience.came(0.0)
    at = 0.0
    while not patience.is_over(at):
        at += 0.5
        if patience.is_time_to_ask(at):
            patience.told(account, held, at)

    assert over_at == at


@pytest.fixture(params=["commit", "spool"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    """Return the options of a stream, in either mode."""
    return {"ackMode": request.param, "spoolDir": str(tmp_path), "idleS": "0.8"}


def told(broker: MortalBroker) -> Options:
    """Return the option that lets a run know the end."""
    return {"nsqdHttpAddress": broker.http_address, "idleS": "20"}


def untold(broker: MortalBroker) -> Options:
    """Return no option."""
    del broker
    return {}


@pytest.mark.parametrize("knowing", [told, untold])
async def test_two_runs_read_all_and_then_nothing(
    broker: MortalBroker, options: Options, knowing: Callable[[MortalBroker], Options]
) -> None:
    """The second one goes on behind the first; nothing is left in flight."""
    offset = None
    for expected in (300, 0):
        async with streaming(broker, **(options | knowing(broker))) as stream:
            if offset is None:
                await stream.publish(expected)
            else:
                stream.offset = offset
            bodies = await stream.run()
            offset = stream.offset
            assert (0, 0) == await become(stream.counts, (0, 0))
        assert {b"%d" % number for number in range(expected)} == set(bodies)
        assert expected == len(bodies)


@asynccontextmanager
async def steady_traffic(stream: Stream, first: int) -> AsyncIterator[list[int]]:
    """Publish on and on, from number *first*; gives those that are published."""
    published: list[int] = []
    is_over = asyncio.Event()

    async def go_on() -> None:
        number = first
        while not is_over.is_set():
            await stream.publish(range(number, number + 5))
            published.extend(range(number, number + 5))
            number += 5

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on())
        yield published
        is_over.set()


@pytest.mark.parametrize("knowing", [told, untold])
async def test_a_run_ends_though_more_comes_all_the_time(
    broker: MortalBroker, options: Options, knowing: Callable[[MortalBroker], Options]
) -> None:
    """What came after its start may be left, and is there for the next run."""
    async with streaming(broker, **(options | knowing(broker))) as stream:
        await stream.publish(200)
        async with steady_traffic(stream, 200) as published:
            bodies = await stream.run()
            offset = stream.offset
    async with streaming(broker, **(options | knowing(broker))) as stream:
        stream.offset = offset
        bodies += await stream.run()

    assert len(bodies) == len(set(bodies))
    assert {b"%d" % number for number in [*range(200), *published]} == set(bodies)


async def test_a_run_waits_for_what_a_dead_consumer_held(
    broker: MortalBroker, options: Options
) -> None:
    """It comes after its timeout, and for longer than any pause is allowed to be."""
    given = options | told(broker) | {"idleS": "0.3", "msgTimeoutMs": "3000"}
    async with streaming(broker, **given) as stream:
        await stream.publish(2)
        async with raw_socket(broker.tcp_address) as consumer:
            await consumer.send(
                b'  V2IDENTIFY\n\x00\x00\x00\x14{"msg_timeout":2000}'
                b"SUB t " + CHANNEL.encode() + b"\nRDY 1\n"
            )
            assert (1, 1) == await become(stream.counts, (1, 1))
            bodies = await stream.run()

    assert [b"0", b"1"] == sorted(bodies)


@pytest.mark.nsqd
async def test_a_run_asks_again_for_what_was_lost_at_its_end() -> None:
    """All had come and nothing more was asked for, when its nsqd went with what was in no batch."""
    async with lasting_nsqd("--mem-queue-size=0") as nsqd:
        given = {"nsqdHttpAddress": nsqd.http_address, "idleS": "5", "maxInFlight": "40"}
        async with streaming(nsqd, **given) as stream:
            await stream.publish(40)
            stream.reader.prepareForTriggerAvailableNow()
            bodies = await stream.next_rows(30)
            await nsqd.end()
            await nsqd.start()
            bodies += await stream.run()

    assert {b"%d" % number for number in range(40)} == set(bodies)


async def test_a_run_waits_for_what_is_deferred(broker: MortalBroker, options: Options) -> None:
    """For as long as nothing may come."""
    async with streaming(broker, **(options | told(broker))) as stream:
        query = {"topic": "t", "defer": "1500"}
        (await stream.http.post("/pub", params=query, content=b"0")).raise_for_status()
        bodies = await stream.run()

    assert [b"0"] == bodies
