"""
One WebSocket subscriber: its client on one side, NSQ on the other, a `Session` in between.

The session decides, and here its actions are carried out. However the socket ends, what the client
had not finished is handed back before anything is waited for. Where NSQ wants a secret and none
came with the upgrade, the socket is subscribed only after its AUTH frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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
    LeaveReason,
    PauseReading,
    Publish,
    Refusal,
    Requeue,
)
from gateway.telemetry import get_logger, spawn
from gateway.web.faults import CloseCode, naming
from gateway.web.membership import Membership, OwnMembership
from gateway.web.refusal_account import COMMAND, RATE_LIMITED
from gateway.web.session_socket import SessionSocket, nothing_new
from gateway.web.socket_account import SLOW
from gateway.web.socket_ends import CLOSE_CODES, NoSubscription, why_not_subscribed
from gateway.web.socket_parts import SocketOptions, Surroundings
from gateway.web.websocket_port import WebSocket

logger = get_logger()


class SubscriberSocket(SessionSocket):
    """
    The `Receiver` of one WebSocket; `open` first, or `wait_for_auth`, `lost` last.

    One that is admitted in vain is let go of with `release`.
    """

    __slots__ = (
        "_end_reason",
        "_has_joined",
        "_has_left",
        "_is_lost",
        "_joining",
        "_leaving",
        "_membership",
        "_opened_at",
        "_others",
        "close_code",
        "finished",
        "handed_back",
        "leaves_at",
        "peer",
        "requeued",
        "trace_id",
    )

    def __init__(self, options: SocketOptions, others: Surroundings) -> None:
        super().__init__(options.session, options.request_id)
        self.trace_id = options.trace_id
        self.peer = options.peer
        """The host at the other end."""
        self._others = others
        self._membership = self._new_membership(options)
        self._has_joined = False
        self._joining: asyncio.Task[None] | None = None
        """The subscription with the secret of an AUTH frame, while it is tried."""
        self._leaving: asyncio.Task[None] | None = None
        """The way out of NSQ, from the end on."""
        self._end_reason = ""
        self._has_left = False
        self._is_lost = False
        self._opened_at = self._loop.time()
        self.finished = 0
        """Messages that were finished."""
        self.requeued = 0
        """Messages that went back to NSQ, for whatever reason."""
        self.handed_back = 0
        """Messages that went back to NSQ because the socket, or the gateway, ends."""
        self.leaves_at = 0
        """When it has reached its age; its keeper's own."""
        self.close_code: int = CloseCode.INTERNAL

    def _new_membership(self, options: SocketOptions) -> Membership:
        # Empty where the name is random, which NSQ's answer does not depend on.
        asked = options.session.channel
        return OwnMembership(self._others.common, options.subscription, self, refusal_channel=asked)

    @property
    def is_viewer(self) -> bool:
        """Whether it shares its consumer."""
        return self._session.options.is_viewer

    @property
    def delivered(self) -> int:
        """Messages that went to the client."""
        return self._session.delivered

    @property
    def totals(self) -> dict[str, object]:
        """What it came to, for its last line in the log."""
        return {
            "reason": self._end_reason or "the client has gone",
            "delivered": self.delivered,
            "finished": self.finished,
            "requeued": self.requeued,
            "timed_out": self._session.holdings.timed_out,
            "handed_back": self.handed_back,
            "bytes_out": 0 if self._socket is None else self._socket.sent_bytes,
            "seconds": round(self._loop.time() - self._opened_at, 3),
        }

    @property
    def held(self) -> int:
        """Messages that the client has not answered."""
        return self._session.holdings.held

    @property
    def is_waited_for(self) -> bool:
        """Whether the client has something to answer, or waits for an answer itself."""
        return not self._is_over and self._session.is_open

    @property
    def topic(self) -> str:
        """What is read."""
        return self._session.options.topic

    @property
    def channel(self) -> str:
        """On which channel; of a viewer once it has joined."""
        return self._session.channel

    @property
    def secret(self) -> Secret | None:
        """What it is, or was, subscribed with."""
        return self._membership.secret

    # Joining NSQ

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
        self._others.waiting_room.enter(self)
        self._tell(self._session.want_auth)

    async def _join(self, secret: Secret | None) -> None:
        """Subscribe with *secret*, and let the session tell the client; raises as `open` does."""
        membership = self._membership
        if self._has_joined:
            # The same brokers will be other sources.
            self._carry_out(self._session.sources_left(self._loop.time()))
            # To its end, though this is cancelled when the client goes: no connection may stay.
            await asyncio.wait({spawn("leave a subscription", membership.leave())})
            # A source that came meanwhile is gone as well; and now the client is told.
            self._tell(self._session.sources_left)
        await membership.join(secret)
        self._others.waiting_room.leave(self)
        self._has_joined = True
        if not membership.sources:
            self._session.channel = membership.channel
            self._tell(self._session.no_source_yet, membership.msg_timeout_ms)
        if self._socket is not None:
            self._begin(self._socket)

    def _begin(self, socket: WebSocket) -> None:
        """Know that the client is told of its subscription before anything else."""

    async def _authenticate(self, secret: Secret) -> None:
        """Subscribe with the client's secret, or end."""
        why = await self._try(secret)
        if why is None:
            self._tell(self._session.go_on)
            return
        self._tell(
            lambda _: self._session.auth_failed(
                why.code, why.message, why.reason, retryable=why.is_retryable
            )
        )

    async def _try(self, secret: Secret) -> NoSubscription | None:
        """Subscribe with the client's secret; return what stands against it."""
        try:
            self._others.keeper.identified(self, secret)
            await self._join(secret)
        except Exception as error:
            if not isinstance(error, GatewayError):
                logger.exception("subscription failed", request_id=self.request_id)
            return why_not_subscribed(error)
        finally:
            self._joining = None
        return None

    # From NSQ

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Let the session take what came."""
        self._membership.arrived(source, messages)
        self._tell(self._session.arrived, source, messages)

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Let the session tell the client."""
        del source
        self._session.answer_refused(frame)
        self._tell(nothing_new)

    def source_opened(self, source: int, answer: Answer) -> None:
        """Let the session tell the client."""
        self._session.channel = self._membership.channel
        authorization = self._membership.source_opened(source, answer)
        self._tell(lambda _: self._session.source_opened(source, answer, authorization))

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Let the session tell the client."""
        del error
        self._membership.source_lost(source)
        self._tell(self._session.source_lost, source)

    def channel_gone(self, address: str) -> None:
        """Let the session tell the client, and end."""
        logger.info("channel gone", request_id=self.request_id, nsqd=address)
        self._tell(lambda _: self._session.channel_gone())

    def channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - a state, as it is told
        """Let the session tell the client."""
        self._tell(lambda _: self._session.paused(is_paused))

    def auth_required(self) -> None:
        """Let the session use what the client gave, or wait for its AUTH."""
        self._tell(self._session.want_auth)

    def auth_addresses(self) -> Sequence[str]:
        """Return the brokers that it is subscribed on, of those that want AUTH."""
        return self._membership.auth_addresses()

    def secret_refused(self, error: BrokerRefused) -> None:
        """Let the session tell the client, and end."""
        message = naming(error, self.topic, self.channel).description
        reason = EndReason.SECRET_REFUSED
        self._tell(lambda _: self._session.auth_failed(error.code, message, reason))

    # From the client

    def opened(self, socket: WebSocket) -> None:
        """Say what has happened before the upgrade, and go on from there."""
        self._socket = socket
        self._opened_at = self._loop.time()
        self._others.keeper.opened(self)
        if self._is_over:
            self._say_goodbye(socket)
            return
        self._tell(nothing_new)
        if self._has_joined:
            self._begin(socket)

    def lost(self, code: int) -> None:
        """Hand back what is unfinished, and leave NSQ."""
        self._is_lost = True
        if not self._is_over:
            self.close_code = code
            self._hand_back()
        if self._has_left:
            self._gone()

    # What the session wants

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Finish):
                self.finished += len(action.ids)
                self._membership.carry_out(action)
            elif isinstance(action, Publish):
                secret = self.secret or self._session.kept_secret
                self._others.publishing.begin(action, secret, self.peer, self._published)
            elif isinstance(action, Authenticate):
                task = self._authenticate(action.secret)
                self._joining = spawn("subscribe with a secret", task)
            elif isinstance(action, EndSocket):
                if action.reason is EndReason.TOO_FAST:
                    RATE_LIMITED.counts[COMMAND,] += 1
                self.end(CLOSE_CODES[action.reason], action.reason.value)
            else:
                if isinstance(action, Requeue):
                    self.requeued += len(action.ids)
                    if action.is_handed_back:
                        self.handed_back += len(action.ids)
                elif isinstance(action, PauseReading):
                    SLOW.counts["paused",] += 1
                self._membership.carry_out(action)

    def _published(self, publish: Publish, refusal: Refusal | None) -> None:
        """Let the session tell the client, where there is one still."""
        if not self._is_over:
            self._tell(lambda _: self._session.published(publish, refusal))

    # The end

    def drain(self, reason: LeaveReason, *, close_at: float, reconnect_after_ms: int) -> None:
        """Tell the client to come back, and close with 1012; see `Session.drain`."""
        self._tell(
            lambda _: self._session.drain(
                reason, close_at=close_at, reconnect_after_ms=reconnect_after_ms
            )
        )

    async def release(self) -> None:
        """Let go of a socket that was never opened: nothing of it is left here or in NSQ."""
        if not self._is_over:
            self._hand_back()
        if self._leaving is not None:
            await asyncio.wait({self._leaving})
        self._membership.let_go()

    def end(self, code: CloseCode, reason: str) -> None:
        """Hand back what is unfinished, send what waits, close with *code*; once."""
        if self._is_over:
            return
        self.close_code = code
        self._end_reason = reason
        if code is CloseCode.SLOW:
            SLOW.counts["closed",] += 1
        self._hand_back()
        if self._socket is not None:
            self._say_goodbye(self._socket)

    def _say_goodbye(self, socket: WebSocket) -> None:
        """Send answers, for the messages have been handed back, and close."""
        try:
            self.send_all()
        except Exception:
            logger.exception("subscriber failed", request_id=self.request_id)
        socket.close(self.close_code, self._end_reason)

    def _hand_back(self) -> None:
        """Give back at once what the client has not finished, and begin to leave NSQ."""
        self._sleep()
        self._leaving = spawn("leave NSQ", self._leave())
        if self._joining is not None:
            self._joining.cancel()
        self._others.waiting_room.leave(self)
        try:
            self._carry_out(self._session.close(self._loop.time()))
        except Exception:
            logger.exception("subscriber failed", request_id=self.request_id)
        finally:
            self._take_stock()

    async def _leave(self) -> None:
        """Leave NSQ; the last that happens here, unless the client is still told."""
        try:
            if self._joining is not None:
                await asyncio.wait({self._joining})
            await self._membership.leave()
        finally:
            self._has_left = True
            if self._is_lost:
                self._gone()

    def _gone(self) -> None:
        self._others.keeper.gone(self)
        self._membership.let_go()
