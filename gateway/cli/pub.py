"""
`nsq-gateway pub`: publish standard input, to nsqd over TCP or to a gateway over HTTP.

Batches are published one at a time; each contains the input that arrived while the previous one was
in progress. So retries do not change the order of messages, and after a failure every message
before the failed batch is published: the command can say where to resume.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import ssl
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Literal, Protocol, Self, TextIO, TypeAlias

import httpx
import msgspec

from gateway.cli.options import check_topic_and_channel_names
from gateway.cli.progress import ProgressLine
from gateway.cli.pub_input import NEWLINE, Framing, LengthPrefixed, Lines, MessageRun
from gateway.cli.retry import Retries, RetryableRefusal, delay_reason
from gateway.cli.stdio import InputStream, untrusted_certificate_error, watch_signals
from gateway.client.batch import COUNT_BYTES, MAX_BATCH_BYTES
from gateway.client.from_settings import NsqdAccess, read_access
from gateway.client.producer import Producer, ProducerOptions
from gateway.credentials import bearer_headers
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    Forbidden,
    GatewayError,
    InvalidRequest,
    OutcomeUnknown,
)
from gateway.protocol.wire import UINT32, Limits
from gateway.settings.commands import PubSettings
from gateway.terminal import pluralize

_GATEWAY_GRACE_S = 1.0
"""Added to the publish timeout: a gateway with the same timeout responds with 504 after it."""
_KEEPALIVE_S = 2.0
"""
Maximum idle time of a reused connection.

Gateways and proxies close idle connections after 5 s or more. A request sent while the peer closes
the connection would have an unknown outcome.
"""


class PublishTarget(Protocol):
    """
    A destination of messages: nsqd or a gateway. To keep their order, make one call at a time.

    Both methods raise OutcomeUnknown if the messages may or may not be published, InvalidRequest or
    BrokerRefused if a message was refused. After every GatewayError other than OutcomeUnknown, no
    message of the call is published.
    """

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish *bodies*, all of them or none."""

    async def publish_deferred(self, topic: str, body: bytes, defer_ms: int) -> None:
        """Publish *body*, which nsqd delivers after *defer_ms*."""


class NsqdTarget:
    """Publishes over TCP, to configured nsqds or to those that nsqlookupd returns."""

    def __init__(self, settings: PubSettings, access: NsqdAccess) -> None:
        self._producer = Producer(
            settings.nsqd_tcp_address,
            ProducerOptions(
                timeout_ms=settings.publish_timeout_ms,
                limits=Limits(
                    max_msg_size_bytes=settings.max_msg_size,
                    max_body_size_bytes=settings.max_body_size,
                    max_req_timeout_ms=settings.max_req_timeout,
                ),
                # Batches are published one at a time.
                connections_per_nsqd=1,
                connection=replace(access.connection, secret=access.secret),
            ),
            lookup=access.lookup,
        )

    async def __aenter__(self) -> Self:
        """Discover nsqds and connect; if that fails, the first publish raises the error."""
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self._producer.stop()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish *bodies*; see `PublishTarget`."""
        await self._producer.publish_many(topic, bodies)

    async def publish_deferred(self, topic: str, body: bytes, defer_ms: int) -> None:
        """Publish *body*; see `PublishTarget`."""
        await self._producer.publish(topic, body, defer_ms=defer_ms)


class _PublishErrorBody(msgspec.Struct):
    """The members used of an error body, in RFC 9457 or nsqd's format."""

    detail: str = ""
    message: str = ""
    retryable: bool = False


