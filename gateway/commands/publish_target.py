"""Where `pub` sends its messages: to nsqd over TCP, or to a gateway over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol, Self

import httpx
import msgspec

from gateway.client.publisher import Publisher, PublisherOptions
from gateway.commands.bearer import bearer_headers
from gateway.errors import (
    AuthRequired,
    Forbidden,
    InvalidRequest,
    NoBroker,
    OutcomeUnknown,
)
from gateway.nsqd_access import NsqdAccess
from gateway.protocol.wire import Limits
from gateway.settings_commands import PubSettings

_ANSWER_S = 1.0
"""What a gateway gets beyond the publish timeout, for it has the same one and then answers."""


class Target(Protocol):
    """Somewhere to publish; messages go one after the other, so that their order holds."""

    async def publish(self, topic: str, bodies: Sequence[bytes], *, defer_ms: int) -> None:
        """
        Publish *bodies*, all or none; deferred is one at a time.

        Raises:
            InvalidRequest, BrokerRefused: One of them is refused; none is published.
            OutcomeUnknown: They may or may not be published.
            GatewayError: Anything else; none is published.
        """


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

    async def publish(self, topic: str, bodies: Sequence[bytes], *, defer_ms: int) -> None:
        """Publish *bodies*; see `Target`."""
        if defer_ms:
            for body in bodies:
                await self._publisher.publish(topic, body, defer_ms=defer_ms)
        else:
            await self._publisher.publish_many(topic, bodies)


class _Problem(msgspec.Struct):
    """What is read of an RFC 9457 body, ours or another's."""

    detail: str = ""
    message: str = ""


class GatewayTarget:
    """Publishes over HTTP."""

    def __init__(self, url: str, settings: PubSettings, access: NsqdAccess) -> None:
        self._url = url
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=bearer_headers(access.secret),
            timeout=settings.publish_timeout_ms / 1_000 + _ANSWER_S,
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

    async def publish(self, topic: str, bodies: Sequence[bytes], *, defer_ms: int) -> None:
        """Publish *bodies*; see `Target`."""
        if defer_ms:
            for body in bodies:
                await self._post("/pub", {"topic": topic, "defer": str(defer_ms)}, body)
        else:
            await self._post("/mpub", {"topic": topic}, b"\n".join(bodies))

    async def _post(self, path: str, query: dict[str, str], body: bytes) -> None:
        try:
            answer = await self._http.post(path, params=query, content=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NoBroker(f"no gateway answers at {self._url}: {_words(error)}") from error
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"no answer from {self._url}: {_words(error)}") from error
        if (answer.status_code, answer.content) != (200, b"OK"):
            raise _refusal(self._url, answer)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refusal(
    url: str, answer: httpx.Response
) -> AuthRequired | Forbidden | InvalidRequest | NoBroker | OutcomeUnknown:
    """Return what another answer than OK means: 4xx and 503 are "not published"."""
    try:
        problem = msgspec.json.decode(answer.content, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem()
    said = problem.detail or problem.message or "nothing that a gateway says; is this one?"
    text = f"{url} answered {answer.status_code}: {said}"
    match answer.status_code:
        case 401:
            return AuthRequired(text)
        case 403:
            return Forbidden(text)
        case 503:
            return NoBroker(text)
        case status if 300 <= status < 500:  # noqa: PLR2004 - the classes of RFC 9110
            return InvalidRequest(problem.message, text)
        case _:
            return OutcomeUnknown(text)


def open_target(settings: PubSettings, access: NsqdAccess) -> AbstractAsyncContextManager[Target]:
    """Return what *settings* name: a gateway where there is a URL, else nsqd."""
    url = settings.gateway_url
    return NsqdTarget(settings, access) if url is None else GatewayTarget(url, settings, access)
