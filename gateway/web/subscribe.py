"""GET /sub: who may subscribe, what is refused before the upgrade, the drain of all sockets."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from gateway.client.channel_survey import ChannelSurvey
from gateway.client.connection import ConnectionOptions
from gateway.client.lookup import Discovery
from gateway.client.refusals import Refusals
from gateway.client.subscription import SubscriptionOptions
from gateway.errors import AuthRequired, Full, GatewayError
from gateway.protocol.wire import Limits, is_ephemeral
from gateway.secret import Secret
from gateway.session.options import SessionOptions
from gateway.telemetry import Tracing, gauge, get_logger, tally
from gateway.web.access import request_id_of
from gateway.web.answers import Answer
from gateway.web.credentials import (
    AccessPolicy,
    authorization_headers,
    bearer_secret,
    one_secret,
    take_subprotocol_secret,
)
from gateway.web.departures import Ages, drain_all
from gateway.web.fanout import Fanouts
from gateway.web.faults import DRAINING, CloseCode, problem, render
from gateway.web.membership import Common
from gateway.web.origins import OriginPolicy, page_of
from gateway.web.recheck import Rechecks
from gateway.web.refusal_account import count_crowded
from gateway.web.seats import Seats
from gateway.web.socket_account import ACCOUNT, OPENED
from gateway.web.socket_parts import KeptSocket, SocketOptions, Surroundings
from gateway.web.socket_publishing import SocketPublishing
from gateway.web.subscribe_request import (
    choose_subprotocol,
    new_channel_name,
    parse_subscribe_request,
)
from gateway.web.subscriber_socket import SubscriberSocket
from gateway.web.upgrade_spans import trace_fields
from gateway.web.viewer_socket import ViewerSocket
from gateway.web.waiting_room import WaitingRoom
from gateway.web.websocket_port import Admission, Upgrade
from gateway.web.wishes import Wish, Wishes

logger = get_logger()

OUTPUT_BUFFER_TIMEOUT_MS = 25
"""nsqd's default holds a lone message back for 250 ms; less than 25 is not to be had."""

_USUAL_CODES = frozenset({*CloseCode, 1001, 1005, 1006})
_CLOSED_SOCKETS = tally("sockets_closed_total", "WebSockets that have ended, by code.", ["code"])
_OPEN_SOCKETS = gauge("sockets_open", "WebSocket subscribers that are connected.")
_OPEN_VIEWERS = gauge("viewers_open", "Those of them that share a consumer with others.")


@dataclass(frozen=True, kw_only=True)
class SubscribeOptions:
    """The bounds of the subscribe plane; see `SessionOptions` for those of one socket."""

    discovery: Discovery
    """Where nsqd is; whoever made it starts and stops it."""
    publishing: SocketPublishing
    """What PUB, DPUB and MPUB come to."""
    survey: ChannelSurvey | None = None
    """Who looks whether a channel is paused, or gone; whoever made it stops it."""
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    """How every socket connects to nsqd; what its client asks for comes on top."""
    limits: Limits = field(default_factory=Limits)
    """What a client may ask for, and may publish."""
    origins: OriginPolicy = field(default_factory=OriginPolicy)
    """Which pages may subscribe."""
    access: AccessPolicy = field(default_factory=AccessPolicy)
    max_sockets: int = 1_000
    max_sockets_per_address: int = 0
    """0 is any number."""
    max_sockets_per_secret: int = 0
    """0 is any number."""
    max_in_flight_limit: int = 2_500
    socket_buffer_bytes: int = 8 * 1_048_576
    slow_consumer_s: float = 30.0
    broker_outage_s: float = 300.0
    command_rate_limit: int = 10_000
    drain_in_flight_s: float = 10.0
    """How long answers are waited for of a socket that is to leave."""
    socket_max_age_s: float = 0.0
    """0 is any age."""
    tracing: Tracing | None = None
    """Who begins the spans of deliveries; None: nobody."""


class _Granted(NamedTuple):
    """What a request for a socket may have, as far as NSQ is not asked."""

    brought: Secret | None
    wish: Wish
    subprotocol: str | None


