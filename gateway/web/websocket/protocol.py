"""
WebSocket connections (RFC 6455), from the upgrade to the last byte, without ASGI.

Input reaches the `WebSocketHandler` in the event loop iteration that read it, and output is written
at once: no task and no queue is in between. All sockets share a `FrameBudget` per iteration; a
socket that finds it spent processes its input in a later iteration, its *turn*. The turns of the
keepalive timer are something else: see `WebSocketServerState`.

| event | OPEN | CLOSING | CLOSED |
| --- | --- | --- | --- |
| `close` by the handler | CLOSING: close frame sent | stays | stays |
| close frame received | CLOSED: answered with a close frame (§5.5.1) | CLOSED | stays |
| invalid frame, missed pong, timeout | CLOSED: close frame sent (§7.1.7) | CLOSED | stays |
| end of stream | CLOSED | CLOSED | stays |
| 2 s have passed (`LINGER_S`) | | aborted | |
| connection lost | CLOSED | CLOSED | stays |

The abort is necessary because a peer that does not read never takes the close frame, and a
transport with unsent bytes never closes by itself. In CLOSED, `LingeringClose` has taken the
connection over.
"""

from __future__ import annotations

import asyncio
import enum
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from uvicorn.server import ServerState
from websockets.frames import Opcode

from gateway.errors import GatewayError, Overloaded
from gateway.telemetry import get_logger
from gateway.web.errors import CloseCode
from gateway.web.lingering_close import (
    LINGER_S,
    LingeringClose,
    hangup_watcher_of,
)
from gateway.web.loop_budget import frame_budget_of, frame_cost
from gateway.web.responses import HttpResponse
from gateway.web.tracing import RequestSpans
from gateway.web.websocket.frames import (
    PONG,
    SHORT_BYTES,
    TEXT,
    BadFrame,
    LongMessage,
    close_frame,
    frame_size,
    parse_control_frame,
    parse_short_frame,
    ping_frame,
    pong_frame,
    text_frame,
)

MESSAGE_TIMEOUT_S = 60
"""Time for a message to arrive completely, before its socket is closed."""

_MAX_TURNS = 64
"""Maximum number of turns of the keepalive timer in one ping interval."""
_SHORTEST_TURN_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """An upgrade request, as `UpgradeHandler` gets it: its handshake is valid."""

    path: str
    """Decoded."""
    query: bytes
    headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    """
    Names are in lower case.

    ``x-request-id`` is always there: the client's if it is valid, otherwise a generated one.
    """
    subprotocols: Sequence[str] = field(repr=False)
    peer: str
    """The client's host, behind trusted proxies; empty if unknown."""
    is_secure: bool = False
    """True if the client is known to use TLS."""
    trace_id: str | None = None
    """The trace of the upgrade; None if it is not recorded."""
    has_commands: bool = True
    """False for an event stream, whose client can send no command, and so no AUTH."""


class WebSocket(Protocol):
    """
    An open WebSocket, as its handler uses it.

    A protocol, so that sockets and viewers are tested, and modelled, without a transport.
    """

    sent_bytes: int
    """Bytes of all frames sent, including control frames."""
    is_closed_by_client: bool
    """True if the client sent the first close frame; it may have any code."""
    close_reason: str
    """The reason in the gateway's close frame; empty if the gateway has sent none."""

    @property
    def is_writable(self) -> bool:
        """False while the write buffer is full; `WebSocketHandler.on_writable` follows."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken: those in the transport's write buffer."""

    def send(self, text: bytes) -> None:
        """Send *text* (UTF-8) as one message; does nothing once the socket is closing."""

    def send_encoded(self, frame: bytes) -> None:
        """Send *frame*: encoded frames, one or more; does nothing once the socket is closing."""

    def pause_reading(self) -> None:
        """Stop reading from the client: no `on_text` until `resume_reading`; idempotent."""

    def resume_reading(self) -> None:
        """Read again; `on_text` follows in a later iteration of the event loop. Idempotent."""

    def close(self, code: int, reason: str) -> None:
        """Send a close frame; abort the connection if the client has not closed after 2 s."""


