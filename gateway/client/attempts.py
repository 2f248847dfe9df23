"""The tries to open one connection: with growing jittered delays, until one works."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from gateway.client.backoff import Backoff
from gateway.client.mark import Mark
from gateway.telemetry import get_logger, spawn

logger = get_logger()

Connect: TypeAlias = Callable[[], Awaitable[bool]]
"""One try: True where no other one is wanted."""


class Attempts:
    """
    Calls what is begun until it is true; at most one round of tries goes on at a time.

    *what* and *address* name the tries.
    """

    __slots__ = ("_address", "_backoff", "_task", "_what", "tried")

    def __init__(self, what: str, address: str) -> None:
        self._what = what
        self._address = address
        self._backoff: Backoff | None = None
        self._task: asyncio.Task[None] | None = None
        self.tried = Mark()
        """Set when a try has shown whether there is a connection; whoever begins may clear it."""

    def begin_now(self, connect: Connect) -> None:
        """Try at once, and then for ever."""
        self._spawn(self._try_now(connect))

    def begin_later(self, connect: Connect, *, held_s: float) -> None:
        """Try for ever, the first time after a moment; the last connection has held *held_s*."""
        if self._backoff is not None:
            self._backoff.connection_held(held_s)
        self._spawn(self._try_later(connect))

    def _spawn(self, tries: Coroutine[None, None, None]) -> None:
        self._task = spawn(f"{self._what} {self._address}", tries)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None

    async def _try_now(self, connect: Connect) -> None:
        if not await self._try(connect):
            await self._try_later(connect)

    async def _try_later(self, connect: Connect) -> None:
        backoff = self._backoff
        if backoff is None:
            backoff = self._backoff = Backoff(random.random)
        while True:
            await asyncio.sleep(backoff.next_delay_s())
            if await self._try(connect):
                return

    async def _try(self, connect: Connect) -> bool:
        try:
            return await connect()
        except Exception:
            # Nobody waits for this task: an end of it would be an end of the tries.
            logger.exception("try failed", task=f"{self._what} {self._address}")
            return False
        finally:
            self.tried.set()

    def cancel(self) -> None:
        """Try no more; idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> bool:
        """Try no more, and leave no task; True when a try was cut short by it."""
        if self._task is None or self._task.done():
            return False
        self._task.cancel()
        await asyncio.wait({self._task})
        return True
