"""
The auth server for nsqd: its protocol, answered by the access file.

nsqd asks with ``GET /auth?secret=…&remote_ip=…&tls=…&common_name=…``, or by POST with the same as
JSON, each value in a list (not yet in 1.3.0). 200 brings the grants of the secret with a time to
live; nsqd takes any other status for a refusal. Source: nsqd's internal/auth/authorizations.go.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.access.control import AccessControl
from gateway.access.rights import KEY_ISSUER, VIEWER_CHANNELS, Grant, Identity, Permission
from gateway.credentials import Secret
from gateway.errors import CredentialRefused
from gateway.listener import HttpListener
from gateway.open_files import auth_connections_limit
from gateway.telemetry import fast_counter
from gateway.tls import Certificate

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

KEY_TTL_S = 60
"""After this time nsqd asks again about an API key, which may have been removed from the file."""
MAX_TTL_S = 86_400
"""Far below what overflows in nsqd, which counts nanoseconds in 64 bits."""
MAX_QUERY_BYTES = 16_384
MAX_BODY_BYTES = 16_384
_MAX_HEAD_BYTES = 32_768
_MAX_PARAMETERS = 16
CONNECTION_TIMEOUT_S = 10.0
"""Time for a whole connection, which has one request; nsqd itself waits 5 s for its answer."""
_GRACE_S = 1.0

_EVERY_CHANNEL = (".*",)
"""nsqd wants a channel pattern for a publish, one that matches the empty name."""

_REQUESTS = fast_counter(
    "auth_server_requests_total",
    "Requests of nsqds to the auth server (--auth-listen), by result: granted, refused (the "
    "secret, or one that grants nothing at nsqd), invalid (not a request of nsqd).",
    ["result"],
    zeros=[("granted",), ("refused",), ("invalid",)],
)


class Authorization(msgspec.Struct, frozen=True):
    """An entry of nsqd's `authorizations`."""

    topic: str
    channels: tuple[str, ...]
    permissions: tuple[str, ...]


class _Answer(msgspec.Struct, frozen=True):
    ttl: int
    """Seconds."""
    authorizations: list[Authorization]
    identity: str
    identity_url: str = ""


def authorizations_of(grants: Iterable[Grant]) -> list[Authorization]:
    """
    Return *grants* in nsqd's form; those that mean nothing to nsqd are left out.

    nsqd would refuse the whole answer because of a permission that it does not know.
    """
    found = []
    for grant in grants:
        for permission, channels in (
            (Permission.PUBLISH, _EVERY_CHANNEL),
            (Permission.SUBSCRIBE, grant.channels),
            (Permission.WATCH, (VIEWER_CHANNELS,)),
        ):
            if permission in grant.permissions and channels:
                # To nsqd, a viewer is a subscriber like any other.
                name = Permission.PUBLISH if permission is Permission.PUBLISH else "subscribe"
                found.append(Authorization(grant.topic, channels, (str(name),)))
    return list(dict.fromkeys(found))


def ttl_s(identity: Identity, now: float) -> int:
    """
    Return for how long nsqd may use the answer, in whole seconds, at least 1.

    *now* is in seconds since 1970. For a token it is the rest of its life.
    """
    limit_s = KEY_TTL_S if identity.issuer == KEY_ISSUER else MAX_TTL_S
    left_s = identity.expires_at - now
    return limit_s if left_s >= limit_s else max(1, math.floor(left_s))


class AuthServer:
    """
    The port of the auth server (``--auth-listen``).

    Call `bind`, then `start`, and `stop` at the end.

    Args:
        address: host:port to listen on.
        access: Identifies the callers of nsqd.
        certificate: Certificate for TLS; None: no TLS.
    """

    def __init__(
        self, address: str, access: AccessControl, certificate: Certificate | None = None
    ) -> None:
        self.has_tls = certificate is not None
        self._app = AuthApp(access)
        self._listener = HttpListener(
            "the auth server (--auth-listen)",
            address,
            grace_s=_GRACE_S,
            certificate=certificate,
            http=_Connection,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        )

    @property
    def address(self) -> str:
        """host:port; after `bind` with the port that the system chose for port 0."""
        return self._listener.address

    @property
    def nsqd_flag(self) -> str:
        """The flag with which an nsqd asks this auth server."""
        url = f"https://{self.address}/auth" if self.has_tls else self.address
        return f"--auth-http-address={url}"

    def bind(self) -> None:
        """Listen on the address; raises StartError."""
        self._listener.bind()

    async def start(self) -> None:
        """Answer requests; raises SettingsError if the certificate is invalid."""
        await self._listener.start(self._app)

    async def stop(self) -> None:
        """Answer the requests that have begun, then close; idempotent."""
        await self._listener.stop()


