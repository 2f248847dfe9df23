"""Standard input and output that never block the event loop."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from gateway.cli.stdio import InputStream, OutputStream, reader_is_gone

BLOCK = 65_536
"""Capacity of a pipe on Linux."""


@pytest.fixture
def pipe() -> tuple[int, int]:
    """
    Return the reading and the writing end of a pipe.

    They stay open: a thread left behind by a test would read from the next file with its number.
    """
    return os.pipe()


async def test_input_comes_as_it_is_there_and_ends_empty(pipe: tuple[int, int]) -> None:
    """A read returns what was written; the end is b""."""
    reading, writing = pipe
    stream = InputStream(reading)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    os.write(writing, b"one\n")
    first = await stream.read(until=never)
    os.close(writing)

    assert (b"one\n", b"", b"") == (
        first,
        await stream.read(until=never),
        await stream.read(until=never),
    )


async def test_an_input_that_stands_still_is_left_when_told(pipe: tuple[int, int]) -> None:
    """The reader does not wait for its blocked thread."""
    stream = InputStream(pipe[0])
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    told.set_result(None)

    assert None is await stream.read(until=told)


async def test_a_reader_that_is_slow_does_not_stop_the_loop(pipe: tuple[int, int]) -> None:
    """Other tasks run while a write blocks."""
    reading, writing = pipe
    stream = OutputStream(writing)
    lines = [b"x" * (BLOCK - 1) + b"\n"] * 3

    write = asyncio.ensure_future(stream.write(lines))
    received = b""
    while len(received) < 3 * BLOCK:
        received += await asyncio.to_thread(os.read, reading, BLOCK)

    assert (b"".join(lines), (3, None)) == (received, await write)


async def test_lines_that_the_reader_did_not_take_whole_are_told(pipe: tuple[int, int]) -> None:
    """A partly written line does not count as written."""
    reading, writing = pipe
    stream = OutputStream(writing)
    lines = [b"x\n", b"y" * (3 * BLOCK) + b"\n", b"z\n"]

    write = asyncio.ensure_future(stream.write(lines))
    await asyncio.to_thread(os.read, reading, BLOCK)
    os.close(reading)
    written, error = await write

    assert (1, True) == (written, error is not None and reader_is_gone(error))


async def test_a_write_that_is_stopped_ends_with_its_line(pipe: tuple[int, int]) -> None:
    """However fast the reader reads then; the lines behind it are not written."""
    reading, writing = pipe
    stream = OutputStream(writing)
    lines = [b"x\n", b"y" * (5 * BLOCK) + b"\n", b"z\n"]

    write = asyncio.ensure_future(stream.write(lines))
    received = await asyncio.to_thread(os.read, reading, 10)  # the write has begun, and blocks
    stream.stop()
    while len(received) < len(lines[0] + lines[1]):
        received += await asyncio.to_thread(os.read, reading, BLOCK)

    assert (lines[0] + lines[1], (2, None)) == (received, await write)
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)


async def test_nothing_is_written_by_a_stream_that_is_stopped(pipe: tuple[int, int]) -> None:
    stream = OutputStream(pipe[1])
    stream.stop()

    assert (0, None) == await stream.write([b"x\n"])


async def test_a_reader_that_goes_is_noticed_without_a_write(pipe: tuple[int, int]) -> None:
    """Otherwise `sub` would keep messages in flight without a reader."""
    reading, writing = pipe
    stream = OutputStream(writing)
    before = stream.reader_gone.done()

    os.close(reading)
    async with asyncio.timeout(10):
        await stream.reader_gone

    assert not before


async def test_a_device_that_is_full_is_no_reader_that_has_gone() -> None:
    """A full disk is an error for the user, a closed pipe is not."""
    full = os.open("/dev/full", os.O_WRONLY)
    written, error = await OutputStream(full).write([b"x\n"])

    assert error is not None
    assert (0, errno.ENOSPC, False) == (written, error.errno, reader_is_gone(error))
