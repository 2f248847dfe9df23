"""
Viewers: sockets that only look, and share one consumer of this process for what they look at.

A message is encoded once for all of them, and finished once all were given it. Nobody waits for
anybody: a viewer that does not keep up ends. A burst for many goes out over several turns of the
event loop, and no more is read meanwhile. While nobody is there to be given anything, NSQ keeps
what it has; the last viewer to leave takes the channel with it, for it is ephemeral.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gateway.client.subscription import SubscriptionOptions
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    NoBroker,
    alike,
)
from gateway.protocol.authorization import Authorization
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer
from gateway.secret import Secret
from gateway.session.actions import Cause, Finish, PauseReading, Ready, Requeue, ResumeReading
from gateway.session.messages import encode_frame, messages_out
from gateway.session.outbox import MAX_FRAME_BYTES
from gateway.session.window import delivery_ids
from gateway.telemetry import gauge, get_logger, spawn
from gateway.web.membership import Common, OwnMembership
from gateway.web.socket_account import DELIVERED, observe_age
from gateway.web.subscribe_request import new_channel_name
from gateway.web.websocket_frames import LinesInFrames
from gateway.web.websocket_port import WebSocket

logger = get_logger()

_TURN_BYTES = 4 << 20
"""What is written in one turn of the event loop, to all viewers together; a frame more at most."""
_LEAST_FRAME_BYTES = 16 << 10  # where many look frames are smaller, but no smaller than this

_OPEN_FANOUTS = gauge("fanouts_open", "Consumers that are shared by viewers.")


class FanoutKey(NamedTuple):
    """What viewers have in common that share a consumer."""

    topic: str
    secret: Secret | None
    sample_rate: int


class Viewer(Protocol):
    """A socket that looks, as its fan-out sees it; none of these raises."""

    def keeps_up(self) -> bool:
        """Tell whether more may be sent although the socket takes nothing now; end if not."""

    def source_opened(self, source: int, answer: Answer) -> None:
        """Learn of a new source."""

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Learn that a source is gone."""

    def auth_required(self) -> None:
        """Learn that a broker that came later asks for a secret, and there is none."""

    def secret_refused(self, error: BrokerRefused) -> None:
        """Learn that the secret does not hold any more; end."""


class Fanouts:
    """The fan-outs of one process; *options_of* takes (topic, channel, sample_rate)."""

    def __init__(
        self,
        common: Common,
        options_of: Callable[[str, str, int], SubscriptionOptions],
        *,
        max_in_flight: int,
    ) -> None:
        self.common = common
        self.max_in_flight = max_in_flight
        self._options_of = options_of
        self._open: dict[FanoutKey, Fanout] = {}

    def __len__(self) -> int:
        """Return how many can be joined."""
        return len(self._open)

    def find_or_open(self, key: FanoutKey) -> Fanout:
        """Return the fan-out for *key*, a new one where there is none that can be joined."""
        fanout = self._open.get(key)
        if fanout is None:
            options = self._options_of(key.topic, new_channel_name(), key.sample_rate)
            fanout = self._open[key] = Fanout(self, key, options)
            _OPEN_FANOUTS.set(len(self._open))
        return fanout

    def forget(self, fanout: Fanout) -> None:
        """Let nobody join *fanout* any more; idempotent."""
        if self._open.get(fanout.key) is fanout:
            del self._open[fanout.key]
            _OPEN_FANOUTS.set(len(self._open))


