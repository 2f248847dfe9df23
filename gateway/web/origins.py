"""
Check the origin of web pages, by the ``Origin`` header that browsers add to requests.

Clients other than browsers send no Origin and are not affected. Pages of the gateway's own origin
and pages of --allow-origin may send requests; CORS headers let the latter read the responses, too.
Source: RFC 6454; RFC 6455 §10.2; Fetch, "CORS protocol".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence

from gateway.errors import Forbidden
from gateway.web.errors import problem_response
from gateway.web.responses import Headers, HttpResponse, request_id_from

ANY_ORIGIN = "*"
"""Allows all pages, including those without an origin (``null``)."""
CLIENT_HEADER = b"nsq-gateway-client"
"""A page of another origin cannot send it without a preflight; its value does not matter."""

_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}
_HOST_AND_PORT = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?")
_SHOWN = 100
_MAX_AGE_S = 600
"""Seconds for which a browser may keep the response to a preflight; browsers have own limits."""

# The response headers that a script may read in addition to the few that CORS always allows.
_EXPOSED = (b"access-control-expose-headers", b"X-Request-Id, Retry-After, X-Nsq-Content-Type")
# So that no cache sends a response for one page to another page.
_VARY = (b"vary", b"Origin")
# Browsers send it if a page of the internet calls an address of a private network.
_PRIVATE_NETWORK = b"access-control-request-private-network"


class OriginPolicy:
    """
    The rules for which web pages may send requests, and which may read the responses.

    A page has the same origin if host and port of its ``Origin`` equal ``Host``. If the request is
    known to use TLS, the scheme of the page must be https; otherwise the scheme is not compared,
    since an unknown proxy may terminate TLS.

    Args:
        allowed: Origins as browsers write them, ``https://example.org`` or with a port;
            `ANY_ORIGIN` allows all.
        trusts_host: If False, as on a loopback address, a page has the same origin only if ``Host``
            is an IP address, ``localhost`` or a name below it. This is against DNS rebinding: an
            attacker's name resolves to 127.0.0.1, and the browser sends it as ``Origin`` and as
            ``Host``.
    """

    def __init__(self, allowed: Collection[str] = (), *, trusts_host: bool = True) -> None:
        self._allows_all = ANY_ORIGIN in allowed
        self._allowed = frozenset(_without_default_port(origin.encode()) for origin in allowed)
        self._trusts_host = trusts_host

    def check(self, origins: Sequence[bytes], host: bytes, *, is_secure: bool = False) -> None:
        """
        Check that pages with these *origins* may send a request to *host*.

        *is_secure* means that the request used TLS, with this gateway or with a trusted proxy. Then
        a page that was loaded without TLS has another origin: an attacker may have modified it.

        Raises:
            Forbidden: One of *origins* is neither the same origin as *host* nor allowed.
        """
        for origin in origins:
            # What the operator allows is allowed as it is, even a page loaded over http.
            if self._is_allowed(origin):
                continue
            if not self._is_same_origin(origin, host):
                raise Forbidden(self._refusal(origin, host))
            if is_secure and origin.lower().startswith(b"http:"):
                page = origin[:_SHOWN].decode("latin-1")
                raise Forbidden(
                    f"a page of {page!r} was loaded over http, but this port uses https; "
                    f"open the page with https, or start with --allow-origin {page}"
                )

    def cors_headers(self, origins: Sequence[bytes]) -> tuple[tuple[bytes, bytes], ...]:
        """
        Return the CORS headers that let an allowed page read a response, or an error response.

        Empty for pages of the same origin, which need none; for pages that are not allowed; and
        for requests with two Origins, which no browser sends.
        """
        if len(origins) != 1 or not self._is_allowed(origins[0]):
            return ()
        allow = b"*" if self._allows_all else origins[0]
        return (b"access-control-allow-origin", allow), _EXPOSED, _VARY

    def preflight(
        self, headers: Iterable[tuple[bytes, bytes]], methods: str
    ) -> HttpResponse | None:
        """
        Return the response to a CORS preflight, in which a browser asks before it sends a request.

        Args:
            headers: The headers of the preflight, with lower-case names.
            methods: The methods of the requested path, as in ``Allow``.

        Returns:
            204 for an allowed page, 403 for others; None if the request is no preflight or comes
            from a page of the same origin. Source: Fetch, "CORS-preflight fetch"; Private Network
            Access, "CORS preflight".
        """
        headers = list(headers)
        requested = dict(headers)
        origins, host = origins_and_host(headers)
        if not origins or b"access-control-request-method" not in requested:
            return None
        cors = [*self.cors_headers(origins)]
        if not cors:
            try:
                self.check(origins, host)
            except Forbidden as error:
                return problem_response(error, request_id_from(headers))
            # The same origin: CORS does not apply, and OPTIONS gets the response that nsqd gives.
            return None
        cors += _permissions(methods)
        if requested.get(_PRIVATE_NETWORK) == b"true":
            cors.append((b"access-control-allow-private-network", b"true"))
        return 204, cors, b""

    def _is_allowed(self, origin: bytes) -> bool:
        return self._allows_all or _without_default_port(origin) in self._allowed

    def _is_same_origin(self, origin: bytes, host: bytes) -> bool:
        return _is_same_host(origin, host) and (self._trusts_host or _is_local(host))

    def _refusal(self, origin: bytes, host: bytes) -> str:
        page, here = (value[:_SHOWN].decode("latin-1") for value in (origin, host))
        text = f"a page of {page!r} may not call {here!r}"
        if _is_same_host(origin, host):
            return (
                f"{text}: this port accepts only localhost or an IP address as Host (protection "
                f"against DNS rebinding); behind a proxy, start with --allow-origin {page}"
            )
        return f"{text}; allow it with --allow-origin"


def origins_and_host(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], bytes]:
    """Return all values of ``Origin`` and the value of ``Host``; names must be lower case."""
    origins = []
    host = b""
    for name, value in headers:
        if name == b"origin":
            origins.append(value)
        elif name == b"host":
            host = value
    return origins, host


def same_origin_referer(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """
    Return the origin of the page in ``Referer`` if its host equals ``Host``, otherwise None.

    Used for a plain GET of /sub, which asks why an upgrade would be refused: browsers send
    ``Origin`` with an upgrade, but not with a plain GET of the same origin.
    """
    named = dict(headers)
    scheme, separator, rest = named.get(b"referer", b"").partition(b"://")
    origin = scheme + separator + rest.partition(b"/")[0]
    return origin if _is_same_host(origin, named.get(b"host", b"")) else None


def check_get_without_origin(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """
    Refuse a GET that takes messages if a page of another origin may have sent it unnoticed.

    Browsers send no Origin with a GET in the mode no-cors, and such a page could consume, though
    not read, the messages of a channel. They always send Accept-Language; other clients do not.

    Raises:
        Forbidden: It is from a browser that tells no origin, and `CLIENT_HEADER` is missing.
    """
    named = dict(headers)
    if b"origin" in named or b"accept-language" not in named or CLIENT_HEADER in named:
        return
    if named.get(b"sec-fetch-site") not in (b"same-origin", b"none"):
        raise Forbidden(
            f"a browser has to send the header {CLIENT_HEADER.decode()} with this request, with "
            "any value, so that pages of other origins cannot consume messages"
        )


def _is_same_host(origin: bytes, host: bytes) -> bool:
    """Return whether *host* is the host and port of *origin*; False for the origin ``null``."""
    scheme, separator, origin_host = origin.lower().partition(b"://")
    host = host.lower()
    if not (scheme and separator and host):
        return False
    # Browsers omit the default port; Host may contain it.
    port = _DEFAULT_PORTS.get(scheme, b":")
    return origin_host.removesuffix(port) == host.removesuffix(port)


def _is_local(host: bytes) -> bool:
    """Return whether *host* is an IP address, or a name that always resolves to loopback."""
    found = _HOST_AND_PORT.fullmatch(host.lower())
    if found is None:
        return False
    name = found[1].decode("latin-1")
    # Names below localhost always mean loopback (RFC 6761 §6.3).
    if name == "localhost" or name.removesuffix(".localhost") not in {name, ""}:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _without_default_port(origin: bytes) -> bytes:
    """Return *origin* in lower case and without the default port, as browsers send it."""
    origin = origin.lower()
    scheme = origin.partition(b"://")[0]
    return origin.removesuffix(_DEFAULT_PORTS.get(scheme, b":"))


def _permissions(methods: str) -> Headers:
    """Return the headers of a preflight's response that list what the page may send."""
    return [
        (b"access-control-allow-methods", methods.encode()),
        (
            b"access-control-allow-headers",
            b"authorization, content-type, %b, x-request-id" % CLIENT_HEADER,
        ),
        (b"access-control-max-age", b"%d" % _MAX_AGE_S),
    ]
