"""
The client's side of a subscriber socket: a `Session`, its frames, its timer and back-pressure.

Each event, from either side, is passed to the session. Its actions are executed, and the frames
that wait are written, in the same iteration of the event loop.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway.session.session import Session
from gateway.session.types import Action, CloseReason, SessionOptions
from gateway.session.window import MAX_FRAME_BYTES
from gateway.telemetry import get_logger
from gateway.web.errors import CloseCode
from gateway.web.loop_budget import frame_budget_of
from gateway.web.metrics import DELIVERED, SocketGauges
from gateway.web.websocket.frames import text_frames
from gateway.web.websocket.protocol import WebSocket

logger = get_logger()

_UNITS_PER_TURN = 64
"""Units of `FrameBudget` that a socket spends when it runs queued commands."""


# Abstract, although only `SubscriberSocket` derives from it here: the model tests derive another
# class, which drives the same frames, timers and back-pressure against a model of nsqd.
class SessionSocket(ABC):
    """
    The client's side of a subscriber socket: events, frames, timer and back-pressure.

    A subclass executes the session's actions, and so decides how to reach NSQ.
    """

    __slots__ = (
        "_budget",
        "_gauges",
        "_is_closed",
        "_is_frame_written",
        "_is_reading_commands",
        "_loop",
        "_session",
        "_socket",
        "_timer",
        "_wake_due",
        "request_id",
    )

    def __init__(self, options: SessionOptions, request_id: str) -> None:
        self.request_id = request_id
        self._loop = asyncio.get_running_loop()
        self._budget = frame_budget_of(self._loop)
        self._session = Session(options, now=self._loop.time())
        self._socket: WebSocket | None = None
        self._gauges = SocketGauges()
        self._is_frame_written = True
        """False while the session's last frame, or a part of it, waits in the write buffer."""
        self._is_reading_commands = True
        """False while the client is not read, because the session wants no commands."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake_due = math.inf
        """
        When `_timer` fires, on the event loop's clock; `math.inf` without a timer.

        `-math.inf` while `_wake` waits for its turn in the budget: no timer is earlier than that.
        """
        self._is_closed = False
        """True once the close has begun: no frame, timer or subscription starts."""

    @abstractmethod
    def _execute(self, actions: list[Action]) -> None:
        """Execute the session's *actions*, in order."""

    @abstractmethod
    def close(self, code: CloseCode, reason: str) -> None:
        """Requeue unacknowledged deliveries, send the queued frames, and close; idempotent."""

    @abstractmethod
    def _unsent_changed(self, unsent_bytes: int) -> None:
        """Called when the number of bytes that wait for the client has changed."""

    # Events

    def on_text(self, text: str) -> None:
        """Run the client's commands in one text message."""
        self._on_event(self._session.receive, text)

    def acknowledge(self, verb: str, delivery_ids: list[str], delay_ms: int) -> list[str]:
        """Apply FIN, REQ or TOUCH of a client that answers by leases; return the refused ids."""
        refused = delivery_ids

        def apply(now: float) -> list[Action]:
            nonlocal refused
            actions, refused = self._session.acknowledge(verb, delivery_ids, delay_ms, now)
            return actions

        if not self._is_closed:
            self._on_event(apply)
        return refused

    def use_leases(self, lease_of: Callable[[str, float], str]) -> None:
        """Add to each message the lease that *lease_of* returns for (delivery id, s left)."""
        self._session.use_leases(lease_of)

    def on_writable(self) -> None:
        """Send the client its queued frames: the socket's write buffer has room again."""
        # Even if no frame of the session is pending: a pong, too, may have filled the buffer.
        self._is_frame_written = True
        self._on_event(self._session.on_writable)

    def _on_event(self, handler: Callable[..., list[Action]], *arguments: object) -> None:
        """
        Call *handler*, a method of the session; execute its actions; send the queued frames.

        *handler* gets *arguments* and the time. An unexpected exception closes this socket only.
        """
        try:
            now = self._loop.time()
            if actions := handler(*arguments, now):
                self._execute(actions)
            self._send_waiting(now)
            # Back-pressure: a client that does not read its responses may send no more commands.
            if self._session.wants_commands is not self._is_reading_commands:
                self._toggle_reading()
            self._update_gauges()
        except Exception as error:  # noqa: BLE001 - it is logged
            self._fail(error)

    def _update_gauges(self) -> None:
        """Update this socket's share of the gauges of all sockets; zero once it is closed."""
        if self._is_closed:
            # Responses may remain in the session, and will never be sent.
            if self._gauges.update(0, 0):
                self._unsent_changed(0)
            return
        socket, stats = self._socket, self._session.stats
        unsent_bytes = stats.unsent_bytes
        # What a writable transport holds, at most its high-water mark, is not counted.
        if socket is not None and not socket.is_writable:
            unsent_bytes += socket.unsent_bytes
        if self._gauges.update(stats.held, unsent_bytes):
            self._unsent_changed(unsent_bytes)

    def _fail(self, error: Exception) -> None:
        """Log *error*, which is a defect of the gateway, and close with 1011."""
        logger.error("subscriber failed", request_id=self.request_id, exc_info=error)
        self.close(CloseCode.INTERNAL, CloseReason.FAILED.value)

    # Frames and timer

    def _send_waiting(self, now: float) -> None:
        """Send the client the frames that wait, if the socket is writable, and set the timer."""
        if self._is_closed:
            return
        session, socket = self._session, self._socket
        if (
            socket is not None
            and self._is_frame_written
            and socket.is_writable
            and session.has_frame
        ):
            self._send_frames(socket, now)
        if (due := session.next_wake()) is not None and due < self._wake_due:
            self._set_timer(due)

    def _send_frames(self, socket: WebSocket, now: float) -> None:
        """Send frames until none waits or the write buffer is full."""
        session = self._session
        before = session.delivered
        while (frame := session.next_frame(now)) is not None:
            _send(socket, frame)
            self._is_frame_written = socket.is_writable
            if not self._is_frame_written:
                # With ack=auto, the messages are finished only once the buffer has drained.
                break
            if actions := session.on_writable(now):
                self._execute(actions)
            if not session.has_frame:
                break
        if session.delivered != before:
            DELIVERED.counts["own",] += session.delivered - before

    def send_all(self) -> None:
        """Send the client all frames that wait, even if the write buffer is full."""
        if self._socket is not None:
            while (frame := self._session.next_frame(self._loop.time())) is not None:
                _send(self._socket, frame)

    def _toggle_reading(self) -> None:
        """Stop reading commands from the client, or read again."""
        self._is_reading_commands = not self._is_reading_commands
        if self._socket is None:
            return
        if self._is_reading_commands:
            self._socket.resume_reading()
        else:
            self._socket.pause_reading()

    def _set_timer(self, moment: float) -> None:
        """Let the timer fire at *moment*, on the event loop's clock, and not as set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._wake_due = moment
        self._timer = self._loop.call_at(moment, self._wake)

    def _wake(self) -> None:
        """
        Called by the timer: wake the session.

        If queued commands are due, and the budget of this iteration is spent, wake it in a later
        iteration, in this socket's turn.
        """
        self._timer = None
        if self._budget.is_exhausted and self._session.has_commands_due(self._loop.time()):
            self._wake_due = -math.inf  # no event sets another timer before that turn
            self._budget.wait(self._wake_in_turn)
        else:
            self._wake_in_turn()

    def _wake_in_turn(self, _share: int = 0) -> None:
        self._wake_due = math.inf
        if self._is_closed:
            return
        if self._session.has_commands_due(self._loop.time()):
            self._budget.spend(_UNITS_PER_TURN)
        self._on_event(self._session.wake)

    def _stop_timer(self) -> None:
        """Cancel the timer, and let no frame, timer or subscription start from now on."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _send(socket: WebSocket, lines: bytes) -> None:
    """Send *lines* as one frame; as several if they are longer than estimated (JSON escapes)."""
    if len(lines) <= MAX_FRAME_BYTES:
        socket.send(lines)
    else:
        socket.send_encoded(text_frames(lines, MAX_FRAME_BYTES))


def no_event(now: float) -> list[Action]:
    """Return no action; `_on_event` with this handler only sends the queued frames."""
    del now
    return []
