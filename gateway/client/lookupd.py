"""
One nsqlookupd, asked over HTTP: bounded in time and bytes, its failures counted and told once.

Source: nsqlookupd/http.go.
"""

from __future__ import annotations

import asyncio

import httpx

from gateway.addresses import join_address, split_address
from gateway.bearer import bearer_headers
from gateway.client.http_question import (
    HEADERS,
    Allowance,
    AnswerTooBig,
    http_client,
    read_body,
    what_happened,
)
from gateway.client.lookup_answers import (
    HTTP_NOT_FOUND,
    HTTP_OK,
    FoundNsqds,
    LookupFailure,
    parse_lookup,
    parse_nodes,
)
from gateway.client.node_answers import NodeAnswer, Question, Reached, Unreachable
from gateway.errors import LookupFailed, SettingsError
from gateway.secret import Secret
from gateway.telemetry import counter, gauge, get_logger, tally

_MAX_CONNECTIONS = 16
"""To one nsqlookupd at once; more questions wait, within their timeout."""
_PORTS = {"http": 80, "https": 443}

logger = get_logger()

_FAILURES = counter(
    "lookup_failures_total",
    "Questions that an nsqlookupd gave no usable answer to.",
    ["lookupd", "reason"],
)
_REQUESTS = tally(
    "lookup_requests_total",
    "Questions to nsqlookupd, by whether the answer was usable.",
    ["result"],
)
_LAST_SUCCESS = gauge(
    "lookup_last_success_timestamp_seconds",
    "When an nsqlookupd gave a usable answer last, seconds since 1970; 0: never.",
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
        self._http = http_client(base_url=url, max_connections=_MAX_CONNECTIONS)
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

    async def ask(self, topic: str | None) -> FoundNsqds | None:
        """Return which nsqds have *topic*, or all; None when it fails, which is counted."""
        try:
            nsqds = await self._question(topic)
        except LookupFailed as error:
            self._failed(topic, error)
            return None
        _REQUESTS.counts["ok",] += 1
        _LAST_SUCCESS.set_to_current_time()
        self._failing.discard(topic)
        if self._is_failing and not self._failing:
            self._is_failing = False
            logger.info("nsqlookupd is back", lookupd=self.address)
        return nsqds

    async def tell(self, question: Question) -> NodeAnswer:
        """Return its answer to a request that changes what it knows, or why there is none."""
        try:
            status, body = await self._answer(question)
        except LookupFailed as error:
            return Unreachable(node=self.address, reason=error.detail)
        return Reached(node=self.address, status=status, body=body)

    def _failed(self, topic: str | None, error: LookupFailed) -> None:
        _FAILURES.labels(self.address, error.reason).inc()
        _REQUESTS.counts["failed",] += 1
        self._failing.add(topic)
        if not self._is_failing:
            self._is_failing = True
            logger.warning("nsqlookupd fails", lookupd=self.address, reason=error.detail)

    async def _question(self, topic: str | None) -> FoundNsqds:
        if topic is None:
            answer = await self._answer(Question(method="GET", path="/nodes"))
            return parse_nodes(self.address, *answer)
        query = [("topic", topic.encode())]
        answer = await self._answer(Question(method="GET", path="/lookup", query=query))
        return parse_lookup(self.address, *answer)

    async def _answer(self, question: Question) -> tuple[int, bytes]:
        """Return status and body, within the timeout; raises LookupFailed."""
        timeout_s = self._timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request(question)
        except TimeoutError:
            detail = f"no complete answer within {timeout_s:g} s"
            raise LookupFailed(self.address, LookupFailure.TIMEOUT, detail) from None
        except AnswerTooBig as error:
            raise LookupFailed(self.address, LookupFailure.TOO_BIG, str(error)) from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            detail = what_happened(error)
            raise LookupFailed(self.address, LookupFailure.UNREACHABLE, detail) from error

    async def _request(self, question: Question) -> tuple[int, bytes]:
        """Return status and body; only a body that can count is read."""
        headers = {**HEADERS, **bearer_headers(self._secret)}
        target = question.target.removeprefix("/")  # what stands in the URL goes before it
        async with (
            self._turns,
            self._http.stream(question.method, target, headers=headers) as answer,
        ):
            body = b""
            if answer.status_code in {HTTP_OK, HTTP_NOT_FOUND}:
                body = await read_body(answer, Allowance(self._max_answer_bytes))
            return answer.status_code, body


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
