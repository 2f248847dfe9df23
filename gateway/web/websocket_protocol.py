"""
One WebSocket: a connection from its upgrade to its last byte, without ASGI.

What a client says is handed to its `Receiver` in the same turn of the event loop in which it was
read, and what is sent is written at once: no task, no queue and no event stands between. A peer
that does not read never takes the close frame, and a transport with unsent bytes never closes by
itself: whoever is closed is cut 2 s later.
"""

from __future__ import annotations

import asyncio
import enum

from websockets.frames import Opcode

from gateway.telemetry import get_logger
from gateway.web.farewell import LINGER_S, Farewell, ServerConnections
from gateway.web.faults import CloseCode
from gateway.web.websocket_frames import (
    PONG,
    SHORT_BYTES,
    TEXT,
    BadFrame,
    LongMessage,
    close_frame,
    frame_bytes,
    pong_frame,
    read_control,
    text_frame,
    whole_frame,
)
from gateway.web.websocket_port import MESSAGE_TIMEOUT_S, Receiver, WebSocketPort

logger = get_logger()

ABNORMAL = 1006
"""What a receiver is told where no close frame came or went (RFC 6455 §7.1.5)."""

_FRAMES_A_TURN = 512
"""After so many frames other sockets have their turn."""
_CONTROL = 0x08


class _Phase(enum.IntEnum):
    """Where a socket stands; never back."""

    OPEN = 0
    CLOSING = 1
    """Our close frame is sent, the client's is awaited."""
    OVER = 2
    """Nobody is behind it."""


_OPEN, _CLOSING, _OVER = _Phase


