"""
Share one consumer among viewers: sockets that watch a topic and acknowledge nothing.

Viewers with the same topic, secret and sample rate share a `Fanout`. It encodes each message once,
and sends nsqd a FIN once the message is written to all viewers. It closes a viewer that reads too
slowly. It writes a burst, or a large message, to many viewers over several turns (iterations of the
event loop), and does not read from nsqd meanwhile. The channel is ephemeral, so nsqd deletes it
when the last viewer has left.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gateway.aio import spawn
from gateway.client.subscription import SubscriptionOptions
from gateway.credentials import Secret
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    NoBroker,
    copy_error,
)
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import AuthResponse, IdentifyResponse
from gateway.session.json_frames import encode_frame, encode_messages
from gateway.session.types import (
    FinishDeliveries,
    PauseReading,
    RequeueCause,
    RequeueDeliveries,
    ResumeReading,
    SetReady,
)
from gateway.session.window import MAX_FRAME_BYTES, make_delivery_ids
from gateway.telemetry import gauge, get_logger
from gateway.web.metrics import DELIVERED, observe_age
from gateway.web.subscribe.request import new_channel_name
from gateway.web.subscribe.upstream import DedicatedUpstream, NsqAction, UpstreamContext
from gateway.web.websocket.frames import FrameQueue
from gateway.web.websocket.protocol import WebSocket


class SharedUpstream:
    """The `Upstream` of a viewer, which joins the fan-out of its topic, secret and sample rate."""

    __slots__ = (
        "_delivered",
        "_fanout",
        "_fanouts",
        "_is_receiving",
        "_sample_rate",
        "_secret",
        "_topic",
        "_viewer",
    )

    def __init__(
        self, fanouts: FanoutRegistry, topic: str, sample_rate: int, viewer: Viewer
    ) -> None:
        self._fanouts = fanouts
        self._topic = topic
        self._sample_rate = sample_rate
        self._viewer = viewer
        self._secret: Secret | None = None
        self._fanout: Fanout | None = None
        self._is_receiving = False
        self._delivered = 0
        """
        Messages delivered to the viewer.

        While the viewer receives, the fan-out's count at its start is subtracted, so that adding
        the fan-out's current count gives the total without a counter per viewer.
        """

    @property
    def channel(self) -> str:
        """The channel; empty before `subscribe`, and after `unsubscribe`."""
        return "" if self._fanout is None else self._fanout.channel

    @property
    def secret(self) -> Secret | None:
        """The secret of the last `subscribe`, whether or not it succeeded."""
        return self._secret

    @property
    def msg_timeout_ms(self) -> int:
        """The message timeout to assume until an nsqd names one."""
        return (
            IdentifyResponse().msg_timeout if self._fanout is None else self._fanout.msg_timeout_ms
        )

    @property
    def sources(self) -> Sequence[int]:
        """The open sources for which the viewer's `on_source_opened` was called."""
        return () if self._fanout is None else self._fanout.sources_of(self._viewer)

    @property
    def joined_fanout(self) -> Fanout | None:
        """The viewer's fan-out; None before `subscribe`, and after `unsubscribe`."""
        return self._fanout

    async def subscribe(self, secret: Secret | None) -> None:
        """Leave the fan-out, if any, and join the one for *secret*; raises as `Fanout.join`."""
        await self.unsubscribe()
        fanout = self._fanouts.find_or_open(FanoutKey(self._topic, secret, self._sample_rate))
        self._fanout, self._secret = fanout, secret
        await fanout.join(self._viewer)

    def renew_secret(self, secret: Secret | None) -> None:
        """Use *secret* for the fan-out's connections: its viewers all brought the earlier one."""
        self._secret = secret
        if self._fanout is not None:
            self._fanout.renew_secret(secret)

    @property
    def delivered(self) -> int:
        """Number of messages written to the viewer, in this fan-out and earlier ones."""
        fanout = self._fanout if self._is_receiving else None
        return self._delivered if fanout is None else self._delivered + fanout.delivered

    def start_sending(self, socket: WebSocket) -> None:
        """Let the fan-out write its messages to *socket* from now on. Idempotent."""
        if self._fanout is not None and not self._is_receiving:
            self._is_receiving = True
            self._delivered -= self._fanout.delivered
            self._fanout.start_sending(self._viewer, socket)

    def stop_sending(self) -> None:
        """Let the fan-out write no more messages to the viewer's socket. Idempotent."""
        if self._fanout is not None and self._is_receiving:
            self._delivered = self.delivered
            self._is_receiving = False
            self._fanout.stop_sending(self._viewer)

    def add_source(self, source: int, answer: IdentifyResponse) -> AuthResponse | None:
        """Return the response to AUTH of the nsqd of *source*; None if it required none."""
        del answer
        return None if self._fanout is None else self._fanout.auth_response_of(source)

    def remove_source(self, source: int) -> None:
        """Do nothing: the fan-out keeps the list of sources."""

    def trace_messages(self, source: int, messages: Sequence[Message]) -> None:
        """Do nothing: the fan-out notes its messages for tracing."""

    def auth_addresses(self) -> Sequence[str]:
        """Return no address: the fan-out has its secret checked for all of its viewers."""
        return ()

    def execute(self, action: NsqAction) -> None:
        """Do nothing: the fan-out sets RDY and acknowledges the messages."""

    async def unsubscribe(self) -> None:
        """Leave the fan-out, which closes its consumer when its last viewer leaves. Idempotent."""
        self.stop_sending()
        fanout, self._fanout = self._fanout, None
        if fanout is not None:
            await fanout.leave(self._viewer)

    def release(self) -> None:
        """Drop the reference to the viewer after `unsubscribe`; call once."""
        del self._viewer


