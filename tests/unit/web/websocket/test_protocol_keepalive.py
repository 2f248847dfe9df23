"""One sweep pings every socket: in time, apart from each other, and never for nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from gateway.web.websocket.protocol import WebSocketProtocol, WebSocketServerState
from tests.support.manual_clock import ManualClock
from tests.support.websocket.echo_handler import echo_websockets

TURNS = 64


@dataclass(eq=False)
class Pinged(WebSocketProtocol):
    """A socket that keeps when it was pinged."""

    port: WebSocketServerState
    turn: int = 0
    pings: list[tuple[int, bytes]] = field(default_factory=list)
    """The sweep's turn, and the frame."""
    checks: list[tuple[int, int]] = field(default_factory=list)
    """The sweep's turn, and after how many turns it is too late."""

    def ping(self, payload: bytes, frame: bytes) -> None:
        """Keep it."""
        assert frame == bytes((0x89, len(payload))) + payload
        self.pings.append((self.port.turn, frame))

    def check_pong(self, timeout_turns: int) -> None:
        """Keep it."""
        self.checks.append((self.port.turn, timeout_turns))

    def check_message(self, timeout_turns: int) -> None:
        """Send all at once."""


class Leaving(Pinged):
    """Ends as soon as it is pinged."""

    def ping(self, payload: bytes, frame: bytes) -> None:
        """End."""
        super().ping(payload, frame)
        self.port.stop_pinging(self)


class Failing(Pinged):
    """Fails whenever it is pinged."""

    def ping(self, payload: bytes, frame: bytes) -> None:
        """Keep it, and fail."""
        super().ping(payload, frame)
        raise RuntimeError


def opened(port: WebSocketServerState, count: int) -> list[Pinged]:
    sockets = [Pinged(port) for _ in range(count)]
    for socket in sockets:
        port.start_pinging(socket)
    return sockets


async def sweep(clock: ManualClock, turns: int, *, interval_s: float = 20) -> None:
    """Let the sweep make so many turns."""
    for _ in range(turns):
        await clock.advance(interval_s / TURNS)


async def test_every_socket_is_pinged_once_in_an_interval() -> None:
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=20)
    clock = ManualClock()
    sockets = opened(port, 200)

    await sweep(clock, 3 * TURNS)

    assert {3} == {len(socket.pings) for socket in sockets}
    assert {TURNS} == {
        later[0] - earlier[0]
        for socket in sockets
        for earlier, later in zip(socket.pings, socket.pings[1:], strict=False)
    }


async def test_sockets_that_came_together_are_not_pinged_together() -> None:
    """10 000 after a restart are 157 in one turn of the event loop at most."""
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=20)
    clock = ManualClock()
    sockets = opened(port, 10_000)

    await sweep(clock, TURNS)

    turns = [socket.pings[0][0] for socket in sockets]
    assert (TURNS, 157) == (len(set(turns)), max(turns.count(turn) for turn in set(turns)))


async def test_the_pings_of_two_turns_differ() -> None:
    """So a pong that comes too late is not taken for the next one."""
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=20)
    clock = ManualClock()
    (socket,) = opened(port, 1)

    await sweep(clock, 10 * TURNS)

    assert 10 == len({frame for _, frame in socket.pings})


@pytest.mark.parametrize("timeout_s, turns", [(20, 64), (10, 32), (0.3, 1), (0.4, 2), (50, 160)])
async def test_the_pong_is_looked_for_when_its_time_is_over(timeout_s: float, turns: int) -> None:
    """Not before; a timeout may be shorter than the interval, or longer."""
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=timeout_s)
    clock = ManualClock()
    (socket,) = opened(port, 1)

    await sweep(clock, 4 * TURNS)

    first = socket.pings[0][0]
    assert (first + turns, turns) in socket.checks


async def test_a_loop_that_stood_still_has_not_counted_on() -> None:
    """An hour without a turn is one turn: no pong could be read meanwhile."""
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=20)
    clock = ManualClock()
    opened(port, 1)
    await sweep(clock, 3)

    await clock.advance(3_600)

    assert 4 == port.turn


async def test_who_is_closed_is_pinged_no_more() -> None:
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=20)
    clock = ManualClock()
    gone, there = opened(port, 2)
    port.stop_pinging(gone)
    port.stop_pinging(gone)

    await sweep(clock, TURNS)

    assert ([], 1) == (gone.pings, len(there.pings))


async def test_a_socket_may_end_while_it_is_looked_at() -> None:
    """A missed pong closes it, in the middle of the sweep."""
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=20)
    clock = ManualClock()
    for _ in range(2 * TURNS):
        port.start_pinging(Leaving(port))

    await sweep(clock, 2 * TURNS)

    assert TURNS == port.turn


async def test_nobody_to_ping_is_no_sweep() -> None:
    """It begins again with the next socket."""
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=20)
    clock = ManualClock()
    (socket,) = opened(port, 1)
    port.stop_pinging(socket)
    await sweep(clock, 5)
    assert 1 == port.turn

    opened(port, 1)
    await sweep(clock, 5)

    assert 6 == port.turn


async def test_without_an_interval_nobody_is_pinged() -> None:
    port = echo_websockets()
    clock = ManualClock()
    (socket,) = opened(port, 1)
    await clock.advance(1_000)
    port.stop_pinging(socket)

    assert (0, []) == (port.turn, socket.pings)


async def test_a_short_interval_has_fewer_turns() -> None:
    """The sweep does not run more often than 20 times a second."""
    port = echo_websockets(ping_interval_s=0.1, ping_timeout_s=1)
    clock = ManualClock()
    (socket,) = opened(port, 1)

    for _ in range(10):
        await clock.advance(0.05)

    assert (10, 5) == (port.turn, len(socket.pings))


async def test_whatever_fails_the_others_are_pinged() -> None:
    """A bug that one socket meets stops nobody's pings."""
    port = echo_websockets(ping_interval_s=20, ping_timeout_s=20)
    clock = ManualClock()
    failing = Failing(port)
    port.start_pinging(failing)
    (other,) = opened(port, 1)
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    await sweep(clock, 2 * TURNS)

    assert (2, 2, 2) == (len(failing.pings), len(other.pings), len(told))
