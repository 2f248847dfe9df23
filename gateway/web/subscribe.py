"""GET /sub: who may subscribe, what is refused before the upgrade, the drain of all sockets."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

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
from gateway.telemetry import gauge, get_logger, tally
from gateway.web.access import request_id_of
from gateway.web.answers import Answer
from gateway.web.credentials import (
    AccessPolicy,
    authorization_headers,
    bearer_secret,
    one_secret,
    take_subprotocol_secret,
)
from gateway.web.fanout import Fanouts
from gateway.web.faults import DRAINING, CloseCode, problem, render
from gateway.web.membership import Common
from gateway.web.origins import OriginPolicy, page_of
from gateway.web.recheck import Rechecks
from gateway.web.seats import Seats
from gateway.web.socket_parts import KeptSocket, SocketOptions, Surroundings
from gateway.web.socket_publishing import SocketPublishing
from gateway.web.subscribe_request import (
    choose_subprotocol,
    new_channel_name,
    parse_subscribe_request,
)
from gateway.web.subscriber_socket import SubscriberSocket
from gateway.web.viewer_socket import ViewerSocket
from gateway.web.waiting_room import WaitingRoom
from gateway.web.websocket_port import Admission, Upgrade
from gateway.web.wishes import Wish, Wishes

logger = get_logger()

OUTPUT_BUFFER_TIMEOUT_MS = 25
"""nsqd's default holds a lone message back for 250 ms; less than 25 is not to be had."""

_RECONNECT_WITHIN_MS = 5_000
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
    max_in_flight_limit: int = 2_500
    socket_buffer_bytes: int = 8 * 1_048_576
    slow_consumer_s: float = 30.0
    broker_outage_s: float = 300.0
    command_rate_limit: int = 10_000


class SubscribeEndpoint:
    """The `Gate` of /sub, and the `Keeper` of its sockets."""

    def __init__(self, options: SubscribeOptions) -> None:
        self._options = options
        self._seats = Seats(options.max_sockets, limit_per_address=options.max_sockets_per_address)
        self._sockets: set[KeptSocket] = set()
        """Those that have been opened."""
        self._wishes = Wishes(self._read)
        common = Common(
            discovery=options.discovery,
            refusals=Refusals(),
            rechecks=Rechecks(options.access.recheck_s, random=random.random),
            survey=options.survey,
        )
        share = options.access.waiting_share
        self._surroundings = Surroundings(
            keeper=self,
            common=common,
            fanouts=Fanouts(common, self._subscription, max_in_flight=options.max_in_flight_limit),
            waiting_room=WaitingRoom(max(1, int(options.max_sockets * share))),
            publishing=options.publishing,
        )
        self._is_draining = False
        self._all_gone = asyncio.Event()

    # Before the upgrade

    async def admit(self, upgrade: Upgrade) -> Admission:
        """
        Check everything, subscribe, and return a socket to open.

        Raises:
            GatewayError: What is wrong; nothing is left behind then, nor when it is cancelled.
        """
        self._refuse_when_draining()
        self._seats.take(upgrade.peer)
        try:
            return await self._open(upgrade)
        except BaseException:
            self._seats.give_back(upgrade.peer)
            raise

    async def _open(self, upgrade: Upgrade) -> Admission:
        options = self._options
        options.origins.check(*page_of(upgrade.headers))
        entry, subprotocols = take_subprotocol_secret(upgrade.subprotocols)
        brought = one_secret(bearer_secret(authorization_headers(upgrade.headers)), entry)
        wish = self._wishes.find(upgrade.query)
        subprotocol = choose_subprotocol(subprotocols)
        has_to_wait = False
        secret = None
        try:
            secret = options.access.secret_of(brought)
        except AuthRequired:
            has_to_wait = True  # a browser can say it in a frame only
        kind = ViewerSocket if wish.request.is_viewer else SubscriberSocket
        socket = kind(_socket_options(wish, upgrade, secret), self._surroundings)
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
        return Admission(socket, subprotocol)

    def _refuse_when_draining(self) -> None:
        if self._is_draining:
            raise Full("this gateway is shutting down; connect again, to another one")

    def refusal(self, error: BaseException, request_id: str) -> Answer:
        """Return what a client is told in place of the upgrade, and log it."""
        if not isinstance(error, GatewayError):
            logger.error("subscriber failed", request_id=request_id, exc_info=error)
            return problem(error, request_id)
        logger.info("subscriber refused", request_id=request_id, reason=str(error))
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
        _OPEN_SOCKETS.set(len(self._sockets))
        _OPEN_VIEWERS.inc(socket.is_viewer)
        logger.info(
            "subscriber connected",
            request_id=socket.request_id,
            topic=socket.topic,
            channel=socket.channel,
            client=socket.peer,
        )

    def gone(self, socket: KeptSocket) -> None:
        """Count it no more, and log how it was."""
        self._sockets.discard(socket)
        self._seats.give_back(socket.peer)
        _OPEN_SOCKETS.set(len(self._sockets))
        _OPEN_VIEWERS.dec(socket.is_viewer)
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
            delivered=socket.delivered,
            finished=socket.finished,
            **({} if secret is None else {"secret": secret.fingerprint}),
        )

    async def drain(self, window_s: float) -> int:
        """
        Refuse new sockets, tell the open ones, and close them with 1012 spread over *window_s*.

        Returns how many there were, once all are gone.
        """
        self._is_draining = True
        sockets = list(self._sockets)
        random.shuffle(sockets)
        now = asyncio.get_running_loop().time()
        for number, socket in enumerate(sockets, start=1):
            socket.drain(
                close_at=now + window_s * number / len(sockets),
                reconnect_after_ms=random.randrange(_RECONNECT_WITHIN_MS),  # noqa: S311 - jitter
            )
        while self._sockets:
            self._all_gone.clear()
            await self._all_gone.wait()
        return len(sockets)


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
    )


def _code_label(code: int) -> str:
    """Return *code* for a metric: a client may send any, and labels are bounded."""
    return str(int(code)) if code in _USUAL_CODES else "other"
