"""Tests of connections to a real nsqd with TLS, compression and AUTH."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import uvloop

from gateway.client.connection import BrokerConnection, ConnectionOptions
from gateway.client.handshake import open_connection
from gateway.credentials import Secret
from gateway.errors import AuthRequired, BrokerRefused, BrokerUnreachable, SettingsError
from gateway.protocol.commands import Identify, Publish
from gateway.protocol.frames import OK, Response
from gateway.protocol.identify import AuthResponse, IdentifyRequest, IdentifyResponse
from gateway.protocol.wire import MAGIC
from gateway.tls import TlsOptions
from tests.support.brokers.auth_server import AuthRequest, Grant, auth_server
from tests.support.brokers.connection_listener import Listener
from tests.support.brokers.nsqd import RealNsqd, is_older_nsqd, real_nsqd
from tests.support.brokers.wiretap import wiretap
from tests.support.certificates import Certificates, Identity, certificates
from tests.support.gateways.leaks import no_leaks

pytestmark = pytest.mark.nsqd

BODY = b"marker" * 30_000
SECRET = Secret(b"s3cret")

NAMED = IdentifyRequest(client_id="c", hostname="h", user_agent="u", feature_negotiation=True)
OFFERS = {
    "plain": NAMED,
    "snappy": IdentifyRequest(feature_negotiation=True, snappy=True),
    **{
        f"deflate-{level}": IdentifyRequest(
            feature_negotiation=True, deflate=True, deflate_level=level
        )
        for level in (1, 6, 9)
    },
}
WISHING = ConnectionOptions(offer=NAMED, preferred_output_buffer_bytes=65_536)
Run = Callable[[Coroutine[Any, Any, None]], None]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


def trusting(certs: Certificates, client: Identity | None = None) -> TlsOptions:
    return TlsOptions(
        root_ca_file=certs.root_ca_file,
        cert_file=client.cert_file if client else None,
        key_file=client.key_file if client else None,
    )


@asynccontextmanager
async def opened(
    address: str, options: ConnectionOptions, listener: Listener | None = None
) -> AsyncIterator[BrokerConnection]:
    """Connect, and close at the end of the block."""
    connection = await open_connection(address, options, listener or Listener())
    try:
        yield connection
    finally:
        await connection.close()


async def round_trip(address: str, options: ConnectionOptions) -> IdentifyResponse:
    """Publish and consume a body on one connection; return nsqd's answer to IDENTIFY."""
    listener = Listener()
    async with opened(address, options, listener) as connection:
        assert OK == await connection.request(Publish("t", BODY), timeout_ms=5_000)
        await connection.subscribe("t", "c")
        connection.ready(1)
        async with asyncio.timeout(10):
            (message,) = await listener.messages.get()
        connection.finish([message.id])
    # A bool, for the difference of two such bodies is nothing to print.
    assert True is (BODY == message.body)
    assert 0 == listener.refusals.qsize()
    return connection.answer


async def refusal(address: str, options: ConnectionOptions) -> str:
    """Return the reason why no connection opens; check that nothing is left open."""
    async with no_leaks():
        with pytest.raises(BrokerUnreachable) as caught:
            await open_connection(address, options, Listener())
    assert address == caught.value.address
    return caught.value.reason


# What lies below V2


@LOOPS
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
@pytest.mark.parametrize("is_secure", [False, True], ids=["TCP", "TLS"])
def test_messages_go_through_every_layer(
    run: Run, certs: Certificates, offer: IdentifyRequest, *, is_secure: bool
) -> None:
    """The requested layers are active, a body is unchanged, and TLS encrypts it."""
    options = ConnectionOptions(offer=offer, tls=trusting(certs) if is_secure else None)

    async def scenario() -> None:
        async with (
            real_nsqd(*certs.server.nsqd_flags, "--max-deflate-level=9") as nsqd,
            wiretap(nsqd.tcp_address) as tap,
        ):
            answer = await round_trip(tap.address, options)

        expected = (is_secure, offer.snappy, offer.deflate)
        assert expected == (answer.tls_v1, answer.snappy, answer.deflate)
        assert (offer.deflate_level or 6) == answer.deflate_level
        is_clear = offer == OFFERS["plain"] and not is_secure
        assert [is_clear] * 2 == [BODY in data for data in (tap.said, tap.heard)]
        assert (b"SUB t c\n" in tap.said) is not (is_secure or offer.deflate)

    run(scenario())


