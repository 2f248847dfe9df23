"""
HTTP client for one nsqlookupd, with limits in time and bytes.

It reads the answers of nsqlookupd since 1.0, and those of earlier versions, which wrap the same
document as ``{"status_code": …, "status_txt": …, "data": {…}}``. Source: nsqlookupd/http.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, TypeAlias

import httpx
import msgspec

from gateway.addresses import join_address, split_address
from gateway.client.http import (
    HEADERS,
    AnswerTooBig,
    ByteBudget,
    http_client,
    read_body,
    unreachable_on_failure,
)
from gateway.client.nsqd_answers import (
    NodeAnswer,
    NodeRequest,
    NodeResponse,
    NodeUnreachable,
    check_density,
)
from gateway.credentials import Secret, bearer_headers
from gateway.errors import BrokerUnreachable, LookupFailed, SettingsError
from gateway.telemetry import fast_counter, gauge, get_logger

HTTP_OK = 200
HTTP_NOT_FOUND = 404

_TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"
_MAX_PORT = 65_535


FoundNsqds: TypeAlias = dict[str, str | None]
"""HTTP host:port by TCP host:port of each nsqd; None for an nsqd without HTTP."""


NODES = NodeRequest(method="GET", path="/nodes")
"""The request for all nsqds that are registered."""


class LookupFailure(StrEnum):
    """Reasons why a request to nsqlookupd failed; values of `LookupFailed.reason`."""

    UNREACHABLE = "unreachable"
    """No connection, or it broke before the end of the answer."""
    TIMEOUT = "timeout"
    """The answer was not complete in time."""
    STATUS = "status"
    """The status was neither 200 nor 404 TOPIC_NOT_FOUND."""
    TOO_BIG = "too_big"
    """The answer was larger than the limit."""
    MALFORMED = "malformed"
    """The answer was not a document of nsqlookupd."""


_VALUE_BYTES = 4
"""Average size of a value in an answer at least: topics may have names of one letter."""


class RegisteredNsqd(msgspec.Struct):
    """One nsqd in an answer; in /nodes, *topics* and *tombstones* are parallel lists."""

    broadcast_address: Annotated[str, msgspec.Meta(max_length=255)]
    tcp_port: Annotated[int, msgspec.Meta(ge=1, le=_MAX_PORT)]
    http_port: object = None
    """-1 or 0 without HTTP; any other invalid value is ignored, to keep the TCP address."""
    topics: list[str] = []
    tombstones: list[bool] = []

    @property
    def tcp_address(self) -> str:
        """TCP host:port."""
        return join_address(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str | None:
        """HTTP host:port; None without HTTP."""
        port = self.http_port
        # `type` and not isinstance: True is an int, but no port.
        if type(port) is not int or not 1 <= port <= _MAX_PORT:
            return None
        return join_address(self.broadcast_address, port)

    @property
    def tombstoned_topics(self) -> list[str]:
        """Topics that are being deleted there, so that consumers must not find them."""
        # Not strict: an nsqd whose lists differ in length is still of use.
        pairs = zip(self.topics, self.tombstones, strict=False)
        return [topic for topic, is_tombstoned in pairs if is_tombstoned]


class _Document(msgspec.Struct):
    """The document with the producers; Go encodes a nil list as null."""

    producers: list[msgspec.Raw] | None


class _Answer(msgspec.Struct):
    """An answer in its new or old form; *message* and *status_txt* are error codes."""

    producers: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    data: _Document | msgspec.UnsetType | None = msgspec.UNSET
    status_code: int = HTTP_OK
    status_txt: str = ""
    message: str = ""


_answers = msgspec.json.Decoder(_Answer)
_producers = msgspec.json.Decoder(RegisteredNsqd)


def parse_lookup(lookupd: str, status: int, body: bytes) -> FoundNsqds:
    """
    Return every nsqd that has the topic, from the answer to ``/lookup?topic=``.

    Empty if the topic is unknown. *lookupd* is the address to name in an error.

    Raises:
        LookupFailed: See `parse_nodes`.
    """
    if _is_unknown_topic(status, body):
        return {}
    return {each.tcp_address: each.http_address for each in parse_registered(lookupd, status, body)}


def parse_nodes(lookupd: str, status: int, body: bytes, *, topic: str | None = None) -> FoundNsqds:
    """
    Return every known nsqd, from the answer to ``/nodes``.

    With a *topic*, nsqds that are tombstoned for it are left out, because it is being deleted
    there. Invalid entries are skipped.

    Raises:
        LookupFailed: The status, the JSON or its shape is wrong, or every entry is invalid.
    """
    return {
        nsqd.tcp_address: nsqd.http_address
        for nsqd in parse_registered(lookupd, status, body)
        if topic is None or topic not in nsqd.tombstoned_topics
    }


def _is_unknown_topic(status: int, body: bytes) -> bool:
    """Return whether this is nsqlookupd's 404 for an unknown topic, and not a proxy's."""
    if status != HTTP_NOT_FOUND:
        return False
    # An empty answer removes all nsqds of the topic, which a proxy's 404 must not do.
    try:
        check_density(body, _VALUE_BYTES)
        answer = _answers.decode(body)
    except (ValueError, RecursionError):
        return False
    return _TOPIC_NOT_FOUND in {answer.message, answer.status_txt}


def parse_registered(lookupd: str, status: int, body: bytes) -> list[RegisteredNsqd]:
    """Return the valid producers (nsqds) of an answer; raises LookupFailed as `parse_nodes`."""
    if status != HTTP_OK:
        raise LookupFailed(lookupd, LookupFailure.STATUS, f"answered with status {status}")
    try:
        answer = _answers.decode(body)
    except (ValueError, RecursionError) as error:  # RecursionError: too deeply nested
        raise LookupFailed(lookupd, LookupFailure.MALFORMED, f"cannot be read: {error}") from error
    if answer.status_code != HTTP_OK:
        detail = f"answered with status_code {answer.status_code}"
        raise LookupFailed(lookupd, LookupFailure.STATUS, detail)
    entries = answer.data.producers if isinstance(answer.data, _Document) else answer.producers
    # Missing is not null: Go encodes an empty list as null, but never leaves the key out.
    if isinstance(entries, msgspec.UnsetType):
        raise LookupFailed(lookupd, LookupFailure.MALFORMED, "answered without producers")
    producers = list(_valid(entries or ()))
    if entries and not producers:
        # An empty result would replace the last answer, so that all its nsqds disappear.
        detail = f"none of its {len(entries)} producers can be read"
        raise LookupFailed(lookupd, LookupFailure.MALFORMED, detail)
    return producers


def _valid(entries: Iterable[msgspec.Raw]) -> Iterable[RegisteredNsqd]:
    """Decode *entries*, and yield the valid producers."""
    for entry in entries:
        try:
            producer = _producers.decode(entry)
            split_address(producer.tcp_address)
        except (ValueError, RecursionError):
            # One nsqd with an invalid broadcast address must not hide the others.
            continue
        yield producer


_MAX_CONNECTIONS = 16
"""Maximum connections to one nsqlookupd. Further requests wait, within their time limit."""
_PORTS = {"http": 80, "https": 443}

logger = get_logger()

_FAILURES = fast_counter(
    "lookup_failures_total",
    "Requests to nsqlookupd without a usable response, by nsqlookupd and reason.",
    ["lookupd", "reason"],
)
_REQUESTS = fast_counter(
    "lookup_requests_total",
    "Requests to nsqlookupd, by result.",
    ["result"],
    zeros=[("ok",), ("failed",)],
)
_LAST_SUCCESS = gauge(
    "lookup_last_success_timestamp_seconds",
    "Time of the last usable response of any nsqlookupd, in seconds since 1970; 0: never.",
)


class Lookupd:
    """
    Client for one nsqlookupd, which counts and logs failed requests.

    *timeout_s* limits a request, including the last byte of its answer. An answer larger than
    *max_answer_bytes* is discarded. *secret* is sent as ``Authorization: Bearer``.
    """

    def __init__(
        self, url: httpx.URL, *, timeout_s: float, max_answer_bytes: int, secret: Secret | None
    ) -> None:
        self.address = join_address(url.host, url.port or _PORTS[url.scheme])
        """host:port, for logs and metrics."""
        # All reasons start at 0, so that `increase()` sees the first failure.
        _FAILURES.init_series((self.address, reason.value) for reason in LookupFailure)
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._secret = secret
        self._http = http_client(base_url=url, max_connections=_MAX_CONNECTIONS)
        # Requests wait here, not in httpx: it scans all waiting requests per freed connection.
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._failing: set[str | None] = set()
        """Topics whose last request failed; None stands for the request for all nsqds."""
        self._is_failing = False

    async def close(self) -> None:
        """Close the connections to the nsqlookupd."""
        await self._http.aclose()

    def forget(self, topic: str | None) -> None:
        """Forget a failure of *topic*, which is no longer polled."""
        # Otherwise the nsqlookupd would never be logged as available again.
        self._failing.discard(topic)

    async def fetch(self, topic: str | None) -> FoundNsqds | None:
        """Return the nsqds that have *topic* (None: all nsqds), or None after a failure."""
        try:
            nsqds = await self._fetch(topic)
        except LookupFailed as error:
            self._failed(topic, error)
            return None
        _REQUESTS.counts["ok",] += 1
        _LAST_SUCCESS.set_to_current_time()
        self._failing.discard(topic)
        if self._is_failing and not self._failing:
            # Only after all topics succeed: one line per outage, not one per topic and poll.
            self._is_failing = False
            logger.info("nsqlookupd available again", lookupd=self.address)
        return nsqds

    async def request(self, request: NodeRequest) -> NodeAnswer:
        """Send an administrative request; return the answer, or why there is none."""
        try:
            status, body = await self._answer(request)
        except LookupFailed as error:
            return NodeUnreachable(node=self.address, reason=error.detail)
        return NodeResponse(node=self.address, status=status, body=body)

    def _failed(self, topic: str | None, error: LookupFailed) -> None:
        _FAILURES.counts[self.address, error.reason] += 1
        _REQUESTS.counts["failed",] += 1
        self._failing.add(topic)
        if not self._is_failing:
            self._is_failing = True
            logger.warning("nsqlookupd unavailable", lookupd=self.address, reason=error.detail)

    async def _fetch(self, topic: str | None) -> FoundNsqds:
        if topic is None:
            answer = await self._answer(NODES)
            return parse_nodes(self.address, *answer)
        query = [("topic", topic.encode())]
        answer = await self._answer(NodeRequest(method="GET", path="/lookup", query=query))
        return parse_lookup(self.address, *answer)

    async def _answer(self, request: NodeRequest) -> tuple[int, bytes]:
        """Return status and body; raises LookupFailed."""
        timeout_s = self._timeout_s
        try:
            # One limit for the whole request, waiting for a connection included: httpx's timeouts
            # apply to single reads, so that a slow sender could hold the request for ever.
            async with asyncio.timeout(timeout_s):
                with unreachable_on_failure(self.address):
                    return await self._send(request)
        except TimeoutError:
            detail = f"no complete answer within {timeout_s:g} s"
            raise LookupFailed(self.address, LookupFailure.TIMEOUT, detail) from None
        except AnswerTooBig as error:
            raise LookupFailed(self.address, LookupFailure.TOO_BIG, str(error)) from None
        except BrokerUnreachable as error:
            raise LookupFailed(self.address, LookupFailure.UNREACHABLE, error.reason) from error

    async def _send(self, request: NodeRequest) -> tuple[int, bytes]:
        """Return status and body; only the bodies of 200 and 404 are read."""
        headers = {**HEADERS, **bearer_headers(self._secret)}
        target = request.target.removeprefix("/")  # relative: httpx appends it to the base path
        async with (
            self._slots,
            self._http.stream(request.method, target, headers=headers) as answer,
        ):
            body = b""
            if answer.status_code in {HTTP_OK, HTTP_NOT_FOUND}:
                body = await read_body(answer, ByteBudget(self._max_answer_bytes))
            return answer.status_code, body


def lookupd_url(text: str) -> httpx.URL:
    """
    Return *text*, host:port or a URL, as the URL that /lookup and /nodes are appended to.

    Raises:
        SettingsError: *text* is neither host:port nor an http(s) URL without user, query and
            fragment.
    """
    try:
        if "://" not in text:
            # Without a scheme there is no default port, so that the port is required.
            split_address(text)
        url = httpx.URL(text if "://" in text else f"http://{text}")
        has_more = bool(url.userinfo or url.query or url.fragment)
        is_usable = url.scheme in _PORTS and url.port != 0 and not has_more
        split_address(join_address(url.host, url.port or _PORTS["http"]))
    except (ValueError, httpx.InvalidURL):
        is_usable = False
    if not is_usable:
        # The error must not show a password, which may be before an @ or in a query.
        shown = text.rpartition("@")[2].partition("?")[0]
        allowed = "host:port, or http(s)://host:port without user, query and fragment"
        raise SettingsError("lookupd_http_address", shown, allowed=allowed)
    return url
