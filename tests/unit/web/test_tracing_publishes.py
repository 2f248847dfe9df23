"""The trace of a publish: what fails in it harms nobody, and whatever happens it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.errors import NoBroker
from gateway.telemetry import REGISTRY
from gateway.web.tracing import PublishSpans, single_traceparent
from tests.support.gateways.public_http import public_http
from tests.support.gateways.recorded_spans import SAMPLED, RecordedSpans, broken_tracing
from tests.support.http.raw_http import read_response
from tests.support.http.recording_publisher import RecordingPublisher, WaitingPublisher
from tests.support.manual_clock import until
from tests.support.websocket.raw_socket import RawSocket, raw_socket

HEAD = b"POST /pub?topic=t HTTP/1.1\r\nHost: gateway\r\nContent-Length: 2\r\n\r\n"
POST = HEAD + b"ab"
TRACEPARENT = b"traceparent: " + SAMPLED.encode() + b"\r\n"


@asynccontextmanager
async def traced(
    publisher: RecordingPublisher, recorded: RecordedSpans
) -> AsyncIterator[RawSocket]:
    async with (
        public_http(publisher, spans=PublishSpans(recorded.tracing)) as served,
        raw_socket(served.address) as raw,
    ):
        yield raw


def answers() -> float:
    name = "nsq_gateway_publish_requests_total"
    return sum(
        REGISTRY.get_sample_value(name, {"route": "/pub", "result": result}) or 0.0
        for result in ("OK", "INTERNAL_ERROR")
    )


async def test_a_trace_that_cannot_begin_harms_no_publish() -> None:
    """It is published without one, parsed and with a head that is known."""
    publisher = RecordingPublisher()
    async with (
        public_http(publisher, spans=PublishSpans(broken_tracing())) as served,
        raw_socket(served.address) as raw,
    ):
        for _ in range(3):
            await raw.send(POST)
            assert 200 == (await read_response(raw)).status

    assert 3 == len(publisher.published)


async def test_a_trace_that_fails_on_its_way_harms_no_publish() -> None:
    """One that is with the publisher is answered once, with what comes of it."""
    recorded, publisher = RecordedSpans(ratio=1.0), WaitingPublisher()
    begin = recorded.tracing.start

    def start(name: str, kind: Any, *rest: Any) -> Any:  # noqa: ANN401
        if kind == "producer":
            raise RuntimeError("no step can be made")
        return begin(name, kind, *rest)

    recorded.tracing.start = start  # type: ignore[method-assign,assignment]
    before = answers()
    async with traced(publisher, recorded) as raw:
        for _ in range(3):
            await raw.send(POST)
            await until(lambda: bool(publisher.waiting))
            publisher.waiting.pop()(None)
            assert 200 == (await read_response(raw)).status

    assert (3, before + 3) == (len(publisher.published), answers())
    assert ["POST /pub"] * 3 == [span.name for span in recorded.ended]


async def test_a_publish_whose_head_is_known_is_traced_as_the_first() -> None:
    recorded, publisher = RecordedSpans(ratio=1.0), WaitingPublisher()
    async with traced(publisher, recorded) as raw:
        for _ in range(2):
            await raw.send(POST)
            await until(lambda: bool(publisher.waiting))
            publisher.waiting.pop()(None)
            assert 200 == (await read_response(raw)).status

    assert ["send t", "POST /pub"] * 2 == [span.name for span in recorded.ended]


async def test_a_client_that_goes_within_its_body_ends_the_trace() -> None:
    """Nothing was published, and no answer was given."""
    recorded, publisher = RecordedSpans(ratio=1.0), RecordingPublisher()
    async with traced(publisher, recorded) as raw:
        await raw.send(HEAD + b"a")
        await until(lambda: publisher.held_bytes == 1)
        raw.reset()
        await until(lambda: bool(recorded.ended))

    assert ["lost"] == recorded.said("error.type")
    assert [None] == recorded.said("http.response.status_code")


@pytest.mark.parametrize("error,said", [(None, None), (NoBroker("none"), "NoBroker")])
async def test_a_client_that_goes_before_the_answer_has_its_trace_until_then(
    error: NoBroker | None, said: str | None
) -> None:
    """What became of the publish is known, and nobody is told."""
    recorded, publisher = RecordedSpans(ratio=1.0), WaitingPublisher()
    async with traced(publisher, recorded) as raw:
        await raw.send(POST)
        await until(lambda: bool(publisher.waiting))
        raw.reset()
        await until(lambda: has_gone(publisher))
        before = len(recorded.ended)
        publisher.waiting.pop()(error)

    assert (0, ["send t", "POST /pub"]) == (before, [span.name for span in recorded.ended])
    assert [said, said] == recorded.said("error.type")


def has_gone(publisher: WaitingPublisher) -> bool:
    """Tell whether the exchange that waits knows that its client has gone."""
    exchange = publisher.waiting[0].__self__  # type: ignore[attr-defined]
    return bool(exchange.is_abandoned)


async def test_two_traceparents_say_nothing() -> None:
    """As W3C Trace Context has it; one is followed."""
    recorded = RecordedSpans()
    once = POST.replace(b"Content", TRACEPARENT + b"Content", 1)
    twice = POST.replace(b"Content", TRACEPARENT * 2 + b"Content", 1)
    async with traced(RecordingPublisher(), recorded) as raw:
        await raw.send(twice)
        await read_response(raw)
        before = len(recorded.ended)
        await raw.send(once)
        await read_response(raw)

    assert (0, 1) == (before, len(recorded.ended))


@pytest.mark.parametrize("values,said", [([], None), ([b"a"], "a"), ([b"a", b"a"], None)])
def test_a_request_says_its_traceparent_once(values: list[bytes], said: str | None) -> None:
    """Bytes of any kind; what they mean is judged elsewhere."""
    assert said == single_traceparent(values)