class WebSocketHandler(Protocol):
    """
    Handles the events of one WebSocket; all methods are called in the event loop.

    A protocol, because its one implementation, `SubscriberSocket`, imports this module.
    """

    def on_open(self, socket: WebSocket) -> None:
        """Called first, once the 101 is written: from now on frames can be sent to *socket*."""

    def on_text(self, text: str) -> None:
        """Called with each complete text message of the client."""

    def on_writable(self) -> None:
        """Called when the write buffer has room again: `WebSocket.is_writable` is True."""

    def on_close(self, code: int) -> None:
        """
        Called exactly once after `on_open`, however the socket ends; no other call follows.

        *code* is the code of the first close frame, whichever side sent it: 1005 if that frame had
        no code, 1006 if there was no close frame.
        """


class Accepted(NamedTuple):
    """An accepted upgrade."""

    handler: WebSocketHandler
    subprotocol: str | None
    """None if the client offered none."""
    attributes: Mapping[str, str] = MappingProxyType({})
    """Attributes of the upgrade's span: who the client is."""


class UpgradeHandler(Protocol):
    """
    Accepts or refuses upgrades.

    A protocol, because its one implementation, `SubscribeEndpoint`, imports this module.
    """

    async def accept(self, upgrade: Upgrade) -> Accepted:
        """
        Accept an upgrade; raises GatewayError to refuse it.

        `WebSocketHandler.on_open` is called right after this returns. The call is cancelled when
        the client disconnects. After an error or a cancellation no resources stay allocated.
        """

    def refusal(self, error: GatewayError, request_id: str) -> HttpResponse:
        """Return the response that refuses an upgrade because of *error*."""


class IncompleteMessages(Protocol):
    """
    Counts the bytes of incomplete messages of all connections together, against a limit.

    A protocol, so that a socket can call these two methods of the producer, but cannot publish.
    """

    def reserve_arriving(self, size_bytes: int) -> None:
        """Count *size_bytes* more; raises Overloaded if that would exceed the limit."""

    def unreserve_arriving(self, size_bytes: int) -> None:
        """Count *size_bytes* less."""


