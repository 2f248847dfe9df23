"""How sockets leave: told in slices, waited for, closed one by one; and those that are old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from gateway.aio import spawn
from gateway.credentials import Secret
from gateway.session.types import CloseReason
from gateway.web.subscribe.endpoint import SOCKETS_PER_TURN, MaxConnectionAge, drain_all
from gateway.web.subscribe.socket import SubscriberSocket
from tests.support.gateways.leaks import no_leaks
from tests.support.manual_clock import ManualClock, turn


class Told(SubscriberSocket):
    """A socket that keeps what it is told."""

    is_viewer = is_waited_for = False
    peer = request_id = topic = channel = "x"
    secret: Secret | None = None
    trace_id: str | None = None
    totals: ClassVar[dict[str, object]] = {}
    requeued_on_close = in_flight = close_code = max_age_due = 0
    is_closed_by_client = False

    def __init__(self, on_told: Callable[[], None] = lambda: None) -> None:
        self.told: list[tuple[CloseReason, float, int]] = []
        """Why, when, and when to come back."""
        self._on_told = on_told

    def drain(self, reason: CloseReason, *, close_at: float, reconnect_after_ms: int) -> None:
        """Keep it."""
        self.told.append((reason, close_at, reconnect_after_ms))
        self._on_told()

    @property
    def close_at(self) -> float:
        """The moment that counts: the soonest."""
        return min(close_at for _, close_at, _ in self.told)


class Turns:
    """Counts what happens in each turn of the event loop, until it is stopped."""

    def __init__(self) -> None:
        self.counts = [0]
        self._next: asyncio.Handle | None = None
        self._begin()

    def _begin(self) -> None:
        self.counts.append(0)
        self._next = asyncio.get_running_loop().call_soon(self._begin)

    def count(self) -> None:
        """Count one."""
        self.counts[-1] += 1

    def stop(self) -> list[int]:
        """Return how many there were in each turn."""
        assert self._next is not None
        self._next.cancel()
        return self.counts


async def test_sockets_are_told_so_many_in_a_turn() -> None:
    """A timer that is due, or a publish, never waits for all of ten thousand."""
    turns = Turns()

    await drain_all([Told(turns.count) for _ in range(10_000)], in_flight_s=0, window_s=0)

    counts = turns.stop()
    assert (20_000, SOCKETS_PER_TURN) == (sum(counts), max(counts))


async def test_closes_are_spread_over_the_whole_window() -> None:
    """One after the other, in no order that a client could know, the last one at its end."""
    clock = ManualClock()
    now = asyncio.get_running_loop().time()
    sockets = [Told() for _ in range(40)]

    await drain_all(sockets, in_flight_s=10, window_s=20)
    clock.run_on()

    moments = [round(socket.close_at - now, 6) for socket in sockets]
    assert [0.5 * number for number in range(1, 41)] == sorted(moments)
    assert moments != sorted(moments)
    assert {CloseReason.DRAINED} == {reason for socket in sockets for reason, _, _ in socket.told}
    assert all(0 <= ms < 5_000 for socket in sockets for _, _, ms in socket.told)


async def test_answers_are_waited_for_as_long_as_anybody_holds_something() -> None:
    """The closes begin when the last one has answered, not later."""
    clock = ManualClock()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    idle, busy = Told(), Told()
    busy.is_waited_for = True

    draining = spawn("drain", drain_all([idle, busy], in_flight_s=10, window_s=2))
    await turn(3)
    latest = [round(socket.close_at - begin, 6) for socket in (idle, busy)]
    await clock.advance(4)
    busy.is_waited_for = False
    await clock.advance(1)
    await draining
    clock.run_on()

    assert [11, 12] == sorted(latest)
    assert [6, 7] == sorted(round(socket.close_at - begin) for socket in (idle, busy))


async def test_the_only_busy_socket_of_many_is_waited_for() -> None:
    clock = ManualClock()
    busy = Told()
    busy.is_waited_for = True
    sockets = [busy, *(Told() for _ in range(40))]

    draining = spawn("drain", drain_all(sockets, in_flight_s=10, window_s=2))
    await turn(3)
    await clock.advance(5)
    is_early = draining.done()
    busy.is_waited_for = False
    await clock.advance(1)
    await draining
    clock.run_on()

    assert not is_early


async def test_answers_are_waited_for_no_longer_than_so_long() -> None:
    """Who holds something for ever holds up nobody."""
    clock = ManualClock()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    socket = Told()
    socket.is_waited_for = True

    draining = spawn("drain", drain_all([socket], in_flight_s=10, window_s=2))
    await turn(3)
    await clock.advance(9.99)
    is_early = draining.done()
    await clock.advance(0.02)
    await draining
    clock.run_on()

    assert (False, 12) == (is_early, round(socket.close_at - begin))


# Ages


async def test_nobody_is_old_without_a_limit() -> None:
    """There is neither a timer nor a place for a socket."""
    async with no_leaks():
        ages = MaxConnectionAge(0, in_flight_s=10)
        ages.schedule_drain(Told())


async def test_a_socket_is_told_when_it_has_reached_its_age() -> None:
    """Its last moment leaves it the time for answers; and it is told once."""
    clock = ManualClock()
    loop = asyncio.get_running_loop()
    ages = MaxConnectionAge(100, in_flight_s=10, random=lambda: 0.0)
    socket = Told()

    ages.schedule_drain(socket)
    await clock.advance(98)
    before = list(socket.told)
    await clock.advance(3)
    now = loop.time()
    await clock.advance(100)
    clock.run_on()

    assert [] == before
    assert [(CloseReason.AGED, now + 10)] == [told[:2] for told in socket.told]


async def test_ages_are_drawn_apart() -> None:
    """Who came together does not leave together: up to a fifth sooner."""
    clock = ManualClock()
    shares = iter([0.0, 0.5, 1.0])
    ages = MaxConnectionAge(100, in_flight_s=10, random=lambda: next(shares))
    sockets = [Told(), Told(), Told()]
    for socket in sockets:
        ages.schedule_drain(socket)

    left = []
    for seconds in (78, 4, 7, 3, 7, 3):
        await clock.advance(seconds)
        left.append(sum(bool(socket.told) for socket in sockets))
    clock.run_on()

    assert [0, 1, 1, 2, 2, 3] == left


async def test_who_is_soon_old_is_told_as_well() -> None:
    """Though its second was looked at before it came."""
    clock = ManualClock()
    loop = asyncio.get_running_loop()
    await clock.advance(1.02 - loop.time() % 1)
    shares = iter([0.0, 0.0, 1.0])
    ages = MaxConnectionAge(1.2, in_flight_s=1, random=lambda: next(shares))
    sockets = [Told(), Told(), Told()]

    for socket, seconds in zip(sockets, (0.9, 0.1, 0.0), strict=True):
        ages.schedule_drain(socket)
        await clock.advance(seconds)
    for _ in range(3):
        await clock.advance(1)
    clock.run_on()

    assert [1, 1, 1] == [len(socket.told) for socket in sockets]


async def test_who_has_gone_is_not_told() -> None:
    """Its place is free, and the timer ends with the last one."""
    clock = ManualClock()
    ages = MaxConnectionAge(100, in_flight_s=10)
    gone = Told()

    async with no_leaks():
        ages.schedule_drain(gone)
        ages.cancel_drain(gone)
        await clock.advance(200)
    clock.run_on()

    assert [] == gone.told


async def test_a_drain_stops_the_ages() -> None:
    clock = ManualClock()
    ages = MaxConnectionAge(100, in_flight_s=10)
    socket = Told()

    async with no_leaks():
        ages.schedule_drain(socket)
        ages.stop()
        ages.cancel_drain(socket)
        await clock.advance(200)
    clock.run_on()

    assert [] == socket.told


async def test_many_who_are_old_together_are_told_so_many_in_a_turn() -> None:
    clock = ManualClock()
    turns = Turns()
    ages = MaxConnectionAge(100, in_flight_s=10, random=lambda: 0.0)
    for _ in range(1_000):
        ages.schedule_drain(Told(turns.count))

    await clock.advance(101)
    await turn(30)
    clock.run_on()

    counts = turns.stop()
    assert (1_000, SOCKETS_PER_TURN) == (sum(counts), max(counts))


async def test_who_comes_after_a_quiet_time_is_told_as_well() -> None:
    """The timer ended with the last socket, and begins again with the next one."""
    clock = ManualClock()
    ages = MaxConnectionAge(2, in_flight_s=1, random=lambda: 0.0)
    first, second = Told(), Told()

    ages.schedule_drain(first)
    for _ in range(5):
        await clock.advance(1)
    ages.cancel_drain(first)
    await clock.advance(50)
    ages.schedule_drain(second)
    for _ in range(5):
        await clock.advance(1)
    clock.run_on()

    assert [1, 1] == [len(socket.told) for socket in (first, second)]
