"""Tests of `HeartbeatMonitor`: one timer for many connections."""

from __future__ import annotations

import asyncio
import math

import pytest
import uvloop

from gateway.client.heartbeat import HeartbeatMonitor, get_heartbeat_monitor
from tests.support.manual_clock import ManualClock

INTERVAL_S = 30.0


class Connection:
    """A connection that records calls of its monitor."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.heartbeat_interval_s = interval_s
        self.last_read = asyncio.get_running_loop().time()
        self.nop_due: float | None = None
        self.nops = 0
        self.silent_for: list[float] = []

    def send_nop(self) -> None:
        """Count the NOP."""
        self.nops += 1

    def on_silent(self, for_s: float) -> None:
        """Record the silence as the end."""
        self.silent_for.append(for_s)
        get_heartbeat_monitor(asyncio.get_running_loop()).forget(self)

    def hear(self) -> None:
        """Receive something."""
        self.last_read = asyncio.get_running_loop().time()


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def monitor(clock: ManualClock) -> HeartbeatMonitor:
    del clock  # it is to be there
    return get_heartbeat_monitor(asyncio.get_running_loop())


async def test_an_event_loop_has_one_monitor(monitor: HeartbeatMonitor) -> None:
    """Connections share its timer."""
    assert monitor is get_heartbeat_monitor(asyncio.get_running_loop())


async def test_each_peer_has_its_own_silence(monitor: HeartbeatMonitor, clock: ManualClock) -> None:
    """Each connection ends two intervals after its own last read."""
    first = Connection()
    monitor.watch(first)
    await clock.advance(10.0)
    second = Connection()
    monitor.watch(second)
    await clock.advance(2 * INTERVAL_S - 10.0)
    after_first = (first.silent_for, list(second.silent_for))
    await clock.advance(9.9)
    before_second = list(second.silent_for)
    await clock.advance(0.1)

    assert ([60.0], []) == after_first
    assert ([], [60.0]) == (before_second, second.silent_for)


async def test_what_was_said_while_nobody_listened_counts(
    monitor: HeartbeatMonitor, clock: ManualClock
) -> None:
    """After the event loop was blocked, sockets are read before silence counts."""
    heard, silent = Connection(), Connection()
    for each in (heard, silent):
        monitor.watch(each)
    read_at = heard.last_read + 2 * INTERVAL_S + 0.05
    asyncio.get_running_loop().call_at(read_at, heard.hear)

    await clock.advance(2 * INTERVAL_S + 0.1)

    assert ([], [60.0]) == (heard.silent_for, silent.silent_for)
    monitor.forget(heard)


async def test_what_is_heard_in_time_lives(monitor: HeartbeatMonitor, clock: ManualClock) -> None:
    """Reads do not set the timer."""
    heard, silent = Connection(), Connection()
    for each in (heard, silent):
        monitor.watch(each)
    for _ in range(4):
        await clock.advance(INTERVAL_S)
        heard.hear()

    assert ([], [60.0]) == (heard.silent_for, silent.silent_for)
    monitor.forget(heard)


async def test_a_shorter_interval_comes_first(
    monitor: HeartbeatMonitor, clock: ManualClock
) -> None:
    """A connection watched later may be due earlier."""
    slow, fast = Connection(), Connection(1.0)
    monitor.watch(slow)
    monitor.watch(fast)

    await clock.advance(2.0)

    assert ([], [2.0]) == (slow.silent_for, fast.silent_for)
    monitor.forget(slow)


async def test_while_nothing_is_read_signs_go_out(
    monitor: HeartbeatMonitor, clock: ManualClock
) -> None:
    """A NOP is written at once and in each interval; silence does not count."""
    paused = Connection()
    monitor.watch(paused)
    paused.nop_due = paused.last_read
    monitor.watch(paused)
    at_once = paused.nops
    for _ in range(5):
        await clock.advance(INTERVAL_S)

    assert (1, 6, []) == (at_once, paused.nops, paused.silent_for)
    monitor.forget(paused)


async def test_signs_of_many_go_out_together(monitor: HeartbeatMonitor, clock: ManualClock) -> None:
    """NOPs due within half an interval share a wake-up."""
    looks = 0

    class Looked(Connection):
        @property
        def heartbeat_interval_s(self) -> float:
            nonlocal looks
            looks += 1
            return INTERVAL_S

        @heartbeat_interval_s.setter
        def heartbeat_interval_s(self, interval_s: float) -> None:
            """Return the interval of all connections."""

    many = [Looked() for _ in range(100)]
    for each in many:
        each.nop_due = asyncio.get_running_loop().time()
        monitor.watch(each)
        await clock.advance(INTERVAL_S / 200)
    looks = 0
    for _ in range(20):
        await clock.advance(INTERVAL_S / 10)

    assert all(3 <= each.nops <= 4 for each in many)
    assert looks <= 5 * len(many)
    for each in many:
        monitor.forget(each)


async def test_without_heartbeats_there_is_nothing_to_do(
    monitor: HeartbeatMonitor, clock: ManualClock
) -> None:
    free = Connection(math.inf)
    monitor.watch(free)

    await clock.advance(1e9)

    assert [] == free.silent_for
    assert monitor._timer is None
    monitor.forget(free)


async def test_what_is_forgotten_is_told_nothing(
    monitor: HeartbeatMonitor, clock: ManualClock
) -> None:
    """No timer is left after the last one; forgetting twice is allowed."""
    gone = Connection()
    monitor.watch(gone)
    monitor.forget(gone)
    monitor.forget(gone)

    await clock.advance(1_000.0)

    assert [] == gone.silent_for
    assert monitor._timer is None


async def test_one_that_fails_at_its_beat_harms_no_other(
    monitor: HeartbeatMonitor, clock: ManualClock
) -> None:
    """It is no longer monitored; others are."""

    class Broken(Connection):
        def on_silent(self, for_s: float) -> None:
            raise RuntimeError(for_s)

    broken, other = Broken(), Connection()
    monitor.watch(broken)
    monitor.watch(other)

    await clock.advance(2 * INTERVAL_S)

    assert [60.0] == other.silent_for
    assert monitor._timer is None


def test_a_beat_that_is_due_at_once_may_be_put_first_on_uvloop() -> None:
    """uvloop's timer handles are inexact within the last millisecond."""

    async def watch_two() -> int:
        monitor = HeartbeatMonitor()
        late, later = Connection(interval_s=0.0001), Connection(interval_s=0.0002)
        late.nop_due = later.nop_due = asyncio.get_running_loop().time() + 0.0001
        monitor.watch(late)
        monitor.watch(later)
        return len(monitor._monitored)

    assert 2 == uvloop.run(watch_two())
