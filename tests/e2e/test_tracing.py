"""Traces from a publish's traceparent to the delivery of its message, exported by OTLP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx

from tests.support.gateways.gateway import RunningGateway, gateway_alone
from tests.support.gateways.otlp_receiver import OtlpReceiver, Received, otlp_receiver

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
NOT_SAMPLED = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
FOLLOWS_ONLY = ("--tracing", "--tracing-sample-ratio=0")


@asynccontextmanager
async def traced(*flags: str) -> AsyncIterator[tuple[RunningGateway, OtlpReceiver]]:
    async with (
        otlp_receiver() as receiver,
        gateway_alone(*flags, environment=receiver.environment) as gateway,
    ):
        yield gateway, receiver


async def publish(
    gateway: RunningGateway, topic: str, body: bytes, traceparent: str | None = None
) -> httpx.Response:
    """Publish with a ``traceparent``, or without."""
    headers = {} if traceparent is None else {"traceparent": traceparent}
    return await gateway.http.post("/pub", params={"topic": topic}, content=body, headers=headers)


async def test_a_trace_goes_from_the_publish_to_the_answer_of_the_consumer() -> None:
    """The body says where it came from; NSQ carries it, and the delivery is in the same trace."""
    body = json.dumps({"traceparent": SAMPLED, "order": 17}).encode()
    async with traced(*FOLLOWS_ONLY) as (gateway, receiver):
        async with gateway.subscribe("orders", "shipping") as client:
            answer = await publish(gateway, "orders", body, SAMPLED)
            await client.finish(await client.message())

        request = await receiver.received(lambda span: span.name == "POST /pub")
        send = await receiver.received(lambda span: span.name == "send orders")
        process = await receiver.received(lambda span: span.name == "process orders")

    assert 200 == answer.status_code
    assert {TRACE} == {span.trace_id for span in receiver.spans}
    assert ["server", "producer", "consumer"] == [each.kind for each in (request, send, process)]
    assert (CALLER, request.span_id) == (request.parent_id, send.parent_id)
    assert (200, "/pub") == (
        request.attributes["http.response.status_code"],
        request.attributes["http.route"],
    )
    assert ("nsq", "orders", len(body)) == (
        send.attributes["messaging.system"],
        send.attributes["messaging.destination.name"],
        send.attributes["messaging.message.body.size"],
    )
    assert (CALLER, "shipping", "FIN", 1) == (
        process.parent_id,
        process.attributes["messaging.destination.subscription.name"],
        process.attributes["nsq.outcome"],
        process.attributes["nsq.message.attempts"],
    )
    assert "nsq-gateway" == receiver.resource["service.name"]


async def test_pulls_acks_and_event_streams_have_spans() -> None:
    """And what is pulled has the span of a delivery, which ends with the ack of its lease."""
    body = json.dumps({"traceparent": SAMPLED, "order": 17}).encode()
    headers = {"traceparent": SAMPLED}
    names = {"topic": "orders", "channel": "shipping"}
    async with traced(*FOLLOWS_ONLY) as (gateway, receiver):
        await publish(gateway, "orders", body)
        query = {**names, "wait_ms": "5000"}
        pulled = await gateway.http.post("/pull", params=query, headers=headers)
        [message] = pulled.json()["messages"]
        await gateway.http.post("/ack", json={"fin": [message["lease"]]}, headers=headers)
        await gateway.http.post("/ack", content=b"?", headers=headers)
        streaming = {**headers, "Accept": "text/event-stream"}
        async with gateway.http.stream("GET", "/sub", params=names, headers=streaming) as stream:
            spans = [
                await receiver.received(partial(is_response, name, status))
                for name, status in (
                    ("POST /pull", 200),
                    ("POST /ack", 200),
                    ("POST /ack", 400),
                    ("GET /sub", 200),
                )
            ]
        process = await receiver.received(lambda span: span.name == "process orders")

    assert 200 == stream.status_code
    assert {(TRACE, CALLER, "server")} == {
        (each.trace_id, each.parent_id, each.kind) for each in spans
    }
    assert "InvalidRequest" == spans[2].attributes["error.type"]
    assert ("FIN", "shipping") == (
        process.attributes["nsq.outcome"],
        process.attributes["messaging.destination.subscription.name"],
    )


def is_response(name: str, status: int, span: Received) -> bool:
    return (name, status) == (span.name, span.attributes.get("http.response.status_code"))


async def test_the_span_of_a_refused_publish_has_the_error() -> None:
    """The span has the status and the error code, and no text from the caller."""
    async with traced(*FOLLOWS_ONLY) as (gateway, receiver):
        answer = await publish(gateway, "not a topic", b"x", SAMPLED)
        span = await receiver.received(lambda span: span.name == "POST /pub")

    assert 400 == answer.status_code
    assert (True, 400, "InvalidRequest") == (
        span.is_error,
        span.attributes["http.response.status_code"],
        span.attributes["error.type"],
    )


async def test_an_unsampled_traceparent_creates_no_spans() -> None:
    """Nor who says nothing, at a ratio of 0; what comes behind them shows that nothing came."""
    async with traced(*FOLLOWS_ONLY) as (gateway, receiver):
        await publish(gateway, "t", b"1", NOT_SAMPLED)
        await publish(gateway, "t", b"2")
        await publish(gateway, "t", b"3")  # its head is known
        await publish(gateway, "last", b"4", SAMPLED)
        await receiver.received(lambda span: span.name == "POST /pub")

    assert {TRACE} == {span.trace_id for span in receiver.spans}


async def test_at_a_ratio_of_1_every_request_begins_a_trace() -> None:
    """Also one whose head is known: the second and the third are not parsed."""
    async with traced("--tracing", "--tracing-sample-ratio=1") as (gateway, receiver):
        for number in (b"1", b"2", b"3"):
            await publish(gateway, "t", number)

        def is_third(_: Received) -> bool:
            return 3 == len({span.trace_id for span in receiver.spans})

        await receiver.received(is_third)

    assert {""} == {span.parent_id for span in receiver.spans if span.kind == "server"}


async def test_an_upgrade_is_a_span_and_its_lines_in_the_log_name_the_trace() -> None:
    """From the head of the request to the 101."""
    async with traced(*FOLLOWS_ONLY) as (gateway, receiver):
        async with gateway.http.stream(
            "GET",
            "/sub",
            params={"topic": "t", "channel": "c"},
            headers={
                "traceparent": SAMPLED,
                "connection": "upgrade",
                "upgrade": "websocket",
                "sec-websocket-version": "13",
                "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
            },
        ) as answer:
            status = answer.status_code
        span = await receiver.received(lambda span: span.name == "GET /sub")
        line = await gateway.program.said(r'\{.*"subscriber connected".*\}')

    assert (101, 101) == (status, span.attributes["http.response.status_code"])
    assert (TRACE, CALLER) == (span.trace_id, span.parent_id)
    assert TRACE == json.loads(line[0])["trace_id"]


async def test_an_unreachable_otlp_receiver_delays_nothing() -> None:
    """Publishes are answered, and the end does not wait for it longer than 2 s."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    flags = ("--tracing", "--tracing-sample-ratio=1")
    async with gateway_alone(*flags, environment=environment) as gateway:
        answer = await publish(gateway, "t", b"1")

    assert 200 == answer.status_code


def test_without_tracing_the_sdk_is_not_imported() -> None:
    """It costs nothing where it is not asked for; FastAPI looks for the bare interface itself."""
    program = "import sys, gateway.server.service; print('opentelemetry.sdk' in sys.modules)"

    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert "False" == run.stdout.strip()


def test_an_extra_that_is_missing_is_named() -> None:
    """The error says what to install."""
    program = (
        "import sys; sys.modules['opentelemetry'] = None;"
        "from gateway.telemetry import start_tracing;"
        "start_tracing(ratio=1, version='1')"
    )

    run = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )

    assert "--tracing: " in run.stderr
    assert "pip install '.[tracing]'" in run.stderr