class GatewayTarget:
    """Publishes to a gateway over HTTP."""

    def __init__(self, url: str, settings: PubSettings, access: NsqdAccess) -> None:
        self._url = url
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=bearer_headers(access.secret),
            timeout=settings.publish_timeout_ms / 1_000 + _GATEWAY_GRACE_S,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=_KEEPALIVE_S),
            # Ignore proxies and .netrc files of the environment; `create_default_context` still
            # reads SSL_CERT_FILE.
            trust_env=False,
            verify=ssl.create_default_context(),
        )

    async def __aenter__(self) -> Self:
        """Return self, without a connection: the first request connects."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish *bodies*; see `PublishTarget`."""
        if len(bodies) == 1:
            await self._post("/pub", {"topic": topic}, bodies[0])
        # /mpub splits its body at newlines, unless it is binary.
        elif any(b"\n" in body for body in bodies):
            await self._post("/mpub", {"topic": topic, "binary": "true"}, _binary(bodies))
        else:
            await self._post("/mpub", {"topic": topic}, b"\n".join(bodies))

    async def publish_deferred(self, topic: str, body: bytes, defer_ms: int) -> None:
        """Publish *body*; see `PublishTarget`."""
        await self._post("/pub", {"topic": topic, "defer": str(defer_ms)}, body)

    async def _post(self, path: str, query: dict[str, str], body: bytes) -> None:
        try:
            response = await self._http.post(path, params=query, content=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if (tls_error := untrusted_certificate_error(self._url, error)) is not None:
                raise tls_error from error
            # Nothing was sent without a connection, so a retry cannot duplicate messages.
            text = f"cannot connect to the gateway at {self._url}: {_describe_error(error)}"
            raise RetryableRefusal(text, short="gateway unreachable") from error
        except httpx.HTTPError as error:
            raise OutcomeUnknown(
                f"no response from {self._url}: {_describe_error(error)}"
            ) from error
        # Another server at this URL may answer 200 with a page: only the text OK proves a publish.
        if (response.status_code, response.content) != (200, b"OK"):
            raise _response_error(self._url, response)


def _binary(bodies: Sequence[bytes]) -> bytes:
    """Return the body of a binary /mpub: the number of messages, then each with its length."""
    parts = (part for body in bodies for part in (UINT32.pack(len(body)), body))
    return UINT32.pack(len(bodies)) + b"".join(parts)


def _describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__


def _response_error(url: str, response: httpx.Response) -> GatewayError:
    """
    Return the exception for a response other than 200 OK.

    After a redirect, a 4xx, or a response that permits a retry, nothing is published; after any
    other, the outcome is unknown.
    """
    try:
        body = msgspec.json.decode(response.content, type=_PublishErrorBody)
    except msgspec.DecodeError:
        body = _PublishErrorBody()
    status = response.status_code
    detail = body.detail or body.message or "not a response of a gateway; check --url"
    text = f"{url} answered {status}: {detail}"
    if _permits_retry(response, body):
        short = f"gateway answers {status} {body.message}".rstrip()
        wait_s = _retry_after_s(response.headers.get("Retry-After", ""))
        if wait_s:
            text += f" (retry after {wait_s:g} s)"
        return RetryableRefusal(text, short=short, retry_after_s=wait_s)
    if status == httpx.codes.UNAUTHORIZED:
        return AuthRequired(text)
    if status == httpx.codes.FORBIDDEN:
        return Forbidden(text)
    if response.is_redirect or response.is_client_error:
        return InvalidRequest(body.message, text)
    return OutcomeUnknown(text)


def _permits_retry(response: httpx.Response, body: _PublishErrorBody) -> bool:
    """
    Return whether nothing was published and a retry may succeed.

    A 503 without nsqd's error code or Retry-After proves neither: a proxy also sends it after it
    has lost the connection to a server that was handling the request.
    """
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return bool(body.message) or "Retry-After" in response.headers
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return True
    return body.retryable and response.status_code != httpx.codes.GATEWAY_TIMEOUT


def _retry_after_s(value: str) -> float:
    """Return the delay in a Retry-After header, a number or a date; 0 if it is neither."""
    # RFC 9110 §10.2.3: a number of seconds, or a date.
    if re.fullmatch(r"[0-9]+", value):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max(when.timestamp() - time.time(), 0.0)


def open_target(
    settings: PubSettings, access: NsqdAccess
) -> AbstractAsyncContextManager[PublishTarget]:
    """Return the target in *settings*: a gateway if a URL is configured, otherwise nsqd."""
    url = settings.gateway_url
    return NsqdTarget(settings, access) if url is None else GatewayTarget(url, settings, access)


FramingName: TypeAlias = Literal["lines", "length-prefixed"]

_AT_LEAST_ONCE_HINT = (
    "to retry after an unknown outcome, add --at-least-once; messages may be duplicated"
)


@dataclass(frozen=True, kw_only=True)
class PubArguments:
    """Arguments of one run of the command."""

    topic: str
    defer_ms: int = 0
    framing: FramingName = "lines"
    delimiter: bytes = NEWLINE
    """The byte that ends a line."""
    is_verbose: bool = False
    """Print totals at the end even if *report* is not a terminal."""
    input: int
    """The file descriptor to read."""
    report: TextIO
    """The stream for progress, totals and messages to the user."""


class MessagesNotPublished(GatewayError):
    """Some messages of the input are not published, or have an unknown outcome."""


class InputFailed(GatewayError):
    """Reading standard input failed."""


class Interrupted(GatewayError):
    """A signal ended the command before the end of its input; the text says where to resume."""


async def run_pub(settings: PubSettings, task: PubArguments) -> signal.Signals | None:
    """
    Publish every message of the input; return the signal that ended the run early, or None.

    Raises:
        SettingsError: The topic is invalid, or a file named by the settings is.
        MessagesNotPublished: A message was not published, or may not have been; the text says
            where to resume.
        InputFailed: Reading standard input failed.
    """
    check_topic_and_channel_names(topic=task.topic)
    access = read_access(settings)
    interruption = watch_signals(signal.SIGINT, signal.SIGTERM)
    async with open_target(settings, access) as target:
        publish_run = _PublishRun(target, settings, task, interruption)
        try:
            await publish_run.run()
        except Interrupted as error:
            publish_run.finish(str(error))
            return interruption.result()
        finally:
            publish_run.finish()
    return None


class _PublishRun:
    """Publishes the input of one run of the command, batch by batch."""

    def __init__(
        self,
        target: PublishTarget,
        settings: PubSettings,
        task: PubArguments,
        interruption: asyncio.Future[signal.Signals],
    ) -> None:
        self._target = target
        self._task = task
        self._interruption = interruption
        # The number of messages at the start of an MPUB counts towards max_body_size.
        self._batch_bytes = min(MAX_BATCH_BYTES, settings.max_body_size) - COUNT_BYTES
        self._framing = _framing(task, max_bytes=settings.max_msg_size)
        self._retry_for_s = settings.retry_for_s
        self._retries = Retries(
            random.random,
            retry_for_s=settings.retry_for_s,
            at_least_once=settings.at_least_once,
        )
        self._progress = ProgressLine(
            task.report, is_verbose=task.is_verbose, is_interactive=os.isatty(task.input)
        )
        self._next = (1, 0)
        """Number and offset of the first message that is not published."""
        self._duplicates_count = 0
        """Messages published after an attempt with an unknown outcome."""
        self._is_finished = False

    def finish(self, text: str = "") -> None:
        """Print totals, the number of possible duplicates, and *text*; idempotent."""
        if self._is_finished:
            return
        self._is_finished = True
        self._progress.close()
        if self._duplicates_count:
            duplicates = pluralize(self._duplicates_count, "message")
            self._progress.print(f"{duplicates} may be published more than once")
        if text:
            self._progress.print(text)

    # From input to batches

    async def run(self) -> None:
        """Publish the input until it ends; raises like `run_pub`, and Interrupted on a signal."""
        source = InputStream(self._task.input)
        while True:
            data = await self._read(source)
            for batch in self._batches(self._framing.feed(data)):
                await self._publish(batch, is_unknown=False)
                # Not during a publish: its response determines where to resume.
                if self._interruption.done():
                    raise self._interrupted()
            # Raise only now: the messages before the invalid one are published, and the user can
            # resume there.
            if refusal := self._framing.refusal:
                self._next = (refusal.number, refusal.start)
                where = self._framing.describe_range(refusal.number, refusal.number, refusal.start)
                raise MessagesNotPublished(
                    f"{where} not published: {refusal.error}\n{self._resume_hint()}"
                )
            if not data:
                return

    async def _read(self, source: InputStream) -> bytes:
        try:
            data = await source.read(until=self._interruption)
        except OSError as error:
            text = f"standard input cannot be read: {error.strerror}; {self._resume_hint()}"
            raise InputFailed(text) from error
        if data is None:
            raise self._interrupted()
        return data

    def _batches(self, run: MessageRun) -> list[MessageRun]:
        """Split *run* into batches; deferred messages one by one: NSQ has no deferred MPUB."""
        return run.batches(1 if self._task.defer_ms else self._batch_bytes)

    # From a batch to its answer

    async def _publish(self, run: MessageRun, *, is_unknown: bool) -> None:
        """
        Publish *run* as one batch, with retries.

        If a message of the batch is refused, publish the messages before it, then raise
        MessagesNotPublished for that one. *is_unknown* is True if an earlier attempt may have
        published *run*.
        """
        bodies = run.bodies
        while True:
            try:
                await self._send(bodies)
            except GatewayError as error:
                # Once unknown, always unknown: a later failure says nothing about earlier attempts.
                is_unknown = is_unknown or isinstance(error, OutcomeUnknown)
                is_final = not self._retries.may_repeat(error)
                if len(bodies) > 1 and is_final and _may_be_caused_by_one_message(error):
                    break
                await self._wait_before_retry(error, run, is_unknown=is_unknown)
            else:
                self._on_published(run, bodies, is_unknown=is_unknown)
                return
        # nsqd does not say which message of an MPUB it refused. Halve the batch until that message
        # is alone: it then gets an error of its own, after the messages before it are published.
        count = len(run.pieces)
        for part in (run.between(0, count // 2), run.between(count // 2, count)):
            if part.pieces:
                await self._publish(part, is_unknown=is_unknown)

    async def _send(self, bodies: Sequence[bytes]) -> None:
        task = self._task
        if task.defer_ms:
            await self._target.publish_deferred(task.topic, bodies[0], task.defer_ms)
        else:
            await self._target.publish(task.topic, bodies)

    def _on_published(self, run: MessageRun, bodies: Sequence[bytes], *, is_unknown: bool) -> None:
        self._next = (run.last_number + 1, run.end)
        self._retries.succeeded()
        self._duplicates_count += len(bodies) if is_unknown else 0
        self._progress.add(messages=len(bodies), size_bytes=sum(map(len, bodies)))

    async def _wait_before_retry(
        self, error: GatewayError, run: MessageRun, *, is_unknown: bool
    ) -> None:
        """
        Wait until it is time to publish *run* again, after *error*.

        Raises:
            MessagesNotPublished: *error* permits no retry, or --retry-for-s is over.
            Interrupted: A signal arrived.
        """
        now = asyncio.get_running_loop().time()
        delay_s = self._retries.next_delay_s(error, now)
        if delay_s is None:
            raise self._failure(run, error, is_unknown=is_unknown) from error
        self._progress.show_delay(delay_reason(error), now + delay_s)
        await asyncio.wait([self._interruption], timeout=delay_s)
        self._progress.clear_delay()
        if self._interruption.done():
            raise self._interrupted(run if is_unknown else None)

    # Messages to the user

    def _failure(
        self, run: MessageRun, error: GatewayError, *, is_unknown: bool
    ) -> MessagesNotPublished:
        outcome = "may or may not be published" if is_unknown else "not published"
        retries = self._retries.count_of_batch
        attempts = f" (tried {1 + retries} times)" if retries else ""
        needs_hint = is_unknown and not self._retries.may_repeat(error)
        hint = f"\n{_AT_LEAST_ONCE_HINT}" if needs_hint else ""
        text = f"{self._describe_run(run)} {outcome}{attempts}: {error}"
        return MessagesNotPublished(f"{text}\n{self._resume_hint()}{hint}")

    def _interrupted(self, unknown: MessageRun | None = None) -> Interrupted:
        outcome = f"{self._describe_run(unknown)} may or may not be published; " if unknown else ""
        return Interrupted(f"interrupted; {outcome}{self._resume_hint()}")

    def _describe_run(self, run: MessageRun) -> str:
        return self._framing.describe_range(run.number, run.last_number, run.start)

    def _resume_hint(self) -> str:
        published = pluralize(self._progress.messages, "message")
        return f"{published} published; resume with: {self._framing.resume_command(*self._next)}"


def _framing(task: PubArguments, *, max_bytes: int) -> Framing:
    if task.framing == "length-prefixed":
        return LengthPrefixed(max_bytes=max_bytes)
    return Lines(max_bytes=max_bytes, delimiter=task.delimiter)


def _may_be_caused_by_one_message(error: GatewayError) -> bool:
    """Return whether one message of a batch may be the cause of *error*; none is published then."""
    if isinstance(error, BrokerRefused):
        return not error.is_auth_error
    return isinstance(error, InvalidRequest)