async def test_compression_makes_a_body_shorter_on_the_wire() -> None:
    """Compressed bodies take at most a tenth in both directions."""
    async with real_nsqd() as nsqd, wiretap(nsqd.tcp_address) as tap:
        for name in ("snappy", "deflate-6"):
            await round_trip(tap.address, ConnectionOptions(offer=OFFERS[name]))

    assert 0.1 * len(BODY) > max(len(tap.said), len(tap.heard)) / 2


async def test_nsqd_lowers_the_level_to_its_own() -> None:
    """nsqd lowers level 9 to 6 by default, and the connection works with it."""
    async with real_nsqd() as nsqd:
        answer = await round_trip(nsqd.tcp_address, ConnectionOptions(offer=OFFERS["deflate-9"]))

    assert (True, 6) == (answer.deflate, answer.deflate_level)


async def test_an_nsqd_without_compression_is_talked_to_without() -> None:
    async with real_nsqd("--snappy=false", "--deflate=false") as nsqd:
        answers = [
            await round_trip(nsqd.tcp_address, ConnectionOptions(offer=OFFERS[name]))
            for name in ("snappy", "deflate-6")
        ]

    assert [(False, False)] * 2 == [(each.snappy, each.deflate) for each in answers]


def test_both_kinds_of_compression_are_refused_before_connecting() -> None:
    """Such options cannot be created."""
    both = IdentifyRequest(feature_negotiation=True, snappy=True, deflate=True)

    with pytest.raises(SettingsError, match="one of snappy and deflate"):
        ConnectionOptions(offer=both)


# Whom we trust


async def test_a_name_is_as_good_as_an_address(certs: Certificates) -> None:
    """The certificate is checked against the host name of the address."""
    async with real_nsqd(*certs.server.nsqd_flags) as nsqd:
        address = nsqd.tcp_address.replace("127.0.0.1", "localhost")
        answer = await round_trip(address, ConnectionOptions(tls=trusting(certs)))

    assert answer.tls_v1


@LOOPS
@pytest.mark.parametrize(
    "who, reason",
    [
        ("stranger's CA", "TLS: the certificate is not trusted: unable to get local issuer"),
        ("system's CAs", "TLS: the certificate is not trusted: unable to get local issuer"),
        ("misnamed", "TLS: the certificate is not trusted: IP address mismatch, certificate is"),
        ("expired", "TLS: the certificate is not trusted: certificate has expired"),
    ],
)
def test_a_server_that_is_not_who_it_should_be_is_refused(
    run: Run, certs: Certificates, who: str, reason: str
) -> None:
    """Only IDENTIFY was written, and the reason names the mismatch."""
    tls = {
        "stranger's CA": TlsOptions(root_ca_file=certs.stranger_ca_file),
        "system's CAs": TlsOptions(),
    }.get(who, trusting(certs))
    shown = {"misnamed": certs.misnamed, "expired": certs.expired}.get(who, certs.server)

    async def scenario() -> None:
        async with real_nsqd(*shown.nsqd_flags) as nsqd:
            said = await refusal(nsqd.tcp_address, ConnectionOptions(tls=tls, secret=SECRET))
        assert reason == said[: len(reason)]

    run(scenario())


@pytest.mark.parametrize("who", ["misnamed", "expired"])
async def test_any_certificate_will_do_when_told_so(certs: Certificates, who: str) -> None:
    """--nsqd-tls-insecure-skip-verify encrypts without checking the certificate."""
    shown: Identity = getattr(certs, who)
    tls = TlsOptions(insecure_skip_verify=True)
    async with real_nsqd(*shown.nsqd_flags) as nsqd:
        answer = await round_trip(nsqd.tcp_address, ConnectionOptions(tls=tls))

    assert answer.tls_v1


