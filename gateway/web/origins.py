"""
Which web pages may call: a browser says in ``Origin`` what page a request comes from.

Everything else sends no Origin and is not meant. A page passes when it is our own or on the list;
one on the list may read the answers too, which a browser keeps from it otherwise (CORS).
Source: RFC 6454; RFC 6455 §10.2; Fetch, "CORS protocol".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence

from gateway.errors import Forbidden
from gateway.web.access import request_id_of
from gateway.web.answers import Answer, Headers
from gateway.web.faults import problem

EVERY_PAGE = "*"
"""On the list it stands for every page there is, one without an origin (``null``) included."""

_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}
_HOST_AND_PORT = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?")
_SHOWN = 100
_MAX_AGE_S = 600
"""How long a browser may remember what a preflight was told; more than most of them do."""

_EXPOSED = (b"access-control-expose-headers", b"X-Request-Id, Retry-After, X-Nsq-Content-Type")
_VARY = (b"vary", b"Origin")
_PRIVATE_NETWORK = b"access-control-request-private-network"


class OriginPolicy:
    """
    The pages that may call, besides our own.

    A page is our own when host and port of its ``Origin`` are those of ``Host``. Its scheme has to
    be https where the request is known to have come by TLS; else it is not compared, for a proxy
    that we know nothing of may speak TLS where we do not. Anybody can let a name of
    theirs resolve to 127.0.0.1 (DNS rebinding); the browser then sends that name in both headers.

    Args:
        allowed: Origins as browsers write them, ``https://example.org`` or with a port;
            `EVERY_PAGE` allows all.
        trusts_host: Whether any ``Host`` may be our own. When not, as on a port that only this
            machine reaches, it has to be an IP address, ``localhost`` or a name below that.
    """

    def __init__(self, allowed: Collection[str] = (), *, trusts_host: bool = True) -> None:
        self._allows_all = EVERY_PAGE in allowed
        self._allowed = frozenset(_without_default_port(origin.encode()) for origin in allowed)
        self._trusts_host = trusts_host

    def check(self, origins: Sequence[bytes], host: bytes, *, is_secure: bool = False) -> None:
        """
        Let a request pass whose *origins* all may call; without any it comes from no page.

        *is_secure*: the request came by TLS, to us or to a proxy that is trusted. A page that came
        without is then another one: whoever stands in between may have written it.

        Raises:
            Forbidden: One of them is neither our own nor on the list.
        """
        for origin in origins:
            if self._is_listed(origin):
                continue
            if not self._is_own(origin, host):
                raise Forbidden(self._refusal(origin, host))
            if is_secure and origin.lower().startswith(b"http:"):
                page = origin[:_SHOWN].decode("latin-1")
                raise Forbidden(
                    f"a page of {page!r} came without TLS and may not call this port, which is "
                    f"called with it; open it with https, or start with --allow-origin {page}"
                )

    def answer_headers(self, origins: Sequence[bytes]) -> tuple[tuple[bytes, bytes], ...]:
        """
        Return what an answer has to say for the page on the list that asked to read it.

        Errors too: the page is to read why. Our own page needs none, and a foreign one gets none,
        nor does a request with two Origins, which no browser sends.
        """
        if len(origins) != 1 or not self._is_listed(origins[0]):
            return ()
        allow = b"*" if self._allows_all else origins[0]
        return (b"access-control-allow-origin", allow), _EXPOSED, _VARY

    def preflight(self, headers: Iterable[tuple[bytes, bytes]], methods: str) -> Answer | None:
        """
        Return the answer to a browser that asks, with OPTIONS, what a foreign page may send.

        Args:
            headers: Of the request, names in small letters.
            methods: What is allowed there, as in ``Allow``.

        Returns 204 for a page on the list, 403 for any other; None when this is no preflight, or
        when our own page asks: what OPTIONS answers else holds. Source: Fetch, "CORS-preflight
        fetch"; Private Network Access, "CORS preflight".
        """
        headers = list(headers)
        asked = dict(headers)
        origins, host = page_of(headers)
        if not origins or b"access-control-request-method" not in asked:
            return None
        answer = [*self.answer_headers(origins)]
        if not answer:
            try:
                self.check(origins, host)
            except Forbidden as error:
                return problem(error, request_id_of(headers))
            return None
        answer += _permissions(methods)
        if asked.get(_PRIVATE_NETWORK) == b"true":
            answer.append((b"access-control-allow-private-network", b"true"))
        return 204, answer, b""

    def _is_listed(self, origin: bytes) -> bool:
        return self._allows_all or _without_default_port(origin) in self._allowed

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        return _is_same(origin, host) and (self._trusts_host or _is_of_this_machine(host))

    def _refusal(self, origin: bytes, host: bytes) -> str:
        page, here = (value[:_SHOWN].decode("latin-1") for value in (origin, host))
        text = f"a page of {page!r} may not call {here!r}"
        if _is_same(origin, host):
            return (
                f"{text}: this port is for its own machine, and anybody can let a name lead here; "
                f"if the name is yours, of a proxy in front say, start with --allow-origin {page}"
            )
        return f"{text}; --allow-origin lists the pages that may"


def page_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], bytes]:
    """Return every ``Origin`` of *headers*, and their ``Host``; names are in small letters."""
    origins = []
    host = b""
    for name, value in headers:
        if name == b"origin":
            origins.append(value)
        elif name == b"host":
            host = value
    return origins, host


def own_page_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """
    Return the origin of the page that a GET comes from, where that is the page's own host.

    A browser leaves ``Origin`` out then, where for a WebSocket it would send it; ``Referer`` tells.
    """
    named = dict(headers)
    scheme, separator, rest = named.get(b"referer", b"").partition(b"://")
    origin = scheme + separator + rest.partition(b"/")[0]
    return origin if _is_same(origin, named.get(b"host", b"")) else None


def _is_same(origin: bytes, host: bytes) -> bool:
    """Tell whether the page of *origin* came from *host*; ``null`` never did."""
    scheme, separator, origin_host = origin.lower().partition(b"://")
    host = host.lower()
    if not (scheme and separator and host):
        return False
    port = _DEFAULT_PORTS.get(scheme, b":")
    return origin_host.removesuffix(port) == host.removesuffix(port)


def _is_of_this_machine(host: bytes) -> bool:
    """Tell whether *host* is an address, or a name that every browser keeps on its machine."""
    found = _HOST_AND_PORT.fullmatch(host.lower())
    if found is None:
        return False
    name = found[1].decode("latin-1")
    if name == "localhost" or name.removesuffix(".localhost") not in {name, ""}:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _without_default_port(origin: bytes) -> bytes:
    """Return *origin* in small letters, and as a browser writes it."""
    origin = origin.lower()
    scheme = origin.partition(b"://")[0]
    return origin.removesuffix(_DEFAULT_PORTS.get(scheme, b":"))


def _permissions(methods: str) -> Headers:
    """Return what a page may send."""
    return [
        (b"access-control-allow-methods", methods.encode()),
        (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
        (b"access-control-max-age", b"%d" % _MAX_AGE_S),
    ]
