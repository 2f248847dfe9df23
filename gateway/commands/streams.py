"""
Standard input and output beside an event loop: what blocks there never stops the loop.

A pipe may stand still for ever: nobody writes, or nobody reads (`sub | less`). Heartbeats go on
meanwhile, and the process can end at any time, for it does not wait for the thread that blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import select
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

_READ_BYTES = 1_048_576

T = TypeVar("T")


class BlockingCalls:
    """Makes calls one after the other in a thread of its own, which ends with the process."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Make *call* when those before it are done; the future has what it returns or raises."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._work.put(partial(self._make, call, future))
        return future

    def _run(self) -> None:
        while True:
            self._work.get()()

    def _make(self, call: Callable[[], T], future: asyncio.Future[T]) -> None:
        try:
            tell = partial(future.set_result, call())
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            tell = partial(future.set_exception, error)
        # The loop may be closed by now: then nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: None if future.done() else tell())


class InputStream:
    """What a file descriptor holds, piece by piece; one piece is read ahead."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._calls = BlockingCalls("read")
        self._next = self._calls.submit(self._read)

    async def read(self, until: asyncio.Future[Any]) -> bytes | None:
        """Return what is there, at the end nothing, None when *until* is done; raises OSError."""
        await asyncio.wait({self._next, until}, return_when=asyncio.FIRST_COMPLETED)
        if until.done():
            return None
        data = self._next.result()
        if data:
            self._next = self._calls.submit(self._read)
        return data

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                select.select([self._descriptor], [], [])


class OutputStream:
    """Writes lines to a file descriptor, without a buffer between."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._calls = BlockingCalls("write")
        self.reader_gone = BlockingCalls("watch the reader").submit(
            partial(_wait_for_reader_gone, descriptor)
        )
        """Done when the other end of a pipe is closed, though nothing is written; else never."""

    def write(self, lines: Sequence[bytes]) -> asyncio.Future[tuple[int, OSError | None]]:
        """
        Write *lines*, which have their newlines; the future has how many are out whole.

        The error beside it, if there is one, says why the others are not.
        """
        return self._calls.submit(partial(_write_all, self._descriptor, lines))


def _write_all(descriptor: int, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
    left = memoryview(b"".join(lines))
    size_bytes = len(left)
    try:
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
    except OSError as error:
        written_bytes = size_bytes - len(left)
        ends = accumulate(map(len, lines))
        return sum(end <= written_bytes for end in ends), error
    return len(lines), None


def _wait_for_reader_gone(descriptor: int) -> None:
    """Return when the other end is closed; for a file or a terminal that may be never."""
    poll = select.poll()
    # Without an event to wait for, only the end is told: POLLERR, POLLHUP, POLLNVAL.
    poll.register(descriptor, 0)
    poll.poll()


def reader_is_gone(error: OSError) -> bool:
    """Tell whether nobody reads what we write any more; that is how `head` ends a pipe."""
    return error.errno in (errno.EPIPE, errno.ECONNRESET)
