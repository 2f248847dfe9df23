"""Tests that no repr, log line or traceback with locals contains a secret."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import logging
import traceback
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.client import Consumer, Producer
from gateway.client.connection import ConnectionOptions
from gateway.client.consumer import ConsumerOptions
from gateway.client.handshake import open_connection
from gateway.credentials import Secret
from gateway.errors import BrokerRefused, GatewayError
from gateway.protocol.identify import IdentifyRequest
from gateway.tls import TlsOptions
from tests.support.brokers.auth_server import AuthServer, Grant, auth_server
from tests.support.brokers.connection_listener import Listener
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.certificates import certificates

pytestmark = pytest.mark.nsqd

WORDS = b"correct-horse-battery"
SECRET = Secret(WORDS)
SPELLINGS = [WORDS.decode(), WORDS.hex(), base64.b64encode(WORDS).decode().rstrip("=")]

_OPAQUE = (
    types.ModuleType,
    type,
    types.FrameType,
    types.CodeType,
    types.BuiltinFunctionType,
    asyncio.AbstractEventLoop,
)
"""What lies behind these belongs to everybody, the auth server of the test among them."""


def places_of_the_secret(*roots: object) -> list[str]:
    """
    Return the texts that show the secret, of everything that can be reached from *roots*.

    A `Secret` shows what it shows and is not looked into.
    """
    found, seen, left = [], set(), list(roots)
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, _OPAQUE):
            continue
        seen.add(id(thing))
        found += [text for text in (repr(thing), str(thing)) if shows_the_secret(text)]
        if isinstance(thing, types.FunctionType):
            left += thing.__closure__ or ()
        elif not isinstance(thing, Secret):
            left += gc.get_referents(thing)
            left += [getattr(thing, name) for name in _slots(thing) if hasattr(thing, name)]
    return found


def shows_the_secret(text: str) -> bool:
    """Return True if *text* contains the secret in any encoding."""
    return any(spelling in text for spelling in SPELLINGS)


def _slots(thing: object) -> Iterator[str]:
    """Yield attributes that `gc` may not report, those of objects without references."""
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        yield from [slots] if isinstance(slots, str) else slots


def traceback_of(error: BaseException) -> str:
    """Return the traceback of *error* with all local variables, as some loggers write it."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


@pytest.fixture
def every_word(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Log at every level, and check at the end that no line contains the secret."""
    logged = io.StringIO()
    handler, root = logging.StreamHandler(logged), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield
    root.removeHandler(handler)
    root.setLevel(level)
    said = capfd.readouterr()
    assert "asyncio" in logged.getvalue()
    assert [] == [text for text in (logged.getvalue(), *said) if shows_the_secret(text)]


@asynccontextmanager
async def guarded(*flags: str) -> AsyncIterator[tuple[RealNsqd, AuthServer]]:
    """Run an nsqd with an auth server that knows the secret, in a debugging event loop."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0  # each callback is worth a line
    async with (
        auth_server() as auths,
        real_nsqd(f"--auth-http-address={auths.address}", *flags) as nsqd,
    ):
        auths.grant(WORDS.decode(), Grant(topic="^t$"))
        yield nsqd, auths


def _closure_over(words: bytes) -> Callable[[], bytes]:
    return lambda: words


@pytest.mark.parametrize(
    "planted",
    [
        WORDS,
        WORDS.decode(),
        [{"a": (WORDS,)}],
        GatewayError(WORDS.decode()),
        ConnectionOptions(offer=IdentifyRequest(client_id=WORDS.decode())),
        _closure_over(WORDS),
    ],
    ids=["bytes", "text", "nested", "error", "options", "closure"],
)
def test_a_planted_secret_is_found(planted: object) -> None:
    """The search covers containers, errors, structs and closures."""
    assert places_of_the_secret([planted])


def test_a_secret_itself_shows_nothing() -> None:
    """Its repr is the fingerprint, in any container."""
    assert [] == places_of_the_secret(SECRET, ConnectionOptions(secret=SECRET))


@pytest.mark.usefixtures("every_word")
@pytest.mark.parametrize("is_layered", [False, True], ids=["plain", "TLS and snappy"])
async def test_an_open_connection_shows_no_secret(*, is_layered: bool) -> None:
    """After AUTH only the options hold the secret."""
    options = ConnectionOptions(secret=SECRET)
    with certificates() as certs:
        if is_layered:
            options = replace(
                options,
                tls=TlsOptions(root_ca_file=certs.root_ca_file),
                offer=IdentifyRequest(feature_negotiation=True, snappy=True),
            )
        async with guarded(*certs.server.nsqd_flags) as (nsqd, _):
            connection = await open_connection(nsqd.tcp_address, options, Listener())
            shown = places_of_the_secret(connection)
            await connection.close()

    assert connection.authorization is not None
    assert [] == shown + places_of_the_secret(connection)


@pytest.mark.usefixtures("every_word")
@pytest.mark.parametrize("how", ["unknown", "good for nothing", "auth server down"])
async def test_a_refused_secret_is_not_in_the_error(how: str) -> None:
    """It is neither in the text nor in a traceback with local variables."""
    async with guarded() as (nsqd, auths):
        if how == "unknown":
            auths.revoke(WORDS.decode())
        elif how == "good for nothing":
            auths.grant(WORDS.decode())
        else:
            await auths.go_down()
        with pytest.raises(BrokerRefused) as caught:
            await open_connection(nsqd.tcp_address, ConnectionOptions(secret=SECRET), Listener())

    assert [] == places_of_the_secret(caught.value)
    assert not shows_the_secret(traceback_of(caught.value))


@pytest.mark.usefixtures("every_word")
@pytest.mark.parametrize("topic", ["t", "elsewhere"])
async def test_a_publisher_shows_no_secret(topic: str) -> None:
    """Granted or refused, during the publish and after it."""
    async with (
        guarded() as (nsqd, _),
        Producer(nsqd_tcp_addresses=[nsqd.tcp_address]) as publisher,
    ):
        try:
            await publisher.publish(topic, b"x", secret=SECRET)
            errors: list[BaseException] = []
        except GatewayError as error:
            errors = [error]
        shown = places_of_the_secret(publisher, errors)

    assert (topic != "t") == bool(errors)
    assert [] == shown
    assert [] == [text for text in map(traceback_of, errors) if shows_the_secret(text)]


@pytest.mark.usefixtures("every_word")
async def test_a_subscriber_shows_no_secret() -> None:
    options = ConsumerOptions()
    options = replace(options, connection=replace(options.connection, secret=SECRET))
    async with guarded() as (nsqd, _):
        async with Producer(nsqd_tcp_addresses=[nsqd.tcp_address]) as publisher:
            await publisher.publish("t", b"x", secret=SECRET)
        async with Consumer("t", "c", [nsqd.tcp_address], options) as subscriber:
            async with asyncio.timeout(10):
                delivery = await anext(aiter(subscriber))
            shown = places_of_the_secret(subscriber, delivery)
            delivery.finish()

    assert b"x" == delivery.body
    assert [] == shown + places_of_the_secret(subscriber)
