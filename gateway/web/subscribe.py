"""GET /sub: who may subscribe, what is refused before the upgrade, the drain of all sockets."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.client.connection import ConnectionOptions
from gateway.client.lookup import Discovery
from gateway.client.refusals import Refusals
from gateway.client.subscription import SubscriptionOptions
from gateway.errors import AuthRequired, Full, GatewayError
from gateway.protocol.wire import Limits
from gateway.secret import Secret
from gateway.session.options import SessionOptions
from gateway.telemetry import counter, gauge, get_logger
from gateway.web.access import request_id_of
from gateway.web.answers import Answer, deny_websocket
from gateway.web.credentials import (
    AccessPolicy,
    authorization_headers,
    bearer_secret,
    one_secret,
    take_subprotocol_secret,
)
from gateway.web.faults import DRAINING, CloseCode, problem, render
from gateway.web.membership import Common
from gateway.web.origins import OriginPolicy, page_of
from gateway.web.recheck import Rechecks
from gateway.web.subscribe_request import SubscribeRequest, parse_subscribe_request
from gateway.web.subscriber_socket import SocketOptions, SubscriberSocket
from gateway.web.waiting_room import WaitingRoom

logger = get_logger()

OUTPUT_BUFFER_TIMEOUT_MS = 25
"""nsqd's default holds a lone message back for 250 ms; less than 25 is not to be had."""

_RECONNECT_WITHIN_MS = 5_000
_USUAL_CODES = frozenset({*CloseCode, 1001, 1002, 1005, 1006})
_CLOSED_SOCKETS = counter("sockets_closed_total", "WebSockets that have ended, by code.", ["code"])
_OPEN_SOCKETS = gauge("sockets_open", "WebSocket subscribers that are connected.")


@dataclass(frozen=True, kw_only=True)
class SubscribeOptions:
    """The bounds of the subscribe plane; see `SessionOptions` for those of one socket."""

    discovery: Discovery
    """Where nsqd is; whoever made it starts and stops it."""
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    """How every socket connects to nsqd; what its client asks for comes on top."""
    limits: Limits = field(default_factory=Limits)
    origins: OriginPolicy = field(default_factory=OriginPolicy)
    """Which pages may subscribe."""
    access: AccessPolicy = field(default_factory=AccessPolicy)
    max_sockets: int = 1_000
    max_in_flight_limit: int = 2_500
    socket_buffer_bytes: int = 8 * 1_048_576
    slow_consumer_s: float = 30.0
    broker_outage_s: float = 300.0


class SubscribeEndpoint:
    """The ASGI application behind /sub."""

    def __init__(self, options: SubscribeOptions) -> None:
        self._options = options
        self._sockets: set[SubscriberSocket] = set()
        self._opening = 0
        self._common = Common(
            discovery=options.discovery,
            refusals=Refusals(),
            rechecks=Rechecks(options.access.recheck_s, random=random.random),
        )
        share = options.access.waiting_share
        self._waiting_room = WaitingRoom(max(1, int(options.max_sockets * share)))
        self._is_draining = False
        self._all_gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket from its upgrade to its end."""
        request_id = request_id_of(scope["headers"])
        self._opening += 1
        try:
            request, socket = await self._open(scope, receive, send)
        except GatewayError as error:
            logger.info("subscriber refused", request_id=request_id, reason=str(error))
            await deny_websocket(scope, receive, send, self._refusal(error, request_id))
            return
        finally:
            self._opening -= 1
        await receive()  # websocket.connect
        log = logger.bind(request_id=request_id, topic=request.topic, channel=request.channel)
        log.info("subscriber connected", client=scope.get("client"))
        self._sockets.add(socket)
        _OPEN_SOCKETS.set(len(self._sockets))
        try:
            await socket.run(request.subprotocol)
        finally:
            self._sockets.discard(socket)
            _OPEN_SOCKETS.set(len(self._sockets))
            _CLOSED_SOCKETS.labels(_code_label(socket.close_code)).inc()
            if not self._sockets:
                self._all_gone.set()
            if socket.secret is not None:
                log = log.bind(secret=socket.secret.fingerprint)
            log.info(
                "subscriber disconnected",
                close_code=int(socket.close_code),
                delivered=socket.delivered,
                finished=socket.finished,
            )

    async def _open(
        self, scope: Scope, receive: Receive, send: Send
    ) -> tuple[SubscribeRequest, SubscriberSocket]:
        """Check everything, subscribe, and return a socket to run; raises what is wrong."""
        options = self._options
        self._refuse_when_draining()
        if len(self._sockets) + self._opening > options.max_sockets:
            raise Full(f"{len(self._sockets)} sockets are open, the limit is {options.max_sockets}")
        options.origins.check(*page_of(scope["headers"]))
        entry, subprotocols = take_subprotocol_secret(scope.get("subprotocols", ()))
        brought = one_secret(bearer_secret(authorization_headers(scope["headers"])), entry)
        request = parse_subscribe_request(
            scope["query_string"],
            subprotocols,
            max_in_flight_limit=options.max_in_flight_limit,
            limits=options.limits,
        )
        has_to_wait = False
        secret = None
        try:
            secret = options.access.secret_of(brought)
        except AuthRequired:
            has_to_wait = True  # a browser can say it in a frame only
        socket = SubscriberSocket(
            scope,
            (receive, send),
            self._socket_options(request, secret),
            self._common,
            self._waiting_room,
        )
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
        return request, socket

    def _refuse_when_draining(self) -> None:
        if self._is_draining:
            raise Full("this gateway is shutting down; connect again, to another one")

    def _refusal(self, error: GatewayError, request_id: str) -> Answer:
        if self._is_draining and isinstance(error, Full):
            return render(DRAINING, str(error), request_id)
        return problem(error, request_id)

    def _socket_options(self, request: SubscribeRequest, secret: Secret | None) -> SocketOptions:
        options = self._options
        session = SessionOptions(
            topic=request.topic,
            channel=request.channel,
            max_in_flight=request.max_in_flight,
            max_in_flight_limit=options.max_in_flight_limit,
            finishes_by_itself=request.finishes_by_itself,
            requeue_on_close_ms=request.requeue_on_close_ms,
            buffer_bytes=options.socket_buffer_bytes,
            slow_consumer_s=options.slow_consumer_s,
            broker_outage_s=options.broker_outage_s,
            has_secret=secret is not None,
        )
        offer = msgspec.structs.replace(
            options.connection.offer,
            output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT_MS,
            msg_timeout=request.msg_timeout_ms,
            sample_rate=request.sample_rate,
        )
        subscription = SubscriptionOptions(
            topic=request.topic,
            channel=request.channel,
            connection=replace(options.connection, offer=offer, secret=None),
        )
        return SocketOptions(
            session=session, subscription=subscription, is_viewer=request.is_viewer
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


def _code_label(code: int) -> str:
    """Return *code* for a metric: a client may send any, and labels are bounded."""
    return str(int(code)) if code in _USUAL_CODES else "other"
