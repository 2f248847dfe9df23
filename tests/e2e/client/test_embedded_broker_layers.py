"""The client uses TLS, compression and AUTH of the embedded broker, in every combination."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from gateway.broker.broker import BrokerOptions
from gateway.client.connection import ConnectionOptions
from gateway.client.handshake import open_connection
from gateway.credentials import Secret
from gateway.errors import AuthRequired, BrokerRefused, BrokerUnreachable, SettingsError
from gateway.protocol.commands import Publish
from gateway.protocol.frames import OK
from gateway.protocol.identify import AuthResponse, IdentifyRequest
from gateway.tls import TlsOptions
from tests.support.brokers.auth_server import AuthRequest, Grant, auth_server
from tests.support.brokers.connection_listener import Listener
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.certificates import Certificates, Identity, certificates

BODY = b"marker" * 100_000
SECRET = Secret(b"s3cret")
OFFERS = {
    "plain": IdentifyRequest(feature_negotiation=True),
    "snappy": IdentifyRequest(feature_negotiation=True, snappy=True),
    "deflate": IdentifyRequest(feature_negotiation=True, deflate=True, deflate_level=9),
}
Run = Callable[[Coroutine[Any, Any, None]], None]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    """Return certificates for all tests of this module."""
    with certificates() as made:
        yield made


def serving(certs: Certificates) -> BrokerOptions:
    """Return the options of a broker with TLS."""
    return BrokerOptions(tls_cert=certs.server.cert_file, tls_key=certs.server.key_file)


def trusting(certs: Certificates, client: Identity | None = None) -> TlsOptions:
    """Return TLS options with our CA and the certificate of *client*."""
    return TlsOptions(
        root_ca_file=certs.root_ca_file,
        cert_file=client.cert_file if client else None,
        key_file=client.key_file if client else None,
    )


async def round_trip(address: str, options: ConnectionOptions) -> AuthResponse | None:
    """Publish and consume a body; return what AUTH has answered, if there was one."""
    listener = Listener()
    connection = await open_connection(address, options, listener)
    try:
        assert OK == await connection.request(Publish("t", BODY), timeout_ms=5_000)
        await connection.subscribe("t", "c")
        connection.ready(1)
        async with asyncio.timeout(10):
            (message,) = await listener.messages.get()
        connection.finish([message.id])
        answer = connection.answer
        assert (options.offer.snappy, options.offer.deflate) == (answer.snappy, answer.deflate)
        assert (options.tls is not None) is answer.tls_v1
    finally:
        await connection.close()
    # A bool, for the difference of two such bodies is nothing to print.
    assert True is (BODY == message.body)
    assert 0 == listener.refusals.qsize()
    return connection.authorization


@LOOPS
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
@pytest.mark.parametrize("is_secure", [False, True], ids=["TCP", "TLS"])
@pytest.mark.parametrize("has_auth", [False, True], ids=["free", "AUTH"])
def test_messages_go_through_every_layer(
    run: Run, certs: Certificates, offer: IdentifyRequest, *, is_secure: bool, has_auth: bool
) -> None:
    """A long body is unchanged in both directions, and the auth server is told of TLS."""
    tls = trusting(certs) if is_secure else None
    options = ConnectionOptions(offer=offer, tls=tls, secret=SECRET)

    async def scenario() -> None:
        async with auth_server() as auth:
            auth.grant("s3cret", Grant(), identity="me")
            brokers = serving(certs)
            if has_auth:
                brokers = replace(brokers, auth_http_address=(auth.address,))
            async with embedded_broker(brokers) as broker:
                granted = await round_trip(broker.tcp_address, options)
            if not has_auth:
                assert granted is None
                return
            assert AuthResponse(identity="me", permission_count=1) == granted
            assert (
                AuthRequest(
                    secret="s3cret",
                    common_name="",
                    remote_ip="127.0.0.1",
                    tls="true" if is_secure else "false",
                )
                == await auth.asked()
            )

    run(scenario())


@LOOPS
@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_client_certificate_is_verified_and_named_to_the_auth_server(
    run: Run, certs: Certificates, policy: str
) -> None:
    """One of the CA opens the port; none, or a stranger's, does not."""

    async def scenario() -> None:
        async with auth_server() as auth:
            auth.grant("s3cret", Grant())
            options = replace(
                serving(certs),
                tls_client_auth_policy=policy,
                tls_root_ca_file=certs.root_ca_file,
                auth_http_address=(auth.address,),
            )
            async with embedded_broker(options) as broker:
                asked = ConnectionOptions(secret=SECRET, tls=trusting(certs, certs.client))
                await round_trip(broker.tcp_address, asked)
                for identity in (None, certs.stranger):
                    refused = replace(asked, tls=trusting(certs, identity))
                    with pytest.raises(BrokerUnreachable):
                        await round_trip(broker.tcp_address, refused)
            assert "gateway" == (await auth.asked()).common_name

    run(scenario())


async def test_a_policy_for_client_certificates_requires_tls(certs: Certificates) -> None:
    """As in nsqd, clear text is refused then."""
    options = replace(
        serving(certs),
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=certs.root_ca_file,
    )
    async with embedded_broker(options) as broker:
        with pytest.raises(BrokerRefused, match=r"cannot PUB in current state \(TLS required\)"):
            await round_trip(broker.tcp_address, ConnectionOptions())


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"tls_key": "/nowhere/key.pem"}, "--tls-key is '/nowhere/key.pem'"),
        ({"tls_cert": "/nowhere/cert.pem"}, "--tls-cert is '/nowhere/cert.pem'"),
        ({"tls_min_version": "ssl3.0"}, "--tls-min-version is 'ssl3.0'; allowed: tls1.0"),
        ({"tls_required": "yes"}, "--tls-required is 'yes'; allowed: false, true, tcp-https"),
        ({"tls_client_auth_policy": "ask"}, "--tls-client-auth-policy is 'ask'; allowed: require"),
        ({"tls_client_auth_policy": "require"}, "require needs --tls-root-ca-file"),
        (
            {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": "/nowhere/ca.pem"},
            "--tls-root-ca-file is '/nowhere/ca.pem'",
        ),
        ({"tls_required": "true", "tls_cert": "", "tls_key": ""}, "--tls-cert and --tls-key"),
        ({"max_deflate_level": 10}, "--max-deflate-level is 10; allowed: 1 to 9"),
        (
            {"auth_http_address": ("a:1",), "auth_http_request_method": "put"},
            "--auth-http-request-method is 'put'; allowed: get, post",
        ),
    ],
)
async def test_a_broker_with_impossible_options_does_not_start(
    certs: Certificates, changes: dict[str, Any], reason: str
) -> None:
    """The error names the flag and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        async with embedded_broker(replace(serving(certs), **changes)):
            pass

    assert reason in str(caught.value)


async def test_without_a_secret_nothing_is_published_where_auth_is_required() -> None:
    """The answer to IDENTIFY says so, and the client stops there."""
    async with (
        auth_server() as auth,
        embedded_broker(BrokerOptions(auth_http_address=(auth.address,))) as broker,
    ):
        with pytest.raises(AuthRequired):
            await open_connection(broker.tcp_address, ConnectionOptions(), Listener())
        with pytest.raises(BrokerRefused, match="E_AUTH_FAILED AUTH failed"):
            await open_connection(broker.tcp_address, ConnectionOptions(secret=SECRET), Listener())