class WebSocketProtocol(asyncio.Protocol):
    """A `WebSocket` whose upgrade has been taken; `begin` before anything else."""

    __slots__ = (
        "_begun_at",
        "_close_code",
        "_is_going_on",
        "_is_paused",
        "_message",
        "_phase",
        "_ping",
        "_pinged_at",
        "_port",
        "_receiver",
        "_server",
        "_timer",
        "_unread",
        "_unsent_pong",
        "is_writable",
        "sent_bytes",
        "transport",
        "turn",
    )

    def __init__(
        self, port: WebSocketPort, transport: asyncio.Transport, server: ServerConnections
    ) -> None:
        self.transport = transport
        self.is_writable = True
        self.sent_bytes = 0
        self.turn = 0
        self._port = port
        self._server = server
        self._phase = _OVER
        self._receiver: Receiver | None = None
        self._close_code = ABNORMAL
        """What the receiver is told in the end: the one that we have closed with."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread = b""
        """What has come and could not be taken yet."""
        self._message: LongMessage | None = None
        """A text that is not whole yet, and is long or in fragments."""
        self._begun_at = port.turn
        """The sweep's turn in which what is not whole yet has begun; without it, any."""
        self._is_paused = False
        """Whether the receiver wants no text now."""
        self._is_going_on = False
        """Whether `_go_on` will be called; nothing is read before it."""
        self._ping: bytes | None = None
        """The payload of the ping that has had no pong."""
        self._pinged_at = port.turn
        """The sweep's turn at its start, at its last ping, or when that pong could be read."""
        self._unsent_pong = b""
        """The answer to the last ping that came while the peer did not read."""

    def begin(self, receiver: Receiver, early: bytes) -> None:
        """Take the connection over, behind its 101; *early* is what the client has sent before."""
        self._phase = _OPEN
        self._receiver = receiver
        self._unread = early
        self._server.connections.add(self)
        self.transport.set_protocol(self)
        self._port.opened(self)
        try:
            receiver.opened(self)
        except Exception:
            logger.exception("a WebSocket failed at its start")
            self._give_up()
        if early:
            self._go_on_soon()

    # What comes in

    def data_received(self, data: bytes) -> None:
        """Take what comes, frame by frame."""
        unread, self._unread = self._unread, b""
        if unread:
            data = unread + data
        try:
            used = self._take(data)
        except BadFrame as error:
            self._fail(error.code, str(error))
            return
        if used < len(data) and self._phase is not _OVER:
            self._unread = data[used:]
            if self._message is None and (used or not unread):
                self._begun_at = self._port.turn

    def _take(self, data: bytes) -> int:
        """Take the frames in *data*; return where the first one begins that has to wait."""
        at = 0
        limit_bytes = self._port.max_frame_bytes
        for _ in range(_FRAMES_A_TURN):
            if self._is_paused or self._phase is _OVER:
                return at
            found = whole_frame(data, at, limit_bytes) if self._message is None else None
            if found is not None:
                first, payload, at = found
                if first == TEXT:
                    self._take_text(payload)
                else:
                    self._take_answered(first, payload)
            elif used := self._take_other(data, at):
                at += used
            else:
                return at
        self._go_on_soon()
        return at

    def _take_other(self, data: bytes, at: int) -> int:
        """Take what begins there, whole or a part; return how much of it, 0 for too little yet."""
        message = self._message
        if message is not None and message.left_bytes:
            return self._feed(message, data[at : at + message.left_bytes])
        size_bytes = frame_bytes(data, at)
        if size_bytes is None:
            return 0
        is_control = data[at] & _CONTROL
        is_whole = len(data) - at >= size_bytes
        if not is_whole and (is_control or size_bytes <= SHORT_BYTES):
            return 0
        if is_control:
            self._take_control(data[at : at + size_bytes])
            return size_bytes
        if message is None:
            message = self._message = LongMessage(self._port.max_frame_bytes)
            self._begun_at = self._port.turn
        message.left_bytes = size_bytes
        return self._feed(message, data[at : at + size_bytes])

    def _feed(self, message: LongMessage, part: bytes) -> int:
        text = message.feed(part)
        if text is not None:
            self._message = None
            self._take_text(text)
        return len(part)

    def _take_text(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None or self._phase is not _OPEN:
            return  # thrown away behind our close frame (§5.5.1)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise BadFrame(CloseCode.NOT_UTF8, "text is UTF-8") from None
        try:
            receiver.text_received(text)
        except Exception:
            logger.exception("a WebSocket failed at a message")
            self._give_up()

    def _take_control(self, frame: bytes) -> None:
        opcode, payload, code, answer = read_control(frame)
        if opcode is not Opcode.CLOSE:
            self._take_answered(frame[0], payload)
        elif self._phase is _OPEN:
            self.transport.write(answer)
            self._end(code)
        else:
            self._end(self._close_code)

    def _take_answered(self, first: int, payload: bytes) -> None:
        """Answer a ping, or take the answer to ours; a pong that nobody waits for is nothing."""
        if first == PONG:
            if payload == self._ping:
                self._ping = None
        elif self._phase is not _OPEN:
            return
        elif self.is_writable:
            self.transport.write(pong_frame(payload))
        else:
            # Only the last one needs an answer (§5.5.3), and nobody has read those before.
            self._unsent_pong = pong_frame(payload)

    def eof_received(self) -> None:
        """End: who says no more, and has not said why, is gone."""
        self._end(self._close_code)

    # Reading

    def pause_reading(self) -> None:
        """Let no text come until `resume_reading`, also of what has been read; idempotent."""
        if self._phase is _OPEN and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Let text come again, not from in here; idempotent."""
        if self._is_paused:
            self._is_paused = False
            self._begun_at = self._port.turn
            if self._ping is not None:
                # The pong may have come, and could not be read.
                self._pinged_at = self._port.turn
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Take what waits, and then more, in the next turn of the event loop."""
        if not self._is_going_on and self._phase is not _OVER:
            self._is_going_on = True
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_going_on = False
        if self._phase is _OVER:
            return
        if not self._is_paused:
            self.data_received(b"")
        if not (self._is_paused or self._is_going_on or self.transport.is_closing()):
            self.transport.resume_reading()

    # What goes out

    @property
    def unsent_bytes(self) -> int:
        """What the system has not taken yet."""
        return self.transport.get_write_buffer_size()

    def send(self, text: bytes) -> None:
        """Send *text* (UTF-8) as one message; nothing happens once the socket closes."""
        if self._phase is _OPEN:
            self.sent_bytes += len(text)
            self.transport.write(text_frame(text))

    def send_frame(self, frame: bytes) -> None:
        """Send what `text_frame` has made, one or several; many sockets may share it."""
        if self._phase is _OPEN:
            self.sent_bytes += len(frame)
            self.transport.write(frame)

    def pause_writing(self) -> None:
        """Tell whoever looks at `is_writable`."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Answer the last ping, and tell the receiver."""
        self.is_writable = True
        pong, self._unsent_pong = self._unsent_pong, b""
        if pong and self._phase is _OPEN:
            self.transport.write(pong)
        if self._receiver is not None and self._phase is _OPEN:
            try:
                self._receiver.has_room()
            except Exception:
                logger.exception("a WebSocket failed when it had room")
                self._give_up()

    def ping(self, payload: bytes, frame: bytes) -> None:
        """Send *frame*, a ping with *payload*, unless one has no answer yet or it is too early."""
        port = self._port
        is_due = self._ping is None and port.turn - self._pinged_at >= port.half_round
        if is_due and self._phase is _OPEN:
            self._ping = payload
            self._pinged_at = port.turn
            self.transport.write(frame)

    def check_pong(self, timeout_turns: int) -> None:
        """Close if the last ping has had no answer for so long, in which it could be read."""
        waited = self._port.turn - self._pinged_at
        if self._ping is not None and not self._is_paused and waited >= timeout_turns:
            self._fail(CloseCode.MISSED_PONG, "no pong in time")

    def check_message(self, timeout_turns: int) -> None:
        """Close if a message has begun so long ago, in which it could be read, and is not whole."""
        is_partial = self._message is not None or self._unread
        if is_partial and not self._is_paused and self._port.turn - self._begun_at >= timeout_turns:
            self._fail(CloseCode.BAD_REQUEST, f"a message took longer than {MESSAGE_TIMEOUT_S} s")

    # The end

    def close(self, code: int, reason: str) -> None:
        """
        Close behind what was sent; idempotent.

        The client's answer is awaited; what else it says is thrown away. It is cut after 2 s.
        """
        if self._phase is not _OPEN:
            return
        self._phase = _CLOSING
        self._close_code = code
        self.transport.write(close_frame(code, reason))
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)
        self.resume_reading()

    def shutdown(self) -> None:
        """Close, for the server stops (uvicorn's name); the receiver is told at once."""
        if self._phase is _OPEN:
            self._fail(CloseCode.RESTART, "the gateway is shutting down")

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver, if it does not know."""
        del exc
        self._let_go(self._close_code)

    def _fail(self, code: int, reason: str) -> None:
        """Close without waiting for the peer's close frame (§7.1.7)."""
        if self._phase is _OPEN:
            self._close_code = code
            self.transport.write(close_frame(code, reason))
        self._end(self._close_code)

    def _give_up(self) -> None:
        """Close, for who is behind the socket has raised what nobody expected."""
        if self._phase is not _OVER:
            self._fail(CloseCode.INTERNAL, "the gateway failed; its log tells more")

    def _end(self, code: int) -> None:
        """Leave the connection to its last bytes, and tell the receiver."""
        if self._phase is _OVER:
            return
        Farewell(self.transport, self._server)
        self._let_go(code)

    def _let_go(self, code: int) -> None:
        """Let go of everything, and tell the receiver; idempotent."""
        self._phase = _OVER
        self._unread = b""
        if self._message is not None:
            self._message.close()
            self._message = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._server.connections.discard(self)
        self._port.closed(self)
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            try:
                receiver.lost(code)
            except Exception:
                logger.exception("a WebSocket failed at its end")
