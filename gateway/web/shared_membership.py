"""A viewer's place in NSQ: one of many in a fan-out."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.protocol.authorization import Authorization
from gateway.protocol.frames import Message
from gateway.protocol.identify import Answer
from gateway.secret import Secret
from gateway.web.fanout import Fanout, FanoutKey, Fanouts, Viewer
from gateway.web.membership import NsqAction
from gateway.web.websocket_port import WebSocket


class SharedMembership:
    """A viewer's place in NSQ: in the fan-out of its topic and secret. See `Membership`."""

    __slots__ = (
        "_fanout",
        "_fanouts",
        "_given",
        "_is_looking",
        "_sample_rate",
        "_secret",
        "_topic",
        "_viewer",
    )

    def __init__(self, fanouts: Fanouts, topic: str, sample_rate: int, viewer: Viewer) -> None:
        self._fanouts = fanouts
        self._topic = topic
        self._sample_rate = sample_rate
        self._viewer = viewer
        self._secret: Secret | None = None
        self._fanout: Fanout | None = None
        self._is_looking = False
        self._given = 0
        """What it was given; while it looks, less what its fan-out had given before."""

    @property
    def channel(self) -> str:
        """What it is subscribed to; empty before it has joined."""
        return "" if self._fanout is None else self._fanout.channel

    @property
    def secret(self) -> Secret | None:
        """What it has joined with, or tries to."""
        return self._secret

    @property
    def msg_timeout_ms(self) -> int:
        """The time to answer a delivery where no broker has said it."""
        return Answer().msg_timeout if self._fanout is None else self._fanout.msg_timeout_ms

    @property
    def sources(self) -> Sequence[int]:
        """What is open, as far as the viewer was told."""
        return () if self._fanout is None else self._fanout.sources_of(self._viewer)

    async def join(self, secret: Secret | None) -> None:
        """Look together with all who have the same secret; raises as `Fanout.join` does."""
        await self.leave()
        fanout = self._fanouts.find_or_open(FanoutKey(self._topic, secret, self._sample_rate))
        self._fanout, self._secret = fanout, secret
        await fanout.join(self._viewer)

    @property
    def given(self) -> int:
        """Messages that the viewer was given."""
        looks_at = self._fanout if self._is_looking else None
        return self._given if looks_at is None else self._given + looks_at.given

    def begin(self, socket: WebSocket) -> None:
        """Have every message sent to *socket* from now on, once it has joined."""
        if self._fanout is not None and not self._is_looking:
            self._is_looking = True
            self._given -= self._fanout.given
            self._fanout.begin(self._viewer, socket)

    def stop(self) -> None:
        """Have no more sent; idempotent."""
        if self._fanout is not None and self._is_looking:
            self._given = self.given
            self._is_looking = False
            self._fanout.stop(self._viewer)

    def source_opened(self, source: int, answer: Answer) -> Authorization | None:
        """Count on a new source; return what its broker said to AUTH, None if it wanted none."""
        del answer
        return None if self._fanout is None else self._fanout.authorization_of(source)

    def source_lost(self, source: int) -> None:
        """Do nothing: the fan-out counts them."""

    def arrived(self, source: int, messages: Sequence[Message]) -> None:
        """Do nothing: the fan-out is told of it."""

    def auth_addresses(self) -> Sequence[str]:
        """Return nothing: the fan-out is looked after."""
        return ()

    def carry_out(self, action: NsqAction) -> None:
        """Do nothing: the fan-out has the window, and finishes."""

    async def leave(self) -> None:
        """Look no more; nothing is left open where this was the last one. Idempotent."""
        self.stop()
        fanout, self._fanout = self._fanout, None
        if fanout is not None:
            await fanout.leave(self._viewer)

    def let_go(self) -> None:
        """Forget who is told, for good, after `leave`; once."""
        del self._viewer
