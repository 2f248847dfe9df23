"""
Limit the clients' WebSockets and the bytes that wait for them.

Sockets are limited in total, per address, per caller, and while their client has not sent AUTH.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Protocol

from gateway.errors import LimitReached
from gateway.terminal import pluralize
from gateway.web.rate_limit import address_key


class UnauthenticatedLimit:
    """Limit to *size* the number of sockets whose client must send AUTH, and has not."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: set[Hashable] = set()

    def __len__(self) -> int:
        """Return the number of sockets that wait for AUTH."""
        return len(self._waiting)

    def acquire(self, socket: Hashable) -> None:
        """Count *socket* until `release`; raises LimitReached if *size* sockets wait already."""
        if len(self._waiting) >= self._size:
            waiting = pluralize(len(self._waiting), "socket")
            waiting += " waits" if len(self._waiting) == 1 else " wait"
            raise LimitReached(f"{waiting} for AUTH, which is the limit; try again later")
        self._waiting.add(socket)

    def release(self, socket: Hashable) -> None:
        """Stop counting *socket*; idempotent."""
        self._waiting.discard(socket)


class ConnectionLimits:
    """
    Limit open sockets, in total, per address and per caller; sockets being opened count, too.

    A caller is a secret or, with an access file, an identity, whatever token it brings.

    Error texts for clients do not name the number of all open sockets: only /metrics does.

    Args:
        limit: Maximum number of sockets.
        limit_per_address: Maximum per address, for IPv6 per /64; 0 is no limit.
        limit_per_secret: Maximum per caller; 0 is no limit.
    """

    def __init__(
        self, limit: int, *, limit_per_address: int = 0, limit_per_secret: int = 0
    ) -> None:
        self._limit = limit
        self._taken = 0
        self._addresses = _CountByCaller(limit_per_address)
        self._callers = _CountByCaller(limit_per_secret)

    def __len__(self) -> int:
        """Return the number of sockets."""
        return self._taken

    def check(self, host: str, caller: Hashable | None = None) -> None:
        """Raise LimitReached if there is no room for a socket from *host* of *caller*."""
        if self._taken >= self._limit:
            raise LimitReached(
                f"this gateway has reached its limit of {pluralize(self._limit, 'socket')}; "
                "try again later"
            )
        address = address_key(host)
        if self._addresses.is_taken(address):
            raise LimitReached(
                f"{address} has {pluralize(self._addresses.limit, 'open socket')}, which is the "
                "limit for one address; close one",
                "address_full",
            )
        if caller is not None:
            self._check_caller(caller)

    def acquire(self, host: str, caller: Hashable | None = None) -> None:
        """Count a socket from *host* of *caller* until `release`; raises LimitReached."""
        # All limits first: a refused socket must not stay counted for one of them.
        self.check(host, caller)
        self._taken += 1
        self._addresses.acquire(address_key(host))
        if caller is not None:
            self._callers.acquire(caller)

    def acquire_caller(self, caller: Hashable) -> None:
        """
        Count a socket for *caller*, whose client sent AUTH after the upgrade.

        Its address is counted already. Raises LimitReached if *caller* has too many sockets.
        """
        self._check_caller(caller)
        self._callers.acquire(caller)

    def release(self, host: str, caller: Hashable | None = None) -> None:
        """Stop counting one socket from *host*; *caller* is the one that was counted, if any."""
        self._taken -= 1
        self._addresses.release(address_key(host))
        if caller is not None:
            self._callers.release(caller)

    def _check_caller(self, caller: Hashable) -> None:
        if self._callers.is_taken(caller):
            raise LimitReached(
                f"this caller has {pluralize(self._callers.limit, 'open socket')}, which is the "
                "limit for one caller; close one",
                "secret_full",
            )


class _CountByCaller:
    """Number of sockets by caller (an address, or a secret), and the limit; 0 is no limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken: dict[Hashable, int] = {}

    def is_taken(self, caller: Hashable) -> bool:
        return 0 < self.limit <= self._taken.get(caller, 0)

    def acquire(self, caller: Hashable) -> None:
        self._taken[caller] = self._taken.get(caller, 0) + 1

    def release(self, caller: Hashable) -> None:
        # Without an entry for zero: callers come and go, and the dict must not grow for ever.
        left = self._taken[caller] - 1
        if left:
            self._taken[caller] = left
        else:
            del self._taken[caller]


READ_BYTES = 262_144
"""
Maximum bytes of one read of a connection to nsqd (uvloop: 256 000).

