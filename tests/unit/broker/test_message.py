"""Ids, copies and the count of memory."""

from __future__ import annotations

import pytest

from gateway.broker.message import OVERHEAD_BYTES, IdFactory, MemoryBudget, StoredMessage
from gateway.protocol.frames import encode_messages
from tests.support.brokers.broker_core import new_messages

# 2026-11-21 06:00:00 UTC, and the start of the tick it is in.
NOW_NS = 1_795_240_800_000_000_000
TICK_NS = 1_048_576


def test_an_id_is_clock_node_and_sequence_as_16_hex_digits() -> None:
    """42 bits of ticks since nsqd's epoch, 10 bits of node, 12 bits of sequence."""
    ids = IdFactory(node_id=1023).generate(2, wall_ns=NOW_NS)

    ticks = (NOW_NS >> 20) - 1_288_834_974_288
    expected = [(ticks << 22) | (1023 << 12), (ticks << 22) | (1023 << 12) | 1]
    assert [b"%016x" % number for number in expected] == ids


def test_ids_rise_within_a_tick() -> None:
    """The sequence goes on where the last call in the same tick ended."""
    factory = IdFactory(node_id=0)

    ids = factory.generate(3, wall_ns=NOW_NS) + factory.generate(3, wall_ns=NOW_NS)

    assert sorted(set(ids)) == ids


def test_ids_rise_over_ticks() -> None:
    """A later tick starts its sequence anew, above everything before."""
    factory = IdFactory(node_id=7)

    ids = factory.generate(3, wall_ns=NOW_NS) + factory.generate(3, wall_ns=NOW_NS + TICK_NS)

    assert sorted(set(ids)) == ids
    assert b"000" == ids[3][-3:]


def test_ids_run_ahead_when_a_tick_is_used_up() -> None:
    """More than 4096 ids at once are all different, rising, and of the same node."""
    ids = IdFactory(node_id=5).generate(10_000, wall_ns=NOW_NS)

    assert sorted(set(ids)) == ids
    assert {5} == {int(each, 16) >> 12 & 1023 for each in ids}


def test_ids_rise_when_the_clock_goes_back() -> None:
    """An earlier wall clock changes nothing about the order."""
    factory = IdFactory(node_id=0)

    ids = factory.generate(2, wall_ns=NOW_NS) + factory.generate(2, wall_ns=NOW_NS - 10**9)

    assert sorted(set(ids)) == ids


def test_no_ids_are_no_ids() -> None:
    """An empty publish needs none."""
    assert [] == IdFactory(node_id=0).generate(0, wall_ns=NOW_NS)


def test_a_copy_has_not_been_delivered() -> None:
    """Id, time, body and delay are the same; the deliveries of the original do not count."""
    original = StoredMessage(1, 3, b"0123456789abcdef", b"body", 50, 2.0, 62.0)

    assert StoredMessage(1, 0, b"0123456789abcdef", b"body", 50) == original.copy()


def test_a_stored_message_goes_on_the_wire_as_a_frame() -> None:
    """Fields of the broker are not in the frame."""
    message = StoredMessage(1, 2, b"0123456789abcdef", b"hi", 50, 2.0, 62.0)

    assert (
        b"\x00\x00\x00\x20\x00\x00\x00\x02"
        b"\x00\x00\x00\x00\x00\x00\x00\x01\x00\x020123456789abcdefhi"
    ) == encode_messages([message])


def test_memory_counts_bodies_and_overhead() -> None:
    """Reserved and freed memory cancel out."""
    memory = MemoryBudget(limit_bytes=10_000)
    messages = new_messages(2, body=b"12345")

    memory.take(messages)

    assert 2 * (OVERHEAD_BYTES + 5) == memory.used_bytes
    memory.free(messages)
    assert 0 == memory.used_bytes


@pytest.mark.parametrize("size_bytes,expected", [(1_000, True), (1_001, False)])
def test_memory_has_room_up_to_its_limit(size_bytes: int, expected: bool) -> None:  # noqa: FBT001
    """The limit itself still fits."""
    assert expected == MemoryBudget(limit_bytes=1_000).has_room(size_bytes)
