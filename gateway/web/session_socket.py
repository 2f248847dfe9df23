"""
A `Session` and its WebSocket: what the session has for the client goes out as it arises.

Every event is one call of the session, which says what it wants done; then what waits is written,
at once and in the same turn of the event loop. There is neither task nor queue.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway.session.actions import Action, EndReason
from gateway.session.options import SessionOptions
from gateway.session.outbox import MAX_FRAME_BYTES
from gateway.session.session import Session
from gateway.telemetry import get_logger
from gateway.web.faults import CloseCode
from gateway.web.socket_account import DELIVERED, Stock
from gateway.web.websocket_frames import text_frames
from gateway.web.websocket_port import WebSocket

logger = get_logger()


class SessionSocket(ABC):
    """The client's side of a subscriber; what is NSQ's is up to the class that inherits."""

    __slots__ = (
        "_is_listening",
        "_is_over",
        "_is_written",
        "_loop",
        "_session",
        "_socket",
        "_stock",
        "_timer",
        "_wakes_at",
        "request_id",
    )

    def __init__(self, options: SessionOptions, request_id: str) -> None:
        self.request_id = request_id
        self._loop = asyncio.get_running_loop()
        self._session = Session(options, now=self._loop.time())
        self._socket: WebSocket | None = None
        self._stock = Stock()
        self._is_written = True
        """Whether the session knows that its last frame has been taken."""
        self._is_listening = True
        """Whether the client's commands are read."""
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self._is_over = False
        """Whether all has been handed back, and nothing new begins."""

    @abstractmethod
    def _carry_out(self, actions: list[Action]) -> None:
        """Do what the session wants, in order."""

    @abstractmethod
    def end(self, code: CloseCode, reason: str) -> None:
        """Hand back what is unfinished, send what waits, close with *code*; once."""

    # What happens

    def text_received(self, text: str) -> None:
        """Let the session take what the client says."""
        self._tell(self._session.receive, text)

    def has_room(self) -> None:
        """Go on sending."""
        if self._is_written:
            self._tell(nothing_new)
        else:
            self._is_written = True
            self._tell(self._session.frame_written)

    def _tell(self, happened: Callable[..., list[Action]], *what: object) -> None:
        """Let the session know of *what*, and do what it wants; a bug ends this socket alone."""
        try:
            now = self._loop.time()
            if actions := happened(*what, now):
                self._carry_out(actions)
            self._send_waiting(now)
            # Who asks and does not read what is answered is not listened to any more.
            if self._session.is_listening is not self._is_listening:
                self._listen()
            self._take_stock()
        except Exception as error:  # noqa: BLE001 - it is logged
            self._fail(error)

    def _take_stock(self) -> None:
        """Let the sums over all sockets know what there is here now; nothing once it is over."""
        if self._is_over:
            # Answers may stay in the session for ever: nobody is there to take them.
            self._stock.settle(0, 0)
            return
        socket, holdings = self._socket, self._session.holdings
        unsent_bytes = holdings.waiting_bytes
        if socket is not None and not socket.is_writable:
            unsent_bytes += socket.unsent_bytes
        self._stock.settle(holdings.held, unsent_bytes)

    def _fail(self, error: Exception) -> None:
        logger.error("subscriber failed", request_id=self.request_id, exc_info=error)
        self.end(CloseCode.INTERNAL, EndReason.FAILED.value)

    # What follows

    def _send_waiting(self, now: float) -> None:
        """Send what waits as long as the socket takes it, and see to the timer."""
        session, socket = self._session, self._socket
        if socket is not None and self._is_written and socket.is_writable and session.has_frame:
            self._send_frames(socket, now)
        if (due := session.next_wake()) is not None and due < self._wakes_at:
            self._wake_at(due)

    def _send_frames(self, socket: WebSocket, now: float) -> None:
        session = self._session
        before = session.delivered
        while (frame := session.next_frame(now)) is not None:
            _send(socket, frame)
            self._is_written = socket.is_writable
            if not self._is_written:
                break
            if actions := session.frame_written(now):
                self._carry_out(actions)
            if not session.has_frame:
                break
        if session.delivered != before:
            DELIVERED.counts["own",] += session.delivered - before

    def send_all(self) -> None:
        """Send what waits, whether or not the socket takes it at once."""
        if self._socket is not None:
            while (frame := self._session.next_frame(self._loop.time())) is not None:
                _send(self._socket, frame)

    def _listen(self) -> None:
        """Read on, or no more, as the session wants it."""
        self._is_listening = not self._is_listening
        if self._socket is None:
            return
        if self._is_listening:
            self._socket.resume_reading()
        else:
            self._socket.pause_reading()

    def _wake_at(self, moment: float) -> None:
        """Keep one timer for the session, never later than it asks for."""
        if self._is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = moment
        self._timer = self._loop.call_at(moment, self._wake)

    def _wake(self) -> None:
        """Let the session do what is due."""
        self._timer = None
        self._wakes_at = math.inf
        if not self._is_over:
            self._tell(self._session.wake)

    def _sleep(self) -> None:
        """Wake no more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _send(socket: WebSocket, lines: bytes) -> None:
    """Send *lines*; in several frames where JSON has made more of bodies than was reckoned."""
    if len(lines) <= MAX_FRAME_BYTES:
        socket.send(lines)
    else:
        socket.send_frame(text_frames(lines, MAX_FRAME_BYTES))


def nothing_new(now: float) -> list[Action]:
    """Let nothing have happened: only what waits is to be seen to."""
    del now
    return []
