"""What a subscriber's socket is made of, beside itself: its options, and what all of them share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.client.subscription import SubscriptionOptions
from gateway.secret import Secret
from gateway.session.actions import LeaveReason
from gateway.session.options import SessionOptions
from gateway.web.fanout import Fanouts
from gateway.web.membership import Common
from gateway.web.socket_publishing import SocketPublishing
from gateway.web.waiting_room import WaitingRoom


class KeptSocket(Hashable, Protocol):
    """A socket, as its keeper sees it."""

    peer: str
    """The host at the other end."""
    request_id: str
    trace_id: str | None
    handed_back: int
    """Messages that went back to NSQ because the socket, or the gateway, ends."""
    leaves_at: int
    """When it has reached its age; its keeper's own."""
    close_code: int

    @property
    def is_viewer(self) -> bool:
        """Whether it shares its consumer."""

    @property
    def totals(self) -> dict[str, object]:
        """What it came to, for its last line in the log."""

    @property
    def held(self) -> int:
        """Messages that the client has not answered."""

    @property
    def is_waited_for(self) -> bool:
        """Whether the client has something to answer, or waits for an answer itself."""

    @property
    def topic(self) -> str:
        """What is read."""

    @property
    def channel(self) -> str:
        """On which channel; of a viewer once it has joined."""

    @property
    def secret(self) -> Secret | None:
        """What it is, or was, subscribed with."""

    def drain(self, reason: LeaveReason, *, close_at: float, reconnect_after_ms: int) -> None:
        """Tell the client to come back, and close with 1012; see `Session.drain`."""


class Keeper(Protocol):
    """Who knows of all sockets."""

    def opened(self, socket: KeptSocket) -> None:
        """Learn that the upgrade of *socket* is done."""

    def identified(self, socket: KeptSocket, secret: Secret) -> None:
        """Learn that *socket* has said its secret; raises Full where that has too many sockets."""

    def gone(self, socket: KeptSocket) -> None:
        """Learn that nothing of *socket* is left, here and in NSQ."""


class Surroundings(NamedTuple):
    """What all sockets share."""

    keeper: Keeper
    common: Common
    fanouts: Fanouts
    waiting_room: WaitingRoom
    publishing: SocketPublishing


@dataclass(frozen=True, kw_only=True, slots=True)
class SocketOptions:
    """What one socket asked for, on both its sides, and who asks."""

    session: SessionOptions
    subscription: SubscriptionOptions
    peer: str
    request_id: str
    trace_id: str | None = None
    """Of the trace that the upgrade belongs to; None: it is not recorded."""
