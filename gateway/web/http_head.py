"""What the parser lets pass in the head of a request, and what is to be made of it."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

import httptools

from gateway.errors import InvalidRequest

_VERSIONS = frozenset({"1.0", "1.1"})


def check_head(version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """
    Refuse what nobody may answer as if it were right.

    Raises:
        InvalidRequest: The version; Host (RFC 9112 §3.2); an encoding that is not spoken here, so
            that the end of the body is not known (§6.1).
    """
    if version not in _VERSIONS:
        raise _refusal(f"the version is HTTP/{version}; allowed: 1.0 and 1.1")
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if b" " in value:
                raise _refusal("Host has a space; it is a name or an address, and maybe a port")
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise _refusal("Transfer-Encoding is not chunked alone, and nothing else is read here")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise _refusal(f"there are {hosts} Host headers; HTTP/1.1 has exactly one")


def unusual_target(url: bytes) -> tuple[bytes, bytes]:
    """
    Return path and query of an address with a host before it, or with escapes in its path.

    Raises:
        InvalidRequest: It is no address.
    """
    if url == b"*":
        return url, b""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise _refusal("what is asked for is neither a path nor an address with http://") from None
    return unquote_to_bytes(parsed.path or b"/"), parsed.query or b""


def with_path(url: bytes) -> bytes:
    """Return *url*; one of a host alone, whose path is ``/``, in the form that has it."""
    if url.startswith(b"/") or url == b"*":
        return url
    parsed = httptools.parse_url(url)
    if parsed.path:
        return url
    return b"/" + (b"?" + parsed.query if parsed.query else b"")


def _refusal(text: str) -> InvalidRequest:
    return InvalidRequest("INVALID_REQUEST", text)