class WebSocketServerState:
    """
    What the sockets of one listener share: upgrade handler, limits and keepalive.

    One timer serves all sockets. It divides *ping_interval_s* (None is never) into turns, and in
    each turn pings some of the sockets: each socket once per interval. It closes a socket whose
    message is incomplete after `MESSAGE_TIMEOUT_S`, at most one interval late. Timeouts are counted
    in turns of this timer, not in seconds, so that no time passes while the event loop is blocked
    and cannot read a pong.
    """

    def __init__(
        self,
        upgrade_handler: UpgradeHandler,
        *,
        max_frame_bytes: int,
        ping_interval_s: float | None,
        ping_timeout_s: float | None,
        incomplete: IncompleteMessages | None = None,
        spans: RequestSpans | None = None,
    ) -> None:
        self.upgrade_handler = upgrade_handler
        self.incomplete = incomplete
        """None if incomplete messages are not counted."""
        self.spans = spans
        """None if upgrades are not traced."""
        self.max_frame_bytes = max_frame_bytes
        """Maximum size of a client's message, over all of its frames."""
        self.turn = 0
        """Number of turns of the keepalive timer so far."""
        turns = _MAX_TURNS
        if ping_interval_s is not None:
            turns = max(1, min(_MAX_TURNS, int(ping_interval_s / _SHORTEST_TURN_S)))
        self._turn_s = None if ping_interval_s is None else ping_interval_s / turns
        self._timeout_turns: int | None = None
        if self._turn_s is not None and ping_timeout_s is not None:
            self._timeout_turns = math.ceil(ping_timeout_s / self._turn_s)
        self._message_turns = math.ceil(MESSAGE_TIMEOUT_S / self._turn_s) if self._turn_s else 0
        self.half_interval_turns = turns // 2
        """Half a ping interval in turns: the minimum time between two pings of a socket."""
        self._schedule_by_turn: list[set[WebSocketProtocol]] = [set() for _ in range(turns)]
        self._next_turn = 0
        self._count = 0
        self._sweep: asyncio.TimerHandle | None = None

    def start_pinging(self, socket: WebSocketProtocol) -> None:
        """Ping *socket* once per interval until `stop_pinging`."""
        if self._turn_s is None:
            return
        # Sockets opened together, as after a restart, are pinged apart.
        socket.turn = self._next_turn
        self._next_turn = (self._next_turn + 1) % len(self._schedule_by_turn)
        self._schedule_by_turn[socket.turn].add(socket)
        self._count += 1
        if self._sweep is None:
            self._schedule()

    def stop_pinging(self, socket: WebSocketProtocol) -> None:
        """Stop pinging *socket*; idempotent."""
        if self._turn_s is not None and socket in self._schedule_by_turn[socket.turn]:
            self._schedule_by_turn[socket.turn].discard(socket)
            self._count -= 1

    def _schedule(self) -> None:
        assert self._turn_s is not None  # noqa: S101 - there is no sweep without an interval
        self._sweep = asyncio.get_running_loop().call_later(self._turn_s, self._on_sweep)

    def _on_sweep(self) -> None:
        try:
            self._ping_due_sockets()
        finally:
            # An error in one socket must not end the keepalive of the others.
            if self._count:
                self._schedule()
            else:
                self._sweep = None

    def _ping_due_sockets(self) -> None:
        """
        Ping the sockets whose turn it is, and close those whose pong or message is overdue.

        A socket is pinged in one turn of each interval, and its pong is checked as many turns later
        as the timeout has.
        """
        self.turn += 1
        turns = len(self._schedule_by_turn)
        # Copies of the sets below, because a check may close its socket, which removes it.
        if self._timeout_turns is not None:
            for socket in list(self._schedule_by_turn[(self.turn - self._timeout_turns) % turns]):
                socket.check_pong(self._timeout_turns)
        # Random, so that a client cannot send the pong before it has read the ping.
        payload = random.randbytes(4)  # noqa: S311 - it tells pongs apart and is no secret
        frame = ping_frame(payload)
        for socket in list(self._schedule_by_turn[self.turn % turns]):
            socket.check_message(self._message_turns)
            socket.ping(payload, frame)


logger = get_logger()

ABNORMAL = 1006
"""The close code without a close frame (RFC 6455 §7.1.5)."""

_CLOSE_GRACE_S = 0.25
"""Time to run commands that arrived before the client closed, while reading was paused."""
_CONTROL = 0x08
_FREE_MESSAGE_BYTES = 65_536
"""Bytes of each incomplete message that are not counted against the limit of all connections."""


class WebSocketState(enum.IntEnum):
    """The state of a socket, which never goes back; the module's docstring has its transitions."""

    OPEN = 0
    CLOSING = 1
    """The gateway has sent its close frame, and waits for the client's."""
    CLOSED = 2
    """The handler's `on_close` is called; it gets no more events."""


_OPEN, _CLOSING, _CLOSED = WebSocketState


