"""A subscriber between a fake WebSocket and a fake upstream, with its context."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.client.discovery import Discovery
from gateway.client.error_cache import ErrorCache
from gateway.client.subscription import SubscriptionOptions
from gateway.credentials import Secret
from gateway.errors import GatewayError
from gateway.protocol.frames import Message
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from gateway.session.types import SessionOptions
from gateway.web.auth import ANONYMOUS, AccessPolicy
from gateway.web.rate_limit import PublishRateLimiter
from gateway.web.subscribe.connection_limits import SocketsBuffer, UnauthenticatedLimit
from gateway.web.subscribe.fanout import FanoutRegistry
from gateway.web.subscribe.publishing import SocketPublishing
from gateway.web.subscribe.reauth import Reauthenticator
from gateway.web.subscribe.socket import (
    SocketOptions,
    SubscribeContext,
    SubscriberSocket,
)
from gateway.web.subscribe.upstream import NsqAction, Upstream, UpstreamContext
from tests.support.http.recording_publisher import RecordingPublisher, WaitingPublisher
from tests.support.manual_clock import turn
from tests.support.websocket.recording_websocket import RecordingWebSocket

IDS = [b"%016x" % number for number in range(10)]


class FakeUpstream:
    """An upstream that records actions and opens one source, or fails."""

    channel = "c"
    msg_timeout_ms = 60_000
    secret: Secret | None = None

    def __init__(self, socket: SubscriberSocket) -> None:
        self._socket = socket
        self.wanted: list[NsqAction] = []
        self.failure: GatewayError | None = None
        self.sources: Sequence[int] = ()
        self.has_left = False
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.leaving = 0
        """Number of calls of `unsubscribe`."""
        self.cut_short = 0
        self.is_broken = False
        """Makes every action fail."""

    async def subscribe(self, secret: Secret | None) -> None:
        """Open a source, or fail."""
        self.secret = secret
        if self.failure is not None:
            raise self.failure
        self._socket.on_source_opened(1, IdentifyResponse())

    def renew_secret(self, secret: Secret | None) -> None:
        """Record the secret."""
        self.secret = secret

    def add_source(self, source: int, answer: IdentifyResponse) -> AuthResponse | None:
        """Count the source, which requires no AUTH."""
        del answer
        self.sources = [source]
        return None

    def remove_source(self, source: int) -> None:
        """Stop counting the source."""
        del source
        self.sources = ()

    def auth_addresses(self) -> Sequence[str]:
        """Return none."""
        return ()

    def trace_messages(self, source: int, messages: Sequence[Message]) -> None:
        """Ignore the messages."""

    def execute(self, action: NsqAction) -> None:
        """Record the call."""
        if self.is_broken:
            raise ValueError("a bug")
        self.wanted.append(action)

    async def unsubscribe(self) -> None:
        """Record the call, and wait until the test sets `may_leave`."""
        self.leaving += 1
        try:
            await turn()
            await self.may_leave.wait()
        except asyncio.CancelledError:
            self.cut_short += 1
            raise
        self.has_left = True

    def release(self) -> None:
        """Do nothing, so that the test can inspect the object."""

    def all(self, kind: type[NsqAction]) -> list[NsqAction]:
        """Return the recorded actions of one kind."""
        return [action for action in self.wanted if isinstance(action, kind)]


class FixtureSubscriber(SubscriberSocket):
    """A subscriber with a `FakeUpstream`."""

    nsq: FakeUpstream

    def _new_upstream(self, options: SocketOptions) -> Upstream:
        del options
        self.nsq = FakeUpstream(self)
        return self.nsq


class SubscriberFixture:
    """The context that sockets share, and which sockets opened and closed."""

    def __init__(self) -> None:
        self.publisher: RecordingPublisher = WaitingPublisher()
        self.here: list[SubscriberSocket] = []
        self.left: list[SubscriberSocket] = []

    def on_socket_open(self, socket: SubscriberSocket) -> None:
        """Record the call."""
        self.here.append(socket)

    def acquire_caller(self, socket: SubscriberSocket) -> None:
        """Accept any secret."""

    def on_socket_closed(self, socket: SubscriberSocket) -> None:
        """Record the call."""
        self.left.append(socket)

    def new_socket(self, **options: object) -> FixtureSubscriber:
        """Return a socket for "c" of "t"; *options* are those of the session."""
        callers = PublishRateLimiter(None, access=AccessPolicy(), requires_auth=lambda: False)
        common = UpstreamContext(
            discovery=Discovery([]),
            error_cache=ErrorCache(),
            reauthenticator=Reauthenticator(60.0, random=lambda: 1.0),
        )
        context = SubscribeContext(
            registry=self,
            upstream=common,
            fanouts=FanoutRegistry(common, lambda *_: self._subscription(), max_in_flight=10),
            unauthenticated=UnauthenticatedLimit(1),
            publishing=SocketPublishing(self.publisher, callers),
            buffer=SocketsBuffer(1 << 30),
        )
        return FixtureSubscriber(
            SocketOptions(
                session=SessionOptions(topic="t", channel="c", **options),  # type: ignore[arg-type]
                subscription=self._subscription(),
                peer="192.0.2.1",
                request_id="1",
            ),
            context,
        )

    @staticmethod
    def _subscription() -> SubscriptionOptions:
        return SubscriptionOptions(topic="t", channel="c")


def message(number: int, size_bytes: int = 5) -> Message:
    return Message(number, 1, IDS[number], b"x" * size_bytes)


async def subscribed(
    house: SubscriberFixture, **options: object
) -> tuple[FixtureSubscriber, RecordingWebSocket]:
    """Return an open, subscribed socket; its client has read the SUB frame."""
    socket = house.new_socket(**options)
    await socket.open(ANONYMOUS)
    web = RecordingWebSocket()
    socket.on_open(web)
    assert ["SUB"] == [line["cmd"] for line in web.take()]
    return socket, web
