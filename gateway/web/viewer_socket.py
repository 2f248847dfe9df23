"""A subscriber that only looks: its messages come from a fan-out, past its session."""

from __future__ import annotations

import asyncio

from gateway.session.actions import EndReason
from gateway.web.faults import CloseCode
from gateway.web.membership import Membership
from gateway.web.shared_membership import SharedMembership
from gateway.web.socket_parts import SocketOptions, Surroundings
from gateway.web.subscriber_socket import SubscriberSocket
from gateway.web.websocket_port import WebSocket


class ViewerSocket(SubscriberSocket):
    """Keeps up with its fan-out, or ends."""

    __slots__ = ("_patience", "_shared")

    def __init__(self, options: SocketOptions, others: Surroundings) -> None:
        super().__init__(options, others)
        self._patience: asyncio.TimerHandle | None = None
        """While it has fallen behind: when that has lasted too long."""

    @property
    def delivered(self) -> int:
        """Messages that went to the client."""
        return self._shared.given

    def _new_membership(self, options: SocketOptions) -> Membership:
        wanted = options.subscription
        sample_rate = wanted.connection.offer.sample_rate
        self._shared = SharedMembership(self._others.fanouts, wanted.topic, sample_rate, self)
        return self._shared

    def _begin(self, socket: WebSocket) -> None:
        """Let messages come, behind what the session has said: they go past it."""
        self.send_all()
        self._shared.begin(socket)

    def keeps_up(self) -> bool:
        """Tell whether more may be sent to a client that reads too slowly; end if not."""
        options = self._session.options
        self._take_stock()
        if self._socket is not None and self._socket.unsent_bytes > options.buffer_bytes:
            self._give_up()
        elif self._patience is None:
            self._patience = self._loop.call_later(options.slow_consumer_s, self._give_up)
        return not self._is_over

    def _give_up(self) -> None:
        self.end(CloseCode.SLOW, EndReason.SLOW.value)

    def has_room(self) -> None:
        """Go on sending: the client has caught up."""
        self._trust_again()
        super().has_room()

    def _hand_back(self) -> None:
        self._trust_again()
        self._shared.stop()
        super()._hand_back()

    def _trust_again(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
