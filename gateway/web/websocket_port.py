"""What the WebSockets of one public port share: who admits them, who serves them, their pings."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.errors import GatewayError
from gateway.web.answers import Answer
from gateway.web.upgrade_spans import UpgradeSpans
from gateway.web.websocket_frames import ping_frame

MESSAGE_TIMEOUT_S = 60
"""In so long a message is whole, from its first byte to its last, or its socket is closed."""

_MAX_TURNS = 64
_SHORTEST_TURN_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """What a client asked for; its handshake is right."""

    path: str
    """Decoded."""
    query: bytes
    headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    """Names in small letters; one is ``x-request-id``, the client's when that is sane."""
    subprotocols: Sequence[str] = field(repr=False)
    peer: str
    """The host that asks, past the proxies that are trusted; empty where there is none."""
    is_secure: bool = False
    """Whether it is known that it asks by TLS."""
    trace_id: str | None = None
    """Of the trace that it belongs to; None: it is not recorded."""


class WebSocket(Protocol):
    """One open socket, for who serves it."""

    is_writable: bool
    """False while more waits in the transport than it likes; `Receiver.has_room` follows."""
    sent_bytes: int
    """What was sent, as far as it is text."""

    @property
    def unsent_bytes(self) -> int:
        """What the system has not taken yet."""

    def send(self, text: bytes) -> None:
        """Send *text* (UTF-8) as one message; nothing happens once the socket closes."""

    def send_frame(self, frame: bytes) -> None:
        """Send what `text_frame` has made, one or several; many sockets may share it."""

    def pause_reading(self) -> None:
        """Let no text come until `resume_reading`; idempotent."""

    def resume_reading(self) -> None:
        """Let text come again, not from in here; idempotent."""

    def close(self, code: int, reason: str) -> None:
        """Close behind what was sent, and cut the connection 2 s later; idempotent."""


class Receiver(Protocol):
    """Who is behind one socket; all are called in the event loop."""

    def opened(self, socket: WebSocket) -> None:
        """Begin: the upgrade is answered, and from now on anything may be sent."""

    def text_received(self, text: str) -> None:
        """Take one whole text message."""

    def has_room(self) -> None:
        """Go on after `WebSocket.is_writable` was False."""

    def lost(self, code: int) -> None:
        """
        End: nothing comes or goes any more; called once, after `opened`, whatever happens.

        *code* is the one that it was closed with, by us or by the client, 1005 where the client
        gave none, 1006 where there was no close frame.
        """


class Admission(NamedTuple):
    """The yes to an upgrade."""

    receiver: Receiver
    subprotocol: str | None
    """The one that is spoken; None: nothing is said about it."""


class Gate(Protocol):
    """Who decides about upgrades."""

    async def admit(self, upgrade: Upgrade) -> Admission:
        """
        Let a client in; its `Receiver.opened` follows at once.

        Cancelled when the client goes. Raises GatewayError to refuse; then nothing is left behind.
        """

    def refusal(self, error: GatewayError, request_id: str) -> Answer:
        """Return what is answered in place of the upgrade."""


class PingedSocket(Protocol):
    """A socket as the sweep sees it."""

    turn: int
    """When in a round it is pinged; the sweep's own."""

    def ping(self, payload: bytes, frame: bytes) -> None:
        """Send *frame*, a ping with *payload*, unless one has no answer yet or it is too early."""

    def check_pong(self, timeout_turns: int) -> None:
        """Close if the last ping has had no answer for so long."""

    def check_message(self, timeout_turns: int) -> None:
        """Close if a message has begun so long ago and is not whole."""


class WebSocketPort:
    """
    The sockets of one listener, their gate and their bounds.

    One sweep pings them all, each once in *ping_interval_s* (None: never) and never all in one turn
    of the event loop, and at most an interval too late closes who takes longer for a message than
    `MESSAGE_TIMEOUT_S`. Time is counted in turns of the sweep: a loop that stood still, and read no
    pong meanwhile, has not counted on.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        max_frame_bytes: int,
        ping_interval_s: float | None,
        ping_timeout_s: float | None,
        spans: UpgradeSpans | None = None,
    ) -> None:
        self.gate = gate
        self.spans = spans
        """Who begins traces; None: nobody."""
        self.max_frame_bytes = max_frame_bytes
        """The most that one message of a client may have, whatever frames it is in."""
        self.turn = 0
        """How many turns the sweep has made."""
        turns = _MAX_TURNS
        if ping_interval_s is not None:
            turns = max(1, min(_MAX_TURNS, int(ping_interval_s / _SHORTEST_TURN_S)))
        self._turn_s = None if ping_interval_s is None else ping_interval_s / turns
        self._timeout_turns: int | None = None
        if self._turn_s is not None and ping_timeout_s is not None:
            self._timeout_turns = math.ceil(ping_timeout_s / self._turn_s)
        self._message_turns = math.ceil(MESSAGE_TIMEOUT_S / self._turn_s) if self._turn_s else 0
        self.half_round = turns // 2
        """How many turns are half an interval: nobody is pinged twice in so short a time."""
        self._round: list[set[PingedSocket]] = [set() for _ in range(turns)]
        self._next_turn = 0
        self._count = 0
        self._sweep: asyncio.TimerHandle | None = None

    def opened(self, socket: PingedSocket) -> None:
        """Ping *socket*, once in an interval, until it is `closed`."""
        if self._turn_s is None:
            return
        # Whoever comes at the same time, as after a restart, is not pinged at the same time.
        socket.turn = self._next_turn
        self._next_turn = (self._next_turn + 1) % len(self._round)
        self._round[socket.turn].add(socket)
        self._count += 1
        if self._sweep is None:
            self._schedule()

    def closed(self, socket: PingedSocket) -> None:
        """Ping it no more; idempotent."""
        if self._turn_s is not None and socket in self._round[socket.turn]:
            self._round[socket.turn].discard(socket)
            self._count -= 1

    def _schedule(self) -> None:
        assert self._turn_s is not None  # noqa: S101 - there is no sweep without an interval
        self._sweep = asyncio.get_running_loop().call_later(self._turn_s, self._on_sweep)

    def _on_sweep(self) -> None:
        try:
            self._ping_some()
        finally:
            # Whatever failed: the others are to be pinged.
            if self._count:
                self._schedule()
            else:
                self._sweep = None

    def _ping_some(self) -> None:
        """Look after those whose turn it is."""
        self.turn += 1
        turns = len(self._round)
        if self._timeout_turns is not None:
            for socket in list(self._round[(self.turn - self._timeout_turns) % turns]):
                socket.check_pong(self._timeout_turns)
        # Random, so that no pong is right before its ping.
        payload = random.randbytes(4)  # noqa: S311 - it tells pongs apart and is no secret
        frame = ping_frame(payload)
        for socket in list(self._round[self.turn % turns]):
            socket.check_message(self._message_turns)
            socket.ping(payload, frame)
