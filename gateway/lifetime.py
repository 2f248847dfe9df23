"""
The life of a program that serves: started, told to end, drained, stopped; or cut, when told twice.

The first word drains: whoever is connected goes in good order. A second one, whenever it comes,
cuts this short. For a program on its own the words are SIGTERM, SIGINT and SIGHUP.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Literal, Protocol

from gateway.telemetry import get_logger, spawn

logger = get_logger()

HURRY_S = 2.0
"""What a stop gets after the second word: enough to hand messages back, where nsqd answers."""
_CUT_S = 0.5
"""What is left of the stop gets, once what held it up is cut."""
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Runnable(Protocol):
    """What a command runs until it is told to end."""

    @property
    def longest_end_s(self) -> float:
        """Within how many seconds a drain and a stop are over, as far as that can be said."""

    async def start(self) -> list[str]:
        """Start, and return what to tell the person who started it."""

    async def drain(self) -> None:
        """Let those who are connected go in good order."""

    async def stop(self) -> None:
        """Let answers that have begun end, and stop; after a start that was cut short, too."""

    def abort(self) -> None:
        """Cut what holds up a stop."""


class Stoppable(Protocol):
    """What can be stopped."""

    async def stop(self) -> None:
        """Stop."""


async def stop_in_order(*parts: Stoppable | None) -> None:
    """Stop *parts*, the first one first; one that fails does not keep the others."""
    for part in parts:
        if part is None:
            continue
        try:
            await part.stop()
        except Exception:
            # The others are to be stopped all the same.
            logger.exception("stop failed", part=type(part).__name__)


class End:
    """What a program is told about its end: that it is wanted, and that it is urgent."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self.signal: signal.Signals | None = None
        """The first signal, where it was one."""

    def ask(self) -> None:
        """Want the end; again is without effect."""
        self.asked.set()

    def hurry(self) -> None:
        """Want the end at once."""
        self.asked.set()
        self.hurried.set()

    def on_signal(self, number: signal.Signals) -> None:
        """Ask with the first signal, hurry with the second."""
        if self.signal is not None:
            self.hurry()
            return
        self.signal = number
        self.ask()


def ending_signals() -> list[signal.Signals]:
    """
    Return the signals that end this process: SIGTERM, SIGINT, and SIGHUP when its terminal goes.

    One that is ignored stays so: nohup wants it.
    """
    return [each for each in _ENDING_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]


async def run_until_signal(part: Runnable, announce: Callable[[str], None]) -> signal.Signals:
    """
    Start *part*, announce what it says, wait for one of `ending_signals`, drain it and stop it.

    A second signal ends the drain, and leaves the stop `HURRY_S`. Returns the first one; raises
    what the start raises.
    """
    end = End()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, end.on_signal, number)
    await run_until(end, part, announce)
    assert end.signal is not None  # noqa: S101 - nothing else asks for this end
    return end.signal


async def run_until(end: End, part: Runnable, announce: Callable[[str], None]) -> None:
    """
    Start *part*, announce what it says, and drain and stop it when *end* is asked for.

    A start that is not over by then is cut short. Raises what the start raises.
    """
    asked = spawn("wait for the end", end.asked.wait())
    hurried = spawn("wait for the hurry", end.hurried.wait())
    try:
        asked.add_done_callback(lambda _: _tell_begin_of_end(end, part))
        is_started = await _start(part, asked, announce)
        await asked
        if is_started:
            drain = spawn("drain", part.drain())
            await asyncio.wait({drain, hurried}, return_when=asyncio.FIRST_COMPLETED)
            drain.cancel()
        await _stop(part, hurried)
    finally:
        asked.cancel()
        hurried.cancel()


def _tell_begin_of_end(end: End, part: Runnable) -> None:
    """Log what to expect, unless nobody has asked; who sent a signal may send another one."""
    if not end.asked.is_set():
        return
    told: dict[str, object] = {"at_most_s": part.longest_end_s}
    if end.signal is not None:
        told |= {"signal": end.signal.name, "again": "a second signal stops at once"}
    logger.info("stopping", **told)


async def _start(
    part: Runnable, asked: asyncio.Task[Literal[True]], announce: Callable[[str], None]
) -> bool:
    """Start *part*; return whether that was over before the end was *asked* for."""

    async def outcome() -> list[str] | Exception:
        try:
            return await part.start()
        except Exception as error:  # noqa: BLE001 - raised below: who called is told, not the log
            return error

    start = spawn("start", outcome())
    await asyncio.wait({start, asked}, return_when=asyncio.FIRST_COMPLETED)
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


async def _stop(part: Runnable, hurried: asyncio.Task[Literal[True]]) -> None:
    """Stop *part*; once *hurried*, what is not over within `HURRY_S` is cut, and over soon."""
    stop = spawn("stop", part.stop())
    await asyncio.wait({stop, hurried}, return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        await asyncio.wait({stop}, timeout=HURRY_S)
    if stop.done():
        await stop
        return
    logger.warning("stop incomplete, what is left is cut", within_s=HURRY_S)
    part.abort()
    # What was cut ends as anything does, and is counted there.
    await asyncio.wait({stop}, timeout=_CUT_S)
    stop.cancel()
    await asyncio.wait({stop}, timeout=_CUT_S)