class SubscribeEndpoint:
    """The `Gate` of /sub, and the `Keeper` of its sockets."""

    def __init__(self, options: SubscribeOptions) -> None:
        self._options = options
        self._seats = Seats(
            options.max_sockets,
            limit_per_address=options.max_sockets_per_address,
            limit_per_secret=options.max_sockets_per_secret,
        )
        self._brought: dict[object, Secret] = {}
        """What each socket has said, of those that have said one."""
        self._sockets: set[KeptSocket] = set()
        """Those that have been opened."""
        self._wishes = Wishes(self._read)
        common = Common(
            discovery=options.discovery,
            refusals=Refusals(),
            rechecks=Rechecks(options.access.recheck_s, random=random.random),
            survey=options.survey,
            tracing=options.tracing,
        )
        share = options.access.waiting_share
        self._surroundings = Surroundings(
            keeper=self,
            common=common,
            fanouts=Fanouts(common, self._subscription, max_in_flight=options.max_in_flight_limit),
            waiting_room=WaitingRoom(max(1, int(options.max_sockets * share))),
            publishing=options.publishing,
        )
        self._ages = Ages(options.socket_max_age_s, in_flight_s=options.drain_in_flight_s)
        self._is_draining = False
        self.departed = 0
        """Sockets that have gone since a drain began."""
        self._handed_back = 0
        """Messages that went back to NSQ with them."""
        self._all_gone = asyncio.Event()

    # Before the upgrade

    async def admit(self, upgrade: Upgrade) -> Admission:
        """
        Check everything, subscribe, and return a socket to open.

        Raises:
            GatewayError: What is wrong; nothing is left behind then, nor when it is cancelled.
        """
        granted = self._judge(upgrade)
        brought = granted.brought
        self._seats.take(upgrade.peer, brought)
        try:
            admission = await self._open(upgrade, granted)
        except BaseException:
            self._seats.give_back(upgrade.peer, brought)
            raise
        if brought is not None:
            self._brought[admission.receiver] = brought
        return admission

    def refuse(self, upgrade: Upgrade) -> Answer | None:
        """
        Return what is answered to *upgrade* where that takes no asking of NSQ; None: it may be had.

        Nothing is taken and nobody is let in: a page asks by a plain GET, for its browser does not
        show it the answer to an upgrade.
        """
        try:
            self._judge(upgrade)
        except GatewayError as error:
            return self._answer(error, request_id_of(upgrade.headers))
        return None

    def _judge(self, upgrade: Upgrade) -> _Granted:
        """Return what *upgrade* may have; raises GatewayError. Nothing changes by it."""
        self._refuse_when_draining()
        entry, subprotocols = take_subprotocol_secret(upgrade.subprotocols)
        brought = one_secret(bearer_secret(authorization_headers(upgrade.headers)), entry)
        self._seats.check(upgrade.peer, brought)
        self._options.origins.check(*page_of(upgrade.headers), is_secure=upgrade.is_secure)
        return _Granted(
            brought=brought,
            wish=self._wishes.find(upgrade.query),
            subprotocol=choose_subprotocol(subprotocols),
        )

    async def _open(self, upgrade: Upgrade, granted: _Granted) -> Admission:
        has_to_wait = False
        secret = None
        try:
            secret = self._options.access.secret_of(granted.brought)
        except AuthRequired:
            has_to_wait = True  # a browser can say it in a frame only
        kind = ViewerSocket if granted.wish.request.is_viewer else SubscriberSocket
        socket = kind(_socket_options(granted.wish, upgrade, secret), self._surroundings)
        try:
            if has_to_wait:
                socket.wait_for_auth()
            else:
                await socket.open(secret)
            # A drain that began meanwhile knows nothing of this socket.
            self._refuse_when_draining()
        except BaseException:
            await socket.release()
            raise
        return Admission(socket, granted.subprotocol)

    def _refuse_when_draining(self) -> None:
        if self._is_draining:
            text = "this gateway is shutting down; connect again, to another one"
            raise Full(text, "draining")

    def refusal(self, error: BaseException, request_id: str) -> Answer:
        """Return what a client is told in place of the upgrade, and log it."""
        if not isinstance(error, GatewayError):
            logger.error("subscriber failed", request_id=request_id, exc_info=error)
            return problem(error, request_id)
        logger.info("subscriber refused", request_id=request_id, reason=str(error))
        return self._answer(error, request_id)

    def _answer(self, error: GatewayError, request_id: str) -> Answer:
        if self._is_draining and isinstance(error, Full):
            return render(DRAINING, str(error), request_id)
        return problem(error, request_id)

    # What is asked for

    def _read(self, raw_query: bytes) -> Wish:
        """Return what *raw_query* asks for; raises InvalidRequest where it is wrong."""
        options = self._options
        request = parse_subscribe_request(
            raw_query, max_in_flight_limit=options.max_in_flight_limit, limits=options.limits
        )
        session = SessionOptions(
            topic=request.topic,
            channel=request.channel or "",
            # Viewers share one window, which is as large as may be.
            max_in_flight=(
                options.max_in_flight_limit if request.is_viewer else request.max_in_flight
            ),
            max_in_flight_limit=options.max_in_flight_limit,
            finishes_by_itself=request.finishes_by_itself,
            requeue_on_close_ms=request.requeue_on_close_ms,
            buffer_bytes=options.socket_buffer_bytes,
            slow_consumer_s=options.slow_consumer_s,
            broker_outage_s=options.broker_outage_s,
            is_viewer=request.is_viewer,
            max_attempts=request.max_attempts,
            limits=options.limits,
            command_rate_limit=options.command_rate_limit,
            account=ACCOUNT,
        )
        return Wish(
            request=request,
            session=session,
            session_with_secret=replace(session, has_secret=True),
            subscription=self._subscription(
                request.topic,
                request.channel or "",
                request.sample_rate,
                msg_timeout_ms=request.msg_timeout_ms,
            ),
        )

    def _subscription(
        self, topic: str, channel: str, sample_rate: int, *, msg_timeout_ms: int = 0
    ) -> SubscriptionOptions:
        """Return the options of a subscription; a *msg_timeout_ms* of 0 is nsqd's."""
        options = self._options
        offer = msgspec.structs.replace(
            options.connection.offer,
            output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT_MS,
            msg_timeout=msg_timeout_ms,
            sample_rate=sample_rate,
        )
        # An ephemeral channel ends with its last consumer: that it is gone says nothing.
        asks = options.survey is not None and not is_ephemeral(channel)
        return SubscriptionOptions(
            topic=topic,
            channel=channel,
            connection=replace(options.connection, offer=offer, secret=None),
            is_gone=options.survey.is_gone if options.survey is not None and asks else None,
        )

    # The sockets

    def opened(self, socket: KeptSocket) -> None:
        """Count and log it."""
        self._sockets.add(socket)
        self._ages.opened(socket)
        OPENED.counts[()] += 1
        _OPEN_SOCKETS.set(len(self._sockets))
        if socket.is_viewer:
            _OPEN_VIEWERS.inc()
        logger.info(
            "subscriber connected",
            request_id=socket.request_id,
            topic=socket.topic,
            channel=socket.channel,
            client=socket.peer,
            **trace_fields(socket.trace_id),
        )

    def identified(self, socket: KeptSocket, secret: Secret) -> None:
        """Count it for the secret of its AUTH; raises Full where that has too many."""
        try:
            self._seats.take_secret(secret)
        except Full as error:
            count_crowded(error)
            raise
        self._brought[socket] = secret

    def gone(self, socket: KeptSocket) -> None:
        """Count it no more, and log how it was."""
        self._sockets.discard(socket)
        self._ages.gone(socket)
        if self._is_draining:
            self.departed += 1
            self._handed_back += socket.handed_back
        self._seats.give_back(socket.peer, self._brought.pop(socket, None))
        _OPEN_SOCKETS.set(len(self._sockets))
        if socket.is_viewer:
            _OPEN_VIEWERS.dec()
        _CLOSED_SOCKETS.counts[_code_label(socket.close_code),] += 1
        if not self._sockets:
            self._all_gone.set()
        secret = socket.secret
        logger.info(
            "subscriber disconnected",
            request_id=socket.request_id,
            topic=socket.topic,
            channel=socket.channel,
            close_code=int(socket.close_code),
            **socket.totals,
            **trace_fields(socket.trace_id),
            **({} if secret is None else {"secret": secret.fingerprint}),
        )

    async def drain(self, window_s: float) -> None:
        """
        Refuse new sockets, tell the open ones, wait for answers; close with 1012 over *window_s*.

        Returns once all are gone.
        """
        self._is_draining = True
        self._ages.stop()
        await drain_all(
            list(self._sockets), in_flight_s=self._options.drain_in_flight_s, window_s=window_s
        )
        while self._sockets:
            self._all_gone.clear()
            await self._all_gone.wait()

    @property
    def handed_back(self) -> int:
        """Messages that went back to NSQ with sockets, those included that have not gone yet."""
        return self._handed_back + sum(socket.handed_back for socket in self._sockets)

    @property
    def open_sockets(self) -> int:
        """How many there are."""
        return len(self._sockets)

    @property
    def held_messages(self) -> int:
        """How many messages they hold."""
        return sum(socket.held for socket in self._sockets)


def _socket_options(wish: Wish, upgrade: Upgrade, secret: Secret | None) -> SocketOptions:
    """Return what one socket asks for: what all with the same wish do, as far as it goes."""
    subscription = wish.subscription
    if wish.request.channel is None and not wish.request.is_viewer:
        subscription = replace(subscription, channel=new_channel_name(), is_gone=None)
    return SocketOptions(
        session=wish.session if secret is None else wish.session_with_secret,
        subscription=subscription,
        peer=upgrade.peer,
        request_id=request_id_of(upgrade.headers),
        trace_id=upgrade.trace_id,
    )


def _code_label(code: int) -> str:
    """Return *code* for a metric: a client may send any, and labels are bounded."""
    return str(int(code)) if code in _USUAL_CODES else "other"
