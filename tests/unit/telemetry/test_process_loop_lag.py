"""The delay of event loop timers."""

from __future__ import annotations

import asyncio
import time

from gateway.telemetry import REGISTRY, LoopLag

_COUNT = "nsq_gateway_event_loop_lag_seconds_count"
_SUM = "nsq_gateway_event_loop_lag_seconds_sum"


def shown(name: str) -> float:
    """Return a value of the histogram."""
    value = REGISTRY.get_sample_value(name)
    assert value is not None
    return value


async def test_what_holds_the_loop_up_is_seen() -> None:
    """A callback of 0.4 s delays a timer of 0.25 s by at least 0.15 s."""
    lag = LoopLag()
    before, count = shown(_SUM), shown(_COUNT)
    looked = asyncio.Event()
    lag.start()
    # Due at the same time and scheduled later, so it runs after the measurement.
    asyncio.get_running_loop().call_later(0.3, looked.set)
    busy_until = time.perf_counter() + 0.4
    while time.perf_counter() < busy_until:
        pass

    await looked.wait()
    lag.stop()
    lag.stop()

    assert (True, 1) == (shown(_SUM) - before > 0.1, shown(_COUNT) - count)