@pytest.mark.skipif(is_older_nsqd, reason="nsqd 1.2.1 supports TLS 1.2 at most")
@pytest.mark.parametrize("version", ["tls1.2", "tls1.3"])
async def test_the_minimum_version_is_no_maximum(certs: Certificates, version: str) -> None:
    """The newest version that both sides support is used."""
    tls = replace(trusting(certs), min_version=version)
    async with (
        real_nsqd(*certs.server.nsqd_flags) as nsqd,
        opened(nsqd.tcp_address, ConnectionOptions(tls=tls)) as connection,
    ):
        assert connection._transport is not None
        layer = connection._transport.get_extra_info("ssl_object")

        assert "TLSv1.3" == layer.version()


@pytest.mark.parametrize("newest, is_taken", [("tls1.2", True), ("tls1.3", False)])
async def test_a_server_below_the_minimum_version_is_refused(
    certs: Certificates, newest: str, *, is_taken: bool
) -> None:
    """nsqd has no maximum version, so a broker with TLS 1.2 at most takes its place."""
    tls = replace(trusting(certs), min_version=newest)
    options = ConnectionOptions(tls=tls)
    async with old_broker(certs.server) as address:
        if is_taken:
            async with opened(address, options) as connection:
                assert connection.is_open
        else:
            reason = await refusal(address, options)
            assert "TLS: [SSL: TLSV1_ALERT_PROTOCOL_VERSION]" == reason[:40]


@asynccontextmanager
async def old_broker(identity: Identity) -> AsyncIterator[str]:
    """Yield the address of a broker with TLS 1.2 at most, for one client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(identity.cert_file, identity.key_file)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # In a thread: asyncio would drop the alert that says what is wrong.
        serving = asyncio.create_task(asyncio.to_thread(_be_old, listening, context))
        yield ":".join(map(str, listening.getsockname()))
        await serving


def _be_old(listening: socket.socket, context: ssl.SSLContext) -> None:
    caller, _ = listening.accept()
    with caller:
        with caller.makefile("rb") as said:
            said.readline()
            said.read(int.from_bytes(said.read(4), "big"))
        caller.sendall(Response(IdentifyResponse(tls_v1=True).to_json()).encode())
        with contextlib.suppress(OSError), context.wrap_socket(caller, server_side=True) as secure:
            secure.sendall(OK.encode())
            secure.recv(1)


# Who we are


@LOOPS
def test_a_client_certificate_opens_what_asks_for_one(run: Run, certs: Certificates) -> None:
    """With mutual TLS, nsqd accepts certificates of its own CA."""
    options = ConnectionOptions(tls=trusting(certs, certs.client))

    async def scenario() -> None:
        async with real_nsqd(*certs.mutual_flags()) as nsqd:
            assert (await round_trip(nsqd.tcp_address, options)).tls_v1

    run(scenario())


@LOOPS
@pytest.mark.parametrize(
    "who, policy", [("nobody", "require"), ("nobody", "require-verify"), ("x", "require-verify")]
)
def test_without_the_right_certificate_it_stays_shut(
    run: Run, certs: Certificates, who: str, policy: str
) -> None:
    """No certificate, or one of another CA; in TLS 1.3 nsqd refuses after our handshake."""
    options = ConnectionOptions(tls=trusting(certs, None if who == "nobody" else certs.stranger))

    async def scenario() -> None:
        async with real_nsqd(*certs.mutual_flags(policy)) as nsqd:
            reason = await refusal(nsqd.tcp_address, options)
        assert any(
            word in reason
            for word in ("certificate", "CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
        ), reason

    run(scenario())


# No TLS where TLS was asked for


@LOOPS
def test_nothing_is_said_in_clear_to_a_server_without_tls(run: Run, certs: Certificates) -> None:
    """IDENTIFY, which requests TLS, was written, and nothing after its answer."""
    options = ConnectionOptions(offer=NAMED, tls=trusting(certs), secret=SECRET)

    async def scenario() -> None:
        async with real_nsqd() as nsqd, wiretap(nsqd.tcp_address) as tap:
            reason = await refusal(tap.address, options)

        offer = msgspec.structs.replace(options.offer, tls_v1=True)
        assert "does not offer TLS, which is required; nothing more was sent" == reason
        assert MAGIC + Identify(offer.to_json()).encode() == bytes(tap.said)

    run(scenario())


@asynccontextmanager
async def pretender(behind: bytes) -> AsyncIterator[str]:
    """Yield the address of a broker that agrees to TLS, writes *behind*, and stops."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"IDENTIFY\n")
        writer.write(Response(IdentifyResponse(tls_v1=True).to_json()).encode() + behind)
        with contextlib.suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield ":".join(map(str, server.sockets[0].getsockname()))


