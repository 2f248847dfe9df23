"""Parts of the broker's core for tests: a moment, messages with plain ids, consumers."""

from __future__ import annotations

from collections.abc import Callable

from gateway.broker.agenda import Delivery
from gateway.broker.common import Common, Rules
from gateway.broker.consumer import Consumer
from gateway.broker.message import Memory, Moment, StoredMessage

START_NS = 1_790_000_000_000_000_000


def at(now: float) -> Moment:
    """Return the moment *now* seconds after the start, on both clocks."""
    return Moment(now, START_NS + int(now * 1e9))


def common(
    rules: Rules | None = None,
    *,
    limit_bytes: int = 2**30,
    random: Callable[[int], int] = lambda _below: 0,
) -> Common:
    """Return what the topics and channels of a test have in common."""
    return Common(memory=Memory(limit_bytes=limit_bytes), random=random, rules=rules or Rules())


def message_id(number: int) -> bytes:
    """Return the id of the message with this *number*."""
    return b"%016d" % number


def stored(
    count: int, *, first: int = 1, defer_ms: int = 0, body: bytes = b"x"
) -> list[StoredMessage]:
    """Return *count* messages that were never delivered, with ids from *first* on."""
    return [
        StoredMessage(START_NS, 0, message_id(number), body, defer_ms)
        for number in range(first, first + count)
    ]


def consumer(number: int = 1, *, msg_timeout_s: float = 60.0) -> Consumer:
    """Return a consumer with RDY 0."""
    return Consumer(number, msg_timeout_s=msg_timeout_s)


def numbers(deliveries: list[Delivery]) -> dict[int, list[int]]:
    """Return which messages each consumer got, by their numbers."""
    got: dict[int, list[int]] = {}
    for receiver, messages in deliveries:
        got.setdefault(receiver.id, []).extend(int(message.id) for message in messages)
    return got


def receivers(deliveries: list[Delivery]) -> list[int]:
    """Return the number of the consumer of each delivery."""
    return [receiver.id for receiver, _ in deliveries]
