"""
Stored messages, their ids, and their memory budget.

Source: nsqd/message.go; nsqd/guid.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.protocol import frames

OVERHEAD_BYTES = 320
"""Estimated memory of a message besides its body: object, id, times, queue and dict entries."""

_EPOCH_TICKS = 1_288_834_974_288
"""2012-10-28 16:23:42 UTC in ticks of 2^20 ns (nsqd/guid.go, twepoch)."""
_TICK_BITS = 20
_NODE_BITS = 10
_SEQUENCE_BITS = 12
_SEQUENCES = 2**_SEQUENCE_BITS
NODE_IDS = 2**_NODE_BITS
"""The number of node ids; they start at 0."""


class ClockReading(NamedTuple):
    """The current time by the monotonic clock and by the wall clock."""

    now: float
    """Monotonic seconds, for deadlines."""
    wall_ns: int
    """Nanoseconds since 1970, for ids and timestamps."""


class StoredMessage(frames.Message, gc=False):
    """
    A message in a channel or a topic's backlog.

    Clients receive only the fields of the base class.
    """

    # gc=False: a message refers to bytes and numbers only, so it cannot be part of a cycle, and the
    # garbage collector need not visit a million of them.

    defer_ms: int = 0
    """The delay of a deferred publish (DPUB, /pub); it starts when a channel gets the message."""
    delivered_at: float = 0.0
    """When the message was last sent, monotonic seconds; limits what TOUCH can extend."""
    deadline: float = 0.0
    """When the message times out while in flight, monotonic seconds."""
    seq: int = -1
    """Number of the message in its topic, once it is on disk; -1 without a disk."""

    def copy(self) -> StoredMessage:
        """Return an undelivered copy for another channel; the body is shared."""
        # As in nsqd, id and timestamp are the same on all channels; attempts are counted by each.
        return StoredMessage(self.timestamp_ns, 0, self.id, self.body, self.defer_ms, seq=self.seq)


class MemoryBudget:
    """Count the memory of all messages of a broker; callers check `has_room` before they store."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Return whether the limit allows *size_bytes* more."""
        return self.used_bytes + size_bytes <= self.limit_bytes

    def take(self, messages: Iterable[StoredMessage]) -> None:
        """Count the memory of *messages* as used; a shared body counts once for each channel."""
        self.used_bytes += sum(OVERHEAD_BYTES + len(message.body) for message in messages)

    def free(self, messages: Iterable[StoredMessage]) -> None:
        """Count the memory of *messages* as free again."""
        self.used_bytes -= sum(OVERHEAD_BYTES + len(message.body) for message in messages)


class IdFactory:
    """
    Generate the ids of one topic: ascending 64-bit numbers as 16 lower-case hex digits.

    From the most significant bit: 42 bits of clock in ticks of 2^20 ns, 10 bits of node id, 12 bits
    of sequence. nsqd waits after 4096 ids in one tick, and when the clock is set back; here the ids
    run ahead of the clock instead.
    """

    __slots__ = ("_node_id", "_sequence", "_tick")

    def __init__(self, *, node_id: int) -> None:
        self._node_id = node_id
        self._tick = 0
        self._sequence = 0

    def generate(self, count: int, *, wall_ns: int) -> list[bytes]:
        """Return *count* new ids for the time *wall_ns*, nanoseconds since 1970."""
        tick = wall_ns >> _TICK_BITS
        # If the clock was set back, go on from the last tick: ids must not repeat.
        if tick > self._tick:
            self._tick, self._sequence = tick, 0
        ids: list[bytes] = []
        while len(ids) < count:
            if self._sequence == _SEQUENCES:  # the ids of this tick are used up
                self._tick, self._sequence = self._tick + 1, 0
            end = min(self._sequence + count - len(ids), _SEQUENCES)
            base = (self._tick - _EPOCH_TICKS) << (_NODE_BITS + _SEQUENCE_BITS)
            base |= self._node_id << _SEQUENCE_BITS
            ids += [b"%016x" % number for number in range(base + self._sequence, base + end)]
            self._sequence = end
        return ids