@LOOPS
@pytest.mark.parametrize(
    "behind, reason",
    [
        (b"", "TLS: SSL handshake is taking longer than 0.1 seconds"),
        (OK.encode(), "sent clear text after it agreed to TLS"),
        (b"\0", "sent clear text after it agreed to TLS"),
    ],
    ids=["silence", "an OK in clear", "half a frame in clear"],
)
def test_an_agreement_to_tls_is_not_tls(
    run: Run, certs: Certificates, behind: bytes, reason: str
) -> None:
    """Clear text after the agreement is an error, because TLS does not protect it."""
    options = ConnectionOptions(tls=trusting(certs), secret=SECRET, connect_timeout_ms=100)

    async def scenario() -> None:
        async with pretender(behind) as address:
            assert reason == (await refusal(address, options))[: len(reason)]

    run(scenario())


async def test_tls_that_is_required_and_not_asked_for_is_a_refusal(certs: Certificates) -> None:
    """nsqd accepts IDENTIFY and then refuses commands in clear text, with the reason."""
    async with (
        real_nsqd(*certs.server.nsqd_flags, "--tls-required=true") as nsqd,
        opened(nsqd.tcp_address, ConnectionOptions()) as connection,
    ):
        with pytest.raises(BrokerRefused, match=r"cannot PUB in current state \(TLS required\)"):
            await connection.request(Publish("t", b"x"), timeout_ms=5_000)


# AUTH


@asynccontextmanager
async def guarded(*flags: str) -> AsyncIterator[RealNsqd]:
    """Run an nsqd that accepts the secret ``s3cret`` for the topic t."""
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}", *flags) as nsqd,
    ):
        auths.grant(
            "s3cret",
            Grant(topic="^t$"),
            Grant(topic="^u$"),
            identity="Ann",
            identity_url="http://ann.example",
        )
        yield nsqd


@LOOPS
@pytest.mark.parametrize("offer", [OFFERS["plain"], OFFERS["snappy"]], ids=["plain", "snappy"])
@pytest.mark.parametrize("is_secure", [False, True], ids=["TCP", "TLS"])
def test_the_right_secret_opens(
    run: Run, certs: Certificates, offer: IdentifyRequest, *, is_secure: bool
) -> None:
    """The secret is accepted in every layer, and nsqd's answer is kept."""
    tls = trusting(certs) if is_secure else None
    options = ConnectionOptions(offer=offer, tls=tls, secret=SECRET)

    async def scenario() -> None:
        async with guarded(*certs.server.nsqd_flags) as nsqd:
            await round_trip(nsqd.tcp_address, options)
            async with opened(nsqd.tcp_address, options) as connection:
                assert (
                    AuthResponse(
                        identity="Ann", identity_url="http://ann.example", permission_count=2
                    )
                    == connection.authorization
                )

    run(scenario())


async def test_nsqd_tells_the_auth_server_who_the_certificate_names(certs: Certificates) -> None:
    options = ConnectionOptions(tls=trusting(certs, certs.client), secret=SECRET)
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}", *certs.mutual_flags()) as nsqd,
    ):
        auths.grant("s3cret", Grant())
        async with opened(nsqd.tcp_address, options):
            question = await auths.asked()

    expected = AuthRequest(
        secret="s3cret", common_name="gateway", remote_ip="127.0.0.1", tls="true"
    )
    assert expected == question


