"""
Open a connection to nsqd: TCP, IDENTIFY, TLS, compression, AUTH, in this order.

If nsqd does not offer required TLS, or requires a secret that is not configured, the handshake
fails before anything else is written. Compression is optional, and so is a larger output buffer:
nsqd closes the connection if its limit is exceeded, and a second one is opened without it.
Source: nsqd/protocol_v2.go, IDENTIFY.
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
    OnRawMessages,
)
from gateway.client.metrics import count_auth
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    RemoteProtocolError,
    SettingsError,
)
from gateway.protocol.commands import Auth
from gateway.protocol.compression import DeflateCodec, SnappyCodec
from gateway.protocol.identify import IdentifyRequest, IdentifyResponse, parse_auth_response

DEFAULT_USER_AGENT = f"nsq-gateway/{gateway.__version__}"
"""What connections call themselves towards nsqd, unless a setting says otherwise."""


class _OfferRefused(Exception):
    """nsqd refused IDENTIFY with a preferred output buffer size; it might accept it without."""


async def open_connection(
    address: str,
    options: ConnectionOptions,
    listener: ConnectionListener,
    on_raw_messages: OnRawMessages | None = None,
) -> BrokerConnection:
    """
    Open a connection to the nsqd at *address* (host:port), ready for commands.

    If given, *on_raw_messages* gets messages undecoded, instead of the *listener*.

    Raises:
        BrokerUnreachable: No answer in time, or not one of the protocol.
        AuthRequired: nsqd requires a secret and *options* have none; no AUTH was written.
        BrokerRefused: nsqd refuses the secret (E_AUTH_FAILED, E_UNAUTHORIZED).
    """
    # V2 does not transmit nsqd's maximum output buffer size, so the preferred size is tried.
    with contextlib.suppress(_OfferRefused):
        return await _open(address, options, listener, on_raw_messages)
    options = replace(options, preferred_output_buffer_bytes=0)
    return await _open(address, options, listener, on_raw_messages)


async def _open(
    address: str,
    options: ConnectionOptions,
    listener: ConnectionListener,
    on_raw_messages: OnRawMessages | None,
) -> BrokerConnection:
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(options.connect_timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: BrokerConnection(address, options, listener, on_raw_messages), host, port
            )
    except TimeoutError:
        reason = f"no TCP connection within {options.connect_timeout_ms} ms"
        raise BrokerUnreachable(address, reason) from None
    except OSError as error:
        raise BrokerUnreachable(address, _reason_of(error)) from error
    except ValueError as error:
        raise BrokerUnreachable(address, str(error)) from error
    try:
        await _negotiate(connection, host)
        await _authenticate(connection)
    except BaseException:
        # Also on cancellation: the caller has no connection yet that it could close.
        connection.abort()
        raise
    connection.is_established = True
    return connection


async def _negotiate(connection: BrokerConnection, host: str) -> None:
    """Send IDENTIFY, and start the TLS and compression that nsqd has agreed to."""
    tls = connection.options.tls
    configured = connection.options.offer
    preferred_bytes = connection.options.preferred_output_buffer_bytes
    host_name = socket.gethostname()
    offer = msgspec.structs.replace(
        configured,
        tls_v1=tls is not None,
        client_id=configured.client_id or host_name.partition(".")[0],
        hostname=configured.hostname or host_name,
        user_agent=configured.user_agent or DEFAULT_USER_AGENT,
        output_buffer_size=preferred_bytes or configured.output_buffer_size,
    )
    try:
        answer = await _identify(connection, offer)
        if (reason := _mismatch(offer, answer)) is not None:
            raise BrokerUnreachable(connection.address, reason)
        if tls is not None:
            await connection.start_tls(tls.context(), host)
        # Inside TLS, as nsqd applies its layers: it upgrades to TLS first.
        if answer.snappy:
            await connection.compress(SnappyCodec())
        if answer.deflate:
            await connection.compress(DeflateCodec(offer.deflate_level))
    except BrokerRefused as error:
        raise BrokerUnreachable(connection.address, f"refused IDENTIFY: {error}") from error
    except (OSError, SettingsError) as error:
        raise BrokerUnreachable(connection.address, f"TLS: {_reason_of(error)}") from error


async def _identify(connection: BrokerConnection, offer: IdentifyRequest) -> IdentifyResponse:
    """Send *offer*; raise `_OfferRefused` if it failed and has a preferred output buffer."""
    try:
        return await connection.identify(offer)
    except BrokerRefused as error:
        if connection.options.preferred_output_buffer_bytes:
            raise _OfferRefused from error
        raise


def _mismatch(offer: IdentifyRequest, answer: IdentifyResponse) -> str | None:
    """Return why the *answer* to *offer* is unacceptable, or None."""
    if offer.tls_v1 and not answer.tls_v1:
        return "does not offer TLS, which is required; nothing more was sent"
    # nsqd itself starts only what the client has requested.
    unrequested = [
        name
        for name in ("tls_v1", "snappy", "deflate")
        if getattr(answer, name) and not getattr(offer, name)
    ]
    return f"starts {unrequested[0]}, which was not requested" if unrequested else None


async def _authenticate(connection: BrokerConnection) -> None:
    """Send AUTH if nsqd requires it."""
    if not connection.answer.auth_required:
        return
    secret = connection.options.secret
    if secret is None:
        raise AuthRequired(f"nsqd at {connection.address} requires AUTH and there is no secret")
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
        connection.authorization = parse_auth_response(reply.data)
        count_auth("ok")
    except RemoteProtocolError as error:
        count_auth("unanswered")
        raise BrokerUnreachable(connection.address, str(error)) from error


def _reason_of(error: Exception) -> str:
    """Return the system's message for *error*; asyncio's own is longer and repeats the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        # OpenSSL's error numbers overlap with errno and mean something else.
        return str(error)
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    # Without a message if the peer closed the connection (asyncio and uvloop).
    return error.strerror or str(error) or "nsqd closed the connection"