class Fanout:
    """One consumer and its viewers: from the first that joins to the last that leaves."""

    def __init__(self, fanouts: Fanouts, key: FanoutKey, options: SubscriptionOptions) -> None:
        self.key = key
        self.channel = options.channel
        self._fanouts = fanouts
        # Names are random, which NSQ's answer does not depend on.
        self._membership = OwnMembership(fanouts.common, options, self, refusal_channel="")
        self._members: set[Viewer] = set()
        """Everybody who holds it open."""
        self._viewers: dict[Viewer, None] = {}
        """Those who have joined, and hear of sources."""
        self._looking: dict[Viewer, WebSocket] = {}
        """Those whose client knows that it is subscribed, and who get messages."""
        self.given = 0
        """Messages that all who look were given."""
        self._reads: deque[tuple[int, list[bytes], LinesInFrames]] = deque()
        """What not all of was passed on yet: source, ids, and what is left."""
        self._passed = 0
        """Messages of the first of them that were passed on."""
        self._pumping: asyncio.Handle | None = None
        """While there is such: when more of it is; nothing is read from NSQ before."""
        self._last_number = 0
        """Of a read: it stands in the ids of its deliveries."""
        self._error: Exception | None = None
        """Why nobody can join now."""
        self._starting = spawn("start a fan-out", self._start())

    async def _start(self) -> None:
        try:
            await self._membership.join(self.key.secret)
        except Exception as error:
            if not isinstance(error, GatewayError):
                logger.exception("fan-out failed", topic=self.key.topic)
            self._fanouts.forget(self)
            self._error = alike(error)

    # Viewers

    @property
    def msg_timeout_ms(self) -> int:
        """The time to answer a delivery where no broker has said it."""
        return self._membership.msg_timeout_ms

    def sources_of(self, viewer: Viewer) -> Sequence[int]:
        """Return the sources that *viewer* has heard of and that are open."""
        return self._membership.sources if viewer in self._viewers else ()

    async def join(self, viewer: Viewer) -> None:
        """
        Let *viewer* hear of the sources, first of those that are there; `leave` in any case.

        Raises:
            AuthRequired, BrokerRefused, NoBroker: What stands against a subscription now.
        """
        self._members.add(viewer)
        if not self._starting.done():
            await asyncio.wait({self._starting})
        if self._error is not None:
            raise alike(self._error)
        self._viewers[viewer] = None
        for source, answer in list(self._membership.answers.items()):
            viewer.source_opened(source, answer)

    def begin(self, viewer: Viewer, socket: WebSocket) -> None:
        """Send every message that comes from now on to the *socket* of *viewer*, who has joined."""
        if not self._looking:
            self._membership.carry_out(Ready(self._fanouts.max_in_flight))
        self._looking[viewer] = socket

    def stop(self, viewer: Viewer) -> None:
        """Send no more to *viewer*; idempotent."""
        if self._looking.pop(viewer, None) is not None and not self._looking:
            self._membership.carry_out(Ready(0))
            self._hand_back()

    async def leave(self, viewer: Viewer) -> None:
        """Forget *viewer*, at once; the last one closes the subscription. Idempotent."""
        if viewer not in self._members:
            return
        self._members.discard(viewer)
        self._viewers.pop(viewer, None)
        self.stop(viewer)
        if self._members:
            return
        self._fanouts.forget(self)
        if not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self._membership.leave()
        self._membership.let_go()

    # From NSQ

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Give *messages* to everybody who looks, and finish them; with nobody there, hand back."""
        ids = [message.id for message in messages]
        if not self._looking:
            self._give_back(source, ids)
            return
        observe_age(messages, times=len(self._looking))
        self._membership.arrived(source, messages)
        frames = self._encode(messages, self._membership.answers[source].msg_timeout)
        self._reads.append((source, ids, frames))
        if self._pumping is None:
            self._pump()

    def _pump(self) -> None:
        """Pass on what one turn may have, and finish reads of which all is; then the next turn."""
        left_bytes = max(1, _TURN_BYTES // len(self._looking))
        while self._reads and left_bytes > 0:
            source, ids, frames = self._reads[0]
            part = frames.take(left_bytes)
            left_bytes -= len(part)
            for viewer, socket in list(self._looking.items()):
                if socket.is_writable or viewer.keeps_up():
                    socket.send_frame(part)
            if not self._looking:  # nobody has kept up: the last one has handed it back
                return
            count, self._passed = frames.taken - self._passed, frames.taken
            self.given += count
            DELIVERED.counts["shared",] += count * len(self._looking)
            if not frames:
                self._reads.popleft()
                self._passed = 0
                self._membership.carry_out(Finish(source, ids))
        if not self._reads:
            self._hand_back()
            return
        if self._pumping is None:
            self._membership.carry_out(PauseReading())
        self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def _hand_back(self) -> None:
        """Give back what nobody was given, if there is any, and read on."""
        while self._reads:
            source, ids, _ = self._reads.popleft()
            if self._passed:
                self._membership.carry_out(Finish(source, ids[: self._passed]))
            self._give_back(source, ids[self._passed :])
            self._passed = 0
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
            self._membership.carry_out(ResumeReading())

    def _give_back(self, source: int, ids: list[bytes]) -> None:
        self._membership.carry_out(Requeue(source, ids, 0, Cause.DISCONNECT))

    def _encode(self, messages: list[Message], left_ms: int) -> LinesInFrames:
        """Return *messages* as whole WebSocket frames."""
        self._last_number += 1
        ids = delivery_ids(messages, self._last_number)
        names = (self.key.topic, self.channel)
        lines = encode_frame(messages_out(messages, ids, names, left_ms))
        share_bytes = max(_LEAST_FRAME_BYTES, _TURN_BYTES // len(self._looking))
        return LinesInFrames(lines, min(MAX_FRAME_BYTES, share_bytes))

    def source_opened(self, source: int, answer: Answer) -> None:
        """Tell every viewer."""
        self._membership.source_opened(source, answer)
        self._error = None
        for viewer in list(self._viewers):
            viewer.source_opened(source, answer)

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Tell every viewer; while there is none left, nobody joins."""
        self._membership.source_lost(source)
        if not self._membership.answers:
            self._error = NoBroker(f"no nsqd can be subscribed to ({error})")
        for viewer in list(self._viewers):
            viewer.source_lost(source, error)

    def auth_required(self) -> None:
        """Tell every viewer; while there is no other broker, nobody joins without a secret."""
        if not self._membership.answers:
            self._error = AuthRequired("a secret is asked for, and none was brought")
        for viewer in list(self._viewers):
            viewer.auth_required()

    def authorization_of(self, source: int) -> Authorization | None:
        """Return what the broker of *source* said to AUTH; None where it asked for none."""
        return self._membership.authorization_of(source)

    def auth_addresses(self) -> Sequence[str]:
        """Return the brokers that it is subscribed on, of those that want AUTH."""
        return self._membership.auth_addresses()

    def secret_refused(self, error: BrokerRefused) -> None:
        """End every viewer; who comes now is to ask NSQ anew."""
        self._fanouts.forget(self)
        for viewer in list(self._viewers):
            viewer.secret_refused(error)

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Pass over it: a FIN came too late, and the message comes again."""

    def channel_gone(self, address: str) -> None:
        """Do nothing: an ephemeral channel is made again."""

    def channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - a state, as it is told
        """Do nothing: nobody watches an ephemeral channel."""
