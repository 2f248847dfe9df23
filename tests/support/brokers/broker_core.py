"""Clock readings, messages and consumers for tests of the broker's core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.broker.channel import Channel, Peek
from gateway.broker.consumer import ChannelConsumer
from gateway.broker.message import ClockReading, MemoryBudget, StoredMessage
from gateway.broker.scheduler import BrokerLimits, BrokerState, ConsumerBatch
from gateway.protocol.commands import PackedBodies, pack_bodies

START_NS = 1_790_000_000_000_000_000


def moment_at(now: float) -> ClockReading:
    """Return the clock reading *now* seconds after the start."""
    return ClockReading(now, START_NS + int(now * 1e9))


def context(
    limits: BrokerLimits | None = None,
    *,
    limit_bytes: int = 2**30,
    random: Callable[[int], int] = lambda _below: 0,
) -> BrokerState:
    """Return the context of a test's topics and channels."""
    return BrokerState(
        memory=MemoryBudget(limit_bytes=limit_bytes), random=random, limits=limits or BrokerLimits()
    )


def message_id(number: int) -> bytes:
    """Return the id of the message with this *number*."""
    return b"%016d" % number


def new_messages(
    count: int, *, first: int = 1, defer_ms: int = 0, body: bytes = b"x"
) -> list[StoredMessage]:
    """Return *count* messages that were never delivered, with ids from *first* on."""
    return [
        StoredMessage(START_NS, 0, message_id(number), body, defer_ms)
        for number in range(first, first + count)
    ]


def consumer(number: int = 1, *, msg_timeout_s: float = 60.0) -> ChannelConsumer:
    """Return a consumer with RDY 0."""
    return ChannelConsumer(number, msg_timeout_s=msg_timeout_s)


def numbers(deliveries: list[ConsumerBatch]) -> dict[int, list[int]]:
    """Return the numbers of the messages that each consumer received."""
    got: dict[int, list[int]] = {}
    for receiver, messages in deliveries:
        got.setdefault(receiver.id, []).extend(int(message.id) for message in messages)
    return got


def receivers(deliveries: list[ConsumerBatch]) -> list[int]:
    """Return the number of the consumer of each delivery."""
    return [receiver.id for receiver, _ in deliveries]


def mpub_bodies(bodies: Sequence[bytes]) -> PackedBodies:
    """Return *bodies* packed like those of a large MPUB."""
    return PackedBodies([pack_bodies(bodies)], len(bodies))


def peeked_at_once(channel: Channel, *, max_count: int = 1_000_000) -> Peek:
    """Return what a peek at a channel in memory shows, which awaits nothing."""
    peek = channel.peek(max_count=max_count, max_bytes=2**40)
    try:
        peek.send(None)
    except StopIteration as end:
        found: Peek = end.value
        return found
    raise AssertionError("it waits for something")
