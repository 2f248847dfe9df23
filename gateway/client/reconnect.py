"""Repeat attempts to open a connection, with growing jittered delays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from gateway.aio import LazyEvent, spawn
from gateway.client.backoff import Backoff
from gateway.telemetry import get_logger

logger = get_logger()

AUTH_MISSING_DELAY_S = 60.0
"""
Maximum delay between attempts while nsqd requires a secret and there is none; the minimum is half.

Only a restart of nsqd with other options can help, and each attempt costs nsqd a connection and a
log line.
"""

Connect: TypeAlias = Callable[[], Awaitable[bool]]
"""Makes one attempt to connect; returns False if another should follow."""


class Reconnector:
    """
    Call a `Connect` function with delays until it returns True, in one task at a time.

    *what* and *address* name that task in the log.
    """

    __slots__ = ("_address", "_backoff", "_task", "_what", "attempted", "is_auth_missing")

    def __init__(self, what: str, address: str) -> None:
        self._what = what
        self._address = address
        self._backoff: Backoff | None = None
        """Created at the first failure, to save memory: most connections never need it."""
        self._task: asyncio.Task[None] | None = None
        self.attempted = LazyEvent()
        """Set when an attempt has ended; the owner may clear it."""
        self.is_auth_missing = False
        """
        True if nsqd requires a secret and there is none: use `AUTH_MISSING_DELAY_S`.

        `Connect` functions set it when an attempt has failed; a successful attempt clears it.
        """

    def start_now(self, connect: Connect) -> None:
        """Make the first attempt at once."""
        self._start(self._attempt_now(connect))

    def start_later(self, connect: Connect, *, uptime_s: float) -> None:
        """Make the first attempt after a delay, a short one if the lost connection was long up."""
        if self._backoff is not None:
            self._backoff.reset_after(uptime_s)
        self._start(self._attempt_later(connect))

    def _start(self, attempts: Coroutine[None, None, None]) -> None:
        self._task = spawn(f"{self._what} {self._address}", attempts)
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        # The connection may be lost, and a new task started, before this callback runs.
        if self._task is task:
            self._task = None

    async def _attempt_now(self, connect: Connect) -> None:
        if not await self._attempt(connect):
            await self._attempt_later(connect)

    async def _attempt_later(self, connect: Connect) -> None:
        backoff = self._backoff
        if backoff is None:
            backoff = self._backoff = Backoff(random.random)
        while True:
            delay_s = backoff.next_delay_s()
            if self.is_auth_missing:
                delay_s = AUTH_MISSING_DELAY_S * (0.5 + random.random() / 2)  # noqa: S311 - jitter
            await asyncio.sleep(delay_s)
            if await self._attempt(connect):
                return

    async def _attempt(self, connect: Connect) -> bool:
        try:
            is_connected = await connect()
        except Exception:
            # A bug, which must not end the attempts.
            logger.exception("connection attempt failed", task=f"{self._what} {self._address}")
            return False
        else:
            if is_connected:
                # nsqd accepts connections again, so that a later loss needs no long delay.
                self.is_auth_missing = False
            return is_connected
        finally:
            # Also on cancellation: a caller that waits for the attempt must not hang.
            self.attempted.set()

    def cancel(self) -> None:
        """Stop making attempts; idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> bool:
        """Stop making attempts, and wait for the task; return False if none was running."""
        if self._task is None or self._task.done():
            return False
        self._task.cancel()
        await asyncio.wait({self._task})
        return True
