"""One timer for many connections: each is looked after as if it had its own."""

from __future__ import annotations

import asyncio
import math

import pytest
import uvloop

from gateway.client.pulse import Pulse, pulse_of
from tests.support.manual_clock import ManualClock

INTERVAL_S = 30.0


class Connection:
    """Keeps what its pulse tells."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.heartbeat_interval_s = interval_s
        self.last_read = asyncio.get_running_loop().time()
        self.sign_due: float | None = None
        self.signs = 0
        self.silent_for: list[float] = []

    def give_sign(self) -> None:
        """Count it."""
        self.signs += 1

    def peer_is_silent(self, for_s: float) -> None:
        """Keep it, and be dead."""
        self.silent_for.append(for_s)
        pulse_of(asyncio.get_running_loop()).forget(self)

    def hear(self) -> None:
        """Read something."""
        self.last_read = asyncio.get_running_loop().time()


@pytest.fixture
async def clock() -> ManualClock:
    """Return the time of the test."""
    return ManualClock()


@pytest.fixture
async def pulse(clock: ManualClock) -> Pulse:
    """Return the pulse of the test's event loop."""
    del clock  # it is to be there
    return pulse_of(asyncio.get_running_loop())


async def test_an_event_loop_has_one_pulse(pulse: Pulse) -> None:
    """That is what makes it cheap."""
    assert pulse is pulse_of(asyncio.get_running_loop())


async def test_each_peer_has_its_own_silence(pulse: Pulse, clock: ManualClock) -> None:
    """The one that was heard later dies later, to the moment."""
    first = Connection()
    pulse.watch(first)
    await clock.advance(10.0)
    second = Connection()
    pulse.watch(second)
    await clock.advance(2 * INTERVAL_S - 10.0)
    after_first = (first.silent_for, list(second.silent_for))
    await clock.advance(9.9)
    before_second = list(second.silent_for)
    await clock.advance(0.1)

    assert ([60.0], []) == after_first
    assert ([], [60.0]) == (before_second, second.silent_for)


async def test_what_was_said_while_nobody_listened_counts(pulse: Pulse, clock: ManualClock) -> None:
    """An event loop that stood still finds the timer due, and the word in the socket."""
    heard, silent = Connection(), Connection()
    for each in (heard, silent):
        pulse.watch(each)
    read_at = heard.last_read + 2 * INTERVAL_S + 0.05
    asyncio.get_running_loop().call_at(read_at, heard.hear)

    await clock.advance(2 * INTERVAL_S + 0.1)

    assert ([], [60.0]) == (heard.silent_for, silent.silent_for)
    pulse.forget(heard)


async def test_what_is_heard_in_time_lives(pulse: Pulse, clock: ManualClock) -> None:
    """And no timer is needed for each word."""
    heard, silent = Connection(), Connection()
    for each in (heard, silent):
        pulse.watch(each)
    for _ in range(4):
        await clock.advance(INTERVAL_S)
        heard.hear()

    assert ([], [60.0]) == (heard.silent_for, silent.silent_for)
    pulse.forget(heard)


async def test_a_shorter_interval_comes_first(pulse: Pulse, clock: ManualClock) -> None:
    """Whoever is watched later may be due sooner."""
    slow, fast = Connection(), Connection(1.0)
    pulse.watch(slow)
    pulse.watch(fast)

    await clock.advance(2.0)

    assert ([], [2.0]) == (slow.silent_for, fast.silent_for)
    pulse.forget(slow)


async def test_while_nothing_is_read_signs_go_out(pulse: Pulse, clock: ManualClock) -> None:
    """At once, and at each interval; silence is no sign then."""
    paused = Connection()
    pulse.watch(paused)
    paused.sign_due = paused.last_read
    pulse.watch(paused)
    at_once = paused.signs
    for _ in range(5):
        await clock.advance(INTERVAL_S)

    assert (1, 6, []) == (at_once, paused.signs, paused.silent_for)
    pulse.forget(paused)


async def test_signs_of_many_go_out_together(pulse: Pulse, clock: ManualClock) -> None:
    """However they began: a look at all connections for each of them would be one too many."""
    looks = 0

    class Looked(Connection):
        @property
        def heartbeat_interval_s(self) -> float:
            nonlocal looks
            looks += 1
            return INTERVAL_S

        @heartbeat_interval_s.setter
        def heartbeat_interval_s(self, interval_s: float) -> None:
            """Keep the one that all have."""

    many = [Looked() for _ in range(100)]
    for each in many:
        each.sign_due = asyncio.get_running_loop().time()
        pulse.watch(each)
        await clock.advance(INTERVAL_S / 200)
    looks = 0
    for _ in range(20):
        await clock.advance(INTERVAL_S / 10)

    assert all(3 <= each.signs <= 4 for each in many)
    assert looks <= 5 * len(many)
    for each in many:
        pulse.forget(each)


async def test_without_heartbeats_there_is_nothing_to_do(pulse: Pulse, clock: ManualClock) -> None:
    """Not even a timer."""
    free = Connection(math.inf)
    pulse.watch(free)

    await clock.advance(1e9)

    assert [] == free.silent_for
    assert pulse._timer is None
    pulse.forget(free)


async def test_what_is_forgotten_is_told_nothing(pulse: Pulse, clock: ManualClock) -> None:
    """After the last one no timer is left, and to forget is no error twice."""
    gone = Connection()
    pulse.watch(gone)
    pulse.forget(gone)
    pulse.forget(gone)

    await clock.advance(1_000.0)

    assert [] == gone.silent_for
    assert pulse._timer is None


async def test_one_that_fails_at_its_beat_harms_no_other(pulse: Pulse, clock: ManualClock) -> None:
    """It is dropped, the others live and die as before."""

    class Broken(Connection):
        def peer_is_silent(self, for_s: float) -> None:
            raise RuntimeError(for_s)

    broken, other = Broken(), Connection()
    pulse.watch(broken)
    pulse.watch(other)

    await clock.advance(2 * INTERVAL_S)

    assert [60.0] == other.silent_for
    assert pulse._timer is None


def test_a_beat_that_is_due_at_once_may_be_put_first_on_uvloop() -> None:
    """There what is due within a millisecond has no moment to ask for."""

    async def watch_two() -> int:
        pulse = Pulse()
        late, later = Connection(interval_s=0.0001), Connection(interval_s=0.0002)
        late.sign_due = later.sign_due = asyncio.get_running_loop().time() + 0.0001
        pulse.watch(late)
        pulse.watch(later)
        return len(pulse._living)

    assert 2 == uvloop.run(watch_two())
