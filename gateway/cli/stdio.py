"""
Standard input and output for an event loop, signals, and hints on TLS errors.

A read or a write may block for ever, as in ``sub | less``. It runs in a daemon thread, so that
heartbeats continue, and the process can end without waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import select
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from gateway.errors import StartError

_READ_BYTES = 1_048_576

T = TypeVar("T")


class BlockingCalls:
    """Runs blocking calls one after the other in a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run *call* in the thread, after earlier ones; the future gets its result or error."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(partial(self._run_call, call, future))
        return future

    def _run(self) -> None:
        while True:
            self._queue.get()()

    def _run_call(self, call: Callable[[], T], future: asyncio.Future[T]) -> None:
        try:
            set_outcome = partial(future.set_result, call())
        except Exception as error:  # noqa: BLE001 - raised from the future
            set_outcome = partial(future.set_exception, error)
        # The loop may be closed by now: then no task waits for the result. The future may be
        # cancelled by the time the loop runs the lambda: setting its result would raise.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: None if future.done() else set_outcome())


class InputStream:
    """Reads a file descriptor in a thread, one `read` ahead of its caller."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._calls = BlockingCalls("read")
        self._next = self._calls.submit(self._read)

    async def read(self, until: asyncio.Future[Any]) -> bytes | None:
        """
        Return the next bytes, b"" at the end of the input, or None once *until* is done.

        Raises OSError if reading fails.
        """
        # `asyncio.wait` does not cancel the read: a thread that blocks in it cannot be stopped.
        await asyncio.wait({self._next, until}, return_when=asyncio.FIRST_COMPLETED)
        if until.done():
            return None
        data = self._next.result()
        # The thread reads the next piece while the caller handles this one.
        if data:
            self._next = self._calls.submit(self._read)
        return data

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                # Another process with the same pipe or terminal has set O_NONBLOCK on it.
                select.select([self._descriptor], [], [])


_PIECE_BYTES = 65_536


class OutputStream:
    """Writes lines to a file descriptor, unbuffered."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._calls = BlockingCalls("write")
        self._is_stopping = threading.Event()
        # A thread of its own: this call may block for ever, and a write must not wait for it.
        self.reader_gone = BlockingCalls("watch the reader").submit(
            partial(_wait_for_reader_gone, descriptor)
        )
        """Done when the reader of a pipe has closed it; never for a file or a terminal."""

    def write(self, lines: Sequence[bytes]) -> asyncio.Future[tuple[int, OSError | None]]:
        """
        Write *lines*, which end with newlines.

        The future gets the number of lines that were written completely, and the error that stopped
        the write (None if all were written, or after `stop`).
        """
        return self._calls.submit(partial(self._write, lines))

    def stop(self) -> None:
        """Let the write in progress end with the line that is being written."""
        self._is_stopping.set()

    def _write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        data = memoryview(b"".join(lines))
        ends = [0, *accumulate(map(len, lines))]
        written_bytes, end_bytes, failure = 0, len(data), None
        try:
            while written_bytes < end_bytes:
                if self._is_stopping.is_set():
                    end_bytes = next(end for end in ends if end >= written_bytes)
                # A pipe blocks until all of a piece is written.
                piece = data[written_bytes : min(end_bytes, written_bytes + _PIECE_BYTES)]
                try:
                    written_bytes += os.write(self._descriptor, piece)
                except BlockingIOError:
                    # As in `InputStream`: another process has set O_NONBLOCK.
                    select.select([], [self._descriptor], [])
        except OSError as error:
            failure = error
        # A line that was cut off does not count: its message is requeued.
        return sum(end <= written_bytes for end in ends[1:]), failure


def _wait_for_reader_gone(descriptor: int) -> None:
    """Block until the reader has closed the pipe; for ever for a file or a terminal."""
    poll = select.poll()
    # With an empty event mask poll(2) reports only POLLERR, POLLHUP and POLLNVAL.
    poll.register(descriptor, 0)
    poll.poll()


def reader_is_gone(error: OSError) -> bool:
    """Return whether *error* of a write means that the pipe's reader closed it, as `head` does."""
    return error.errno in (errno.EPIPE, errno.ECONNRESET)


# 130 is 128 + SIGINT, the status with which shells report a command ended by Ctrl-C.
FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
"""Exit statuses."""


def watch_signals(*numbers: signal.Signals) -> asyncio.Future[signal.Signals]:
    """
    Return a future that gets the first of the signals *numbers* that arrives.

    A second signal ends the process at once. Call this function only once in a process.
    """
    loop = asyncio.get_running_loop()
    first: asyncio.Future[signal.Signals] = loop.create_future()

    def interrupt(number: signal.Signals) -> None:
        first.set_result(number)
        for each in numbers:
            # The default action ends the process even if the event loop is blocked.
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    return first


def untrusted_certificate_error(url: str, error: BaseException) -> StartError | None:
    """Return an error with advice if *error* means that *url* is not trusted, otherwise None."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return StartError(
                f"the certificate of {url} is not trusted: {cause.verify_message}; set "
                "SSL_CERT_FILE to a file with its CA certificate, or correct the host in --url"
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield *error*, then each cause down to the first: HTTP libraries wrap the errors of `ssl`."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
