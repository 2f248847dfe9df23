"""
One nsqlookupd, asked over HTTP: bounded in time and bytes, its failures counted and told once.

Source: nsqlookupd/http.go; headers as go-nsq/api_request.go sends them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from gateway.addresses import join_address, split_address
from gateway.client.lookup_answers import (
    HTTP_NOT_FOUND,
    HTTP_OK,
    LookupFailure,
    parse_lookup,
    parse_nodes,
)
from gateway.errors import LookupFailed, SettingsError
from gateway.secret import Secret
from gateway.telemetry import counter, get_logger

_MAX_CONNECTIONS = 16
"""To one nsqlookupd at once; more questions wait, within their timeout."""
_IN_A_HEADER = re.compile(rb"[!-~]+")
_PORTS = {"http": 80, "https": 443}

logger = get_logger()

_FAILURES = counter(
    "lookup_failures_total",
    "Questions that an nsqlookupd gave no usable answer to.",
    ["lookupd", "reason"],
)


class Lookupd:
    """
    One nsqlookupd, and whether it answers.

    A question takes *timeout_s* at most, up to the last byte of its answer; an answer of more than
    *max_answer_bytes* does not count. *secret* goes to it as ``Authorization: Bearer``.
    """

    def __init__(
        self, url: httpx.URL, *, timeout_s: float, max_answer_bytes: int, secret: Secret | None
    ) -> None:
        self.address = join_address(url.host, url.port or _PORTS[url.scheme])
        """For people: host:port, without what else stands in the URL."""
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._secret = secret
        self._http = httpx.AsyncClient(
            base_url=url,
            verify=_tls_context(url.scheme),
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keep none
            follow_redirects=False,
            # A connection that was kept would be a minute old: half of it may be gone.
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=0),
            timeout=None,  # noqa: S113 - the whole question has one deadline, in `ask`
        )
        # A crowd waits here: the library looks at all who wait for each that goes.
        self._turns = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._failing: set[str | None] = set()
        """Topics, None for all nsqds, whose last question failed."""
        self._is_failing = False

    async def close(self) -> None:
        """Close what is open."""
        await self._http.aclose()

    def forget(self, topic: str | None) -> None:
        """Do not wait for a better answer to a question that is asked no more."""
        self._failing.discard(topic)

    async def ask(self, topic: str | None) -> frozenset[str] | None:
        """Return which nsqds have *topic*, or all; None when it fails, which is counted."""
        try:
            addresses = await self._question(topic)
        except LookupFailed as error:
            self._failed(topic, error)
            return None
        self._failing.discard(topic)
        if self._is_failing and not self._failing:
            self._is_failing = False
            logger.info("nsqlookupd is back", lookupd=self.address)
        return addresses

    def _failed(self, topic: str | None, error: LookupFailed) -> None:
        _FAILURES.labels(self.address, error.reason).inc()
        self._failing.add(topic)
        if not self._is_failing:
            self._is_failing = True
            logger.warning("nsqlookupd fails", lookupd=self.address, reason=error.detail)

    async def _question(self, topic: str | None) -> frozenset[str]:
        timeout_s = self._timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                if topic is None:
                    return parse_nodes(self.address, *await self._get("nodes", {}))
                return parse_lookup(self.address, *await self._get("lookup", {"topic": topic}))
        except TimeoutError:
            detail = f"no complete answer within {timeout_s:g} s"
            raise LookupFailed(self.address, LookupFailure.TIMEOUT, detail) from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            detail = _what_happened(error)
            raise LookupFailed(self.address, LookupFailure.UNREACHABLE, detail) from error

    async def _get(self, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body; only a body that can count is read."""
        limit_bytes = self._max_answer_bytes
        body = bytearray()
        headers = self._headers()
        async with (
            self._turns,
            self._http.stream("GET", path, params=query, headers=headers) as answer,
        ):
            if answer.status_code in {HTTP_OK, HTTP_NOT_FOUND}:
                async for chunk in answer.aiter_raw():
                    body += chunk
                    if len(body) > limit_bytes:
                        detail = f"answers more than {limit_bytes} bytes"
                        raise LookupFailed(self.address, LookupFailure.TOO_BIG, detail)
            return answer.status_code, bytes(body)

    def _headers(self) -> dict[str, str]:
        headers = {
            # Without it nsqlookupd before 1.0 answers in the old form; it is read as well.
            "Accept": "application/vnd.nsq; version=1.0",
            # What is compressed has no size before it is unpacked.
            "Accept-Encoding": "identity",
        }
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._secret.reveal().decode('ascii')}"
        return headers


def _tls_context(scheme: str) -> ssl.SSLContext:
    """Return whom to trust: without https nobody, and no file is read for it."""
    if scheme == "https":
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def lookupd_url(text: str) -> httpx.URL:
    """
    Return where the nsqlookupd at *text* answers; what stands in its path goes before /lookup.

    Raises:
        SettingsError: *text* is neither host:port nor an http(s) URL that is only an address.
    """
    try:
        if "://" not in text:
            split_address(text)
        url = httpx.URL(text if "://" in text else f"http://{text}")
        has_more = bool(url.userinfo or url.query or url.fragment)
        is_usable = url.scheme in _PORTS and url.port != 0 and not has_more
        split_address(join_address(url.host, url.port or _PORTS["http"]))
    except (ValueError, httpx.InvalidURL):
        is_usable = False
    if not is_usable:
        # Before an @ stands a password, in a query may stand one.
        shown = text.rpartition("@")[2].partition("?")[0]
        allowed = "host:port, or http(s)://host:port without user, query and fragment"
        raise SettingsError("lookupd_http_address", shown, allowed=allowed)
    return url


def check_bearer(secret: Secret | None) -> None:
    """
    Refuse a secret that no header carries; the HTTP library would show it in its error.

    Raises:
        SettingsError: It is empty, or has something else than visible ASCII.
    """
    if secret is not None and not _IN_A_HEADER.fullmatch(secret.reveal()):
        allowed = "visible ASCII without spaces where an nsqlookupd is asked, by HTTP"
        raise SettingsError("auth_secret", secret, allowed=allowed)


def _what_happened(error: BaseException) -> str:
    """Return the system's words, which the libraries put their own before."""
    cause: BaseException | None = error
    while cause is not None:
        number = (cause.errno if isinstance(cause, OSError) else None) or 0
        # OpenSSL's errors, and those of names, have numbers of their own.
        if number in errno.errorcode and not isinstance(cause, ssl.SSLError):
            return os.strerror(number)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
