"""The trace of a request for a WebSocket ends with its answer, or with its client."""

from __future__ import annotations

import pytest

from gateway.telemetry import REGISTRY
from gateway.web.tracing import RequestSpans
from tests.support.gateways.recorded_spans import RecordedSpans, broken_tracing
from tests.support.manual_clock import until
from tests.support.websocket.echo_handler import EchoUpgradeHandler, echo_server
from tests.support.websocket.raw_socket import handshake, raw_socket


@pytest.mark.parametrize("way", ["end", "reset", "close"])
async def test_a_client_that_goes_before_its_answer_ends_the_trace(way: str) -> None:
    recorded, gate = RecordedSpans(ratio=1.0), EchoUpgradeHandler()
    gate.open.clear()
    async with (
        echo_server(gate, spans=RequestSpans(recorded.tracing)) as address,
        raw_socket(address) as raw,
    ):
        await raw.send(handshake("gateway", "/sub"))
        await until(lambda: bool(gate.upgrades))
        getattr(raw, way)()
        await until(lambda: bool(recorded.ended))

    assert [["lost"], [None]] == [
        recorded.said("error.type"),
        recorded.said("http.response.status_code"),
    ]


@pytest.mark.parametrize(
    "method,shown,status",
    [("GET", "GET", 101), ("POST", "POST", 405), ("PROPFIND", "other", 405)],
)
async def test_a_request_is_counted_and_traced_by_its_method(
    method: str, shown: str, status: int
) -> None:
    """One that nobody knows is none of its own: a caller may make up any."""
    recorded = RecordedSpans(ratio=1.0)
    labels = {"route": "/sub", "method": shown, "code": str(status)}
    name = "nsq_gateway_http_requests_total"
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    request = handshake("gateway", "/sub").replace(b"GET", method.encode(), 1)
    async with (
        echo_server(spans=RequestSpans(recorded.tracing)) as address,
        raw_socket(address) as raw,
    ):
        await raw.send(request)
        line = await raw.read_until(b"\r\n")
        await until(lambda: bool(recorded.ended))

    assert f"HTTP/1.1 {status}".encode() == line[:12]
    assert before + 1 == REGISTRY.get_sample_value(name, labels)
    assert [f"{shown} /sub"] == [span.name for span in recorded.ended]
    assert [status] == recorded.said("http.response.status_code")


async def test_a_trace_that_cannot_begin_lets_everybody_in() -> None:
    async with (
        echo_server(spans=RequestSpans(broken_tracing())) as address,
        raw_socket(address) as raw,
    ):
        await raw.send(handshake("gateway", "/sub"))

        assert b"HTTP/1.1 101 " == (await raw.read_until(b"\r\n\r\n"))[:13]
