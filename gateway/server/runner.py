"""
Run a service in this process: signals, graceful shutdown, garbage collection.

The first signal requests a graceful end: drain, then stop. The second one forces it: the drain
ends at once and the stop gets `FORCED_STOP_S`. The signals are SIGTERM, SIGINT and SIGHUP.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from typing import Literal, Protocol

from gateway.aio import spawn
from gateway.telemetry import get_logger

logger = get_logger()

FORCED_STOP_S = 2.0
"""Time for a stop after the second signal: enough to requeue messages where nsqd answers."""
_ABORT_S = 0.5
"""Time for a stop to complete after an abort."""
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GC_THRESHOLDS = 10_000, 5, 100
"""Collect generation 0 every 10 000 new objects, 1 every 50 000, 2 every 5 000 000."""


def tune_gc() -> None:
    """
    Run the cyclic garbage collector rarely; call once at start-up.

    A full collection stops the process for some 200 ms with ten thousand sockets, and reference
    counts free everything that is not part of a cycle anyway
    (docs/decisions/0009-seldom-garbage.md).
    """
    # Objects of the start live until the end: after `freeze`, no collection visits them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class Runnable(Protocol):
    """A service: the gateway, its supervisor or a worker of it, or the broker."""

    @property
    def max_shutdown_s(self) -> float:
        """Longest time that a drain and a stop take."""

    async def start(self) -> list[str]:
        """Start, and return lines to print for the user."""

    async def drain(self) -> None:
        """Disconnect clients gracefully; a forced shutdown cancels this."""

    async def stop(self) -> None:
        """Answer the requests that have begun, then stop; called after a failed start, too."""

    def abort(self) -> None:
        """Abort the connections or processes for which a running `stop` waits."""


class Stoppable(Protocol):
    """A part of a service: listeners, producers, monitors, brokers."""

    async def stop(self) -> None:
        """Stop."""


async def stop_in_order(*parts: Stoppable | None) -> None:
    """Stop *parts* one after the other; log a failure and continue."""
    for part in parts:
        if part is None:
            continue
        try:
            await part.stop()
        except Exception:
            # A bug in one part must not leave the others running.
            logger.exception("stop failed", part=type(part).__name__)


class Shutdown:
    """The shutdown of a process: requested, and then possibly forced."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()
        self.signal: signal.Signals | None = None
        """The first signal; None if there was none."""

    def request(self) -> None:
        """Request a graceful end; idempotent."""
        self.requested.set()

    def force(self) -> None:
        """Request an immediate end, also of a graceful end in progress; idempotent."""
        self.requested.set()
        self.forced.set()

    def on_signal(self, number: signal.Signals) -> None:
        """Request the end on the first signal, force it on the second."""
        if self.signal is not None:
            self.force()
            return
        self.signal = number
        self.request()


def ending_signals() -> list[signal.Signals]:
    """
    Return the signals that end this process: SIGTERM, SIGINT and SIGHUP.

    A signal that is ignored at the start is left out: nohup ignores SIGHUP for its command.
    """
    return [each for each in _ENDING_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]


async def run_until_signal(service: Runnable, announce: Callable[[str], None]) -> signal.Signals:
    """
    Run *service* until one of `ending_signals` arrives, then drain and stop it.

    Call *announce* with each line that `Runnable.start` returns. Return the first signal. Raise
    what `Runnable.start` raises.
    """
    shutdown = Shutdown()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, shutdown.on_signal, number)
    await run_until(shutdown, service, announce)
    assert shutdown.signal is not None  # noqa: S101 - nothing else requests this shutdown
    return shutdown.signal


async def run_until(shutdown: Shutdown, service: Runnable, announce: Callable[[str], None]) -> None:
    """
    Run *service* until *shutdown* is requested, then drain and stop it.

    A request cancels a start that has not finished. Raise what `Runnable.start` raises.
    """
    requested = spawn("wait for shutdown", shutdown.requested.wait())
    forced = spawn("wait for forced shutdown", shutdown.forced.wait())
    try:
        requested.add_done_callback(lambda _: _log_stopping(shutdown, service))
        is_started = await _start(service, requested, announce)
        await requested
        # A start that was cancelled has no clients to drain, but it leaves parts to stop.
        if is_started:
            drain = spawn("drain", service.drain())
            await asyncio.wait({drain, forced}, return_when=asyncio.FIRST_COMPLETED)
            # A forced shutdown leaves the rest to `stop`, which aborts it.
            drain.cancel()
        await _stop(service, forced)
    finally:
        requested.cancel()
        forced.cancel()


def _log_stopping(shutdown: Shutdown, service: Runnable) -> None:
    if not shutdown.requested.is_set():
        return  # the waiting task was cancelled
    fields: dict[str, object] = {"max_duration_s": service.max_shutdown_s}
    if shutdown.signal is not None:
        fields |= {"signal": shutdown.signal.name, "on_second_signal": "stop at once"}
    logger.info("stopping", **fields)


async def _start(
    service: Runnable, requested: asyncio.Task[Literal[True]], announce: Callable[[str], None]
) -> bool:
    """Start *service*, return True; if a shutdown is *requested* first, cancel, return False."""

    async def outcome() -> list[str] | Exception:
        try:
            return await service.start()
        except Exception as error:  # noqa: BLE001 - raised below, and not logged by `spawn`
            return error

    start = spawn("start", outcome())
    await asyncio.wait({start, requested}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.wait({start})
        return False
    lines = start.result()
    if isinstance(lines, Exception):
        raise lines
    for line in lines:
        announce(line)
    return True


async def _stop(service: Runnable, forced: asyncio.Task[Literal[True]]) -> None:
    """Stop *service*; once it is *forced*, wait for `FORCED_STOP_S`, then abort what is left."""
    stop = spawn("stop", service.stop())
    await asyncio.wait({stop, forced}, return_when=asyncio.FIRST_COMPLETED)
    # The time for a forced stop starts with the second signal, not with the stop.
    if not stop.done():
        await asyncio.wait({stop}, timeout=FORCED_STOP_S)
    if stop.done():
        await stop
        return
    logger.warning("stop timed out, aborting what is left", within_s=FORCED_STOP_S)
    service.abort()
    # After an abort the stop completes by itself, and counts the aborted connections. Cancel it
    # only if it does not.
    await asyncio.wait({stop}, timeout=_ABORT_S)
    stop.cancel()
    await asyncio.wait({stop}, timeout=_ABORT_S)
