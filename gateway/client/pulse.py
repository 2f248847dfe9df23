"""Signs of life between a client and its broker, in both directions."""

from __future__ import annotations

import asyncio
import math
from typing import Protocol


class Living(Protocol):
    """A connection, as its pulse sees it."""

    def give_sign(self) -> None:
        """Let the broker see that we live."""

    def peer_is_silent(self, for_s: float) -> None:
        """Learn that nothing came for *for_s*."""


class Pulse:
    """
    One timer of a connection: two heartbeats without a word and the peer is dead.

    Heartbeats that lie unread in a socket cannot be answered, and say nothing about the peer; while
    nothing is read, a sign goes out at each interval instead. An interval that is infinite: no
    heartbeats are agreed on. Source: the client-library guide, section Heartbeats.
    """

    __slots__ = ("_connection", "_interval_s", "_is_reading", "_loop", "_timer", "last_read")

    def __init__(self, connection: Living, interval_s: float) -> None:
        self._connection = connection
        self._interval_s = interval_s
        self._is_reading = True
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.last_read = 0.0
        """When something came last, on the event loop's clock; whoever reads sets it."""

    def start(self) -> None:
        """Wait for words from now on."""
        self.last_read = self._loop.time()
        self._schedule()

    def reading_paused(self) -> None:
        """Give signs from now on, the first one at once."""
        self._is_reading = False
        self._connection.give_sign()
        self._schedule()

    def reading_resumed(self) -> None:
        """Wait for words again."""
        self._is_reading = True
        self.start()

    def stop(self) -> None:
        """Do nothing more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self.stop()
        if math.isfinite(self._interval_s):
            due = self.last_read + 2 * self._interval_s
            if not self._is_reading:
                due = self._loop.time() + self._interval_s
            self._timer = self._loop.call_at(due, self._beat)

    def _beat(self) -> None:
        limit_s = 2 * self._interval_s
        if not self._is_reading:
            self._connection.give_sign()
        elif self._loop.time() >= self.last_read + limit_s:
            self._connection.peer_is_silent(limit_s)
            return
        self._schedule()
