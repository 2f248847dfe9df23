"""What the connections to one public port share: bounds, known heads, the ordinary answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from gateway.protocol.http_api import NSQ_HEADER, OK, TEXT
from gateway.web.answers import Headers, encode_answer
from gateway.web.proxies import TrustedProxies
from gateway.web.publish import KnownPublish, PublishPlane
from gateway.web.websocket_port import WebSocketPort

OK_HEADERS = [(b"content-type", TEXT), (b"content-length", b"%d" % len(OK)), NSQ_HEADER]
"""On every answer of 200 to a publish."""

_HEAD_END = b"\r\n\r\n"
_SWEEP_INTERVAL_S = 1.0
MAX_TOLD = 256
"""Connections above the limit that are told so at a time; more of them are cut at once."""
_MAX_KNOWN = 1_024
_MAX_KNOWN_HEAD_BYTES = 2_048


class Connection(Protocol):
    """What is watched over."""

    def check_time(self, now: float) -> None:
        """End what has been waited for too long; *now* is the event loop's."""

    def drain(self) -> None:
        """Let the answer that is being made be the last one."""


@dataclass(frozen=True, kw_only=True)
class HttpBounds:
    """How many connections there may be, and how long a client may take."""

    request_timeout_s: float = 30.0
    """From the first byte of a request to its last."""
    keep_alive_s: float = 75.0
    """From an answer to the next request."""
    response_timeout_s: float = 30.0
    """How long a client may take nothing of what waits for it."""
    max_connections: int = 10_000


class HttpPort:
    """The bounds, the memory and the ordinary answer of one public port."""

    def __init__(
        self,
        plane: PublishPlane,
        *,
        websockets: WebSocketPort | None = None,
        proxies: TrustedProxies | None = None,
        bounds: HttpBounds | None = None,
    ) -> None:
        self.plane = plane
        self.websockets = websockets
        """Where upgrades go; None: there are none, and who asks for one is answered as HTTP."""
        self.proxies = proxies
        """Who is believed about the caller; None: nobody."""
        self.bounds = bounds or HttpBounds()
        self.is_draining = False
        """Whether each answer is to be the last one on its connection; see `drain`."""
        self._connections: set[Connection] = set()
        self._turned_away: set[Connection] = set()
        """Those that were one too many, until they have gone."""
        self._sweep: asyncio.TimerHandle | None = None
        self._ok = b""
        self._ok_default_headers: Headers | None = None
        self._known: dict[bytes, KnownPublish] = {}

    def drain(self) -> None:
        """Say ``Connection: close`` on every answer from now on, and close behind it."""
        self.is_draining = True
        for connection in self._connections:
            connection.drain()

    def opened(self, connection: Connection) -> bool:
        """Watch over *connection* until it is `closed`; False: it is one too many."""
        has_room = len(self._connections) < self.bounds.max_connections
        (self._connections if has_room else self._turned_away).add(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._on_sweep)
        return has_room

    @property
    def tells_why(self) -> bool:
        """Whether there is room to tell one more that it is one too many: that takes a moment."""
        return len(self._turned_away) <= MAX_TOLD

    def closed(self, connection: Connection) -> None:
        """Watch over it no more."""
        self._connections.discard(connection)
        self._turned_away.discard(connection)

    def _on_sweep(self) -> None:
        """Look at all connections at once: a timer for each request costs more."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [*self._connections, *self._turned_away]:
            connection.check_time(now)
        has_any = bool(self._connections or self._turned_away)
        self._sweep = loop.call_later(_SWEEP_INTERVAL_S, self._on_sweep) if has_any else None

    def ok(self, default_headers: Headers) -> bytes:
        """Return the answer OK with *default_headers*, which change once a second."""
        if default_headers is not self._ok_default_headers:
            self._ok = encode_answer((200, [*default_headers, *OK_HEADERS], OK))
            self._ok_default_headers = default_headers
        return self._ok

    def find(self, data: bytes) -> tuple[KnownPublish, bytes] | None:
        """Return what *data* asks for, and its body; None: it is not one whole, known request."""
        end = data.find(_HEAD_END) + len(_HEAD_END)
        known = self._known.get(data[:end])
        if known is None or len(data) - end != known.head.size_bytes:
            return None
        return known, data[end:]

    def remember(self, data: bytes, known: KnownPublish) -> None:
        """
        Know the head of *data* from now on: a client sends the same head again and again.

        Same bytes at the start of a request, same meaning: they are parsed and judged once. What
        is not one whole request from its first byte to its last is passed over.
        """
        end = data.find(_HEAD_END) + len(_HEAD_END)
        # Only where the head ends there: an empty line may stand in a body too.
        is_whole = data.startswith(b"POST ") and len(data) - end == known.head.size_bytes
        if not is_whole or end > _MAX_KNOWN_HEAD_BYTES:
            return
        if len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[data[:end]] = known
