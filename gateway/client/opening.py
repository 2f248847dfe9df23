"""
How a connection to a broker opens: TCP, IDENTIFY, TLS, compression, AUTH, in this order.

What was asked for and is not had is an error before anything else is written: TLS that the
broker does not speak, a secret that it wants and nobody brought. Compression is a wish: a broker
that does not speak it is talked to without. So is a larger output buffer: nsqd closes where that
is too much, and is connected to again without it. Source: nsqd/protocol_v2.go, IDENTIFY.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from dataclasses import replace

import msgspec

import gateway
from gateway.addresses import split_address
from gateway.client.connection import (
    BrokerConnection,
    ConnectionListener,
    ConnectionOptions,
    TakeRaw,
)
from gateway.client.connection_account import count_auth
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    RemoteProtocolError,
    SettingsError,
)
from gateway.protocol.authorization import parse_authorization
from gateway.protocol.commands import Auth
from gateway.protocol.compression import DeflateFilter, SnappyFilter
from gateway.protocol.identify import Answer, Offer


class _WishRefused(Exception):
    """The broker refused an IDENTIFY with a wish in it; it may take one without."""


async def open_connection(
    address: str,
    options: ConnectionOptions,
    listener: ConnectionListener,
    take_raw: TakeRaw | None = None,
) -> BrokerConnection:
    """
    Connect to the broker at *address* (host:port), up to where it takes commands.

    With *take_raw* messages go there, undecoded, and not to the *listener*.

    Raises:
        BrokerUnreachable: Nothing answers there in time, or it is no broker we can talk to.
        AuthRequired: It asks for a secret and *options* have none; nothing else was written.
        BrokerRefused: It refuses the secret (E_AUTH_FAILED, E_UNAUTHORIZED).
    """
    with contextlib.suppress(_WishRefused):
        return await _open(address, options, listener, take_raw)
    options = replace(options, output_buffer_wish_bytes=0)
    return await _open(address, options, listener, take_raw)


async def _open(
    address: str,
    options: ConnectionOptions,
    listener: ConnectionListener,
    take_raw: TakeRaw | None,
) -> BrokerConnection:
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(options.connect_timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: BrokerConnection(address, options, listener, take_raw), host, port
            )
    except TimeoutError:
        reason = f"no TCP connection within {options.connect_timeout_ms} ms"
        raise BrokerUnreachable(address, reason) from None
    except OSError as error:
        raise BrokerUnreachable(address, _what_happened(error)) from error
    except ValueError as error:
        raise BrokerUnreachable(address, str(error)) from error
    try:
        await _negotiate(connection, host)
        await _authenticate(connection)
    except BaseException:
        connection.abort()
        raise
    connection.is_in_use = True
    return connection


async def _negotiate(connection: BrokerConnection, host: str) -> None:
    """Agree on what lies below V2."""
    tls = connection.options.tls
    wanted = connection.options.offer
    wish_bytes = connection.options.output_buffer_wish_bytes
    host_name = socket.gethostname()
    offer = msgspec.structs.replace(
        wanted,
        tls_v1=tls is not None,
        client_id=wanted.client_id or host_name.partition(".")[0],
        hostname=wanted.hostname or host_name,
        user_agent=wanted.user_agent or f"nsq-gateway/{gateway.__version__}",
        output_buffer_size=wish_bytes or wanted.output_buffer_size,
    )
    try:
        answer = await _identify(connection, offer)
        if (reason := _mismatch(offer, answer)) is not None:
            raise BrokerUnreachable(connection.address, reason)
        if tls is not None:
            await connection.start_tls(tls.context(), host)
        if answer.snappy:
            await connection.compress(SnappyFilter())
        if answer.deflate:
            await connection.compress(DeflateFilter(offer.deflate_level))
    except BrokerRefused as error:
        raise BrokerUnreachable(connection.address, f"refused IDENTIFY: {error}") from error
    except (OSError, SettingsError) as error:
        raise BrokerUnreachable(connection.address, f"TLS: {_what_happened(error)}") from error


async def _identify(connection: BrokerConnection, offer: Offer) -> Answer:
    """Ask for what *offer* says; raises `_WishRefused` where it is refused with a wish in it."""
    try:
        return await connection.identify(offer)
    except BrokerRefused as error:
        if connection.options.output_buffer_wish_bytes:
            raise _WishRefused from error
        raise


def _mismatch(offer: Offer, answer: Answer) -> str | None:
    """Return why the *answer* to *offer* cannot be gone on with, None when it can."""
    if offer.tls_v1 and not answer.tls_v1:
        return "does not speak TLS, which was asked for; nothing more was sent"
    unasked = [
        name
        for name in ("tls_v1", "snappy", "deflate")
        if getattr(answer, name) and not getattr(offer, name)
    ]
    return f"starts {unasked[0]}, which was not asked for" if unasked else None


async def _authenticate(connection: BrokerConnection) -> None:
    """Say who we are, where the broker asks."""
    if not connection.answer.auth_required:
        return
    secret = connection.options.secret
    if secret is None:
        count_auth("missing")
        raise AuthRequired(f"nsqd at {connection.address} asks for AUTH and there is no secret")
    command = Auth(secret.reveal())
    try:
        reply = await connection.request(command, timeout_ms=connection.options.connect_timeout_ms)
    except BrokerRefused:
        count_auth("refused")
        raise
    except BrokerUnreachable:
        count_auth("unanswered")
        raise
    try:
        connection.authorization = parse_authorization(reply.data)
        count_auth("ok")
    except RemoteProtocolError as error:
        count_auth("unanswered")
        raise BrokerUnreachable(connection.address, str(error)) from error


def _what_happened(error: Exception) -> str:
    """Return the system's words; asyncio puts its own in their place."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        # Its number is OpenSSL's, not the system's.
        return str(error)
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    # asyncio and uvloop say nothing at all when the other side has gone.
    return error.strerror or str(error) or "the broker closed the connection"
