"""Tests of `PublishQueue`: queued publishes and the commands that they become."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.batch import (
    MAX_BATCH_BYTES,
    Batch,
    PendingPublish,
    PublishCommand,
    PublishQueue,
    size_in_mpub,
)
from gateway.errors import GatewayError
from gateway.protocol.commands import DeferredPublish, MultiPublish, Publish
from gateway.protocol.connection import Role, V2Connection
from gateway.protocol.wire import Limits

LIMITS = Limits()


def ignore(_error: GatewayError | None) -> None:
    """Ignore the outcome."""


def pending(
    *bodies: bytes, topic: str = "t", defer_ms: int = 0, deadline: float = 5.0, alone: bool = False
) -> PendingPublish:
    size_bytes = size_in_mpub(bodies)
    return PendingPublish(topic, bodies, defer_ms, size_bytes, deadline, ignore, alone)


def queue(*publishes: PendingPublish, limits: Limits = LIMITS) -> PublishQueue:
    made = PublishQueue(limits)
    for publish in publishes:
        made.add(publish)
    return made


def commands(waiting: PublishQueue) -> list[PublishCommand]:
    taken = []
    while (batch := waiting.take()) is not None:
        taken.append(batch.command())
    return taken


@pytest.mark.parametrize(
    "publishes, expected",
    [
        ([], []),
        ([pending(b"a")], [Publish("t", b"a")]),
        ([pending(b"a"), pending(b"b")], [MultiPublish("t", [b"a", b"b"])]),
        ([pending(b"a", b"b")], [MultiPublish("t", (b"a", b"b"))]),
        ([pending(b"a", b"b"), pending(b"c")], [MultiPublish("t", [b"a", b"b", b"c"])]),
        ([pending(b"a", defer_ms=5)], [DeferredPublish("t", 5, b"a")]),
        (
            [pending(b"a"), pending(b"b", defer_ms=5), pending(b"c"), pending(b"d")],
            [Publish("t", b"a"), DeferredPublish("t", 5, b"b"), MultiPublish("t", [b"c", b"d"])],
        ),
        (
            [pending(b"a", alone=True), pending(b"b", alone=True), pending(b"c")],
            [Publish("t", b"a"), Publish("t", b"b"), Publish("t", b"c")],
        ),
        (
            [pending(b"a"), pending(b"b", topic="u"), pending(b"c")],
            [MultiPublish("t", [b"a", b"c"]), Publish("u", b"b")],
        ),
    ],
    ids=[
        "nothing",
        "one",
        "two",
        "two of one caller",
        "callers share",
        "deferred",
        "deferred between",
        "alone",
        "by topic",
    ],
)
def test_what_waits_becomes_few_commands(
    publishes: list[PendingPublish], expected: list[PublishCommand]
) -> None:
    """One message is a PUB, several are an MPUB; deferred and refused ones go alone."""
    assert expected == commands(queue(*publishes))


def test_topics_take_turns() -> None:
    limits = Limits(max_body_size_bytes=4 + 5)
    waiting = queue(*[pending(b"a")] * 3, pending(b"u", topic="u"), limits=limits)

    topics = [command.topic for command in commands(waiting)]

    assert ["t", "u", "t", "t"] == topics


@pytest.mark.parametrize("spare, expected", [(0, [2, 1]), (-1, [1, 1, 1])])
def test_a_batch_fits_into_one_body(spare: int, expected: list[int]) -> None:
    """Its size, including count and length prefixes, is exactly within the limit."""
    limits = Limits(max_body_size_bytes=4 + 2 * (4 + 10) + spare)
    waiting = queue(*[pending(b"x" * 10)] * 3, limits=limits)

    taken = []
    while (batch := waiting.take()) is not None:
        taken.append(len(batch.publishes))

    assert expected == taken


def test_a_batch_is_closed_before_a_large_broker_would_take_more() -> None:
    """A smaller batch is answered sooner; a single larger publish is still allowed."""
    body = b"x" * (MAX_BATCH_BYTES // 2)
    waiting = queue(pending(body), pending(body), pending(body, body, body))

    taken = []
    while (batch := waiting.take()) is not None:
        taken.append(sum(len(publish.bodies) for publish in batch.publishes))

    assert [1, 1, 3] == taken


def test_what_is_put_back_comes_first_and_goes_alone() -> None:
    """Retried publishes keep their order and precede others, even of an empty topic."""
    first, second, third = pending(b"1"), pending(b"2"), pending(b"3")
    waiting, empty = queue(third), queue()

    waiting.add_first([first, second])
    empty.add_first([first, second])

    both = [Publish("t", b"1"), Publish("t", b"2")]
    assert [*both, Publish("t", b"3")] == commands(waiting)
    assert both == commands(empty)


def test_nothing_can_be_put_back() -> None:
    """All callers of a batch may have been answered already."""
    waiting = queue()

    waiting.add_first([])

    assert not waiting


def test_a_queue_tells_what_waits() -> None:
    """It reports the topics with publishes, and is false when empty."""
    waiting = queue(pending(b"a"), pending(b"bb", b"c", topic="u"))
    told = (bool(waiting), "t" in waiting, "u" in waiting, "v" in waiting)

    commands(waiting)

    assert (True, True, True, False) == told
    assert (False, False) == (bool(waiting), "t" in waiting)


def test_the_overdue_are_taken_out() -> None:
    """Others keep their order, and a topic without publishes is removed."""
    late, early = pending(b"a", deadline=1.0), pending(b"b", deadline=2.0)
    other = pending(b"c", topic="u", deadline=1.0)
    waiting = queue(late, early, other)

    overdue = waiting.take_overdue(1.0)

    assert [late, other] == overdue
    assert (True, False) == ("t" in waiting, "u" in waiting)
    assert [Publish("t", b"b")] == commands(waiting)


def test_one_that_comes_later_may_be_overdue_sooner() -> None:
    new, old = pending(b"a", deadline=9.0), pending(b"b", deadline=1.0)
    waiting = queue(new, old)

    assert [old] == waiting.take_overdue(1.0)
    assert [] == waiting.take_overdue(8.9)
    assert [new] == waiting.take_overdue(9.0)


def test_those_whose_time_is_over_leave_a_batch_that_was_taken() -> None:
    """The batch keeps the unanswered publishes, with their size and earliest deadline."""
    publishes = [pending(b"%d" % number, deadline=float(number)) for number in (1, 3, 2)]
    batch = queue(*publishes).take()
    assert batch is not None

    assert [] == batch.take_overdue(0.9)
    assert [publishes[0]] == batch.take_overdue(1.0)
    assert (publishes[1:], 2 * 5, 2.0) == (batch.publishes, batch.size_bytes, batch.deadline)
    assert publishes[1:] == batch.take_overdue(9.0)
    assert ([], 0) == (batch.publishes, batch.size_bytes)
    assert [] == batch.take_overdue(99.0)


def test_everything_can_be_taken_out() -> None:
    publishes = [pending(b"a"), pending(b"b"), pending(b"c", topic="u")]
    waiting = queue(*publishes)

    assert publishes == waiting.take_up_to()
    assert (False, None) == (bool(waiting), waiting.take())


@pytest.mark.parametrize("max_bytes, expected", [(0, 0), (1, 2), (18, 2), (19, 3), (99, 3)])
def test_a_part_can_be_taken_out(max_bytes: int, expected: int) -> None:
    """Whole batches are taken until they reach the given size."""
    limits = Limits(max_body_size_bytes=4 + 2 * (4 + 5))
    waiting = queue(*[pending(b"x" * 5)] * 3, limits=limits)

    assert expected == len(waiting.take_up_to(max_bytes))
    assert (expected < 3) == bool(waiting)


BODIES = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=5)
PUBLISHES = st.builds(
    lambda bodies, topic, defer_ms, alone: pending(
        *bodies[: 1 if defer_ms else None], topic=topic, defer_ms=defer_ms, alone=alone
    ),
    BODIES,
    st.sampled_from(["t", "u", "v"]),
    st.sampled_from([0, 0, 0, 5]),
    st.sampled_from([False, False, True]),
)


def bodies_of(command: PublishCommand) -> Sequence[bytes]:
    return list(command.bodies) if isinstance(command, MultiPublish) else [command.body]


@given(st.lists(st.one_of(PUBLISHES, st.none()), max_size=40))
def test_nothing_is_lost_and_each_topic_keeps_its_order(
    steps: list[PendingPublish | None],
) -> None:
    """Whenever batches are taken (None), a broker with these limits accepts each command."""
    limits = Limits(max_msg_size_bytes=60, max_body_size_bytes=4 + 5 * 64)
    broker = V2Connection(Role.BROKER, limits)
    broker.receive_data(b"  V2")
    waiting = PublishQueue(limits)
    added: dict[str, list[bytes]] = defaultdict(list)
    sent: dict[str, list[bytes]] = defaultdict(list)
    taken: list[Batch] = []
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            waiting.add(step)
            added[step.topic] += step.bodies
        elif (batch := waiting.take()) is not None:
            taken.append(batch)

    for batch in taken:
        (event,) = broker.receive_data(batch.command().encode())
        assert isinstance(event, Publish | MultiPublish | DeferredPublish), event
        sent[event.topic] += bodies_of(event)

    assert not waiting
    assert added == sent


STEPS = st.tuples(st.sampled_from("tuv"), st.floats(0.0, 9.0), st.sampled_from([0, 0, 5]))


@given(st.lists(STEPS, max_size=30))
def test_everybody_leaves_once_and_in_time(steps: list[tuple[str, float, int]]) -> None:
    """Each publish is overdue in the queue, overdue in its batch, retried, or taken."""
    waiting, numbers = queue(), count()
    for topic, deadline, defer_ms in steps:
        body = b"%d" % next(numbers)
        waiting.add(pending(body, topic=topic, deadline=deadline, defer_ms=defer_ms))
    batch = waiting.take()
    in_flight = [] if batch is None else batch.take_overdue(2.0)
    if batch is not None:
        assert batch.size_bytes == sum(publish.size_bytes for publish in batch.publishes)
        waiting.add_first(batch.publishes)

    overdue = waiting.take_overdue(4.0)
    left = waiting.take_up_to()

    everybody = [*in_flight, *overdue, *left]
    assert sorted(each.deadline for each in everybody) == sorted(at for _, at, _ in steps)
    assert all(each.deadline <= 4.0 for each in [*in_flight, *overdue])
    assert all(each.deadline > 4.0 for each in left)
    assert not waiting
