"""Where `pub` sends its messages: to nsqd over TCP, or to a gateway over HTTP."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Protocol, Self

import httpx
import msgspec

from gateway.bearer import bearer_headers
from gateway.client.publisher import Publisher, PublisherOptions
from gateway.commands.retries import TryLater
from gateway.commands.trust import untrusted
from gateway.errors import (
    AuthRequired,
    Forbidden,
    GatewayError,
    InvalidRequest,
    OutcomeUnknown,
)
from gateway.nsqd_access import NsqdAccess
from gateway.protocol.wire import UINT32, Limits
from gateway.settings_commands import PubSettings

_ANSWER_S = 1.0
"""What a gateway gets beyond the publish timeout, for it has the same one and then answers."""
_KEEP_S = 2.0
"""
An idle connection is used no more after this. Gateways and proxies keep one for 5 s and longer: a
request that meets their close on the way would have an unknown outcome.
"""


class Target(Protocol):
    """
    Somewhere to publish; messages go one after the other, so that their order holds.

    Both ways to publish raise: InvalidRequest or BrokerRefused, where one of the messages is
    refused; OutcomeUnknown, when they may or may not be published; any other GatewayError. But
    for OutcomeUnknown nothing is published then.
    """

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish *bodies*, all or none."""

    async def publish_deferred(self, topic: str, body: bytes, defer_ms: int) -> None:
        """Publish *body*, which NSQ keeps back for *defer_ms*."""


class NsqdTarget:
    """Publishes over TCP, to nsqd that are named or found."""

    def __init__(self, settings: PubSettings, access: NsqdAccess) -> None:
        self._publisher = Publisher(
            settings.nsqd_tcp_address,
            PublisherOptions(
                timeout_ms=settings.publish_timeout_ms,
                limits=Limits(
                    max_msg_size_bytes=settings.max_msg_size,
                    max_body_size_bytes=settings.max_body_size,
                    max_req_timeout_ms=settings.max_req_timeout,
                ),
                # One batch at a time needs one connection.
                connections_per_nsqd=1,
                connection=replace(access.connection, secret=access.secret),
            ),
            lookup=access.lookup,
        )

    async def __aenter__(self) -> Self:
        """Find the brokers and connect; whether that worked is seen when something is published."""
        await self._publisher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self._publisher.stop()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish *bodies*; see `Target`."""
        await self._publisher.publish_many(topic, bodies)

    async def publish_deferred(self, topic: str, body: bytes, defer_ms: int) -> None:
        """Publish *body*; see `Target`."""
        await self._publisher.publish(topic, body, defer_ms=defer_ms)


class _Problem(msgspec.Struct):
    """What is read of an RFC 9457 body, ours or another's, and of nsqd's."""

    detail: str = ""
    message: str = ""
    retryable: bool = False


class GatewayTarget:
    """Publishes over HTTP."""

    def __init__(self, url: str, settings: PubSettings, access: NsqdAccess) -> None:
        self._url = url
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=bearer_headers(access.secret),
            timeout=settings.publish_timeout_ms / 1_000 + _ANSWER_S,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=_KEEP_S),
            # Neither a proxy nor a .netrc of the environment is meant for a gateway; the
            # authorities of SSL_CERT_FILE are.
            trust_env=False,
            verify=ssl.create_default_context(),
        )

    async def __aenter__(self) -> Self:
        """Do nothing yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish *bodies*; see `Target`."""
        if len(bodies) == 1:
            await self._post("/pub", {"topic": topic}, bodies[0])
        elif any(b"\n" in body for body in bodies):
            await self._post("/mpub", {"topic": topic, "binary": "true"}, _binary(bodies))
        else:
            await self._post("/mpub", {"topic": topic}, b"\n".join(bodies))

    async def publish_deferred(self, topic: str, body: bytes, defer_ms: int) -> None:
        """Publish *body*; see `Target`."""
        await self._post("/pub", {"topic": topic, "defer": str(defer_ms)}, body)

    async def _post(self, path: str, query: dict[str, str], body: bytes) -> None:
        try:
            answer = await self._http.post(path, params=query, content=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if (reason := untrusted(self._url, error)) is not None:
                raise reason from error
            text = f"no gateway answers at {self._url}: {_words(error)}"
            raise TryLater(text, short="gateway unreachable") from error
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"no answer from {self._url}: {_words(error)}") from error
        if (answer.status_code, answer.content) != (200, b"OK"):
            raise _refusal(self._url, answer)


def _binary(bodies: Sequence[bytes]) -> bytes:
    """Return the body of a binary /mpub: a count, then each message behind its length."""
    parts = (part for body in bodies for part in (UINT32.pack(len(body)), body))
    return UINT32.pack(len(bodies)) + b"".join(parts)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refusal(url: str, answer: httpx.Response) -> GatewayError:
    """Return what another answer than OK means: 4xx and 503 are "not published"."""
    try:
        problem = msgspec.json.decode(answer.content, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem()
    status = answer.status_code
    said = problem.detail or problem.message or "nothing that a gateway says; is this one?"
    text = f"{url} answered {status}: {said}"
    if _is_for_later(answer, problem):
        short = f"gateway answers {status} {problem.message}".rstrip()
        wait_s = _retry_after_s(answer.headers.get("Retry-After", ""))
        if wait_s:
            text += f" (not before {wait_s:g} s)"
        return TryLater(text, short=short, retry_after_s=wait_s)
    if status == httpx.codes.UNAUTHORIZED:
        return AuthRequired(text)
    if status == httpx.codes.FORBIDDEN:
        return Forbidden(text)
    if answer.is_redirect or answer.is_client_error:
        return InvalidRequest(problem.message, text)
    return OutcomeUnknown(text)


def _is_for_later(answer: httpx.Response, problem: _Problem) -> bool:
    """
    Tell whether nothing is published, and the same request may be answered with OK later.

    A bare 503 proves neither: proxies say it too when they lost a server that was at work.
    """
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return bool(problem.message) or "Retry-After" in answer.headers
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return True
    return problem.retryable and answer.status_code != httpx.codes.GATEWAY_TIMEOUT


def _retry_after_s(value: str) -> float:
    """Return the delay of a Retry-After, in seconds or as a date; 0 for anything else."""
    if re.fullmatch(r"[0-9]+", value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max(moment.timestamp() - time.time(), 0.0)


def open_target(settings: PubSettings, access: NsqdAccess) -> AbstractAsyncContextManager[Target]:
    """Return what *settings* name: a gateway where there is a URL, else nsqd."""
    url = settings.gateway_url
    return NsqdTarget(settings, access) if url is None else GatewayTarget(url, settings, access)
