"""What a peer has sent is known before it is judged."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from gateway.aio import ReadClock, call_after_reads, get_read_clock
from tests.support.manual_clock import ManualClock, turn

Run = Callable[[Coroutine[Any, Any, bytes]], bytes]


class Reader(asyncio.Protocol):
    """Keeps what it reads."""

    def __init__(self) -> None:
        self.read = b""

    def data_received(self, data: bytes) -> None:
        """Keep it."""
        self.read += data


async def read_by_then() -> bytes:
    """Return what was read of bytes that came in the turn of the timer which asks."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    answer: asyncio.Future[bytes] = loop.create_future()
    with theirs:
        transport, reader = await loop.create_connection(Reader, sock=ours)

        def on_timer() -> None:
            theirs.send(b"alive")
            call_after_reads(lambda read: answer.set_result(read()), lambda: reader.read)

        loop.call_later(0.01, on_timer)
        read = await answer
        transport.close()
    return read


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_lies_in_a_socket_is_read_first(run: Run) -> None:
    """A callback of the same turn would not know of it."""
    assert b"alive" == run(read_by_then())


async def test_a_read_clock_is_never_ahead_of_the_reads() -> None:
    """It notes its moment once the sockets have been looked at; nobody needs it, and it stands."""
    clock = ManualClock()
    reads = get_read_clock(asyncio.get_running_loop())
    reads.add_user()
    begun_at = clock._time()
    at_once = reads.polled_at
    await turn(3)
    begun = reads.polled_at
    await clock.advance(ReadClock.INTERVAL_S)
    await turn(3)
    later = reads.polled_at
    reads.remove_user()
    await clock.advance(10.0)

    assert at_once < begun_at
    assert (begun_at, begun_at + ReadClock.INTERVAL_S) == (begun, later)
    assert later == reads.polled_at
