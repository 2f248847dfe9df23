"""Publishing at a gateway: how messages go there, and what each answer means for them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from gateway.commands.publish_target import GatewayTarget
from gateway.commands.retries import TryLater
from gateway.errors import (
    AuthRequired,
    Forbidden,
    GatewayError,
    InvalidRequest,
    OutcomeUnknown,
)
from gateway.nsqd_access import read_access
from gateway.settings_commands import PubSettings
from gateway.settings_sources import load
from tests.support.mortal_broker import free_port
from tests.support.scripted_gateway import OK, Said, ScriptedGateway, problem, scripted_gateway


@asynccontextmanager
async def target_at(url: str, **flags: str) -> AsyncIterator[GatewayTarget]:
    """Return a target for the gateway at *url*."""
    settings = load(PubSettings, {"url": url, **flags}).settings
    async with GatewayTarget(settings.gateway_url or "", settings, read_access(settings)) as target:
        yield target


async def asked_for(scripted: ScriptedGateway, *bodies: bytes) -> tuple[str, str, bytes]:
    """Return path, query and body of the request that publishes *bodies* to "t"."""
    async with target_at(scripted.url) as target:
        await target.publish("t", bodies)
    return scripted.asked[-1].path, scripted.asked[-1].query, scripted.asked[-1].body


async def refusal_of(said: Said) -> GatewayError:
    """Return what the answer *said* means for a message."""
    async with scripted_gateway(said) as scripted, target_at(scripted.url) as target:
        with pytest.raises(GatewayError) as caught:
            await target.publish("t", [b"one"])
    return caught.value


async def test_the_secret_goes_in_the_header() -> None:
    """Addresses end up in logs."""
    async with (
        scripted_gateway(OK) as scripted,
        target_at(scripted.url, auth_secret="word") as target,
    ):
        await target.publish("a#ephemeral", [b"one", b"two"])

    asked = scripted.asked[0]
    assert ("topic=a%23ephemeral", [b"Bearer word"]) == (asked.query, asked.secrets)


async def test_messages_go_as_simply_as_they_can() -> None:
    """One as it is, several as lines, and behind their lengths where one holds a newline."""
    binary = b"\0\0\0\x02\0\0\0\x03o\ne\0\0\0\x012"

    async with scripted_gateway(OK) as scripted:
        assert ("/pub", "topic=t", b"o\ne") == await asked_for(scripted, b"o\ne")
        assert ("/mpub", "topic=t", b"one\ntwo") == await asked_for(scripted, b"one", b"two")
        assert ("/mpub", "topic=t&binary=true", binary) == await asked_for(scripted, b"o\ne", b"2")


async def test_what_is_deferred_says_how_long() -> None:
    """One message; NSQ has no deferred MPUB."""
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
        (429, TryLater),
        (503, TryLater),
        (500, OutcomeUnknown),
        (502, OutcomeUnknown),
        (504, OutcomeUnknown),
    ],
)
async def test_each_status_says_whether_it_is_published(
    status: int, error: type[GatewayError]
) -> None:
    """4xx and 503 are "no", of which two are "not now"; anything else is "nobody knows"."""
    refused = await refusal_of(problem(status))

    assert error is type(refused)
    assert f"answered {status}: in so many words" in str(refused)


@pytest.mark.parametrize("status", [408, 413, 500, 502])
async def test_a_gateway_may_say_that_a_repetition_is_safe(status: int) -> None:
    """Its body does, whatever the status; a body that took too long to come is such a case."""
    assert isinstance(await refusal_of(problem(status, retryable=True)), TryLater)


async def test_nothing_makes_a_504_safe() -> None:
    """Somebody else's body may mean something else by the same word."""
    assert isinstance(await refusal_of(problem(504, retryable=True)), OutcomeUnknown)


@pytest.mark.parametrize(
    "said,error",
    [
        (Said(503, b'{"message":"EXITING"}'), TryLater),
        (Said(503, b"<html>", {"Retry-After": "1"}), TryLater),
        (Said(429, b"<html>"), TryLater),
        (Said(503, b"<html>"), OutcomeUnknown),
        (Said(503, b"upstream connect error or disconnect/reset before headers"), OutcomeUnknown),
    ],
)
async def test_a_503_counts_as_unpublished_where_somebody_says_so(
    said: Said, error: type[GatewayError]
) -> None:
    """nsqd's word or Retry-After do; a proxy's bare 503 may follow a server that was at work."""
    assert error is type(await refusal_of(said))


@pytest.mark.parametrize(
    "value,seconds",
    [("7", 7.0), ("0", 0.0), ("", 0.0), ("-1", 0.0), ("soon", 0.0), ("9" * 400, math.inf)],
)
async def test_retry_after_is_kept(value: str, seconds: float) -> None:
    """What is no number of seconds and no date asks for nothing."""
    refused = await refusal_of(problem(503, Retry_After=value))

    assert isinstance(refused, TryLater)
    assert seconds == refused.retry_after_s


@pytest.mark.parametrize("hours", [-1, 1])
async def test_retry_after_may_be_a_date(hours: int) -> None:
    """One that is over asks for nothing."""
    date = format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True)

    refused = await refusal_of(problem(429, Retry_After=date))

    assert isinstance(refused, TryLater)
    assert max(hours, 0) * 3_600 == pytest.approx(refused.retry_after_s, abs=60)


async def test_where_nobody_listens_nothing_is_published() -> None:
    """A gateway that is being started is there a moment later."""
    url = f"http://127.0.0.1:{free_port()}"

    async with target_at(url) as target:
        with pytest.raises(TryLater, match=f"no gateway answers at {url}: ") as caught:
            await target.publish("t", [b"one"])

    assert "gateway unreachable" == caught.value.short


@pytest.mark.parametrize("said", [Said(200, b"<html>"), Said(204), Said(502, b"[1]")])
async def test_an_answer_that_no_gateway_gives_proves_nothing(said: Said) -> None:
    """A proxy's page is not nsqd's OK."""
    refused = await refusal_of(said)

    assert isinstance(refused, OutcomeUnknown)
    assert "is this one?" in str(refused)
