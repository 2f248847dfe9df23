"""Tests of `Reconnector`: the delays between attempts to connect."""

from __future__ import annotations

from gateway.client.reconnect import AUTH_MISSING_DELAY_S, Reconnector
from tests.support.manual_clock import ManualClock, turn


async def test_a_success_ends_the_long_delays_of_a_missing_secret() -> None:
    """The next loss is retried as soon as at an nsqd that never required AUTH."""
    clock = ManualClock()
    results = [False, False, True, True]

    async def connect() -> bool:
        result = results.pop(0)
        reconnector.is_auth_missing = reconnector.is_auth_missing or not result
        return result

    reconnector = Reconnector("connect to", "192.0.2.1:4150")
    reconnector.start_now(connect)
    await turn(3)
    await clock.advance(AUTH_MISSING_DELAY_S / 2 - 1)
    too_early = len(results)
    await clock.advance(AUTH_MISSING_DELAY_S)
    await clock.advance(AUTH_MISSING_DELAY_S)
    connected = len(results)

    reconnector.start_later(connect, uptime_s=AUTH_MISSING_DELAY_S)
    await turn(3)
    await clock.advance(1.0)

    assert (3, 1, 0) == (too_early, connected, len(results))
