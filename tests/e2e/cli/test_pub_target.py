"""Publishing to a gateway: the requests, and the exception for each response."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from gateway.cli.pub import GatewayTarget
from gateway.cli.retry import RetryableRefusal
from gateway.client.from_settings import read_access
from gateway.errors import (
    AuthRequired,
    Forbidden,
    GatewayError,
    InvalidRequest,
    OutcomeUnknown,
)
from gateway.settings.commands import PubSettings
from gateway.settings.loader import load
from tests.support.brokers.killable_broker import free_port
from tests.support.gateways.scripted_gateway import (
    OK,
    ScriptedGateway,
    ScriptedResponse,
    problem,
    scripted_gateway,
)


@asynccontextmanager
async def target_at(url: str, **flags: str) -> AsyncIterator[GatewayTarget]:
    """Yield a target for the gateway at *url*."""
    settings = load(PubSettings, {"url": url, **flags}).settings
    async with GatewayTarget(settings.gateway_url or "", settings, read_access(settings)) as target:
        yield target


async def asked_for(scripted: ScriptedGateway, *bodies: bytes) -> tuple[str, str, bytes]:
    """Return path, query and body of the request that publishes *bodies* to topic t."""
    async with target_at(scripted.url) as target:
        await target.publish("t", bodies)
    return scripted.asked[-1].path, scripted.asked[-1].query, scripted.asked[-1].body


async def refusal_of(said: ScriptedResponse) -> GatewayError:
    async with scripted_gateway(said) as scripted, target_at(scripted.url) as target:
        with pytest.raises(GatewayError) as caught:
            await target.publish("t", [b"one"])
    return caught.value


async def test_the_secret_goes_in_the_header() -> None:
    """URLs end up in logs, headers do not."""
    async with (
        scripted_gateway(OK) as scripted,
        target_at(scripted.url, auth_secret="word") as target,
    ):
        await target.publish("a#ephemeral", [b"one", b"two"])

    asked = scripted.asked[0]
    assert ("topic=a%23ephemeral", [b"Bearer word"]) == (asked.query, asked.secrets)


async def test_messages_go_as_simply_as_they_can() -> None:
    """/pub for one message, /mpub with lines, binary /mpub if a body has a newline."""
    binary = b"\0\0\0\x02\0\0\0\x03o\ne\0\0\0\x012"

    async with scripted_gateway(OK) as scripted:
        assert ("/pub", "topic=t", b"o\ne") == await asked_for(scripted, b"o\ne")
        assert ("/mpub", "topic=t", b"one\ntwo") == await asked_for(scripted, b"one", b"two")
        assert ("/mpub", "topic=t&binary=true", binary) == await asked_for(scripted, b"o\ne", b"2")


async def test_what_is_deferred_says_how_long() -> None:
    """It is a /pub of one message: NSQ has no deferred MPUB."""
    async with scripted_gateway(OK) as scripted, target_at(scripted.url) as target:
        await target.publish_deferred("t", b"one", 5)

    assert ("/pub", "topic=t&defer=5", b"one") == (
        scripted.asked[0].path,
        scripted.asked[0].query,
        scripted.asked[0].body,
    )


@pytest.mark.parametrize(
    "status,error",
    [
        (302, InvalidRequest),
        (400, InvalidRequest),
        (401, AuthRequired),
        (403, Forbidden),
        (404, InvalidRequest),
        (408, InvalidRequest),
        (413, InvalidRequest),
        (429, RetryableRefusal),
        (503, RetryableRefusal),
        (500, OutcomeUnknown),
        (502, OutcomeUnknown),
        (504, OutcomeUnknown),
    ],
)
async def test_each_status_says_whether_it_is_published(
    status: int, error: type[GatewayError]
) -> None:
    """4xx and 503 are not published, 429 and 503 retryable; others are unknown."""
    refused = await refusal_of(problem(status))

    assert error is type(refused)
    assert f"answered {status}: in so many words" in str(refused)


@pytest.mark.parametrize("status", [408, 413, 500, 502])
async def test_a_gateway_may_say_that_a_repetition_is_safe(status: int) -> None:
    """`retryable` in the body counts for any status, such as 408."""
    assert isinstance(await refusal_of(problem(status, retryable=True)), RetryableRefusal)


async def test_nothing_makes_a_504_safe() -> None:
    """The body of another server may use the same member with another meaning."""
    assert isinstance(await refusal_of(problem(504, retryable=True)), OutcomeUnknown)


@pytest.mark.parametrize(
    "said,error",
    [
        (ScriptedResponse(503, b'{"message":"EXITING"}'), RetryableRefusal),
        (ScriptedResponse(503, b"<html>", {"Retry-After": "1"}), RetryableRefusal),
        (ScriptedResponse(429, b"<html>"), RetryableRefusal),
        (ScriptedResponse(503, b"<html>"), OutcomeUnknown),
        (
            ScriptedResponse(503, b"upstream connect error or disconnect/reset before headers"),
            OutcomeUnknown,
        ),
    ],
)
async def test_a_503_counts_as_unpublished_where_somebody_says_so(
    said: ScriptedResponse, error: type[GatewayError]
) -> None:
    """nsqd's error code or Retry-After prove it; a proxy's bare 503 does not."""
    assert error is type(await refusal_of(said))


@pytest.mark.parametrize(
    "value,seconds",
    [("7", 7.0), ("0", 0.0), ("", 0.0), ("-1", 0.0), ("soon", 0.0), ("9" * 400, math.inf)],
)
async def test_retry_after_is_kept(value: str, seconds: float) -> None:
    """A value that is neither a number nor a date counts as 0."""
    refused = await refusal_of(problem(503, Retry_After=value))

    assert isinstance(refused, RetryableRefusal)
    assert seconds == refused.retry_after_s


@pytest.mark.parametrize("hours", [-1, 1])
async def test_retry_after_may_be_a_date(hours: int) -> None:
    """A date in the past counts as 0."""
    date = format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True)

    refused = await refusal_of(problem(429, Retry_After=date))

    assert isinstance(refused, RetryableRefusal)
    assert max(hours, 0) * 3_600 == pytest.approx(refused.retry_after_s, abs=60)


async def test_where_nobody_listens_nothing_is_published() -> None:
    """The error permits a retry: the gateway may be about to start."""
    url = f"http://127.0.0.1:{free_port()}"

    async with target_at(url) as target:
        with pytest.raises(
            RetryableRefusal, match=f"cannot connect to the gateway at {url}: "
        ) as caught:
            await target.publish("t", [b"one"])

    assert "gateway unreachable" == caught.value.short


@pytest.mark.parametrize(
    "said", [ScriptedResponse(200, b"<html>"), ScriptedResponse(204), ScriptedResponse(502, b"[1]")]
)
async def test_an_answer_that_no_gateway_gives_proves_nothing(said: ScriptedResponse) -> None:
    """A page of a proxy with status 200 is not nsqd's OK."""
    refused = await refusal_of(said)

    assert isinstance(refused, OutcomeUnknown)
    assert "check --url" in str(refused)
