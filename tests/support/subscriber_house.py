"""A subscriber between a WebSocket and an NSQ that are neither, and the house that it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.client.lookup import Discovery
from gateway.client.refusals import Refusals
from gateway.client.subscription import SubscriptionOptions
from gateway.errors import GatewayError
from gateway.protocol.authorization import Authorization
from gateway.protocol.frames import Message
from gateway.protocol.identify import Answer
from gateway.secret import Secret
from gateway.session.options import SessionOptions
from gateway.web.caller_quota import CallerQuota
from gateway.web.credentials import AccessPolicy
from gateway.web.fanout import Fanouts
from gateway.web.membership import Common, Membership, NsqAction
from gateway.web.recheck import Rechecks
from gateway.web.socket_parts import KeptSocket, SocketOptions, Surroundings
from gateway.web.socket_publishing import SocketPublishing
from gateway.web.subscriber_socket import SubscriberSocket
from gateway.web.waiting_room import WaitingRoom
from tests.support.manual_clock import turn
from tests.support.recording_publisher import RecordingPublisher, WaitingPublisher
from tests.support.recording_websocket import RecordingWebSocket

IDS = [b"%016x" % number for number in range(10)]


class Nsq:
    """What a socket is in NSQ; keeps what is wanted, and joins with one source, or fails."""

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
        """How often it was left."""
        self.cut_short = 0
        self.is_broken = False
        """Whether what is wanted fails."""

    async def join(self, secret: Secret | None) -> None:
        """Be there, or not."""
        self.secret = secret
        if self.failure is not None:
            raise self.failure
        self._socket.source_opened(1, Answer())

    def source_opened(self, source: int, answer: Answer) -> Authorization | None:
        """Count it; it wanted no AUTH."""
        del answer
        self.sources = [source]
        return None

    def source_lost(self, source: int) -> None:
        """Count it no more."""
        del source
        self.sources = ()

    def auth_addresses(self) -> Sequence[str]:
        """Return none."""
        return ()

    def arrived(self, source: int, messages: Sequence[Message]) -> None:
        """Look at nothing."""

    def carry_out(self, action: NsqAction) -> None:
        """Keep it."""
        if self.is_broken:
            raise ValueError("a bug")
        self.wanted.append(action)

    async def leave(self) -> None:
        """Keep it, and take a while."""
        self.leaving += 1
        try:
            await turn()
            await self.may_leave.wait()
        except asyncio.CancelledError:
            self.cut_short += 1
            raise
        self.has_left = True

    def let_go(self) -> None:
        """Do nothing: the test looks at it still."""

    def all(self, kind: type[NsqAction]) -> list[NsqAction]:
        """Return what was wanted of one kind."""
        return [action for action in self.wanted if isinstance(action, kind)]


class Socket(SubscriberSocket):
    """A subscriber of `Nsq`."""

    nsq: Nsq

    def _new_membership(self, options: SocketOptions) -> Membership:
        del options
        self.nsq = Nsq(self)
        return self.nsq


class House:
    """What sockets share, and who has come and gone."""

    def __init__(self) -> None:
        self.publisher: RecordingPublisher = WaitingPublisher()
        self.here: list[KeptSocket] = []
        self.left: list[KeptSocket] = []

    def opened(self, socket: KeptSocket) -> None:
        """Keep it."""
        self.here.append(socket)

    def identified(self, socket: KeptSocket, secret: Secret) -> None:
        """Take any."""

    def gone(self, socket: KeptSocket) -> None:
        """Keep it."""
        self.left.append(socket)

    def new_socket(self, **options: object) -> Socket:
        """Return a socket for "c" of "t"; *options* are those of the session."""
        callers = CallerQuota(None, access=AccessPolicy(), asks_for_auth=lambda: False)
        common = Common(
            discovery=Discovery([]),
            refusals=Refusals(),
            rechecks=Rechecks(60.0, random=lambda: 1.0),
        )
        surroundings = Surroundings(
            keeper=self,
            common=common,
            fanouts=Fanouts(common, lambda *_: self._subscription(), max_in_flight=10),
            waiting_room=WaitingRoom(1),
            publishing=SocketPublishing(self.publisher, callers),
        )
        return Socket(
            SocketOptions(
                session=SessionOptions(topic="t", channel="c", **options),  # type: ignore[arg-type]
                subscription=self._subscription(),
                peer="192.0.2.1",
                request_id="1",
            ),
            surroundings,
        )

    @staticmethod
    def _subscription() -> SubscriptionOptions:
        return SubscriptionOptions(topic="t", channel="c")


def message(number: int, size_bytes: int = 5) -> Message:
    """Return a message."""
    return Message(number, 1, IDS[number], b"x" * size_bytes)


async def subscribed(house: House, **options: object) -> tuple[Socket, RecordingWebSocket]:
    """Return a socket that is open and subscribed, and has told its client so."""
    socket = house.new_socket(**options)
    await socket.open(None)
    web = RecordingWebSocket()
    socket.opened(web)
    assert ["SUB"] == [line["cmd"] for line in web.take()]
    return socket, web