logger = get_logger()

_BYTES_PER_TURN = 4 << 20
"""
Maximum bytes that a fan-out writes in one turn, to all viewers together.

The last write of a turn may exceed it.
"""
_MIN_FRAME_BYTES = 16 << 10
"""Minimum of the limit on a frame's size, which is lower the more viewers there are."""
_MIN_WRITE_BYTES = _BYTES_PER_TURN // 256
"""
A write counts as at least this size, because even a write of a few bytes is a system call.

So a turn has at most 256 writes, which take some milliseconds.
"""

_OPEN_FANOUTS = gauge("fanouts_open", "Open consumers that sockets without a channel share.")


class FanoutKey(NamedTuple):
    """The key of a fan-out: viewers share one if all three are equal."""

    topic: str
    secret: Secret | None
    sample_rate: int


class Viewer(Protocol):
    """
    Callbacks of a fan-out to one of its viewers; they must not raise.

    A protocol, because its one implementation, `ViewerSocket`, imports this module.
    """

    def check_slow(self) -> bool:
        """
        Called before the fan-out writes to a socket whose write buffer is full.

        Return True if the fan-out may write all the same. Otherwise, because its client has been
        slow for too long, the viewer closes.
        """

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Called when *source* has opened; *answer* is nsqd's response to IDENTIFY."""

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Called when *source* was lost."""

    def on_secret_missing(self) -> None:
        """Called when an nsqd found later requires AUTH, and the fan-out has no secret."""

    def on_secret_refused(self, error: BrokerRefused) -> None:
        """Called when nsqd no longer accepts the secret; the viewer must close."""


class _SharedWrite:
    """Encoded frames, and the viewers to which they must still be written."""

    __slots__ = ("frames", "is_sent", "messages", "waiting")

    def __init__(self, frames: bytes, messages: int, viewers: Iterable[Viewer]) -> None:
        self.frames = frames
        self.messages = messages
        """Number of messages in *frames*."""
        self.waiting = deque(viewers)
        """The viewers to which the frames are not written yet."""
        self.is_sent = False
        """True once the frames are written to at least one viewer."""


class FanoutRegistry:
    """
    The fan-outs of one process, by key.

    Args:
        context: The services that the subscriptions of all sockets share.
        options_of: Returns the options to subscribe with, for (topic, channel, sample_rate).
        max_in_flight: Maximum messages in flight of each fan-out, over all of its nsqds.
    """

    def __init__(
        self,
        context: UpstreamContext,
        options_of: Callable[[str, str, int], SubscriptionOptions],
        *,
        max_in_flight: int,
    ) -> None:
        self.context = context
        self.max_in_flight = max_in_flight
        self._options_of = options_of
        self._open: dict[FanoutKey, Fanout] = {}

    def __len__(self) -> int:
        """Return the number of fan-outs that viewers can join."""
        return len(self._open)

    def find_or_open(self, key: FanoutKey) -> Fanout:
        """Return the fan-out for *key* that viewers can join; create one if there is none."""
        fanout = self._open.get(key)
        if fanout is None:
            options = self._options_of(key.topic, new_channel_name(), key.sample_rate)
            fanout = self._open[key] = Fanout(self, key, options)
            _OPEN_FANOUTS.set(len(self._open))
        return fanout

    def forget(self, fanout: Fanout) -> None:
        """Remove *fanout*, so that new viewers open another one; idempotent."""
        # The key may belong to a successor already: a fan-out whose secret was refused is replaced
        # at once, but lives until its last viewer leaves.
        if self._open.get(fanout.key) is fanout:
            del self._open[fanout.key]
            _OPEN_FANOUTS.set(len(self._open))


class Fanout:
    """
    One consumer and its viewers, from the first that joins to the last that leaves.

    A *read* is the messages that arrived together from one source. Reads are written in order.
    """

    def __init__(
        self, fanouts: FanoutRegistry, key: FanoutKey, options: SubscriptionOptions
    ) -> None:
        self.key = key
        self.channel = options.channel
        self._fanouts = fanouts
        # The random channel name is no part of the error cache's key: nsqd's refusal would be the
        # same for another name.
        self._upstream = DedicatedUpstream(fanouts.context, options, self, refusal_channel="")
        self._members: set[Viewer] = set()
        """Viewers that keep the consumer open, including those that wait for its start."""
        self._viewers: dict[Viewer, None] = {}
        """Viewers whose `join` has succeeded, in order; they are notified of sources."""
        self._receiving: dict[Viewer, WebSocket] = {}
        """Viewers that receive messages: SUB has been sent to their clients."""
        self.delivered = 0
        """Number of messages written to all viewers that received messages at that time."""
        self._reads: deque[tuple[int, list[bytes], FrameQueue]] = deque()
        """Reads not written completely, oldest first: source, message ids, remaining frames."""
        self._write: _SharedWrite | None = None
        """The frames of the oldest read that some viewers still wait for; None between frames."""
        self._sent_messages = 0
        """Number of messages of the oldest read that are written to all viewers."""
        self._send_handle: asyncio.Handle | None = None
        """The scheduled `_send_some`; reading from nsqd is paused until it has run."""
        self._last_number = 0
        """The number of the last read; it is part of the delivery ids."""
        self._error: Exception | None = None
        """Why a viewer cannot join now; ignored while no nsqd has the topic."""
        self._start_task = spawn("start a fan-out", self._start())

    async def _start(self) -> None:
        """Subscribe; if that fails, keep the error for the viewers that wait in `join`."""
        try:
            await self._upstream.subscribe(self.key.secret)
        except Exception as error:
            if not isinstance(error, GatewayError):
                logger.exception("fan-out failed", topic=self.key.topic)
            # A viewer that comes later opens another fan-out, and so makes another attempt.
            self._fanouts.forget(self)
            # A copy, because the traceback of the original keeps this frame alive.
            self._error = copy_error(error)

    # Viewers

    @property
    def msg_timeout_ms(self) -> int:
        """The message timeout to assume until an nsqd names one."""
        return self._upstream.msg_timeout_ms

    def renew_secret(self, secret: Secret | None) -> None:
        """Use *secret* for connections that are opened from now on."""
        self._upstream.renew_secret(secret)

    def sources_of(self, viewer: Viewer) -> Sequence[int]:
        """Return the open sources if *viewer* has joined; otherwise an empty list."""
        return self._upstream.sources if viewer in self._viewers else ()

    async def join(self, viewer: Viewer) -> None:
        """
        Wait until the fan-out is subscribed, then notify *viewer* of its sources, now and later.

        The caller must call `leave`, even after an error.

        Raises:
            AuthRequired: An nsqd requires AUTH, and the fan-out has no secret.
            BrokerRefused: An nsqd refuses the secret, or the subscription.
            NoBroker: No nsqd can be reached.
        """
        self._members.add(viewer)
        if not self._start_task.done():
            # Unlike awaiting the task, this does not cancel it when one viewer is cancelled.
            await asyncio.wait({self._start_task})
        if self._error is not None and not self._upstream.awaits_topic:
            raise copy_error(self._error)
        self._viewers[viewer] = None
        for source, answer in list(self._upstream.answers.items()):
            viewer.on_source_opened(source, answer)

    def start_sending(self, viewer: Viewer, socket: WebSocket) -> None:
        """Write every message from now on to *socket*, that of *viewer*, which has joined."""
        # RDY is 0 until a viewer can receive, or messages would be requeued in a loop, and each
        # round would add an attempt.
        if not self._receiving:
            self._upstream.execute(SetReady(self._fanouts.max_in_flight))
        self._receiving[viewer] = socket
        # The write under way will be counted as delivered to every receiving viewer.
        if self._write is not None and viewer not in self._write.waiting:
            self._write.waiting.append(viewer)

    def stop_sending(self, viewer: Viewer) -> None:
        """
        Write no more messages to *viewer*; idempotent.

        When no viewer receives messages any more, set RDY to 0, and requeue what is not written.
        """
        if self._receiving.pop(viewer, None) is not None and not self._receiving:
            self._upstream.execute(SetReady(0))
            self._requeue_unsent()

    async def leave(self, viewer: Viewer) -> None:
        """Remove *viewer* at once; if it was the last one, close the consumer. Idempotent."""
        if viewer not in self._members:
            return
        self._members.discard(viewer)
        self._viewers.pop(viewer, None)
        self.stop_sending(viewer)
        if self._members:
            return
        # Before the first await: a viewer that arrives now must not join a fan-out that closes.
        self._fanouts.forget(self)
        if not self._start_task.done():
            self._start_task.cancel()
            await asyncio.wait({self._start_task})
        await self._upstream.unsubscribe()
        self._upstream.release()

    # From NSQ

    def on_messages(self, source: int, messages: list[Message], sent_after: float) -> None:
        """
        Write *messages* to all viewers with room for them, then finish them at nsqd.

        If no viewer receives, requeue them. Messages that may have timed out before they were read
        are dropped: nsqd delivers them again, and would refuse their FIN.
        """
        ids = [message.id for message in messages]
        if not self._receiving:
            self._requeue(source, ids)
            return
        # The client's `deadline_ms` counts from now, nsqd's timeout perhaps from *sent_after*.
        left_ms = self._upstream.answers[source].msg_timeout
        left_ms -= math.ceil((asyncio.get_running_loop().time() - sent_after) * 1000)
        if left_ms <= 0:
            return
        # Counted once per viewer, because each of them gets a delivery.
        observe_age(messages, times=len(self._receiving))
        self._upstream.trace_messages(source, messages)
        frames = self._encode(messages, left_ms)
        self._reads.append((source, ids, frames))
        if self._send_handle is None:
            self._send_some()

    def _send_some(self) -> None:
        """
        Write the bytes of one turn to the viewers, and finish the reads that are complete.

        If bytes are left, schedule another turn, and stop reading from nsqd until all are written.
        """
        left_bytes = _BYTES_PER_TURN
        while self._reads and left_bytes > 0:
            source, ids, frames = self._reads[0]
            write = self._write
            if write is None:
                # All viewers get these frames, so each may take its part of the turn's bytes.
                taken = frames.take(max(1, left_bytes // len(self._receiving)))
                write = self._write = _SharedWrite(
                    taken, frames.taken - self._sent_messages, self._receiving
                )
            left_bytes = self._write_to_viewers(write, left_bytes)
            if not self._receiving:
                # All viewers were slow and closed; the last one's `stop_sending` has requeued.
                return
            if write.waiting:
                break  # the turn's bytes are spent; the next turn continues this write
            self._write = None
            self._sent_messages = frames.taken
            self.delivered += write.messages
            if not frames:
                self._reads.popleft()
                self._sent_messages = 0
                self._upstream.execute(FinishDeliveries(source, ids))
        if not self._reads:
            self._requeue_unsent()
            return
        # The handle of this call, if it was scheduled, is not None: reading is paused already.
        if self._send_handle is None:
            self._upstream.execute(PauseReading())
        self._send_handle = asyncio.get_running_loop().call_soon(self._send_some)

    def _write_to_viewers(self, write: _SharedWrite, left_bytes: int) -> int:
        """
        Write the frames of *write* to the viewers that wait for them, within *left_bytes*.

        Returns how many of the turn's bytes are left; the last write may make them negative.
        """
        delivered = 0
        while write.waiting and left_bytes > 0:
            viewer = write.waiting.popleft()
            socket = self._receiving.get(viewer)
            # `check_slow` may close this viewer, and thereby change `_receiving`.
            if socket is not None and (socket.is_writable or viewer.check_slow()):
                write.is_sent = True
                socket.send_encoded(write.frames)
                left_bytes -= max(_MIN_WRITE_BYTES, len(write.frames))
                delivered += 1
        DELIVERED.counts["shared",] += write.messages * delivered
        return left_bytes

    def _requeue_unsent(self) -> None:
        """
        Requeue the messages of all reads that were written to no viewer, and finish the others.

        Then no read is left, and the fan-out reads from nsqd again.
        """
        write, self._write = self._write, None
        # One viewer is enough: requeued, the messages would be delivered to it a second time.
        if write is not None and write.is_sent:
            self._sent_messages += write.messages
        while self._reads:
            source, ids, _ = self._reads.popleft()
            if self._sent_messages:
                self._upstream.execute(FinishDeliveries(source, ids[: self._sent_messages]))
            if self._sent_messages < len(ids):
                self._requeue(source, ids[self._sent_messages :])
            self._sent_messages = 0
        if self._send_handle is not None:
            self._send_handle.cancel()
            self._send_handle = None
            self._upstream.execute(ResumeReading())

    def _requeue(self, source: int, ids: list[bytes]) -> None:
        self._upstream.execute(RequeueDeliveries(source, ids, 0, RequeueCause.DISCONNECT))

    def _encode(self, messages: list[Message], left_ms: int) -> FrameQueue:
        """
        Return *messages* as WebSocket frames, to be written to every viewer.

        The more viewers receive, the smaller the frames, so that one turn reaches many viewers.
        """
        # A redelivery has the same message id, and must not have the same delivery id.
        self._last_number += 1
        ids = make_delivery_ids(messages, self._last_number)
        names = (self.key.topic, self.channel)
        lines = encode_frame(encode_messages(messages, ids, names, left_ms))
        share_bytes = max(_MIN_FRAME_BYTES, _BYTES_PER_TURN // len(self._receiving))
        return FrameQueue(lines, min(MAX_FRAME_BYTES, share_bytes))

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Called when an nsqd is connected: notify every viewer, and let viewers join again."""
        self._upstream.add_source(source, answer)
        self._error = None
        # Here and below a copy, because a callback may close its viewer.
        for viewer in list(self._viewers):
            viewer.on_source_opened(source, answer)

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """
        Called when the connection *source* is lost: notify every viewer.

        If it was the last one, new viewers cannot join until another one opens; see `_error`.
        """
        self._upstream.remove_source(source)
        if not self._upstream.answers:
            self._error = NoBroker(f"no nsqd can be subscribed to ({error})")
        for viewer in list(self._viewers):
            viewer.on_source_lost(source, error)

    def on_secret_missing(self) -> None:
        """
        Called when an nsqd requires AUTH, and this fan-out has no secret: notify every viewer.

        While no other nsqd is connected, new viewers cannot join.
        """
        if not self._upstream.answers:
            self._error = AuthRequired("nsqd requires AUTH, and the client sent no secret")
        for viewer in list(self._viewers):
            viewer.on_secret_missing()

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return by source the number of messages that are not written to all viewers yet."""
        by_source: Counter[int] = Counter()
        for source, ids, _ in self._reads:
            by_source[source] += len(ids)
        return by_source

    def auth_response_of(self, source: int) -> AuthResponse | None:
        """Return the response to AUTH of the nsqd of *source*; None if it required none."""
        return self._upstream.auth_response_of(source)

    def auth_addresses(self) -> Sequence[str]:
        """Return the addresses of the connected nsqds that require AUTH."""
        return self._upstream.auth_addresses()

    def on_secret_refused(self, error: BrokerRefused) -> None:
        """
        Called when nsqd no longer accepts the secret: make every viewer close.

        A viewer that comes later opens another fan-out, so that nsqd is asked again.
        """
        self._fanouts.forget(self)
        for viewer in list(self._viewers):
            viewer.on_secret_refused(error)

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """Do nothing: nsqd refused a FIN that came too late, and delivers the message again."""

    def on_channel_gone(self, address: str) -> None:
        """Do nothing; not called for an ephemeral channel, which reconnecting creates again."""

    def on_channel_paused(self, is_paused: bool) -> None:  # noqa: FBT001 - a listener's signature
        """Do nothing; not called, because pauses of an ephemeral channel are not monitored."""
