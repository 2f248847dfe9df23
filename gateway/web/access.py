"""
Who may ask, and under which id.

A browser sends along what page a request comes from; everything else sends no Origin and is not
meant by the rule. Source: RFC 6454; RFC 6455 §10.2.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable

from gateway.errors import Forbidden

_DEFAULT_PORTS = {"http": "80", "https": "443"}
_SANE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def check_origin(headers: Iterable[tuple[bytes, bytes]], allowed: Collection[str]) -> None:
    """
    Let a request pass whose page is our own or on the list, or that comes from no page.

    A page is our own when host and port of its ``Origin`` are those of ``Host``: the scheme is
    not compared, for a proxy in front may speak TLS where we do not.

    Args:
        headers: As ASGI gives them, names in small letters.
        allowed: Origins as browsers write them, ``https://example.org`` or with a port.

    Raises:
        Forbidden: There is an Origin, and it is neither.
    """
    origins = []
    host = ""
    for name, value in headers:
        if name == b"origin":
            origins.append(value.decode("latin-1").lower())
        elif name == b"host":
            host = value.decode("latin-1").lower()
    for origin in origins:
        if not _is_same(origin, host) and origin not in {other.lower() for other in allowed}:
            raise Forbidden(
                f"a page of {origin[:100]!r} may not call {host[:100]!r}; "
                "--allow-origin lists the pages that may"
            )


def _is_same(origin: str, host: str) -> bool:
    """Tell whether the page of *origin* came from *host*; ``null`` never did."""
    scheme, separator, origin_host = origin.partition("://")
    if not separator or not host:
        return False
    default = f":{_DEFAULT_PORTS.get(scheme, '')}"
    return origin_host.removesuffix(default) == host.removesuffix(default)


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the ``X-Request-Id`` that came along when it is sane, else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            return chosen_request_id(value)
    return new_request_id()


def chosen_request_id(value: bytes) -> str:
    """Return *value* when it is 1 to 64 letters, digits, ``.``, ``_``, ``-``, else a new id."""
    return value.decode("ascii") if _SANE_REQUEST_ID.fullmatch(value) else new_request_id()


def new_request_id() -> str:
    """Return 16 random hexadecimal digits; they tell requests apart and are no secret."""
    return f"{random.getrandbits(64):016x}"
