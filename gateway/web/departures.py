"""How sockets leave in good order: all of them in a drain, each one when it has reached its age."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from gateway.session.actions import EndReason
from gateway.web.socket_parts import KeptSocket

SOCKETS_A_TURN = 50
"""So many are told in one turn of the event loop: others have theirs meanwhile."""

_RECONNECT_WITHIN_MS = 5_000
_LOOK_INTERVAL_S = 0.02
_SWEEP_INTERVAL_S = 1.0
_SOONER = 0.2
"""The share of its age by which a socket may leave sooner."""


def reconnect_after_ms() -> int:
    """Return when one client is to come back: together they would come all at once."""
    return random.randrange(_RECONNECT_WITHIN_MS)  # noqa: S311 - it spreads, and is no secret


async def drain_all(sockets: Sequence[KeptSocket], *, in_flight_s: float, window_s: float) -> None:
    """
    Tell *sockets* to leave; their closes are spread over *window_s* once this returns.

    Before, their answers are waited for, until none of them holds anything, or for *in_flight_s*.
    """
    loop = asyncio.get_running_loop()
    waits_until = loop.time() + in_flight_s
    leaving = random.sample(sockets, len(sockets))
    await _tell_all(leaving, waits_until, window_s)
    open_ones = leaving.copy()
    # To look at the first one that is still open costs less than that all tell when they are not.
    while _drop_answered(open_ones) and loop.time() < waits_until:  # noqa: ASYNC110
        await asyncio.sleep(min(_LOOK_INTERVAL_S, waits_until - loop.time()))
    await _tell_all(leaving, loop.time(), window_s)


async def _tell_all(leaving: Sequence[KeptSocket], begin: float, window_s: float) -> None:
    """Tell each of *leaving* when it is closed, spread over *window_s* from *begin* on."""
    step_s = window_s / max(1, len(leaving))
    for number, socket in enumerate(leaving, start=1):
        socket.drain(
            EndReason.DRAINED,
            close_at=begin + step_s * number,
            reconnect_after_ms=reconnect_after_ms(),
        )
        if number % SOCKETS_A_TURN == 0:
            await asyncio.sleep(0)


def _drop_answered(sockets: list[KeptSocket]) -> bool:
    """Drop those at the end that hold nothing any more; return whether one is left."""
    while sockets and not sockets[-1].is_waited_for:
        sockets.pop()
    return bool(sockets)


class Ages:
    """
    The ages of all sockets: each is told to leave when it has reached *max_age_s*, or a bit before.

    One timer for all, and one place in a set for each, which it gives back when it goes.
    """

    def __init__(
        self,
        max_age_s: float,
        *,
        in_flight_s: float,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._max_age_s = max_age_s
        self._in_flight_s = in_flight_s
        self._random = random
        self._leaving: dict[int, set[KeptSocket]] = {}
        """By the whole second of the event loop's clock, in no order."""
        self._swept = 0
        """The last second whose sockets were told."""
        self._sweep: asyncio.TimerHandle | None = None

    def opened(self, socket: KeptSocket) -> None:
        """Let *socket* leave in its time, unless it is `gone` before."""
        if not self._max_age_s:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        socket.leaves_at = int(now + self._max_age_s * (1 - _SOONER * self._random()))
        if self._sweep is not None:
            # A second that was swept is not looked at again.
            socket.leaves_at = max(socket.leaves_at, self._swept + 1)
        self._leaving.setdefault(socket.leaves_at, set()).add(socket)
        if self._sweep is None:
            self._swept = min(int(now), socket.leaves_at) - 1
            self._schedule(loop)

    def gone(self, socket: KeptSocket) -> None:
        """Forget it."""
        those = self._leaving.get(socket.leaves_at)
        if those is not None:
            those.discard(socket)
            if not those:
                del self._leaving[socket.leaves_at]

    def stop(self) -> None:
        """Let nobody leave for its age any more."""
        self._leaving.clear()
        self._max_age_s = 0.0
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _schedule(
        self, loop: asyncio.AbstractEventLoop, delay_s: float = _SWEEP_INTERVAL_S
    ) -> None:
        self._sweep = loop.call_later(delay_s, self._on_sweep)

    def _on_sweep(self) -> None:
        """Tell those whose time has come, so many in a turn."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        told = 0
        while self._swept < int(now):
            those = self._leaving.get(self._swept + 1, set())
            while those and told < SOCKETS_A_TURN:
                told += 1
                self._tell(those.pop(), now)
            if those:
                self._schedule(loop, 0)
                return
            self._swept += 1
            self._leaving.pop(self._swept, None)
        self._sweep = None
        if self._leaving:
            self._schedule(loop)

    def _tell(self, socket: KeptSocket, now: float) -> None:
        socket.drain(
            EndReason.AGED,
            close_at=now + self._in_flight_s,
            reconnect_after_ms=reconnect_after_ms(),
        )
