"""Removed messages are released in steps, from any container."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from gateway.broker.discard_queue import STEP_BYTES, Contents, DiscardQueue
from gateway.broker.message import OVERHEAD_BYTES, MemoryBudget
from gateway.broker.scheduler import BrokerState
from gateway.protocol.commands import STEP_MESSAGES
from tests.support.brokers.broker_core import context, new_messages

EACH_BYTES = OVERHEAD_BYTES + 1
MANY = 3 * STEP_MESSAGES + 7


def filled(shared: BrokerState, count: int, kind: str = "queue", body: bytes = b"x") -> Contents:
    """Return so many messages that are counted, kept as a queue, deferred or in flight."""
    messages = new_messages(count, body=body)
    shared.memory.take(messages)
    if kind == "queue":
        return deque(messages)
    if kind == "deferred":
        return [(1.0, message.id, message) for message in messages]
    return {message.id: message for message in messages}


def steps_of(queue: DiscardQueue, memory: MemoryBudget) -> list[int]:
    """Return how many bytes each step releases."""
    left = [memory.used_bytes for _ in queue.take_steps() or ()]
    return [before - after for before, after in pairwise([*left, memory.used_bytes])]


@pytest.mark.parametrize("kind", ["queue", "deferred", "in flight"])
def test_few_messages_are_released_at_once(kind: str) -> None:
    """Nobody has to come back for it."""
    shared = context()

    shared.discard_queue.add(filled(shared, STEP_MESSAGES - 1, kind))

    assert (0, None) == (shared.memory.used_bytes, shared.discard_queue.take_steps())


@pytest.mark.parametrize("kind", ["queue", "deferred", "in flight"])
def test_many_messages_of_any_container_are_released_in_steps(kind: str) -> None:
    """The first of them at once."""
    shared = context()

    shared.discard_queue.add(filled(shared, MANY, kind))

    assert (MANY - STEP_MESSAGES) * EACH_BYTES == shared.memory.used_bytes
    step_bytes = STEP_MESSAGES * EACH_BYTES
    assert [step_bytes, step_bytes, 7 * EACH_BYTES] == steps_of(shared.discard_queue, shared.memory)
    assert 0 == shared.memory.used_bytes


def test_many_small_queues_share_the_first_step() -> None:
    """As when a topic with a thousand channels is deleted: empty ones are work as well."""
    shared = context()
    parts = [filled(shared, STEP_MESSAGES // 2) for _ in range(6)]

    for part in parts:
        shared.discard_queue.add(part)

    assert shared.memory.used_bytes >= 2 * STEP_MESSAGES * EACH_BYTES
    assert max(steps_of(shared.discard_queue, shared.memory)) <= STEP_MESSAGES * EACH_BYTES
    assert 0 == shared.memory.used_bytes


def test_large_bodies_end_a_step_as_well() -> None:
    """The system takes its time for each of them."""
    shared = context()
    shared.discard_queue.add(filled(shared, 9, body=bytes(STEP_BYTES // 2)))

    each_bytes = OVERHEAD_BYTES + STEP_BYTES // 2
    assert [2 * each_bytes] * 3 == steps_of(shared.discard_queue, shared.memory)[:3]
    assert 0 == shared.memory.used_bytes


def test_the_budget_is_renewed_by_take_steps() -> None:
    """Each turn has a first step of its own."""
    shared = context()
    shared.discard_queue.add(filled(shared, MANY))
    under_way = shared.discard_queue.take_steps()
    left_bytes = shared.memory.used_bytes

    shared.discard_queue.add(filled(shared, 5))

    assert left_bytes == shared.memory.used_bytes
    assert under_way is not None
    list(under_way)
    assert 0 == shared.memory.used_bytes