@LOOPS
def test_a_wrong_secret_is_refused(run: Run) -> None:
    """The error has nsqd's text."""
    options = ConnectionOptions(secret=Secret(b"guessed"))

    async def scenario() -> None:
        async with guarded() as nsqd, no_leaks():
            with pytest.raises(BrokerRefused) as caught:
                await open_connection(nsqd.tcp_address, options, Listener())
        assert ("E_AUTH_FAILED", "AUTH failed") == (caught.value.code, caught.value.description)

    run(scenario())


async def test_a_secret_that_grants_nothing_is_refused() -> None:
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}") as nsqd,
        no_leaks(),
    ):
        auths.grant("s3cret")
        with pytest.raises(BrokerRefused, match="E_UNAUTHORIZED AUTH no authorizations found"):
            await open_connection(nsqd.tcp_address, ConnectionOptions(secret=SECRET), Listener())


async def test_without_a_secret_nothing_more_is_said() -> None:
    """The answer to IDENTIFY requires AUTH: AuthRequired is raised, and nothing is written."""
    options = ConnectionOptions(offer=NAMED)
    async with guarded() as nsqd, wiretap(nsqd.tcp_address) as tap, no_leaks():
        with pytest.raises(AuthRequired, match=f"nsqd at {tap.address} requires AUTH"):
            await open_connection(tap.address, options, Listener())

    assert MAGIC + Identify(options.offer.to_json()).encode() == bytes(tap.said)


async def test_a_secret_that_nobody_asks_for_is_not_told() -> None:
    """An nsqd without AUTH would close the connection, and must not see the secret."""
    options = ConnectionOptions(secret=SECRET)
    async with real_nsqd() as nsqd, wiretap(nsqd.tcp_address) as tap:
        await round_trip(tap.address, options)
        async with opened(tap.address, options) as connection:
            authorization = connection.authorization

    assert authorization is None
    assert [False, False] == [word in tap.said for word in (b"AUTH", SECRET.reveal())]


async def test_while_the_auth_server_is_down_nobody_comes_in() -> None:
    """nsqd sends the same error as for a wrong secret; later the secret is accepted."""
    options = ConnectionOptions(secret=SECRET)
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}") as nsqd,
    ):
        auths.grant("s3cret", Grant())
        await auths.go_down()
        with pytest.raises(BrokerRefused, match="E_AUTH_FAILED AUTH failed"):
            await open_connection(nsqd.tcp_address, options, Listener())
        await auths.come_back()
        async with opened(nsqd.tcp_address, options) as connection:
            authorization = connection.authorization

    assert AuthResponse(permission_count=1) == authorization


# A wish


async def test_nsqd_gathers_as_much_as_is_wished() -> None:
    """The preferred buffer size is used if nsqd allows it."""
    async with real_nsqd() as nsqd:
        connection = await open_connection(nsqd.tcp_address, WISHING, Listener())
        granted_bytes = connection.answer.output_buffer_size
        await connection.close()

    assert 65_536 == granted_bytes


async def test_an_nsqd_that_allows_less_is_talked_to_all_the_same() -> None:
    """The preference is dropped after nsqd's refusal; the same size in `offer` is an error."""
    asking = ConnectionOptions(offer=msgspec.structs.replace(NAMED, output_buffer_size=65_536))
    async with real_nsqd("--max-output-buffer-size=16384") as nsqd:
        connection = await open_connection(nsqd.tcp_address, WISHING, Listener())
        reply = await connection.request(Publish("t", b"x"), timeout_ms=5_000)
        granted_bytes = connection.answer.output_buffer_size
        await connection.close()
        with pytest.raises(BrokerUnreachable, match="output buffer size"):
            await open_connection(nsqd.tcp_address, asking, Listener())

    assert (OK, 16_384) == (reply, granted_bytes)
