"""
A message as the broker holds it, and where its id comes from.

Source: nsqd/message.go; nsqd/guid.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.protocol import frames

OVERHEAD_BYTES = 320
"""What a stored message takes beside its body: object, id, times, places in queue and dict."""

_EPOCH_TICKS = 1_288_834_974_288
"""2012-10-28 16:23:42 UTC in ticks of 2^20 ns (nsqd/guid.go, twepoch)."""
_TICK_BITS = 20
_NODE_BITS = 10
_SEQUENCE_BITS = 12
_SEQUENCES = 2**_SEQUENCE_BITS
NODE_IDS = 2**_NODE_BITS
"""How many node ids there are, from 0."""


class Moment(NamedTuple):
    """A moment on both clocks."""

    now: float
    """Monotonic seconds: deadlines are reckoned on this clock."""
    wall_ns: int
    """Nanoseconds since 1970: ids and timestamps are made of this one."""


class StoredMessage(frames.Message, gc=False):
    """A message that a channel holds, or a topic's backlog; on the wire it is its base class."""

    defer_ms: int = 0
    """Delay that DPUB asked for; counted from when a channel gets the message."""
    delivered_at: float = 0.0
    """When it was sent last, monotonic seconds; TOUCH cannot reach further than from here."""
    deadline: float = 0.0
    """When it goes back to the queue, monotonic seconds; what counts while it is in flight."""

    def copy(self) -> StoredMessage:
        """Return the same message for one more channel, not delivered yet; the body is shared."""
        return StoredMessage(self.timestamp_ns, 0, self.id, self.body, self.defer_ms)


class Memory:
    """The bytes that all messages of a broker take, and their bound."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether *size_bytes* more stay within the bound."""
        return self.used_bytes + size_bytes <= self.limit_bytes

    def take(self, messages: Iterable[StoredMessage]) -> None:
        """Count *messages*; a body that several channels hold counts for each."""
        self.used_bytes += sum(OVERHEAD_BYTES + len(message.body) for message in messages)

    def free(self, messages: Iterable[StoredMessage]) -> None:
        """Count *messages* no longer."""
        self.used_bytes -= sum(OVERHEAD_BYTES + len(message.body) for message in messages)


class IdFactory:
    """
    Makes the ids of one topic: 64 bits as 16 lower-case hex digits, each higher than the last.

    From the top: 42 bits of clock in ticks of 2^20 ns, 10 bits of node, 12 bits of sequence. Where
    nsqd waits (4096 ids in one tick are used up, or the clock went back), the ids run ahead of the
    clock in place of that.
    """

    __slots__ = ("_node_id", "_sequence", "_tick")

    def __init__(self, *, node_id: int) -> None:
        self._node_id = node_id
        self._tick = 0
        self._sequence = 0

    def take(self, count: int, *, wall_ns: int) -> list[bytes]:
        """Return *count* new ids for messages of this moment, nanoseconds since 1970."""
        tick = wall_ns >> _TICK_BITS
        if tick > self._tick:
            self._tick, self._sequence = tick, 0
        ids: list[bytes] = []
        while len(ids) < count:
            if self._sequence == _SEQUENCES:
                self._tick, self._sequence = self._tick + 1, 0
            end = min(self._sequence + count - len(ids), _SEQUENCES)
            base = (self._tick - _EPOCH_TICKS) << (_NODE_BITS + _SEQUENCE_BITS)
            base |= self._node_id << _SEQUENCE_BITS
            ids += [b"%016x" % number for number in range(base + self._sequence, base + end)]
            self._sequence = end
        return ids
