"""
How nsqd and nsqlookupd are asked over HTTP: no proxy, no cookies, no redirects, bounded in bytes.

Headers as go-nsq/api_request.go sends them.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import MappingProxyType

import httpx

from gateway.errors import GatewayError

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        # Without it programs of NSQ before 1.0 answer in the old form; it is read as well.
        "Accept": "application/vnd.nsq; version=1.0",
        # What is compressed has no size before it is unpacked.
        "Accept-Encoding": "identity",
    }
)


class AnswerTooBig(GatewayError):
    """An answer went on after the number of bytes that is read."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"answers more than {limit_bytes} bytes")


def http_client(*, base_url: httpx.URL | str = "", max_connections: int) -> httpx.AsyncClient:
    """Return a client without a timeout: whoever asks has a deadline for the whole question."""
    return httpx.AsyncClient(
        base_url=base_url,
        verify=_tls_context(httpx.URL(base_url).scheme),
        trust_env=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keep none
        follow_redirects=False,
        # A connection that was kept would be a minute old: half of it may be gone.
        limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=0),
        timeout=None,  # noqa: S113 - see above
    )


def _tls_context(scheme: str) -> ssl.SSLContext:
    """Return whom to trust: without https nobody, and no file is read for it."""
    if scheme == "https":
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Allowance:
    """How many bytes may be read still, over one answer or over several."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._left_bytes = limit_bytes

    def take(self, size_bytes: int) -> None:
        """Count *size_bytes* that have come; raises AnswerTooBig."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise AnswerTooBig(self.limit_bytes)


async def read_body(answer: httpx.Response, *allowances: Allowance) -> bytes:
    """Return the body of *answer*; raises AnswerTooBig when one of *allowances* is used up."""
    body = bytearray()
    async for chunk in answer.aiter_raw():
        for allowance in allowances:
            allowance.take(len(chunk))
        body += chunk
    return bytes(body)


def what_happened(error: BaseException) -> str:
    """Return the system's words, which the libraries put their own before."""
    cause: BaseException | None = error
    while cause is not None:
        number = (cause.errno if isinstance(cause, OSError) else None) or 0
        # OpenSSL's errors, and those of names, have numbers of their own.
        if number in errno.errorcode and not isinstance(cause, ssl.SSLError):
            return os.strerror(number)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
