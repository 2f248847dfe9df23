"""Calls that wait until the event loop has read what came while it stood still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


def call_after_reads(callback: Callable[[*Ts], object], *args: *Ts) -> None:
    """
    Call *callback* with *args* once the running event loop has looked at its sockets again.

    Each socket that had something to read is read once by then. For timers that end a connection:
    after a long turn, or when the process was stopped, they may come before what its peer sent.
    """
    loop = asyncio.get_running_loop()
    # uvloop looks at its sockets behind the callbacks of a turn, asyncio before them: behind two
    # turns both have.
    loop.call_soon(lambda: loop.call_soon(callback, *args))
