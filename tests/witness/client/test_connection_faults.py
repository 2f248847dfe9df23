"""Tests of connections to a real nsqd over a slow, narrow, silent or broken network."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import uvloop

from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.handshake import open_connection
from gateway.errors import BrokerUnreachable
from gateway.protocol.commands import Publish
from gateway.protocol.frames import OK
from gateway.protocol.identify import IdentifyRequest
from gateway.tls import TlsOptions
from tests.support.brokers.connection_listener import HEARTBEAT_S, OPTIONS, Listener
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.toxiproxy import FaultyNetwork, Stream, Toxiproxy, toxiproxy
from tests.support.brokers.wiretap import wiretap
from tests.support.certificates import Certificates, certificates
from tests.support.gateways.leaks import no_leaks
from tests.support.manual_clock import ManualClock

pytestmark = [pytest.mark.nsqd, pytest.mark.toxiproxy]

WAIT_S = 60.0
AT_ONCE = 4
"""How many connections are tried at a time where there are many to try."""
SIGNATURE_BYTES = 8
"""By how much a TLS handshake is longer or shorter than the one before, at most."""
FRAME_HEAD_BYTES = 34
"""What stands before the body in the frame of a message."""

CLOSED = "nsqd closed the connection"
RESET = "connection lost ([Errno 104] Connection reset by peer)"

Run = Callable[[Coroutine[Any, Any, None]], None]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@dataclass(frozen=True)
class Place:
    """An nsqd with TLS, its proxy, and the options for connecting to it."""

    nsqd_address: str
    proxy: Toxiproxy
    options: ConnectionOptions

    async def way(self) -> FaultyNetwork:
        """Return a new proxied route without faults."""
        return await self.proxy.in_front_of(self.nsqd_address)

    async def opened(self, way: FaultyNetwork, listener: Listener) -> BrokerConnection:
        """Connect over *way*."""
        return await open_connection(way.address, self.options, listener)

    async def subscribed(self, way: FaultyNetwork, listener: Listener) -> BrokerConnection:
        """Connect over *way* and subscribe."""
        connection = await self.opened(way, listener)
        await connection.subscribe("t", "c")
        return connection

    async def publish(self, *bodies: bytes) -> None:
        """Publish to the topic t, without the proxy."""
        connection = await open_connection(self.nsqd_address, OPTIONS, Listener())
        for body in bodies:
            assert OK == await connection.request(Publish("t", body), timeout_ms=15_000)
        await connection.close()


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


@pytest.fixture(params=["TCP", "TLS"])
def options(request: pytest.FixtureRequest, certs: Certificates) -> ConnectionOptions:
    """Return options with a heartbeat of 30 s."""
    tls = TlsOptions(root_ca_file=certs.root_ca_file)
    return replace(OPTIONS, tls=tls if request.param == "TLS" else None)


@asynccontextmanager
async def a_place(certs: Certificates, options: ConnectionOptions) -> AsyncIterator[Place]:
    """Run an nsqd and a proxy for the duration of the block."""
    async with real_nsqd(*certs.server.nsqd_flags) as nsqd, toxiproxy() as proxy:
        yield Place(nsqd.tcp_address, proxy, options)


async def refusal(place: Place, way: FaultyNetwork) -> str:
    """Return the reason why no connection opens."""
    listener = Listener()
    with pytest.raises(BrokerUnreachable) as caught:
        await place.opened(way, listener)
    assert (way.address, 0) == (caught.value.address, listener.heard)
    return caught.value.reason


async def ended(listener: Listener) -> str:
    """Wait until the connection has ended, and return the reason."""
    async with asyncio.timeout(WAIT_S):
        return (await listener.ends.get()).reason


# Slow and narrow


@LOOPS
def test_a_slow_network_is_waited_for(
    run: Run, certs: Certificates, options: ConnectionOptions
) -> None:
    """With a delay of 50 ms for every answer, everything works."""

    async def scenario() -> None:
        async with a_place(certs, options) as place:
            way = await place.way()
            await way.delay(50)
            started = time.monotonic()

            connection = await place.opened(way, Listener())

            assert 0.05 <= time.monotonic() - started
            assert OK == await connection.request(Publish("t", b"x"), timeout_ms=5_000)
            await connection.close()

    run(scenario())


@LOOPS
def test_a_network_that_is_too_slow_is_given_up(
    run: Run, certs: Certificates, options: ConnectionOptions
) -> None:
    """TCP connects at once, but the answer to IDENTIFY is too late."""
    hasty = replace(options, connect_timeout_ms=100)

    async def scenario() -> None:
        async with a_place(certs, hasty) as place:
            way = await place.way()
            await way.delay(1_000)
            async with no_leaks():
                assert "no answer to IDENTIFY within 100 ms" == await refusal(place, way)

    run(scenario())


@LOOPS
def test_a_body_that_comes_slowly_comes_whole(
    run: Run, certs: Certificates, options: ConnectionOptions
) -> None:
    """400 kB at 1,000 kB/s, in pieces of any size, arrive as one message."""
    body = b"0123456789abcdef" * 25_000

    async def scenario() -> None:
        async with a_place(certs, options) as place:
            listener = Listener()
            way = await place.way()
            await way.narrow(1_000)
            connection = await place.subscribed(way, listener)
            await place.publish(body)
            async with asyncio.timeout(WAIT_S):
                connection.ready(1)
                (message,) = await listener.messages.get()
            await connection.close()

        assert True is (body == message.body)

    run(scenario())


@LOOPS
def test_a_body_that_goes_slowly_goes_whole(
    run: Run, certs: Certificates, options: ConnectionOptions
) -> None:
    """A message published over a narrow route is delivered unchanged over a fast one."""
    body = b"0123456789abcdef" * 25_000

    async def scenario() -> None:
        async with a_place(certs, options) as place:
            listener = Listener()
            way = await place.way()
            await way.narrow(1_000, stream="upstream")
            publisher = await place.opened(way, Listener())
            answer = await publisher.request(Publish("t", body), timeout_ms=15_000)
            await publisher.close()
            connection = await place.subscribed(await place.way(), listener)
            connection.ready(1)
            async with asyncio.timeout(WAIT_S):
                (message,) = await listener.messages.get()
            await connection.close()

        assert OK == answer
        assert True is (body == message.body)

    run(scenario())


# Silent


@pytest.mark.parametrize("is_subscribed", [False, True], ids=["publishing", "subscribed"])
async def test_a_half_open_connection_is_found_out_by_its_silence(
    certs: Certificates, options: ConnectionOptions, *, is_subscribed: bool
) -> None:
    """Without any packet or FIN, the client ends the connection after two heartbeats."""
    async with a_place(certs, options) as place:
        listener = Listener()
        way = await place.way()
        async with no_leaks():
            clock = ManualClock()
            connect = place.subscribed if is_subscribed else place.opened
            connection = await connect(way, listener)
            await way.fall_silent()

            await clock.advance(2 * HEARTBEAT_S - 0.1)
            was_open = connection.is_open
            await clock.advance(0.1)
            reason = listener.ends.get_nowait().reason

    assert (True, False) == (was_open, connection.is_open)
    assert "silent for two heartbeats (60 s)" == reason


async def test_a_network_that_is_silent_from_the_start_is_given_up(
    certs: Certificates, options: ConnectionOptions
) -> None:
    """The proxy accepts the connection, and IDENTIFY is never answered."""
    async with a_place(certs, replace(options, connect_timeout_ms=100)) as place:
        way = await place.way()
        await way.fall_silent()
        async with no_leaks():
            reason = await refusal(place, way)

    assert "no answer to IDENTIFY within 100 ms" == reason


# Cut


async def handshake_bytes(place: Place) -> dict[Stream, int]:
    """Return the number of bytes sent in each direction by a handshake."""
    async with wiretap(place.nsqd_address) as tap:
        connection = await open_connection(tap.address, place.options, Listener())
        sizes: dict[Stream, int] = {"upstream": len(tap.said), "downstream": len(tap.heard)}
        await connection.close()
    return sizes


async def reasons_of_cuts(place: Place, stream: Stream, cuts: Sequence[int]) -> set[str]:
    """Attempt to connect with each of *cuts*, a few at a time; return the reasons of failure."""
    ways = [await place.way() for _ in range(AT_ONCE)]
    reasons: set[str] = set()

    async def try_each(way: FaultyNetwork, mine: Sequence[int]) -> None:
        for size_bytes in mine:
            await way.cut_after(size_bytes, stream=stream)
            reasons.add(await refusal(place, way))

    await asyncio.gather(*(way.cut_after(0, stream=stream) for way in ways))
    async with no_leaks(), asyncio.TaskGroup() as group:
        for number, way in enumerate(ways):
            group.create_task(try_each(way, cuts[number::AT_ONCE]))
    return reasons


@LOOPS
@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_a_handshake_that_is_cut_anywhere_is_an_error(
    run: Run, certs: Certificates, options: ConnectionOptions, stream: Stream
) -> None:
    """
    One typed error, its reason in words, and nothing left.

    On uvloop, where the gateway runs, it is cut behind each byte that the client would hear;
    elsewhere behind each seventh.
    """
    step = 1 if run is uvloop.run and stream == "downstream" else 7

    async def scenario() -> None:
        async with a_place(certs, options) as place:
            size_bytes = (await handshake_bytes(place))[stream]
            if options.tls is not None:
                size_bytes -= SIGNATURE_BYTES
            reasons = await reasons_of_cuts(place, stream, range(0, size_bytes, step))

        assert CLOSED in reasons
        assert [] == [reason for reason in reasons if re.search(r"\w(Error|Exception)\b", reason)]

    run(scenario())


@LOOPS
@pytest.mark.parametrize("by_reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("size_bytes", [0, 1, 4, 8, FRAME_HEAD_BYTES, FRAME_HEAD_BYTES + 1])
def test_a_message_that_is_cut_is_not_told(
    run: Run, certs: Certificates, *, by_reset: bool, size_bytes: int
) -> None:
    """Complete messages before it are delivered; then the listener gets the reason."""

    async def scenario() -> None:
        async with a_place(certs, OPTIONS) as place:
            way = await place.way()
            if by_reset:
                await way.end_by_reset()
            await place.publish(b"one", b"two")
            whole_bytes = FRAME_HEAD_BYTES + len(b"one")
            listener = Listener()
            async with no_leaks():
                connection = await place.subscribed(way, listener)
                await way.cut_after(whole_bytes + size_bytes)
                connection.ready(2)
                reason = await ended(listener)

        told = [listener.messages.get_nowait() for _ in range(listener.messages.qsize())]
        assert [b"one"] == [message.body for messages in told for message in messages]
        assert (RESET if by_reset else CLOSED) == reason
        assert not connection.is_open

    run(scenario())


@LOOPS
@pytest.mark.parametrize("by_reset", [False, True], ids=["FIN", "RST"])
def test_a_request_whose_answer_is_cut_fails(
    run: Run, certs: Certificates, options: ConnectionOptions, *, by_reset: bool
) -> None:
    """After half of an OK, the caller and the listener get the same error."""

    async def scenario() -> None:
        async with a_place(certs, options) as place:
            way = await place.way()
            if by_reset:
                await way.end_by_reset()
            listener = Listener()
            async with no_leaks():
                connection = await place.opened(way, listener)
                await way.cut_after(5)
                with pytest.raises(BrokerUnreachable) as caught:
                    await connection.request(Publish("t", b"x"), timeout_ms=15_000)
                reason = await ended(listener)

        assert (way.address, reason) == (caught.value.address, caught.value.reason)
        assert (RESET if by_reset else CLOSED) == reason

    run(scenario())


@LOOPS
def test_a_network_that_goes_down_ends_what_was_open(
    run: Run, certs: Certificates, options: ConnectionOptions
) -> None:
    """While it is down nothing listens; afterwards a new connection opens on the same port."""

    async def scenario() -> None:
        async with a_place(certs, options) as place:
            way, listener = await place.way(), Listener()
            async with no_leaks():
                await place.subscribed(way, listener)
                await way.go_down()
                reason = await ended(listener)
                refused = await refusal(place, way)
                await way.come_back()
                again = await place.subscribed(way, listener)
                await again.close()

        assert [CLOSED, "Connection refused"] == [reason, refused]

    run(scenario())


# What is asked for while a heartbeat is due


async def test_heartbeats_go_on_over_a_slow_network(certs: Certificates) -> None:
    """Heartbeats and NOPs are delayed, and still in time to keep the connection."""
    offer = IdentifyRequest(feature_negotiation=True, heartbeat_interval=1_000)
    async with a_place(certs, ConnectionOptions(offer=offer)) as place:
        listener = Listener()
        way = await place.way()
        await way.delay(100)
        await way.delay(100, stream="upstream")
        connection = await place.opened(way, listener)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await listener.ends.get()
        answer = await connection.request(Publish("t", b"x"), timeout_ms=5_000)
        await connection.close()

    assert OK == answer
