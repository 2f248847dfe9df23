"""Tests of `Reconnector`: the delays between attempts to connect."""

from __future__ import annotations

import asyncio

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


async def test_an_earlier_task_that_ends_late_leaves_the_next_one_in_place() -> None:
    """A connection may be lost, and attempts begin again, before the end of a task is noticed."""
    clock = ManualClock()
    attempts = 0

    async def connect() -> bool:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            # Lost before the callback of this task has run.
            asyncio.get_running_loop().call_soon(
                lambda: reconnector.start_later(fail, uptime_s=0.0)
            )
        return True

    async def fail() -> bool:
        return False

    reconnector = Reconnector("connect to", "192.0.2.1:4150")
    reconnector.start_now(connect)
    await turn(5)
    await clock.advance(1.0)

    assert await reconnector.close()
    assert not await reconnector.close()
