"""How many sockets may be open that have not said who they are."""

from __future__ import annotations

from collections.abc import Hashable

from gateway.errors import Full


class WaitingRoom:
    """Sockets between their upgrade and their AUTH; at most *size* of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: set[Hashable] = set()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def enter(self, socket: Hashable) -> None:
        """Count *socket* as waiting; raises Full when there is no room."""
        if len(self._waiting) >= self._size:
            raise Full(f"{len(self._waiting)} sockets wait for their AUTH, which is the limit")
        self._waiting.add(socket)

    def leave(self, socket: Hashable) -> None:
        """Count *socket* as waiting no more; idempotent."""
        self._waiting.discard(socket)
