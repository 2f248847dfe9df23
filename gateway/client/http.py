"""
HTTP client settings for nsqd and nsqlookupd: no proxy, no cookies, no redirects, limited bytes.

The headers are those of go-nsq/api_request.go. This is a module because `lookupd` and `nsqd_http`
both use it, and the latter imports the former by way of `discovery`.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import MappingProxyType

import httpx

from gateway.errors import BrokerUnreachable, GatewayError

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        # Versions of NSQ before 1.0 answer in their old form without it.
        "Accept": "application/vnd.nsq; version=1.0",
        # A compressed body may exceed the limit only after decompression.
        "Accept-Encoding": "identity",
    }
)


_MAX_REASON = 200
"""Maximum characters quoted from a library's error message."""


class AnswerTooBig(GatewayError):
    """An answer exceeded its limit in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"answers more than {limit_bytes} bytes")


def http_client(*, base_url: httpx.URL | str = "", max_connections: int) -> httpx.AsyncClient:
    """Return a client without a timeout; callers must limit the time of the whole request."""
    return httpx.AsyncClient(
        base_url=base_url,
        verify=_tls_context(httpx.URL(base_url).scheme),
        trust_env=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keep none
        follow_redirects=False,
        # At one poll per minute, a connection kept open would often be closed by the server.
        limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=0),
        timeout=None,  # noqa: S113 - see above
    )


def _tls_context(scheme: str) -> ssl.SSLContext:
    """Return the TLS context; for plain HTTP an empty one, which reads no CA files."""
    if scheme == "https":
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class ByteBudget:
    """A limit on the bytes that may be read, of one answer or of several together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._left_bytes = limit_bytes

    def take(self, size_bytes: int) -> None:
        """Count *size_bytes* that were read; raise AnswerTooBig beyond the limit."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise AnswerTooBig(self.limit_bytes)


async def read_body(answer: httpx.Response, *budgets: ByteBudget) -> bytes:
    """Return the body of *answer*; raise AnswerTooBig as soon as one of *budgets* is exceeded."""
    body = bytearray()
    # Raw, without decompression, which could turn a small chunk into one beyond every budget.
    async for chunk in answer.aiter_raw():
        for budget in budgets:
            budget.take(len(chunk))
        body += chunk
    return bytes(body)


@contextmanager
def unreachable_on_failure(address: str) -> Iterator[None]:
    """
    Context manager: raise every failure of its block as BrokerUnreachable with *address*.

    AnswerTooBig and cancellation (the caller's time limit) pass unchanged.
    """
    try:
        yield
    except AnswerTooBig:
        raise
    except Exception as error:
        # Exception and not httpx.HTTPError: an invalid `Location` raises InvalidURL even if
        # redirects are not followed, and idna and h11 raise their own errors. No answer of a peer
        # may end a poll.
        raise BrokerUnreachable(address, _reason_of(error)) from error


def _reason_of(error: BaseException) -> str:
    """Return the system's message for *error*, which libraries wrap in errors of their own."""
    cause: BaseException | None = error
    while cause is not None:
        number = (cause.errno if isinstance(cause, OSError) else None) or 0
        # OpenSSL's and getaddrinfo's error numbers are not those of errno.
        if number in errno.errorcode and not isinstance(cause, ssl.SSLError):
            return os.strerror(number)
        cause = cause.__cause__ or cause.__context__
    # Truncated, because libraries quote what the peer sent.
    return str(error)[:_MAX_REASON] or type(error).__name__
