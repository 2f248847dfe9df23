"""Helpers for asyncio: supervised tasks, cooperative generators, timers after I/O, lazy events."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from gateway.telemetry.logs import get_logger
from gateway.telemetry.metrics import gauge

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def per_loop(make: Callable[[], T]) -> Callable[[asyncio.AbstractEventLoop], T]:
    """Return a function that returns an object for each event loop, created by *make* once."""
    # Weak keys: an event loop that is no longer used takes its object along.
    objects: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def get(loop: asyncio.AbstractEventLoop) -> T:
        found = objects.get(loop)
        if found is None:
            found = objects[loop] = make()
        return found

    return get


async def run_in_steps(steps: Generator[None, None, T]) -> T:
    """
    Run the generator *steps* to its end, and return the value that it returns.

    After each `yield` of the generator, other callbacks of the event loop run before it continues.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        await asyncio.sleep(0)


def call_after_reads(callback: Callable[[*Ts], object], *args: *Ts) -> None:
    """
    Call *callback* with *args* after the event loop has polled its sockets once more.

    For timers that end a connection: after a long callback, or when the process was suspended, a
    timer may run before the data that the peer sent in time has been read.
    """
    loop = asyncio.get_running_loop()
    # uvloop polls after the callbacks of an iteration, asyncio before them: after two iterations
    # both have polled.
    loop.call_soon(lambda: loop.call_soon(callback, *args))


class ReadClock:
    """
    Record a time; the running event loop has read all data that arrived before it.

    An idle loop reads data at once, a blocked one reads it late: the time of a read does not tell
    when the data arrived. The clock updates `polled_at` four times a second while it is in use.
    """

    __slots__ = ("_timer", "_users", "polled_at")

    INTERVAL_S = 0.25

    def __init__(self) -> None:
        self.polled_at = -math.inf
        """
        The loop has read what arrived before this time (`loop.time()`), one buffer per socket.
        """
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None

    def add_user(self) -> None:
        """Start the clock if it is stopped; each caller calls `remove_user` when it is done."""
        self._users += 1
        if self._timer is None:
            self._tick()

    def remove_user(self) -> None:
        """Undo one `add_user`; stop the clock when nobody uses it any more."""
        self._users -= 1
        if not self._users and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        # The time before the poll: data that arrives during the poll may be read only in the next
        # one. uvloop's clock stands still within an iteration: the time may be early, never late.
        call_after_reads(self._advance, loop.time())
        self._timer = loop.call_later(self.INTERVAL_S, self._tick)

    def _advance(self, polled_at: float) -> None:
        self.polled_at = polled_at


get_read_clock = per_loop(ReadClock)
"""Return the `ReadClock` of an event loop; all users on that loop share it."""


_tasks: set[asyncio.Task[Any]] = set()
"""Running tasks: the event loop holds only weak references to them."""

gauge("tasks", "Running asyncio tasks of the gateway.").set_function(lambda: len(_tasks))


def spawn(name: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """
    Run *coroutine* as a task, and keep a reference to the task until it ends.

    Use it in place of `asyncio.create_task`, whose task may be garbage-collected before it ends. If
    the task raises an exception, the log has it, together with *name*.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _tasks.add(task)
    task.add_done_callback(_on_done)
    return task


def _on_done(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    # `exception` raises for a cancelled task. For any other it also marks the exception as
    # retrieved: asyncio would otherwise log it again, when the task is collected.
    if not task.cancelled() and (error := task.exception()) is not None:
        get_logger().error("task failed", task=task.get_name(), exc_info=error)


class LazyEvent:
    """
    An `asyncio.Event` that creates its future only when a task waits.

    It saves memory where there are thousands of events and most never have a waiter. Not
    thread-safe; use it in one event loop.
    """

    __slots__ = ("_future", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._future: asyncio.Future[None] | None = None
        """The future that all waiters share; the first one creates it."""

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake up all waiters."""
        self._is_set = True
        # Waiters keep the completed future; `wait` after a `clear` creates another one.
        future, self._future = self._future, None
        if future is not None:
            future.set_result(None)

    def clear(self) -> None:
        """Reset the event: later calls of `wait` block."""
        self._is_set = False

    async def wait(self) -> None:
        """Block until the event is set; cancelling one waiter does not affect the others."""
        if self._is_set:
            return
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        # `asyncio.wait` leaves the future alone when one of its waiters is cancelled.
        await asyncio.wait({self._future})
