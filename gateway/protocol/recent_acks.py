"""
Remember recent acknowledgements, to identify the delivery whose FIN, REQ or TOUCH nsqd refuses.

nsqd responds to an acknowledgement only if it fails, and its error names only the message. This is
a module of its own because `client` (ids as bytes) and `session` (ids as text) use it.
"""

from __future__ import annotations

from collections import deque
from typing import AnyStr, Generic

from gateway.protocol.wire import MESSAGE_ID_BYTES

REMEMBERED_IDS = 10_000
"""Default of `RecentAcks.limit`."""


class RecentAcks(Generic[AnyStr]):
    """
    The ids of the deliveries that were acknowledged last.

    A delivery id begins with the 16 digits of its message id; a suffix may follow.
    """

    __slots__ = ("_batches", "_by_message", "_count", "limit")

    def __init__(self, limit: int = REMEMBERED_IDS) -> None:
        self.limit = limit
        """Maximum number of remembered deliveries; the last batch is kept even if it is larger."""
        self._batches: deque[list[AnyStr]] = deque()
        self._count = 0
        # Built by the first `find` after an `add`: errors are rare, but many arrive at a time.
        self._by_message: dict[AnyStr, AnyStr] | None = None

    def __len__(self) -> int:
        """Return the number of remembered deliveries."""
        return self._count

    def add(self, delivery_ids: list[AnyStr]) -> None:
        """Remember *delivery_ids*; the list is kept, not copied, so do not change it later."""
        self._batches.append(delivery_ids)
        self._count += len(delivery_ids)
        self._by_message = None
        # Whole batches: to shorten the oldest one, its ids would have to be copied.
        while self._count > self.limit and len(self._batches) > 1:
            self._count -= len(self._batches.popleft())

    def find(self, message_id: AnyStr) -> AnyStr | None:
        """Return the id of the delivery of this message that was acknowledged last, or None."""
        if self._by_message is None:
            # Oldest first, so that a later delivery of the same message replaces an earlier one.
            self._by_message = {
                delivery_id[:MESSAGE_ID_BYTES]: delivery_id
                for batch in self._batches
                for delivery_id in batch
            }
        return self._by_message.get(message_id)
