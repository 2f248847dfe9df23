"""TLS of one client's connection: what fails in a handshake, and what ends a connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from gateway.broker.broker import Broker, BrokerOptions
from gateway.broker.scheduler import BrokerLimits
from gateway.broker.server import ClientConnection, Server
from gateway.broker.tls_layer import HANDSHAKE_TIMEOUT_S, TlsLayer, TlsSettings
from gateway.broker.topics import TopicRegistry
from gateway.protocol.identify import Features
from tests.support.brokers.broker_core import context
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.fake_transport import FakeTransport
from tests.support.brokers.layered_peer import layered_peer
from tests.support.brokers.v2_peer import OK, identify, multi_publish, publish, v2_peer
from tests.support.certificates import Certificates, certificates
from tests.support.manual_clock import ManualClock, until

OFFER = identify(b'{"feature_negotiation":true,"tls_v1":true}')


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    """Return certificates for all tests of this module."""
    with certificates() as made:
        yield made


@pytest.fixture
async def secure(certs: Certificates) -> AsyncIterator[Broker]:
    """A broker with TLS."""
    options = BrokerOptions(tls_cert=certs.server.cert_file, tls_key=certs.server.key_file)
    async with embedded_broker(options) as broker:
        yield broker


def client_context(certs: Certificates) -> ssl.SSLContext:
    """Return the context of a client that trusts the broker."""
    return ssl.create_default_context(cafile=certs.root_ca_file)


@asynccontextmanager
async def shaking(certs: Certificates) -> AsyncIterator[tuple[ClientConnection, FakeTransport]]:
    """A connection whose handshake has not begun, and its transport."""
    certificate = TlsSettings(cert=certs.server.cert_file, key=certs.server.key_file).certificate()
    assert certificate is not None
    certificate.load()
    limits = BrokerLimits(features=Features(tls_v1=True))
    server = Server(TopicRegistry(context(limits)), max_connections=1, certificate=certificate)
    connection, transport = ClientConnection(server), FakeTransport()
    connection.connection_made(transport)
    connection.data_received(b"  V2" + OFFER)
    transport.written.clear()
    yield connection, transport
    connection.connection_lost(None)
    await server.stop()


def failure(transport: FakeTransport) -> bytes:
    """Return the error frame, in clear text, that came last."""
    assert transport.has_closed
    return transport.written[-1][8:]


async def test_a_handshake_may_take_five_seconds(certs: Certificates) -> None:
    clock = ManualClock()
    async with shaking(certs) as (_, transport):
        await clock.advance(HANDSHAKE_TIMEOUT_S - 0.1)
        before = list(transport.written)
        await clock.advance(0.1)

        assert [] == before
        reason = b"E_IDENTIFY_FAILED IDENTIFY failed TLS handshake: no end within 5 s"
        assert reason == failure(transport)


async def test_garbage_in_place_of_a_handshake_is_refused(certs: Certificates) -> None:
    async with shaking(certs) as (connection, transport):
        connection.data_received(b"PUB t\n\x00\x00\x00\x01x" * 10)

        assert failure(transport).startswith(b"E_IDENTIFY_FAILED IDENTIFY failed TLS handshake: ")


async def test_a_client_that_ends_in_the_handshake_is_told_so(certs: Certificates) -> None:
    async with shaking(certs) as (connection, transport):
        connection.eof_received()

        assert failure(transport).endswith(b"the client closed the connection")


async def test_a_client_hello_may_follow_identify_in_one_write(
    secure: Broker, certs: Certificates
) -> None:
    """The bytes behind IDENTIFY belong to TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(certs).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    async with v2_peer(secure.tcp_address) as peer:
        await peer.send(OFFER + outgoing.read())
        await peer.frame()
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                incoming.write(await peer.raw.read_exactly(1))
        tls.write(publish(b"t", b"x"))
        await peer.raw.send(outgoing.read())
        clear = b""
        while len(clear) < 20:
            try:
                clear += tls.read(100)
            except ssl.SSLWantReadError:
                incoming.write(await peer.raw.read_exactly(1))

    assert b"\x00\x00\x00\x06\x00\x00\x00\x00OK" * 2 == clear


