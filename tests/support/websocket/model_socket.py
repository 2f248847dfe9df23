"""A `SessionSocket` on a clock that a test moves, and the client's end of its WebSocket."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any

from gateway.session.types import Action, SessionOptions
from gateway.web.errors import CloseCode
from gateway.web.subscribe.session_socket import SessionSocket

_SERIAL = re.compile(rb'"body":"(\d+):')


class ModelTimer:
    """A timer of `ModelLoop`."""

    def __init__(self, moment: float, callback: Callable[[], None]) -> None:
        self.moment = moment
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel the timer."""
        self.is_cancelled = True


class ModelLoop:
    """The methods of an event loop that a `SessionSocket` uses."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[ModelTimer] = []

    def time(self) -> float:
        """Return the time set by the test."""
        return self.now

    def call_at(self, moment: float, callback: Callable[[], None]) -> ModelTimer:
        """Record a timer."""
        timer = ModelTimer(moment, callback)
        self._timers.append(timer)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> ModelTimer:
        """Record a timer that is due at once."""
        return self.call_at(self.now, callback)

    @property
    def due(self) -> float:
        """Time at which the next timer fires."""
        self._timers = [each for each in self._timers if not each.is_cancelled]
        return min((each.moment for each in self._timers), default=float("inf"))

    def fire(self) -> None:
        """Run due timers."""
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            for timer in [each for each in self._timers if each.moment <= self.now]:
                if not timer.is_cancelled:
                    timer.is_cancelled = True
                    timer.callback()
        finally:
            asyncio._set_running_loop(None)


class ModelWebSocket:
    """Accept frames up to its capacity; the client reads them later."""

    def __init__(self) -> None:
        self.is_writable = True
        self.sent_bytes = 0
        self.unsent_bytes = 0
        self.is_closed_by_client = False
        self.close_reason = ""
        self.room = 1_000_000
        """Frames until the socket is full."""
        self.frames: deque[bytes] = deque()
        self.is_reading = True
        self.closed: tuple[int, str] | None = None
        self.serials: set[int] = set()
        """Serials of the nsqd sendings delivered in frames."""

    def send(self, text: bytes) -> None:
        """Record a frame; no frame may follow the close frame."""
        assert self.closed is None, f"sent after the close: {text!r}"
        self.frames.append(text)
        self.serials.update(int(each) for each in _SERIAL.findall(text))
        self.sent_bytes += len(text)
        self.room -= 1
        if self.room <= 0:
            self.is_writable = False

    def send_encoded(self, frame: bytes) -> None:
        """Refuse: the bodies of this model need no escapes."""
        raise AssertionError(frame)

    def pause_reading(self) -> None:
        """Stop delivering the client's texts."""
        self.is_reading = False

    def resume_reading(self) -> None:
        """Deliver the client's texts again."""
        self.is_reading = True

    def close(self, code: int, reason: str) -> None:
        """Record the first close."""
        assert self.closed is None, self.closed
        self.closed = code, reason

    def read(self) -> list[dict[str, Any]]:
        """Let the client read one frame."""
        return [json.loads(line) for line in self.frames.popleft().split(b"\n")]


class ModelSocket(SessionSocket):
    """Pass the session's actions to *carry_out*; errors of the session reach the test."""

    def __init__(
        self,
        loop: ModelLoop,
        options: SessionOptions,
        carry_out: Callable[[Action], None],
        on_end: Callable[[], None],
    ) -> None:
        asyncio._set_running_loop(loop)  # type: ignore[arg-type]
        try:
            super().__init__(options, "model")
        finally:
            asyncio._set_running_loop(None)
        self.web = ModelWebSocket()
        self._socket = self.web
        self._on_action = carry_out
        self._on_end = on_end
        self.close_code: int | None = None

    @property
    def session(self) -> Any:  # noqa: ANN401 - versions of a session that differ are tried with it
        """The session."""
        return self._session

    @property
    def is_over(self) -> bool:
        """Return whether everything was requeued."""
        return self._is_closed

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is on its way to the client or still to be executed."""
        session = self._session
        return (
            not session.has_frame
            and self._is_frame_written
            and session.wants_commands
            and not session._runner.is_busy
        )

    @property
    def counted(self) -> tuple[int, int]:
        """Held deliveries and unsent bytes of this socket, for the totals."""
        return self._gauges._held, self._gauges._unsent_bytes

    def tell(self, happened: Callable[..., list[Action]], *what: object) -> None:
        """Pass an event to the session."""
        self._on_event(happened, *what)

    def _unsent_changed(self, unsent_bytes: int) -> None:
        """Do nothing: there is no other socket."""

    def _execute(self, actions: list[Action]) -> None:
        for action in actions:
            self._on_action(action)

    def _fail(self, error: Exception) -> None:
        raise error

    def close(self, code: CloseCode, reason: str) -> None:
        """Close like a `SubscriberSocket`."""
        if not self._is_closed:
            self.close_code = code
            self.hand_back()
            self.send_all()
            self.web.close(code, reason)

    def hand_back(self) -> None:
        """Requeue unfinished messages; the client has disconnected, or will be closed."""
        self._stop_timer()
        self._execute(self._session.close(self._loop.time()))
        self._update_gauges()
        self._on_end()