`SocketsBuffer` reserves this for each consumer that is being read: if reading is paused, the read
under way may still bring as many.
"""
_MAX_STALE_SIZES = 64
"""The heap of `_SharedBytes` may have twice as many sizes as viewers, and these."""


class SlowReader(Hashable, Protocol):
    """
    A socket whose client may be slow.

    A protocol, because its one implementation, `SubscriberSocket`, imports this module.
    """

    def on_buffer_limit(self) -> None:
        """
        Called when no more bytes may wait for the client until it has taken some.

        The socket must stop reading from nsqd, or close.
        """


class SocketsBuffer:
    """
    Limit the sum of the bytes that wait for all clients.

    Each client has its own limit (``--socket-buffer-bytes``), but a thousand slow clients would
    take a thousand times that. So the gateway stops reading from nsqd for a client as soon as
    the bytes that wait for it exceed the unused part of *limit_bytes*. This is the dynamic
    threshold of Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998, with alpha = 1. The sum never reaches
    the limit, a single slow client may fill its own buffer, and clients that read in time are not
    affected.

    A socket's consumer is its set of connections to nsqd. Viewers have none of their own: they use
    the consumer of their fan-out.

    Args:
        limit_bytes: Maximum bytes for all clients.
        consumers: Returns the number of sockets with a consumer of their own.
    """

    def __init__(self, limit_bytes: int, consumers: Callable[[], int] = lambda: 0) -> None:
        self.limit_bytes = limit_bytes
        self._consumers = consumers
        self._waiting: dict[SlowReader, int] = {}
        """Bytes by socket, for sockets whose consumer is read."""
        self._paused: dict[SlowReader, int] = {}
        """Bytes by socket, for sockets whose consumer is paused."""
        self._viewers: dict[Hashable, _SharedBytes] = {}
        """Bytes that wait for viewers, by fan-out: its viewers' buffers refer to the same bytes."""
        self._shared_by: dict[SlowReader, Hashable] = {}
        """For each viewer the fan-out whose bytes wait; the viewer may have left that one since."""
        self.total_bytes = 0
        """Bytes that wait for all clients."""

    @property
    def _free_bytes(self) -> int:
        """Free bytes, after a reserve for one more read of each consumer that is being read."""
        reading = max(0, self._consumers() - len(self._paused))
        return self.limit_bytes - self.total_bytes - reading * READ_BYTES

    def update(self, reader: SlowReader, unsent_bytes: int, *, is_paused: bool) -> None:
        """
        Set the bytes that wait for *reader*; call `on_buffer_limit` of sockets, if necessary.

        *is_paused* is True if the gateway does not read the consumer of *reader* now.
        """
        before_bytes = self._waiting.pop(reader, 0) + self._paused.pop(reader, 0)
        self.total_bytes += unsent_bytes - before_bytes
        if not unsent_bytes:
            return
        (self._paused if is_paused else self._waiting)[reader] = unsent_bytes
        # Only if its bytes have grown: a client that has just taken some is not paused for it.
        if unsent_bytes > before_bytes and not is_paused and unsent_bytes > self._free_bytes:
            self._limit_worst()

    def update_viewer(self, shared: Hashable, reader: SlowReader, unsent_bytes: int) -> None:
        """
        Set the bytes that wait for *reader*, a viewer of the fan-out *shared*.

        Only the largest number of a fan-out's viewers counts, because they wait for the same bytes.
        """
        shared = self._shared_by.setdefault(reader, shared)
        viewers = self._viewers.setdefault(shared, _SharedBytes())
        held_bytes = viewers.most_bytes
        before_bytes = viewers.set(reader, unsent_bytes)
        self.total_bytes += viewers.most_bytes - held_bytes
        if not unsent_bytes:
            del self._shared_by[reader]
            if not viewers:
                del self._viewers[shared]
        # A viewer would be closed, not paused, so one with at most the bytes of one read is spared.
        is_over = self.total_bytes > self.limit_bytes and unsent_bytes > READ_BYTES
        if is_over and unsent_bytes > before_bytes:
            reader.on_buffer_limit()

    def _limit_worst(self) -> None:
        """Pause the sockets for which more bytes wait than are free, the largest number first."""
        # Each pause releases the bytes reserved for a read, so the threshold rises in every step.
        for reader, held_bytes in sorted(self._waiting.items(), key=lambda held: -held[1]):
            if held_bytes <= self._free_bytes:
                return
            self._paused[reader] = self._waiting.pop(reader)
            reader.on_buffer_limit()


class _SharedBytes:
    """The largest number of bytes that wait for a viewer of one fan-out, found without a scan."""

    __slots__ = ("_by_reader", "_counts", "_sizes", "most_bytes")

    def __init__(self) -> None:
        self.most_bytes = 0
        """The largest number of bytes that wait for a viewer."""
        self._by_reader: dict[SlowReader, int] = {}
        self._counts: dict[int, int] = {}
        """Number of viewers by the number of bytes that wait for each, for those in the heap."""
        self._sizes: list[int] = []
        """
        A heap of the numbers of bytes, negated because `heapq` has the smallest on top.

        A number that no viewer has any more is stale; it stays until it is on top.
        """

    def __bool__(self) -> bool:
        """Return True if bytes wait for a viewer."""
        return bool(self._by_reader)

    def set(self, reader: SlowReader, held_bytes: int) -> int:
        """Set the number of bytes that wait for *reader*; return the previous number."""
        before_bytes = self._by_reader.pop(reader, 0)
        counts, sizes = self._counts, self._sizes
        if held_bytes:
            self._by_reader[reader] = held_bytes
            if held_bytes not in counts:
                counts[held_bytes] = 0
                heappush(sizes, -held_bytes)
            counts[held_bytes] += 1
        if before_bytes:
            counts[before_bytes] -= 1
        # Lazy deletion: a stale size is removed when it reaches the top of the heap.
        while sizes and not counts[-sizes[0]]:
            del counts[-heappop(sizes)]
        if len(sizes) > 2 * len(self._by_reader) + _MAX_STALE_SIZES:
            self._drop_stale_sizes()
        self.most_bytes = -self._sizes[0] if self._sizes else 0
        return before_bytes

    def _drop_stale_sizes(self) -> None:
        """Rebuild the heap without stale numbers, or it would grow while its top stays."""
        self._counts = {size: count for size, count in self._counts.items() if count}
        self._sizes = [-size for size in self._counts]
        heapify(self._sizes)