async def test_a_client_that_ends_tls_is_disconnected(secure: Broker, certs: Certificates) -> None:
    """The broker ends its half, too."""
    reader, writer = await asyncio.open_connection(*secure.tcp_address.split(":"))
    writer.write(b"  V2" + OFFER)
    await reader.readuntil(b"}")
    await writer.start_tls(client_context(certs), server_hostname="127.0.0.1")
    await reader.readexactly(10)
    writer.close()
    # It waits for the broker's close_notify.
    await writer.wait_closed()

    assert secure._server is not None
    registry = secure._server.registry
    await until(lambda: not registry.clients)


async def test_a_broken_record_ends_its_own_connection_only(
    secure: Broker, certs: Certificates
) -> None:
    async with layered_peer(secure.tcp_address) as other, v2_peer(secure.tcp_address) as peer:
        await other.ask(OFFER)
        await other.upgrade("tls", client_context(certs))
        await other.frame()
        transport = other.layers._writer.transport
        sock = transport.get_extra_info("socket")
        await asyncio.to_thread(sock._sock.send, b"\x17\x03\x03\x00\x05wrong")

        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            await other.frames_to_end()
        assert OK == await peer.ask(publish(b"t", b"x"))


async def test_commands_in_front_of_a_broken_record_are_executed(certs: Certificates) -> None:
    async with shaking(certs) as (connection, transport):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context(certs).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while connection._tls is None or not connection._tls.is_established:
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            connection.data_received(outgoing.read())
            incoming.write(b"".join(transport.written))
            transport.written.clear()
        tls.write(publish(b"t", b"x"))
        connection.data_received(outgoing.read() + b"\x17\x03\x03\x00\x05wrong")

        assert 1 == connection._server.registry.topics["t"].depth
        assert transport.has_closed


async def test_large_bodies_go_through_tls_in_steps(secure: Broker, certs: Certificates) -> None:
    bodies = [b"x" * 1_000] * 5_000
    async with layered_peer(secure.tcp_address) as peer:
        await peer.ask(OFFER)
        await peer.upgrade("tls", client_context(certs))
        assert OK == await peer.frame()
        await peer.send(multi_publish(b"t", *bodies) + b"SUB t c\nRDY 2500\n")

        assert [OK, OK] == await peer.frames(2)
        assert {b"x" * 1_000} == {data[26:] for _, data in await peer.frames(2_500)}


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_below_the_minimum_version_is_refused(
    certs: Certificates, newest: ssl.TLSVersion
) -> None:
    options = BrokerOptions(
        tls_cert=certs.server.cert_file, tls_key=certs.server.key_file, tls_min_version="tls1.3"
    )
    context = client_context(certs)
    context.maximum_version = newest
    async with embedded_broker(options) as broker, layered_peer(broker.tcp_address) as peer:
        await peer.ask(OFFER)
        if newest is ssl.TLSVersion.TLSv1_3:
            await peer.upgrade("tls", context)
            assert OK == await peer.frame()
        else:
            with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
                await peer.upgrade("tls", context)


async def test_a_renewed_certificate_is_used_by_the_next_handshake(certs: Certificates) -> None:
    settings = TlsSettings(cert=certs.misnamed.cert_file, key=certs.misnamed.key_file)
    certificate = settings.certificate()
    assert certificate is not None
    certificate.load()
    certificate._files = certs.server.cert_file, certs.server.key_file
    certificate.load()

    client_in, client_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(certs).wrap_bio(client_in, client_out, server_hostname="127.0.0.1")
    server = TlsLayer(certificate.context)
    while not server.is_established:
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        server.receive(client_out.read())
        client_in.write(server.take_outgoing())

    assert "" == server.state().common_name
