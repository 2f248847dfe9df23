"""Signs of life between clients and their brokers, in both directions: one timer for all."""

from __future__ import annotations

import asyncio
import math
from typing import Protocol
from weakref import WeakKeyDictionary

from gateway.after_reads import call_after_reads
from gateway.telemetry import get_logger

logger = get_logger()

_EARLY = 0.5
"""By how much of an interval a sign may be early, so that thousands cost two looks an interval."""


class Living(Protocol):
    """A connection, as its pulse sees it; times are the event loop's."""

    last_read: float
    """When something came last; whoever reads sets it."""
    sign_due: float | None
    """When the next sign of life is due, while nothing is read; None while something is."""

    @property
    def heartbeat_interval_s(self) -> float:
        """The agreed interval; infinite where no heartbeats are agreed on."""

    def give_sign(self) -> None:
        """Let the broker see that we live."""

    def peer_is_silent(self, for_s: float) -> None:
        """Learn that nothing came for *for_s*; the pulse has forgotten it."""


class Pulse:
    """
    The connections of an event loop: two heartbeats without a word and a peer is dead.

    Heartbeats that lie unread in a socket cannot be answered, and say nothing about the peer; while
    nothing is read, a sign goes out within each interval instead. Source: the client-library guide,
    section Heartbeats. A silence is believed once the sockets have been read again: while this
    process stood still, it could hear nobody.

    No connection has a timer of its own. As long as all peers are heard, something is due ever
    later: a thousand connections are looked at together, about once in a heartbeat.
    """

    __slots__ = ("_due", "_living", "_timer")

    def __init__(self) -> None:
        self._living: set[Living] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        """When the timer ends: uvloop has none to ask for what is due within a millisecond."""

    def watch(self, living: Living) -> None:
        """Look after *living*, which begins or ceases to be read; a sign that is due goes out."""
        self._living.add(living)
        self._schedule(_beat(living, asyncio.get_running_loop().time()))

    def forget(self, living: Living) -> None:
        """Look after *living* no more; idempotent."""
        self._living.discard(living)
        if not self._living and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, due: float) -> None:
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due < math.inf:
            self._due = due
            self._timer = asyncio.get_running_loop().call_at(due, self._beat)

    def _beat(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        due = math.inf
        # A copy: whoever is cut forgets itself.
        for living in tuple(self._living):
            try:
                next_due = _beat(living, now)
            except Exception:
                # The others live on.
                logger.exception("a connection failed at its beat")
                self._living.discard(living)
                continue
            if next_due > now:
                due = min(due, next_due)
            else:
                call_after_reads(self._end_silent, living)
        self._schedule(due)

    def _end_silent(self, living: Living) -> None:
        if living not in self._living:
            return
        if living.sign_due is None and asyncio.get_running_loop().time() >= _silent_at(living):
            self.forget(living)
            living.peer_is_silent(2 * living.heartbeat_interval_s)
        else:
            self.watch(living)


def _silent_at(living: Living) -> float:
    """Return when *living* counts as dead, if nothing comes until then."""
    return living.last_read + 2 * living.heartbeat_interval_s


def _beat(living: Living, now: float) -> float:
    """Give the sign that is due; return when *living* is due next: not after *now* if silent."""
    due = living.sign_due
    if due is None:
        return _silent_at(living)
    interval_s = living.heartbeat_interval_s
    if now >= due - _EARLY * interval_s:
        # Early, together with others: each look at them is one at all connections.
        living.give_sign()
        due = living.sign_due = now + interval_s
    return due


_pulses: WeakKeyDictionary[asyncio.AbstractEventLoop, Pulse] = WeakKeyDictionary()


def pulse_of(loop: asyncio.AbstractEventLoop) -> Pulse:
    """Return the pulse of all connections of *loop*."""
    pulse = _pulses.get(loop)
    if pulse is None:
        pulse = _pulses[loop] = Pulse()
    return pulse
