"""
One WebSocket subscriber: a reader and a writer around one `Session`.

The session decides; here its actions are carried out and its frames are sent. However the socket
ends, what the client had not finished is handed back before anything else is waited for. Where NSQ
wants a secret and none came with the upgrade, the socket is subscribed only after its AUTH frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gateway.client.subscription import SubscriptionOptions
from gateway.errors import AuthRequired, BrokerRefused, BrokerUnreachable, GatewayError
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer
from gateway.secret import Secret
from gateway.session.actions import (
    Action,
    Authenticate,
    EndReason,
    EndSocket,
    Finish,
    PauseReading,
    Ready,
    Requeue,
    ResumeReading,
    Touch,
)
from gateway.session.options import SessionOptions
from gateway.session.session import Session
from gateway.telemetry import counter, get_logger, spawn
from gateway.web.faults import CloseCode, fault_of, naming
from gateway.web.membership import Common, Membership
from gateway.web.waiting_room import WaitingRoom
from gateway.web.websocket_protocol import ABORT_EXTENSION

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

logger = get_logger()

CLOSE_CODES: dict[EndReason, CloseCode] = {
    EndReason.DONE: CloseCode.NORMAL,
    EndReason.DRAINED: CloseCode.RESTART,
    EndReason.SLOW: CloseCode.SLOW,
    EndReason.NO_BROKER: CloseCode.NO_BROKER,
    EndReason.TOO_MANY_ERRORS: CloseCode.TOO_MANY_ERRORS,
    EndReason.FULL: CloseCode.FULL,
    EndReason.NO_AUTH: CloseCode.NO_AUTH,
    EndReason.FORBIDDEN: CloseCode.FORBIDDEN,
    EndReason.SECRET_REFUSED: CloseCode.SECRET_REFUSED,
    EndReason.FAILED: CloseCode.INTERNAL,
}
_NOT_SUBSCRIBED = {
    CloseCode.FORBIDDEN: EndReason.FORBIDDEN,
    CloseCode.NO_BROKER: EndReason.NO_BROKER,
    CloseCode.FULL: EndReason.FULL,
}
"""Why a socket ends that could not be subscribed with its AUTH, by the close code of the error."""

_DELIVERED = counter("messages_delivered_total", "Messages written to WebSocket clients.")
_ANSWERED = counter("messages_answered_total", "Answers passed on to NSQ, by verb.", ["verb"])
_FINISHED, _REQUEUED, _TOUCHED = (_ANSWERED.labels(verb) for verb in ("FIN", "REQ", "TOUCH"))

_CLOSE_TIMEOUT_S = 2.0
"""What a client gets to take the last frames, and again to answer the close."""


@dataclass(frozen=True, kw_only=True)
class SocketOptions:
    """What one socket asked for, on both its sides."""

    session: SessionOptions
    subscription: SubscriptionOptions
    is_viewer: bool
    """Whether its channel is its own, with a name that nobody else has."""


class SubscriberSocket:
    """From the subscription to the last byte; `open`, then `run`."""

    def __init__(
        self,
        scope: Scope,
        channel: tuple[Receive, Send],
        options: SocketOptions,
        common: Common,
        waiting_room: WaitingRoom,
    ) -> None:
        self._scope = scope
        self._receive, self._send = channel
        self._loop = asyncio.get_running_loop()
        self._session = Session(options.session, now=self._loop.time())
        self._membership = Membership(
            common, options.subscription, self, is_viewer=options.is_viewer
        )
        self._waiting_room = waiting_room
        self._buffer_bytes = options.session.buffer_bytes
        self._joining: asyncio.Task[None] | None = None
        """The subscription with the secret of an AUTH frame, while it is tried."""
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

    @property
    def secret(self) -> Secret | None:
        """What it is subscribed with."""
        return self._membership.secret

    async def open(self, secret: Secret | None) -> None:
        """
        Subscribe; where NSQ wants a secret and there is none, leave it to the client's AUTH.

        Raises:
            BrokerRefused: NSQ refuses the secret, or the subscription.
            NoBroker: No nsqd can be reached.
            Full: Too many wait for their AUTH.
        """
        try:
            await self._join(secret)
        except AuthRequired:
            self.wait_for_auth()

    def wait_for_auth(self) -> None:
        """Subscribe when the client has said AUTH; raises Full when too many wait for theirs."""
        self._waiting_room.enter(self)
        self._carry_out(self._session.want_auth(self._loop.time()))

    async def _join(self, secret: Secret | None) -> None:
        """Subscribe with *secret*, and let the session tell the client; raises as `open` does."""
        for source in list(self._membership.sources):
            # The same brokers will be other sources.
            self._carry_out(self._session.source_lost(source, self._loop.time()))
        await self._membership.join(secret)
        self._waiting_room.leave(self)
        if not self._membership.sources:
            timeout_ms = self._membership.msg_timeout_ms
            self._carry_out(self._session.no_source_yet(timeout_ms, self._loop.time()))

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
        self._waiting_room.leave(self)
        if (joining := self._joining) is not None:
            joining.cancel()
            await asyncio.wait({joining})
        await self._membership.leave()
        if self._closer is not None:
            await self._closer

    # From NSQ

    def source_opened(self, source: int, answer: Answer) -> None:
        """Let the session tell the client."""
        authorization = self._membership.source_opened(source, answer)
        self._carry_out(self._session.source_opened(source, answer, authorization))

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Let the session tell the client."""
        del error
        self._membership.source_lost(source)
        self._carry_out(self._session.source_lost(source, self._loop.time()))

    def auth_required(self) -> None:
        """Let the session use what the client gave, or wait for its AUTH."""
        self._carry_out(self._session.want_auth(self._loop.time()))

    def auth_addresses(self) -> Sequence[str]:
        """Return the brokers that it is subscribed on, of those that want AUTH."""
        return self._membership.auth_addresses()

    def secret_refused(self, error: BrokerRefused) -> None:
        """Let the session tell the client, and end."""
        options = self._session.options
        message = naming(error, options.topic, options.channel).description
        self._carry_out(self._session.auth_failed(error.code, message, EndReason.SECRET_REFUSED))

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
            if self._joining is not None:
                # What comes behind AUTH is not read before AUTH is answered.
                await asyncio.wait({self._joining})
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
        subscriber = self._membership.subscription
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
                case Ready() | PauseReading() | ResumeReading():
                    self._membership.regulate(action)
                case Authenticate(secret):
                    self._joining = spawn("subscribe with a secret", self._authenticate(secret))
                case EndSocket(reason):
                    self._close(CLOSE_CODES[reason], reason.value)
        if self._session.has_frame:
            self._something_waits.set()
        self._schedule()

    async def _authenticate(self, secret: Secret) -> None:
        """Subscribe with the client's secret, or end."""
        failure: Exception | None = None
        try:
            await self._join(secret)
        except Exception as error:
            if not isinstance(error, GatewayError):
                logger.exception("subscription failed")
            failure = error
        finally:
            self._joining = None
        if failure is None:
            self._carry_out(self._session.go_on(self._loop.time()))
            return
        fault = fault_of(failure)
        code, message = fault.token, fault.detail or str(failure)
        if isinstance(failure, BrokerRefused):
            code, message = failure.code, failure.description
        reason = _NOT_SUBSCRIBED.get(fault.close, EndReason.FAILED)
        self._carry_out(self._session.auth_failed(code, message, reason, retryable=fault.retryable))

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
            if self._joining is not None:
                self._joining.cancel()
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