class _Connection(H11Protocol):
    """
    A connection with a time limit, one of a limited number.

    nsqd makes a connection for each request. uvicorn by itself gives a client any time to send its
    first request.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit; abort the connection if there are too many."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(CONNECTION_TIMEOUT_S, transport.abort)
        if len(self.connections) > auth_connections_limit():
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)


class _RequestRefused(Exception):
    """A request is not one of nsqd's; answer it with *status* and *text*."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


_OK, _FORBIDDEN, _NOT_FOUND, _BAD_METHOD = 200, 403, 404, 405
_TOO_LARGE, _URI_TOO_LONG, _BAD_REQUEST = 413, 414, 400
_TEXT = b"text/plain; charset=utf-8"
# Not JSON: nsqd searches the body of a 403 for the port to ask by TLS instead.
_REFUSED = _FORBIDDEN, _TEXT, b"refused: this secret grants nothing here\n"


class AuthApp:
    """The ASGI application of the auth server; *access* identifies the callers of nsqd."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Respond to one HTTP request."""
        try:
            status, content_type, body = self._answer(await _read_secret(scope, receive))
            result = "granted" if status == _OK else "refused"
        except _RequestRefused as error:
            status, content_type, body = error.status, _TEXT, f"{error.text}\n".encode()
            result = "invalid"
        _REQUESTS.counts[result,] += 1
        headers = [
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            # nsqd uses no connection twice, but keeps it open: it has a new client each time.
            (b"connection", b"close"),
        ]
        if status == _BAD_METHOD:
            headers.append((b"allow", b"GET, POST"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, secret: bytes) -> tuple[int, bytes, bytes]:
        """Return status, content type and body for *secret*."""
        try:
            identity = self._access.identify(Secret(secret))
        except CredentialRefused:
            return _REFUSED  # `identify` has logged why
        authorizations = authorizations_of(identity.rights.grants)
        if not authorizations:
            return _REFUSED
        answer = _Answer(
            ttl=ttl_s(identity, self._access.clock()),
            authorizations=authorizations,
            identity=identity.name,
        )
        return _OK, b"application/json", msgspec.json.encode(answer)


async def _read_secret(scope: _Scope, receive: _Receive) -> bytes:
    """
    Return the secret in a request; empty if it is missing, given twice, or not readable.

    Raises:
        _RequestRefused: The request is none of nsqd's, or too large.
    """
    headers = dict(scope["headers"])
    if b"origin" in headers:
        raise _RequestRefused(_FORBIDDEN, "this port is for nsqd, not for browsers")
    if scope["path"] != "/auth":
        raise _RequestRefused(_NOT_FOUND, "nsqd asks for /auth")
    if scope["method"] == "GET":
        return _secret_of_query(scope["query_string"])
    if scope["method"] == "POST":
        return _secret_of_json(await _read_body(receive))
    raise _RequestRefused(_BAD_METHOD, "nsqd asks by GET or POST")


def _secret_of_query(query: bytes) -> bytes:
    if len(query) > MAX_QUERY_BYTES:
        raise _RequestRefused(
            _URI_TOO_LONG, f"the query has {len(query)} bytes; limit {MAX_QUERY_BYTES} bytes"
        )
    try:
        # Latin-1 both ways keeps every byte: a secret need not be UTF-8.
        parameters = parse_qsl(
            query.decode("latin-1"), encoding="latin-1", max_num_fields=_MAX_PARAMETERS
        )
    except ValueError:
        return b""
    secrets = [value for name, value in parameters if name == "secret"]
    return secrets[0].encode("latin-1") if len(secrets) == 1 else b""


class _Question(msgspec.Struct):
    secret: list[str]


def _secret_of_json(body: bytes) -> bytes:
    try:
        secrets = msgspec.json.decode(body, type=_Question).secret
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    return secrets[0].encode(errors="replace") if len(secrets) == 1 else b""


async def _read_body(receive: _Receive) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _RequestRefused(_BAD_REQUEST, "the request ended early")
        body += event.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _RequestRefused(_TOO_LARGE, f"the body has more than {MAX_BODY_BYTES} bytes")
        if not event.get("more_body", False):
            return bytes(body)
