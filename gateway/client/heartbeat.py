"""
Monitor the heartbeats of all connections to nsqd, with one timer per event loop.

An nsqd that is silent for two heartbeat intervals is dead. While reading from a connection is
paused, heartbeats stay in the socket, where they can neither be answered nor prove that nsqd lives.
A NOP is written in each interval then. Source: the client-library guide, section Heartbeats.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from gateway.aio import call_after_reads, per_loop
from gateway.telemetry import get_logger

logger = get_logger()

_EARLY = 0.5
"""Maximum fraction of an interval by which a NOP is early, so that connections share wake-ups."""


class Monitored(Protocol):
    """
    A connection with heartbeats; times are on the event loop's clock.

    A Protocol, because `client.connection` imports this module and tests need no socket.
    """

    last_read: float
    """When something was last received; the connection sets it."""
    nop_due: float | None
    """When the next NOP is due, while reading is paused; None while it is not."""

    @property
    def heartbeat_interval_s(self) -> float:
        """Heartbeat interval; infinite without heartbeats."""

    def send_nop(self) -> None:
        """Write a NOP, so that nsqd does not close the connection."""

    def on_silent(self, for_s: float) -> None:
        """Called once nothing was received for *for_s* seconds; monitoring has ended."""


class HeartbeatMonitor:
    """
    Monitor all connections of one event loop to nsqd.

    Connections have no timers of their own: all are checked together, about once in an interval.
    Silence counts only after the sockets have been read once more, because a process that was
    stopped (SIGSTOP, debugger) could not have received anything.
    """

    __slots__ = ("_due", "_monitored", "_timer")

    def __init__(self) -> None:
        self._monitored: set[Monitored] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        """When the timer fires; kept here, because uvloop rounds its handles' times to ms."""

    def watch(self, connection: Monitored) -> None:
        """Monitor *connection*, new or just paused or resumed; write a NOP to it if one is due."""
        self._monitored.add(connection)
        self._schedule(_check(connection, asyncio.get_running_loop().time()))

    def forget(self, connection: Monitored) -> None:
        """Stop monitoring *connection*; idempotent."""
        self._monitored.discard(connection)
        if not self._monitored and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, due: float) -> None:
        if self._timer is not None:
            if self._due <= due:
                # An early timer is harmless: it checks everything and sets the next one.
                return
            self._timer.cancel()
            self._timer = None
        if due < math.inf:
            self._due = due
            self._timer = asyncio.get_running_loop().call_at(due, self._check_all)

    def _check_all(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        due = math.inf
        # A copy: an aborted connection removes itself while this iterates.
        for connection in tuple(self._monitored):
            try:
                next_due = _check(connection, now)
            except Exception:
                # A bug, which must not end the monitoring of the others.
                logger.exception("heartbeat handler failed")
                self._monitored.discard(connection)
                continue
            if next_due > now:
                due = min(due, next_due)
            else:
                call_after_reads(self._end_if_silent, connection)
        self._schedule(due)

    def _end_if_silent(self, connection: Monitored) -> None:
        # Meanwhile the sockets were read: the connection may be gone, paused or alive again.
        if connection not in self._monitored:
            return
        now = asyncio.get_running_loop().time()
        if connection.nop_due is None and now >= _silent_at(connection):
            self.forget(connection)
            connection.on_silent(2 * connection.heartbeat_interval_s)
        else:
            self.watch(connection)


def _silent_at(connection: Monitored) -> float:
    """Return when *connection* counts as dead unless it receives something before."""
    return connection.last_read + 2 * connection.heartbeat_interval_s


def _check(connection: Monitored, now: float) -> float:
    """Write a NOP if it is due; return when to check again, *now* or earlier if nsqd is silent."""
    due = connection.nop_due
    if due is None:
        return _silent_at(connection)
    interval_s = connection.heartbeat_interval_s
    if now >= due - _EARLY * interval_s:
        # Together with others that are due: fewer wake-ups, each of which checks all connections.
        connection.send_nop()
        due = connection.nop_due = now + interval_s
    return due


get_heartbeat_monitor = per_loop(HeartbeatMonitor)
"""Return the one monitor of an event loop."""
