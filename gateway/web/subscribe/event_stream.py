"""
Server-sent events: the messages of a subscription as the body of a GET that does not end.

An `EventStream` stands in for the WebSocket of a `SubscriberSocket`: the same session, window and
hand-back. Each line of a text frame becomes one event, whose data is the JSON object. Its client
answers by leases, with POST /ack. Source: WHATWG HTML, "Server-sent events".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from gateway.telemetry import gauge
from gateway.web.http.app_request import AppRequest
from gateway.web.subscribe.pull import AckVerb
from gateway.web.subscribe.socket import SubscriberSocket
from gateway.web.websocket.frames import payloads
from gateway.web.websocket.protocol import ABNORMAL

KEEPALIVE_S = 15
"""Time between comments, which keep proxies from closing an idle stream."""
_COMMENT = b":\n\n"
_RETRY_MS = 2_000
_BEGIN = b"retry: %d\n\n" % _RETRY_MS
"""Sent at once, so that a client learns that the stream is open."""

_OPEN_STREAMS = gauge("event_streams_open", "Open event streams (GET /sub, text/event-stream).")


def events_of(lines: bytes) -> bytes:
    """Return the JSON objects in *lines*, separated by newlines, as one event each."""
    return b"data: " + lines.replace(b"\n", b"\n\ndata: ") + b"\n\n"


@lru_cache(maxsize=2)
def _events_of_frames(frames: bytes) -> bytes:
    """Return the events of encoded frames; all viewers of a topic get the same frames in turn."""
    return b"".join(map(events_of, payloads(frames)))


class EventStream:
    """
    The `WebSocket` of a subscriber that is served by events; also the `LeaseHolder` of its leases.

    Args:
        connection: The client's request, whose response is the stream.
        handler: The subscriber.
        keepalive: Sends comments.
    """

    def __init__(
        self, connection: AppRequest, handler: SubscriberSocket, keepalive: Keepalive
    ) -> None:
        self.sent_bytes = 0
        self.is_closed_by_client = False
        self.close_reason = ""
        self.has_ended = False
        """True once nothing more is sent."""
        self.on_ended: Callable[[], None] | None = None
        """Called once, when nothing more is sent."""
        self._connection = connection
        self._handler = handler
        self._keepalive = keepalive

    def begin(self) -> None:
        """Send what waits, and let messages flow; call once the head of the response is sent."""
        self._keepalive.add(self)
        _OPEN_STREAMS.inc()
        self._write(_BEGIN)
        self._handler.on_open(self)

    # As the handler's WebSocket

    @property
    def is_writable(self) -> bool:
        """False while the write buffer is full."""
        return self._connection.is_writable

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken; 0 once the stream has ended."""
        return 0 if self.has_ended else self._connection.unsent_bytes

    def send(self, text: bytes) -> None:
        """Send the JSON objects in *text*; does nothing once the stream has ended."""
        self._write(events_of(text))

    def send_encoded(self, frame: bytes) -> None:
        """Send the JSON objects in encoded frames."""
        self._write(_events_of_frames(frame))

    def pause_reading(self) -> None:
        """Do nothing: the client sends nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self, code: int, reason: str) -> None:
        """Send the event ``close`` with the code that a WebSocket would get, and end."""
        if self.has_ended:
            return
        self.close_reason = reason
        data = msgspec.json.encode({"code": int(code), "reason": reason})
        self._write(b"event: close\ndata: " + data + b"\n\n")
        self._end()
        # As the WebSocket layer does: not before the caller has returned.
        asyncio.get_running_loop().call_soon(self._handler.on_close, int(code))

    # From the connection

    def on_writable(self) -> None:
        """Called when the write buffer has room again."""
        if not self.has_ended:
            self._handler.on_writable()

    def on_abandon(self) -> None:
        """Called when the client has left."""
        if not self.has_ended:
            self.is_closed_by_client = True
            self._end()
            self._handler.on_close(ABNORMAL)

    def send_comment(self) -> None:
        """Send a comment, unless the client reads too slowly to need one."""
        if self.is_writable:
            self._write(_COMMENT)

    def _write(self, data: bytes) -> None:
        if not self.has_ended:
            self.sent_bytes += len(data)
            self._connection.write_chunk(data)

    def _end(self) -> None:
        self._keepalive.discard(self)
        _OPEN_STREAMS.dec()
        self.has_ended = True
        # Not before the caller has returned: the next request of the connection may begin with it.
        asyncio.get_running_loop().call_soon(self._connection.end_response)
        if self.on_ended is not None:
            self.on_ended()

    # As the holder of leases

    def answer(self, verb: AckVerb, delivery_ids: list[str]) -> Mapping[str, str]:
        """Carry out *verb* for the deliveries; return the codes of refusals by delivery id."""
        refused = self._handler.acknowledge(verb.name, delivery_ids, verb.time_ms)
        return dict.fromkeys(refused, f"E_{verb.name}_FAILED")


class Keepalive:
    """Send a comment to each stream every `KEEPALIVE_S`; one timer serves all of them."""

    def __init__(self) -> None:
        self._turns: list[set[EventStream]] = [set() for _ in range(KEEPALIVE_S)]
        self._next = 0
        self._turn_of: dict[EventStream, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: EventStream) -> None:
        """Begin with *stream*."""
        self._turn_of[stream] = self._next
        self._turns[self._next].add(stream)
        if self._timer is None:
            self._schedule()

    def discard(self, stream: EventStream) -> None:
        """End with *stream*; idempotent."""
        turn = self._turn_of.pop(stream, None)
        if turn is not None:
            self._turns[turn].discard(stream)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(1.0, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # A stream that is added now gets its first comment a whole interval later.
        self._next = (self._next + 1) % KEEPALIVE_S
        for stream in list(self._turns[self._next]):
            stream.send_comment()
        if self._turn_of:
            self._schedule()
