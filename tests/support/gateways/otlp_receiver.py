"""An OTLP/HTTP receiver: spans as an OpenTelemetry collector gets them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_WAIT_S = 60.0
_KINDS = {Span.SPAN_KIND_SERVER: "server", Span.SPAN_KIND_PRODUCER: "producer"}


@dataclass(frozen=True)
class Received:
    """One span."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str | int] = field(default_factory=dict)
    is_error: bool = False


class OtlpReceiver:
    """A receiver that keeps every span; *address* is host:port."""

    def __init__(self) -> None:
        self.address = ""
        self.spans: list[Received] = []
        self.resource: dict[str, str | int] = {}
        self.headers: list[str] = []
        """Headers of the last request."""
        self._came = asyncio.Condition()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make OpenTelemetry export here, with a short interval."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    async def received(self, is_meant: Callable[[Received], bool]) -> Received:
        """Return the first span that is meant, now or later."""
        async with asyncio.timeout(_WAIT_S), self._came:
            while True:
                for span in self.spans:
                    if is_meant(span):
                        return span
                await self._came.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle requests until the client disconnects."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._take(head.decode("latin-1"), reader)
                body = ExportTraceServiceResponse().SerializeToString()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n"
                    b"content-length: %d\r\n\r\n%b" % (len(body), body)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _take(self, head: str, reader: asyncio.StreamReader) -> None:
        lines = head.splitlines()
        assert lines[0].startswith("POST /v1/traces "), lines[0]
        self.headers = lines[1:]
        by_name = {line.partition(":")[0].lower(): line.partition(": ")[2] for line in lines[1:]}
        body = await reader.readexactly(int(by_name["content-length"]))
        if by_name.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        async with self._came:
            for resource in request.resource_spans:
                self.resource = _attributes(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += map(_read, scope.spans)
            self._came.notify_all()


def _read(span: Span) -> Received:
    return Received(
        name=span.name,
        kind=_KINDS.get(span.kind, "consumer"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_attributes(span.attributes),
        is_error=span.status.code != 0,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for pair in pairs:
        value = pair.value
        found[pair.key] = value.int_value if value.HasField("int_value") else value.string_value
    return found


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[OtlpReceiver]:
    """Run a receiver on a free port of 127.0.0.1."""
    receiver = OtlpReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        receiver.address = f"{host}:{port}"
        yield receiver
        server.close()
