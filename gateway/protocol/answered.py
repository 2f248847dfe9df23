"""PURE. What was answered last, to name it when the broker refuses an answer later."""

from __future__ import annotations

from collections import deque
from typing import AnyStr, Generic

from gateway.protocol.wire import MESSAGE_ID_BYTES

REMEMBERED_IDS = 10_000
"""Deliveries that are remembered, and at least those that were answered last together."""


class Answered(Generic[AnyStr]):
    """
    Delivery ids in the order of their answers; the oldest are forgotten.

    A delivery id begins with the 16 digits of its message's id, and may be no more than that.
    """

    def __init__(self) -> None:
        self._rows: deque[list[AnyStr]] = deque()
        self._count = 0
        self._by_message: dict[AnyStr, AnyStr] | None = None
        """Made when it is asked for: refusals are rare, and come many at a time."""

    def __len__(self) -> int:
        """Return how many deliveries are remembered."""
        return self._count

    def add(self, delivery_ids: list[AnyStr]) -> None:
        """Remember *delivery_ids*, answered together; the list is kept, not copied."""
        self._rows.append(delivery_ids)
        self._count += len(delivery_ids)
        self._by_message = None
        while self._count > REMEMBERED_IDS and len(self._rows) > 1:
            self._count -= len(self._rows.popleft())

    def find(self, message_id: AnyStr) -> AnyStr | None:
        """Return the latest answered delivery of the message, None when there is none."""
        if self._by_message is None:
            self._by_message = {
                delivery_id[:MESSAGE_ID_BYTES]: delivery_id
                for row in self._rows
                for delivery_id in row
            }
        return self._by_message.get(message_id)
