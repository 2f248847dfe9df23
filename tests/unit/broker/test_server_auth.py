"""AUTH over TCP: what waits for the auth server, and what does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.broker.broker import Broker, BrokerOptions
from gateway.protocol.wire import Limits
from tests.support.brokers.auth_server import AuthServer, Grant, auth_server
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.v2_peer import (
    HEARTBEAT,
    OK,
    identify,
    length_prefixed,
    multi_publish,
    publish,
    v2_peer,
)

AUTH = b"AUTH\n" + length_prefixed(b"s")
NSQD_LIMITS = Limits()
AUTH_FAILED = (1, b"E_AUTH_FAILED AUTH failed")


@asynccontextmanager
async def guarded() -> AsyncIterator[tuple[Broker, AuthServer]]:
    """A broker with an auth server that grants everything to the secret s for a second."""
    async with auth_server() as auth:
        auth.grant("s", Grant(), ttl_s=1, identity="me")
        async with embedded_broker(BrokerOptions(auth_http_address=(auth.address,))) as broker:
            yield broker, auth


class SilentServer:
    """An auth server that answers only when told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.serving: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.serving.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        self.asked.set()
        await self.may_answer.wait()
        body = json.dumps(
            {
                "ttl": 60,
                "authorizations": [
                    {"topic": "", "channels": [""], "permissions": ["publish", "subscribe"]}
                ],
            }
        ).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def waiting(limits: Limits = NSQD_LIMITS) -> AsyncIterator[tuple[Broker, SilentServer]]:
    """A broker with an auth server that does not answer yet."""
    silent = SilentServer()
    listener = await asyncio.start_server(silent.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    options = BrokerOptions(auth_http_address=(f"127.0.0.1:{port}",), limits=limits)
    try:
        async with embedded_broker(options) as broker:
            yield broker, silent
    finally:
        silent.may_answer.set()
        listener.close()
        await asyncio.gather(*filter(None, silent.serving))


async def test_commands_behind_auth_wait_for_it_in_order() -> None:
    async with waiting() as (broker, silent), v2_peer(broker.tcp_address) as peer:
        await peer.send(AUTH + publish(b"t", b"1") + b"SUB t c\nRDY 1\n")
        await silent.asked.wait()
        await peer.send(multi_publish(b"t", b"2", b"3"))
        silent.may_answer.set()
        frames = await peer.frames(5)

        granted = b'{"identity":"","identity_url":"","permission_count":1}'
        assert [(0, granted), OK, OK] == frames[:3]
        assert {b"1"} == {data[26:] for kind, data in frames if kind == 2}


async def test_a_large_mpub_behind_auth_is_stored_in_steps() -> None:
    bodies = [b"x"] * 5_000
    async with waiting() as (broker, silent), v2_peer(broker.tcp_address) as peer:
        await peer.send(AUTH + multi_publish(b"t", *bodies) + publish(b"t", b"y"))
        await silent.asked.wait()
        silent.may_answer.set()

        assert [OK, OK] == (await peer.frames(3))[1:]


async def test_other_connections_do_not_wait_for_the_auth_server() -> None:
    async with (
        waiting() as (broker, silent),
        v2_peer(broker.tcp_address) as first,
        v2_peer(broker.tcp_address) as second,
    ):
        await first.send(AUTH)
        await silent.asked.wait()

        assert OK == await second.ask(identify(b"{}"))
        assert not silent.may_answer.is_set()


async def test_heartbeats_go_on_while_auth_waits_and_silence_does_not_count() -> None:
    """The socket is not read meanwhile, so the client's NOP would go unnoticed."""
    limits = Limits(heartbeat_interval_ms=100)
    async with waiting(limits) as (broker, silent), v2_peer(broker.tcp_address) as peer:
        await peer.send(AUTH)
        assert [HEARTBEAT] * 4 == await peer.frames(4)
        silent.may_answer.set()

        assert [HEARTBEAT[1]] != [(await peer.frame())[1]]


async def test_a_client_may_leave_while_auth_waits() -> None:
    async with waiting() as (broker, silent):
        async with v2_peer(broker.tcp_address) as peer:
            await peer.send(AUTH)
            await silent.asked.wait()
        silent.may_answer.set()

        async with v2_peer(broker.tcp_address) as peer:
            assert b"identity" in (await peer.ask(AUTH))[1]


async def test_a_stop_does_not_wait_for_the_auth_server() -> None:
    async with waiting() as (broker, silent), v2_peer(broker.tcp_address) as peer:
        await peer.send(AUTH)
        await silent.asked.wait()
        async with asyncio.timeout(10):
            await broker.stop()

        assert [] == await peer.frames_to_end()


async def test_after_the_ttl_the_next_command_asks_again() -> None:
    async with guarded() as (broker, auth), v2_peer(broker.tcp_address) as peer:
        await peer.ask(AUTH)
        await auth.asked()
        while not auth.counts["s"] > 1:
            assert OK == await peer.ask(publish(b"t", b"x"))

        auth.revoke("s")
        frame = OK
        while frame == OK:
            frame = await peer.ask(publish(b"t", b"x"))
        assert AUTH_FAILED == frame
        assert [] == await peer.frames_to_end()


async def test_a_consumer_goes_on_after_its_secret_was_revoked() -> None:
    """As in nsqd, nothing but publishes and SUB is checked."""
    async with guarded() as (broker, auth), v2_peer(broker.tcp_address) as consumer:
        await consumer.send(AUTH + b"SUB t c\nRDY 5\n")
        await consumer.frames(2)
        auth.revoke("s")
        auth.grant("other", Grant())
        async with v2_peer(broker.tcp_address) as producer:
            await producer.ask(b"AUTH\n" + length_prefixed(b"other"))
            await producer.ask(publish(b"t", b"x"))

        assert b"x" == (await consumer.frame())[1][26:]


async def test_a_grant_that_is_gone_after_the_ttl_is_a_refusal() -> None:
    async with guarded() as (broker, auth), v2_peer(broker.tcp_address) as peer:
        await peer.ask(AUTH)
        auth.grant("s")
        frame = OK
        while frame == OK:
            frame = await peer.ask(multi_publish(b"t", b"x"))

        assert (1, b'E_UNAUTHORIZED AUTH failed for MPUB on "t" ""') == frame
