"""
Many clients that publish unique messages over persistent HTTP connections.

Every request and response is recorded for `publish_check`. Fault injection waits for a number of
responses, not for a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.http.publish_check import LOST, FaultLog, PublishAttempt
from tests.support.http.publish_requests import Mix, Request, requests
from tests.support.http.raw_http import RawAnswer

_WAIT_S = 90.0
_CLIENTS = 32
_ENOUGH_IN_A_ROW = 3


@dataclass(eq=False)
class _Wait:
    """A wait for a number of further responses."""

    statuses: Collection[int]
    left: int
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class PublishCrowd:
    """The running clients; make them with `publish_crowd`."""

    def __init__(self, address: str, faults: FaultLog, mix: Mix) -> None:
        self.posted: list[PublishAttempt] = []
        """Every request that has ended, in the order of their ends."""
        self._address = address
        self._faults = faults
        self._waits: list[_Wait] = []
        self._streaks: dict[int, int] = {}
        self._have_recovered = asyncio.Event()
        self._goes_home = False
        self._clients = [
            asyncio.create_task(self._live(number, mix), name=f"client {number}")
            for number in range(_CLIENTS)
        ]

    async def sees(self, count: int, *statuses: int) -> None:
        """Return after *count* more answers that have one of *statuses*, or any."""
        wait = _Wait(statuses or (200, 400, 413, 503, 504), count)
        self._waits.append(wait)
        await self._in_time(wait.is_over.wait())

    async def has_seen(self, count: int) -> None:
        """Return once that number of requests has been answered since the start."""
        missing = count - sum(posted.status != LOST for posted in self.posted)
        if missing > 0:
            await self.sees(missing)

    async def recovers(self) -> None:
        """Return when each client has had a few answers of 200 in a row, to new requests."""
        self._streaks = dict.fromkeys(range(_CLIENTS), 0)
        self._have_recovered.clear()
        await self._in_time(self._have_recovered.wait())

    async def ends(self) -> None:
        """Return once every client has its last response, or no server to ask."""
        self._goes_home = True
        async with asyncio.timeout(_WAIT_S):
            await asyncio.gather(*self._clients)

    async def leaves(self) -> None:
        """Stop all clients at once, also those with unanswered requests."""
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _in_time(self, event: Awaitable[object]) -> None:
        """Wait for *event*; a client that fails ends the wait, and the test."""
        waiting = asyncio.ensure_future(event)
        done, _ = await asyncio.wait(
            {waiting, *self._clients}, timeout=_WAIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if waiting in done:
            return
        waiting.cancel()
        for client in done:
            await client
        last = "\n".join(str(posted) for posted in self.posted[-_CLIENTS:])
        message = f"that did not come; the last of {len(self.posted)} answers:\n{last}"
        raise TimeoutError(message)

    # One client

    async def _live(self, number: int, mix: Mix) -> None:
        """Send one request after another; stop when the connection is refused."""
        connection: _Connection | None = None
        try:
            for request in requests(f"c{number}", mix):
                if self._goes_home:
                    return
                connection = connection or await _Connection.open(self._address)
                streaks = self._streaks
                posted = PublishAttempt(
                    request.bodies,
                    request.expected,
                    is_whole=request.sent_bytes is None,
                    begun_in=self._faults.moment,
                )
                stays = await connection.ask(request, posted)
                self._take(posted)
                if request.expected == 200 and streaks is self._streaks:
                    self._lengthen_streak(number, is_good=posted.status == 200)
                if not stays:
                    connection.close()
                    connection = None
        except ConnectionError:  # while connecting: `ask` keeps its own to itself
            return
        finally:
            if connection is not None:
                connection.close()

    def _take(self, posted: PublishAttempt) -> None:
        posted.ended_in = self._faults.moment
        self.posted.append(posted)
        for wait in self._waits[:]:
            if posted.status in wait.statuses:
                wait.left -= 1
                if wait.left == 0:
                    self._waits.remove(wait)
                    wait.is_over.set()

    def _lengthen_streak(self, number: int, *, is_good: bool) -> None:
        if number in self._streaks:
            self._streaks[number] = self._streaks[number] + 1 if is_good else 0
            if min(self._streaks.values()) >= _ENOUGH_IN_A_ROW:
                self._have_recovered.set()


@asynccontextmanager
async def publish_crowd(address: str, faults: FaultLog, mix: Mix) -> AsyncIterator[PublishCrowd]:
    """Run clients that publish to *address* (host:port) until the block ends."""
    crowd = PublishCrowd(address, faults, mix)
    try:
        yield crowd
    finally:
        await crowd.leaves()


class _Connection:
    """One HTTP/1.1 connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> _Connection:
        """Connect to *address*, host:port."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, request: Request, posted: PublishAttempt) -> bool:
        """Send *request*, record the result in *posted*; return False once the connection ends."""
        head = (
            f"POST {request.target} HTTP/1.1\r\nHost: gateway\r\n"
            f"Content-Length: {len(request.content)}\r\n\r\n"
        ).encode()
        try:
            self._writer.write(head + request.content[: request.sent_bytes])
            await self._writer.drain()
            if request.expected == LOST:
                return False
            answer = await self._answer()
        except (ConnectionError, asyncio.IncompleteReadError):
            return False
        _check(answer)
        posted.status, posted.token = answer.status, answer.message
        return answer.headers.get("connection") != "close"

    async def _answer(self) -> RawAnswer:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await self._reader.readexactly(int(headers["content-length"]))
        return RawAnswer(status=int(first.split()[1]), headers=headers, body=body)

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


_TOKENS = {
    400: {"MSG_EMPTY", "INVALID_TOPIC"},
    413: {"MSG_TOO_BIG", "BAD_MESSAGE"},
    503: {"NO_BROKER", "OVERLOADED", "EXITING"},
    504: {"OUTCOME_UNKNOWN"},
}


def _check(answer: RawAnswer) -> None:
    """Check that Retry-After and `retryable` fit the status."""
    if answer.status == 200:
        assert b"OK" == answer.body
        return
    problem = json.loads(answer.body)
    is_retryable = answer.status == 503
    assert answer.message in _TOKENS[answer.status], answer
    assert (answer.status, is_retryable) == (problem["status"], problem["retryable"])
    assert is_retryable == answer.headers.get("retry-after", "").isdigit()