class WebSocketProtocol(asyncio.Protocol):
    """
    The `WebSocket` of one accepted upgrade; call `begin` first.

    While input waits for its turn, or the handler has paused reading, the transport is paused, too.
    """

    __slots__ = (
        "_budget",
        "_close_code",
        "_counted_bytes",
        "_credit",
        "_handler",
        "_is_paused",
        "_is_visit_scheduled",
        "_message",
        "_message_turn",
        "_pending_pong",
        "_ping",
        "_ping_turn",
        "_server_state",
        "_state",
        "_taken_bytes",
        "_timer",
        "_unread",
        "_watched_fd",
        "_websockets",
        "close_reason",
        "is_closed_by_client",
        "is_writable",
        "sent_bytes",
        "transport",
        "turn",
    )

    def __init__(
        self,
        websockets: WebSocketServerState,
        transport: asyncio.Transport,
        server_state: ServerState,
    ) -> None:
        self.transport = transport
        self.is_writable = True
        self.is_closed_by_client = False
        self.close_reason = ""
        self.sent_bytes = 0
        self.turn = 0
        self._websockets = websockets
        self._server_state = server_state
        self._state = _CLOSED
        self._handler: WebSocketHandler | None = None
        self._close_code = ABNORMAL
        """The close code to report to the handler's `on_close`."""
        self._timer: asyncio.TimerHandle | None = None
        """
        The timer of a close: aborts the connection after the gateway's close frame.

        Or closes it after a grace period, if the client has closed while reading was paused.
        """
        self._watched_fd = -1
        """The file descriptor watched for the peer's close while reading is paused; else -1."""
        self._unread = b""
        """Received bytes that are not processed yet."""
        self._taken_bytes = 0
        """Number of processed bytes at the start of `_unread`."""
        self._budget = frame_budget_of(asyncio.get_running_loop())
        self._credit = 0
        """Units of the budget saved from earlier turns, because the next frame costs more."""
        self._message: LongMessage | None = None
        """An incomplete message that is long or fragmented."""
        self._counted_bytes = 0
        """Bytes of `_message` counted against the limit of all connections."""
        self._message_turn = websockets.turn
        """The keepalive turn from which the timeout of an incomplete message counts."""
        self._is_paused = False
        """True while the handler has paused reading."""
        self._is_visit_scheduled = False
        """True while `_on_turn` is scheduled; reading is paused until then."""
        self._ping: bytes | None = None
        """The payload of the last ping; None once its pong has arrived."""
        self._ping_turn = websockets.turn
        """The keepalive turn of the last ping, or of a later `resume_reading` before its pong."""
        self._pending_pong = b""
        """The pong frame to send once the write buffer has room; empty if there is none."""

    def begin(self, handler: WebSocketHandler, early: bytes) -> None:
        """Take over the connection after the 101; *early* are bytes received before the 101."""
        self._state = _OPEN
        self._handler = handler
        self._unread = early
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        self.transport.set_protocol(self)
        # Before `on_open`, which may close the socket, and so remove it.
        self._websockets.start_pinging(self)
        try:
            handler.on_open(self)
        except Exception:
            logger.exception("WebSocket open handler failed")
            self._close_on_error()
        if early:
            # In a later turn, within the budget that all sockets share.
            self._schedule_visit()

    # Input

    def data_received(self, data: bytes) -> None:
        """Process frames now, or in a later iteration if the budget of this one is spent."""
        if self._unread:
            data = self._unread[self._taken_bytes :] + data
        elif self._message is None:
            # Nothing was pending, so a new message begins here, and with it its timeout.
            self._message_turn = self._websockets.turn
        self._unread, self._taken_bytes = data, 0
        if self._budget.is_exhausted:
            self._schedule_visit()
        else:
            self._visit(self._budget.left, is_alone=True)

    def _visit(self, share: int, *, is_alone: bool) -> None:
        """
        Process unread bytes until *share* units of the budget are spent; keep the rest.

        *is_alone* is True if no other socket waits for its turn: the last frame may then cost more.
        """
        before = self._taken_bytes
        try:
            used = self._take(self._unread, before, share, is_alone=is_alone)
        except BadFrame as error:
            self._fail(error.code, str(error))
            return
        if used == len(self._unread) or self._state is _CLOSED:
            self._unread, self._taken_bytes = b"", 0
        elif used > before:
            self._taken_bytes = used
            if self._message is None:
                # The rest begins with another message, whose timeout starts now.
                self._message_turn = self._websockets.turn

    def _take(self, data: bytes, at: int, share: int, *, is_alone: bool) -> int:
        """
        Process the frames in *data* from *at* on; return the index behind the last one processed.

        Ends early if a frame is incomplete, the socket is paused or closed, or *share* is spent; in
        the last case another turn is scheduled.
        """
        limit_bytes = self._websockets.max_frame_bytes
        budget = self._budget
        # Stop when the budget falls to this: then *share* units are spent.
        enough = budget.left - share
        # Each frame may pause, close or fail, so all conditions are checked again.
        while not self._is_paused and self._state is not _CLOSED and at < len(data):
            if budget.left <= enough:
                self._schedule_visit()
                break
            # A waiting socket whose next frame costs more than its share keeps it for a later turn.
            if not is_alone and self._exceeds(data, at, budget.left - enough):
                self._credit = budget.left - enough
                self._schedule_visit()
                break
            begin = at
            found = parse_short_frame(data, at, limit_bytes) if self._message is None else None
            if found is not None:
                first, payload, at = found
                budget.spend(frame_cost(at - begin))
                if first == TEXT:
                    self._take_text(payload)
                else:
                    self._take_ping_or_pong(first, payload)
            elif used := self._take_other(data, at):
                at += used
                budget.spend(frame_cost(used))
            else:
                break
        return at

    def _exceeds(self, data: bytes, at: int, units: int) -> bool:
        """Return True if the frame at *at*, as far as it has arrived, costs more than *units*."""
        if self._message is not None:
            return False  # processed in parts
        size_bytes = frame_size(data, at)
        return size_bytes is not None and frame_cost(min(size_bytes, len(data) - at)) > units

    def _take_other(self, data: bytes, at: int) -> int:
        """
        Process a frame that is not ordinary, or the part of it that has arrived.

        Returns the number of bytes processed; 0 if more must arrive first. Raises BadFrame.
        """
        message = self._message
        if message is not None and message.left_bytes:
            return self._feed(message, data[at : at + message.left_bytes])
        size_bytes = frame_size(data, at)
        if size_bytes is None:
            return 0
        is_control = data[at] & _CONTROL
        is_whole = len(data) - at >= size_bytes
        if not is_whole and (is_control or size_bytes <= SHORT_BYTES):
            return 0  # waiting for the rest is cheaper than a parser of 1.1 KiB
        if is_control:
            self._take_control(data[at : at + size_bytes])
            return size_bytes
        if message is None:
            message = self._message = LongMessage(self._websockets.max_frame_bytes)
            self._message_turn = self._websockets.turn
        message.left_bytes = size_bytes
        return self._feed(message, data[at : at + size_bytes])

    def _feed(self, message: LongMessage, part: bytes) -> int:
        text = message.feed(part)
        if text is None:
            self._count_message(message)
        else:
            self._message = None
            self._uncount_message()
            self._take_text(text)
        return len(part)

    def _count_message(self, message: LongMessage) -> None:
        """Count a large *message* against the limit of all connections; raises BadFrame at it."""
        more_bytes = message.size_bytes - _FREE_MESSAGE_BYTES - self._counted_bytes
        if more_bytes <= 0 or (incomplete := self._websockets.incomplete) is None:
            return
        try:
            incomplete.reserve_arriving(more_bytes)
        except Overloaded:
            text = "too many bytes of incomplete messages at this gateway; try again later"
            raise BadFrame(CloseCode.FULL, text) from None
        self._counted_bytes += more_bytes

    def _uncount_message(self) -> None:
        """Undo `_count_message`; idempotent."""
        held_bytes, self._counted_bytes = self._counted_bytes, 0
        if held_bytes and self._websockets.incomplete is not None:
            self._websockets.incomplete.unreserve_arriving(held_bytes)

    def _take_text(self, data: bytes) -> None:
        """Pass a complete text message to the handler; raises BadFrame if it is not UTF-8."""
        handler = self._handler
        if handler is None or self._state is not _OPEN:
            return  # ignored after the close frame (§5.5.1)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise BadFrame(CloseCode.NOT_UTF8, "a text message must be valid UTF-8") from None
        try:
            handler.on_text(text)
        except Exception:
            logger.exception("WebSocket message handler failed")
            self._close_on_error()

    def _take_control(self, frame: bytes) -> None:
        """Process a complete control frame: ping, pong or close; raises BadFrame."""
        opcode, payload, code, answer = parse_control_frame(frame)
        if opcode is not Opcode.CLOSE:
            self._take_ping_or_pong(frame[0], payload)
        elif self._state is _OPEN:
            self._write(answer)
            self.is_closed_by_client = True
            self._end(code)
        else:
            self._end(self._close_code)  # the client's answer to our close frame

    def _take_ping_or_pong(self, first: int, payload: bytes) -> None:
        """Answer the client's ping, or note its pong to our last ping; ignore other pongs."""
        if first == PONG:
            if payload == self._ping:
                self._ping = None
        elif self._state is not _OPEN:
            return
        elif self.is_writable:
            self._write(pong_frame(payload))
        else:
            # Only the last ping needs an answer (§5.5.3).
            self._pending_pong = pong_frame(payload)

    def eof_received(self) -> None:
        """Close, since the client has sent EOF; no more input can follow."""
        self._end(self._close_code)

    # Reading

    def pause_reading(self) -> None:
        """Stop reading: no `on_text` until `resume_reading`, not even for received text."""
        # Not in CLOSING, where the client's close frame must still be read.
        if self._state is _OPEN and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
            self._watch_peer()

    def _watch_peer(self) -> None:
        """Watch for the client's close, which a transport does not report while it is paused."""
        connected = self.transport.get_extra_info("socket")
        # With a timer, a close is under way already.
        if self._timer is None and connected is not None:
            self._watched_fd = connected.fileno()
            hangup_watcher_of(asyncio.get_running_loop()).watch(
                self._watched_fd, self._on_peer_closed
            )

    def _unwatch_peer(self) -> None:
        if self._watched_fd >= 0:
            hangup_watcher_of(asyncio.get_running_loop()).unwatch(
                self._watched_fd, self._on_peer_closed
            )
            self._watched_fd = -1

    def _on_peer_closed(self) -> None:
        """
        Called when the client has closed while reading is paused.

        Close after a grace period, in which the handler can still run commands that it has queued.
        """
        self._unwatch_peer()
        if self._state is _OPEN and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_CLOSE_GRACE_S, self._end, self._close_code)

    def resume_reading(self) -> None:
        """Read again; `on_text` follows in a later iteration of the event loop. Idempotent."""
        if self._is_paused:
            self._is_paused = False
            self._unwatch_peer()
            # The pause is not the client's fault, so the timeouts start again.
            self._message_turn = self._websockets.turn
            if self._ping is not None:
                # The pong may be among the bytes that were not read.
                self._ping_turn = self._websockets.turn
            self._schedule_visit()

    def _schedule_visit(self) -> None:
        """Pause the transport; in this socket's next turn, process unread bytes and resume it."""
        if not self._is_visit_scheduled and self._state is not _CLOSED:
            self._is_visit_scheduled = True
            self.transport.pause_reading()
            self._budget.wait(self._on_turn)

    def _on_turn(self, share: int) -> None:
        """Called in this socket's turn, in which it may spend *share* units of the budget."""
        self._is_visit_scheduled = False
        if self._state is _CLOSED:
            return
        # Saved units, or a frame that costs more than one share would wait for ever.
        share += self._credit
        self._credit = 0
        if not self._is_paused:
            self._visit(share, is_alone=False)
        if not (self._is_paused or self._is_visit_scheduled or self.transport.is_closing()):
            self.transport.resume_reading()

    # Output

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken: those in the transport's write buffer."""
        return self.transport.get_write_buffer_size()

    def send(self, text: bytes) -> None:
        """Send *text* (UTF-8) as one message; does nothing once the socket is closing."""
        if self._state is _OPEN:
            self._write(text_frame(text))

    def send_encoded(self, frame: bytes) -> None:
        """Send *frame*: encoded frames, one or more; does nothing once the socket is closing."""
        if self._state is _OPEN:
            self._write(frame)

    def _write(self, frames: bytes) -> None:
        """Write *frames* to the transport, and count their bytes."""
        self.sent_bytes += len(frames)
        self.transport.write(frames)

    def pause_writing(self) -> None:
        """Called by the transport when its write buffer is above the high-water mark."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Called by the transport when its write buffer has room again: notify the handler."""
        self.is_writable = True
        pong, self._pending_pong = self._pending_pong, b""
        if pong and self._state is _OPEN:
            self._write(pong)
        if self._handler is not None and self._state is _OPEN:
            try:
                self._handler.on_writable()
            except Exception:
                logger.exception("WebSocket writable handler failed")
                self._close_on_error()

    def ping(self, payload: bytes, frame: bytes) -> None:
        """
        Send *frame*, a ping with *payload*.

        Does nothing if the last ping has no pong yet, or is less than half an interval ago.
        """
        websockets = self._websockets
        is_due = (
            self._ping is None
            and websockets.turn - self._ping_turn >= websockets.half_interval_turns
        )
        if is_due and self._state is _OPEN:
            self._ping = payload
            self._ping_turn = websockets.turn
            self._write(frame)

    def check_pong(self, timeout_turns: int) -> None:
        """Close if *timeout_turns* since the ping, or the last pause, have brought no pong."""
        waited = self._websockets.turn - self._ping_turn
        # While reading is paused, the pong may have arrived without having been read.
        if self._ping is not None and not self._is_paused and waited >= timeout_turns:
            self._fail(CloseCode.MISSED_PONG, "no pong in time")

    def check_message(self, timeout_turns: int) -> None:
        """Close if a message is incomplete *timeout_turns* after its start, or the last pause."""
        is_partial = self._message is not None or self._unread
        waited = self._websockets.turn - self._message_turn
        if is_partial and not self._is_paused and waited >= timeout_turns:
            self._fail(CloseCode.BAD_REQUEST, f"a message took longer than {MESSAGE_TIMEOUT_S} s")

    # Close

    def close(self, code: int, reason: str) -> None:
        """
        Send a close frame, and wait for the client's; idempotent.

        Further text from the client is discarded. The connection is aborted if the client's close
        frame has not arrived after 2 s.
        """
        if self._state is not _OPEN:
            return
        self._state = _CLOSING
        self._close_code, self.close_reason = code, reason
        self._write(close_frame(code, reason))
        if self._timer is not None:
            self._timer.cancel()  # the grace period of `_on_peer_closed`
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)
        # Or the client's close frame would not be read.
        self.resume_reading()

    def shutdown(self) -> None:
        """Close because the gateway stops; uvicorn calls this."""
        if self._state is _OPEN:
            self._fail(CloseCode.RESTART, "the gateway is shutting down")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the transport is closed: notify the handler, and release everything."""
        del exc
        self._on_closed(self._close_code)

    def _fail(self, code: int, reason: str) -> None:
        """Send a close frame, and end without waiting for the client's (§7.1.7)."""
        # In CLOSING, a close frame was sent before; nothing may follow it (§5.5.1).
        if self._state is _OPEN:
            self._close_code, self.close_reason = code, reason
            self._write(close_frame(code, reason))
        self._end(self._close_code)

    def _close_on_error(self) -> None:
        """Close with 1011, since the handler has raised an unexpected exception."""
        if self._state is not _CLOSED:
            self._fail(CloseCode.INTERNAL, "internal error; see the gateway's log")

    def _end(self, code: int) -> None:
        """Hand the connection over to `LingeringClose`, and call the handler's `on_close`."""
        if self._state is _CLOSED:
            return
        # It becomes the transport's protocol, so `connection_lost` will not be called here.
        LingeringClose(self.transport, self._server_state)
        self._on_closed(code)

    def _on_closed(self, code: int) -> None:
        """Release everything, and call the handler's `on_close`; idempotent."""
        self._state = _CLOSED
        self._unread, self._taken_bytes = b"", 0
        if self._message is not None:
            self._message.close()
            self._message = None
        self._uncount_message()
        self._unwatch_peer()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._server_state.connections.discard(self)
        self._websockets.stop_pinging(self)
        # Cleared first: the handler may close the socket again, and is called once only.
        handler, self._handler = self._handler, None
        if handler is not None:
            try:
                handler.on_close(code)
            except Exception:
                logger.exception("WebSocket close handler failed")
