"""A large /mpub is parsed in steps: no pass of the event loop does much of it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from gateway.client.producer import Producer, ProducerOptions
from gateway.errors import GatewayError, InvalidRequest, Overloaded, RateLimited
from gateway.protocol.commands import PackedBodies
from gateway.protocol.http_api import STEP_LINES
from gateway.protocol.wire import Limits
from gateway.web.auth import ANONYMOUS
from gateway.web.http.publish import BYTES_PER_MESSAGE, MPUB, PublishHandler, RequestHead
from gateway.web.proxies import UNKNOWN_CALLER
from gateway.web.rate_limit import PublishBuckets
from tests.support.http.recording_publisher import RecordingPublisher

HEAD = RequestHead(MPUB, b"topic=t", caller=UNKNOWN_CALLER)
BINARY = RequestHead(MPUB, b"topic=t&binary=1", caller=UNKNOWN_CALLER)
LINES = b"a\n" * 100_000
"""Some 50 steps."""
EMPTY_LINES = b"\n" * 1_000_000
MESSAGES = struct.pack(">i", 100_000) + b"\0\0\0\1a" * 100_000
TOO_LONG = b"a\n" * 100_000 + b"x" * (Limits().max_msg_size_bytes + 1)
TOO_MANY = b"a\n" * 1_100_000
"""Over 5 MiB in an MPUB."""


class Passes:
    """Submits to a handler, and counts the passes of the event loop until each outcome."""

    def __init__(self, publisher: RecordingPublisher, quota: PublishBuckets | None = None) -> None:
        self.publisher = publisher
        self.handler = PublishHandler(publisher, Limits(), rate_limit=quota)
        self.count = 0
        self._counter = asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.count += 1
        self._counter = asyncio.get_running_loop().call_soon(self._count)

    def submit(self, body: bytes, head: RequestHead = HEAD) -> asyncio.Future[tuple[object, int]]:
        """Submit *body*; the outcome and the pass in which it came are the result."""
        told: asyncio.Future[tuple[object, int]] = asyncio.get_running_loop().create_future()

        def done(error: GatewayError | None) -> None:
            told.set_result((error, self.count))

        self.handler.submit(head, body, ANONYMOUS, done)
        return told

    def stop(self) -> None:
        """Count no more."""
        self._counter.cancel()


@pytest.fixture
async def passes() -> AsyncIterator[Passes]:
    """A handler whose publisher answers at once."""
    passes = Passes(RecordingPublisher())
    yield passes
    passes.stop()


@pytest.mark.parametrize("head,body", [(HEAD, LINES), (BINARY, MESSAGES)], ids=["lines", "binary"])
async def test_many_messages_take_many_passes(
    passes: Passes, head: RequestHead, body: bytes
) -> None:
    """Each pass parses a bounded number of them, and the publish has them all."""
    error, count = await passes.submit(body, head)

    assert error is None
    assert count >= 100_000 // STEP_LINES - 1
    assert [("t", [b"a"] * 100_000, 0)] == passes.publisher.published


async def test_empty_lines_take_passes_too(passes: Passes) -> None:
    """What is dropped has to be looked at as well."""
    error, count = await passes.submit(EMPTY_LINES)

    assert error is None
    assert count >= len(EMPTY_LINES) // (2 * STEP_LINES) - 1


async def test_a_small_body_is_published_at_once(passes: Passes) -> None:
    assert (None, passes.count) == passes.submit(b"ab\ncd\n" * 1_000).result()


async def test_large_lines_take_few_passes(passes: Passes) -> None:
    """Four megabytes in lines of a kilobyte are little work."""
    _, count = await passes.submit((b"x" * 1_023 + b"\n") * 4_096)

    assert count < 80


async def test_bodies_that_are_parsed_together_share_the_passes(passes: Passes) -> None:
    """One step in each pass, however many connections have sent one: the others wait no longer."""
    first, second = passes.submit(LINES), passes.submit(LINES)

    counts = [count for _, count in await asyncio.gather(first, second)]
    assert min(counts) >= 2 * (100_000 // STEP_LINES) - 4


@pytest.mark.parametrize(
    "body,token", [(TOO_LONG, "MSG_TOO_BIG"), (TOO_MANY, "BODY_TOO_BIG")], ids=["long", "many"]
)
async def test_what_is_wrong_further_on_is_the_outcome(
    passes: Passes, body: bytes, token: str
) -> None:
    """Nothing of it is published, and nothing stays held."""
    error, _ = await passes.submit(body)

    assert isinstance(error, InvalidRequest)
    assert (token, [], 0) == (error.token, passes.publisher.published, passes.publisher.held_bytes)


async def test_a_body_is_held_while_it_is_parsed(passes: Passes) -> None:
    """With what it becomes: memory is bounded meanwhile, too."""
    told = passes.submit(LINES)
    held_bytes = passes.publisher.held_bytes
    await told

    assert held_bytes >= len(LINES) + 5 * 100_000
    assert 0 == passes.publisher.held_bytes


async def test_more_than_may_be_held_is_overloaded() -> None:
    publisher = Producer([], ProducerOptions(buffer_bytes=1_000_000))

    with pytest.raises(Overloaded):
        PublishHandler(publisher, Limits()).submit(HEAD, LINES, ANONYMOUS, lambda _: None)
    assert 0 == publisher.waiting_bytes


async def test_an_mpub_counts_against_the_rate_by_its_bytes() -> None:
    """A body of empty lines holds no message and is work all the same."""
    passes = Passes(RecordingPublisher(), PublishBuckets(10, burst=1))
    await passes.submit(b"\n" * (20 * BYTES_PER_MESSAGE))
    passes.stop()

    with pytest.raises(RateLimited) as caught:
        passes.handler.admit(HEAD)
    assert pytest.approx(2.0, abs=0.5) == caught.value.retry_after_s


async def test_a_body_over_the_rate_is_refused_before_it_is_parsed() -> None:
    passes = Passes(RecordingPublisher(), PublishBuckets(10, burst=1))
    await passes.submit(b"\n" * (20 * BYTES_PER_MESSAGE))
    passes.stop()

    with pytest.raises(RateLimited):
        passes.submit(LINES)
    assert 0 == passes.publisher.held_bytes


async def test_messages_are_charged_once_however_a_body_is_parsed() -> None:
    """Its bytes before, the rest of its messages when they are known."""
    passes = Passes(RecordingPublisher(), PublishBuckets(10_000, burst=1))
    error, _ = await passes.submit(LINES)
    passes.stop()

    assert error is None
    with pytest.raises(RateLimited) as caught:
        passes.handler.admit(HEAD)
    assert pytest.approx(10.0, abs=1) == caught.value.retry_after_s


async def test_a_million_messages_are_published_without_an_object_each() -> None:
    """As an MPUB has them on the wire: a list of them could be walked only all at once."""
    given: list[object] = []

    class Publishing(RecordingPublisher):
        def begin(self, topic: str, bodies: object, done: object, **_: object) -> None:
            del topic
            given.append(bodies)
            assert callable(done)
            done(None)

    passes = Passes(Publishing())
    error, _ = await passes.submit(b"a\n" * 1_000_000)
    passes.stop()

    assert error is None
    (bodies,) = given
    assert isinstance(bodies, PackedBodies)
    assert (1_000_000, 5_000_000) == (len(bodies), bodies.size_bytes)
    assert len(bodies.chunks) < 1_000
