"""How a command is interrupted: the first signal asks it to end in good order."""

from __future__ import annotations

import asyncio
import signal


def watch_signals(*numbers: signal.Signals) -> asyncio.Future[signal.Signals]:
    """
    Return a future that has the first of the signals *numbers*; a second one ends the process.

    To be called once in a process.
    """
    loop = asyncio.get_running_loop()
    first: asyncio.Future[signal.Signals] = loop.create_future()

    def interrupt(number: signal.Signals) -> None:
        first.set_result(number)
        for each in numbers:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    return first
