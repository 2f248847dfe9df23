"""What the commands of one connection led to, told to who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from gateway.errors import BrokerRefused, BrokerUnreachable, alike
from gateway.protocol.frames import ErrorFrame, Response

Reply: TypeAlias = Response | ErrorFrame | BrokerUnreachable
"""What a command led to; BrokerUnreachable: the connection ended before the answer came."""


class Replies:
    """Who waits for a reply, the oldest first: a few at most, mostly nobody."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Callable[[Reply], None]] = []

    def expect(self, answered: Callable[[Reply], None]) -> None:
        """Call *answered* with the reply that nobody before waits for."""
        self._waiting.append(answered)

    def next(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Reply]:
        """Return the reply that nobody before waits for, once it comes."""
        reply: asyncio.Future[Reply] = loop.create_future()
        self.expect(putter(reply))
        return reply

    def take(self, reply: Reply) -> bool:
        """Hand *reply* to who has waited longest; False: nobody waits."""
        if not self._waiting:
            return False
        self._waiting.pop(0)(reply)
        return True

    def end(self, error: BrokerUnreachable) -> None:
        """Hand *error* to all that wait."""
        while self.take(error):
            pass


async def response_of(reply: asyncio.Future[Reply], timeout_ms: int) -> Response:
    """
    Wait for *reply*.

    Raises:
        BrokerRefused: It is an error frame.
        BrokerUnreachable: The connection ended before it came.
        TimeoutError: It did not come within *timeout_ms*.
    """
    async with asyncio.timeout(timeout_ms / 1000):
        said = await reply
    if isinstance(said, ErrorFrame):
        raise BrokerRefused(said.code, said.description)
    if isinstance(said, BrokerUnreachable):
        raise alike(said)
    return said


def putter(future: asyncio.Future[Reply]) -> Callable[[Reply], None]:
    """Return what puts a reply into *future*, unless nobody waits for that any more."""
    return partial(_put, future)


def _put(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)
