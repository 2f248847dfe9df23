"""
One WebSocket subscriber: a reader and a writer around one `Session`.

The session decides; here its actions are carried out and its frames are sent. However the socket
ends, what the client had not finished is handed back before anything else is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from gateway.client.subscription import Subscription, SubscriptionOptions
from gateway.errors import BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer
from gateway.session.actions import (
    Action,
    EndReason,
    EndSocket,
    Finish,
    PauseReading,
    Ready,
    Requeue,
    ResumeReading,
    Touch,
)
from gateway.session.session import Session, SessionOptions
from gateway.telemetry import counter, spawn
from gateway.web.faults import CloseCode
from gateway.web.websocket_protocol import ABORT_EXTENSION

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CLOSE_CODES: dict[EndReason, CloseCode] = {
    EndReason.DONE: CloseCode.NORMAL,
    EndReason.DRAINED: CloseCode.RESTART,
    EndReason.SLOW: CloseCode.SLOW,
    EndReason.NO_BROKER: CloseCode.NO_BROKER,
    EndReason.TOO_MANY_ERRORS: CloseCode.TOO_MANY_ERRORS,
}

_DELIVERED = counter("messages_delivered_total", "Messages written to WebSocket clients.")
_ANSWERED = counter("messages_answered_total", "Answers passed on to NSQ, by verb.", ["verb"])
_FINISHED, _REQUEUED, _TOUCHED = (_ANSWERED.labels(verb) for verb in ("FIN", "REQ", "TOUCH"))

_CLOSE_TIMEOUT_S = 2.0
"""What a client gets to take the last frames, and again to answer the close."""


class SubscriberSocket:
    """From the subscription to the last byte; `open`, then `run`."""

    def __init__(
        self,
        scope: Scope,
        channel: tuple[Receive, Send],
        session_options: SessionOptions,
        subscription: tuple[Sequence[str], SubscriptionOptions],
    ) -> None:
        self._scope = scope
        self._receive, self._send = channel
        self._loop = asyncio.get_running_loop()
        self._session = Session(session_options, now=self._loop.time())
        self._subscriber = Subscription(*subscription, self)
        self._buffer_bytes = session_options.buffer_bytes
        self._something_waits = asyncio.Event()
        self._has_room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        self._is_handed_back = False
        self.finished = 0
        """Messages that were finished."""
        self.close_code: int = CloseCode.INTERNAL

    @property
    def delivered(self) -> int:
        """Messages that went to the client."""
        return self._session.delivered

    async def open(self) -> None:
        """Subscribe; raises NoBroker when no nsqd can be subscribed to."""
        await self._subscriber.start()

    async def run(self, subprotocol: str | None) -> None:
        """Accept the socket and serve it to its end."""
        try:
            await self._send({"type": "websocket.accept", "subprotocol": subprotocol})
            self._writer = spawn("write to a subscriber", self._write())
            await self._read()
        finally:
            self._hand_back()
            await self.release()

    async def release(self) -> None:
        """Leave NSQ and end every task; nothing of the socket is left behind."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.cancel()
        await self._subscriber.close()
        if self._closer is not None:
            await self._closer

    # From NSQ

    def source_opened(self, source: int, answer: Answer) -> None:
        """Let the session tell the client."""
        self._carry_out(self._session.source_opened(source, answer))

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Let the session tell the client."""
        del error
        self._carry_out(self._session.source_lost(source, self._loop.time()))

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Let the session take what came."""
        self._carry_out(self._session.arrived(source, messages, self._loop.time()))

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Let the session tell the client."""
        del source
        self._session.answer_refused(frame)
        self._carry_out([])

    # The two ways

    async def _read(self) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                if self._closer is None:
                    self.close_code = event.get("code", CloseCode.INTERNAL)
                return
            text = event.get("text")
            if text is None:
                self._close(CloseCode.WRONG_KIND, "commands are text frames, this one is binary")
                continue
            self._carry_out(self._session.receive(text, self._loop.time()))
            if self._session.waiting_bytes > self._buffer_bytes:
                # Who asks and does not read what is answered is not listened to any more.
                self._has_room.clear()
                await self._has_room.wait()

    async def _write(self) -> None:
        session, loop = self._session, self._loop
        delivered = 0
        try:
            while True:
                await self._something_waits.wait()
                self._something_waits.clear()
                while (frame := session.next_frame(loop.time())) is not None:
                    await self._send({"type": "websocket.send", "text": frame})
                    _DELIVERED.inc(session.delivered - delivered)
                    delivered = session.delivered
                    self._carry_out(session.frame_written(loop.time()))
                    if session.waiting_bytes <= self._buffer_bytes:
                        self._has_room.set()
        except (OSError, RuntimeError):
            # uvicorn: the client has gone, or was closed for breaking the protocol. The reader
            # is told of both.
            return
        finally:
            self._has_room.set()

    def _carry_out(self, actions: list[Action]) -> None:
        """Do what the session wants, and see to what it has for the client and for later."""
        subscriber = self._subscriber
        for action in actions:
            match action:
                case Finish(source, ids):
                    self.finished += len(ids)
                    _FINISHED.inc(len(ids))
                    subscriber.finish(source, ids)
                case Requeue(source, ids, delay_ms):
                    _REQUEUED.inc(len(ids))
                    subscriber.requeue(source, ids, delay_ms=delay_ms)
                case Touch(source, ids):
                    _TOUCHED.inc(len(ids))
                    subscriber.touch(source, ids)
                case Ready(count):
                    subscriber.set_window(count)
                case PauseReading():
                    subscriber.pause_reading()
                case ResumeReading():
                    subscriber.resume_reading()
                case EndSocket(reason):
                    self._close(CLOSE_CODES[reason], reason.value)
        if self._session.has_frame:
            self._something_waits.set()
        self._schedule()

    def _schedule(self) -> None:
        """Keep one timer for the session, never later than it asks for."""
        due = self._session.next_wake()
        if due is None or self._is_handed_back:
            return
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._carry_out(self._session.wake(self._loop.time()))

    # The end

    def drain(self, *, close_at: float, reconnect_after_ms: int) -> None:
        """Tell the client to come back, and close with 1012 by *close_at* (monotonic seconds)."""
        self._carry_out(
            self._session.drain(close_at=close_at, reconnect_after_ms=reconnect_after_ms)
        )

    def _hand_back(self) -> None:
        if not self._is_handed_back:
            self._is_handed_back = True
            self._carry_out(self._session.close(self._loop.time()))

    def _close(self, code: CloseCode, reason: str) -> None:
        """Hand back what is unfinished, send what waits, close with *code*."""
        if self._closer is None:
            self.close_code = code
            self._hand_back()
            self._closer = spawn("close a subscriber", self._close_socket(code, reason))

    async def _close_socket(self, code: CloseCode, reason: str) -> None:
        if self._writer is not None:
            self._writer.cancel()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                # Answers only: the messages have been handed back.
                while (frame := self._session.next_frame(self._loop.time())) is not None:
                    await self._send({"type": "websocket.send", "text": frame})
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except TimeoutError:
            self._abort()
        except (OSError, RuntimeError):
            return  # the client has gone before
        else:
            self._loop.call_later(_CLOSE_TIMEOUT_S, self._abort)

    def _abort(self) -> None:
        extension = self._scope.get("extensions", {}).get(ABORT_EXTENSION)
        if extension is not None:
            extension["abort"]()
