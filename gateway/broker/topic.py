"""
A topic: what is published here goes to each of its channels.

Source: nsqd/topic.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.broker.channel import Channel
from gateway.broker.common import Common
from gateway.broker.consumer import Consumer
from gateway.broker.message import OVERHEAD_BYTES, IdFactory, Moment, StoredMessage
from gateway.protocol.wire import is_ephemeral


class Topic:
    """Channels by name; until the first one is there, or while paused, the messages wait here."""

    def __init__(self, name: str, common: Common) -> None:
        self.name = name
        self.is_ephemeral = is_ephemeral(name)
        """Whether the topic goes with its last channel, and drops what its backlog cannot hold."""
        self.is_paused = False
        self.message_count = 0
        self.message_bytes = 0
        self.channels: dict[str, Channel] = {}
        self._common = common
        self._ids = IdFactory(node_id=common.rules.node_id)
        self._backlog: list[StoredMessage] = []

    @property
    def depth(self) -> int:
        """How many messages wait for a channel, or for the end of the pause."""
        return len(self._backlog)

    def publish(self, bodies: Sequence[bytes], at: Moment, *, defer_ms: int = 0) -> bool:
        """
        Store one message for each of *bodies*, all or none; False when the memory is full.

        Messages of one call have one timestamp. The delay starts when a channel gets the message.
        """
        body_bytes = sum(map(len, bodies))
        memory = self._common.memory
        size_bytes = body_bytes + len(bodies) * OVERHEAD_BYTES
        if not memory.has_room(size_bytes * max(1, len(self.channels))):
            return False
        memory.used_bytes += size_bytes
        ids = self._ids.take(len(bodies), wall_ns=at.wall_ns)
        wall_ns = at.wall_ns
        messages = [
            StoredMessage(wall_ns, 0, message_id, body, defer_ms)
            for message_id, body in zip(ids, bodies, strict=True)
        ]
        self.message_count += len(bodies)
        self.message_bytes += body_bytes
        if self._hands_out:
            self._hand_out(messages, now=at.now, deferred=defer_ms > 0)
        else:
            self._keep(messages)
        return True

    def channel(self, name: str, *, now: float) -> Channel:
        """Return the channel, made when it is missing; a topic's first one gets the backlog."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = Channel(self.name, name, self._common)
            self._hand_out_backlog(now)
        return channel

    def delete_channel(self, name: str) -> list[Consumer]:
        """Delete a channel that is there; return the consumers to disconnect."""
        return self.channels.pop(name).delete()

    def pause(self) -> None:
        """Keep what is published here until `unpause`; the channels go on with what they have."""
        self.is_paused = True

    def unpause(self, *, now: float) -> None:
        """Give the channels what has come meanwhile, and what comes."""
        self.is_paused = False
        self._hand_out_backlog(now)

    def empty(self) -> None:
        """Forget the backlog; the channels keep what they have."""
        self._common.memory.free(self._backlog)
        self._backlog.clear()

    def delete(self) -> list[Consumer]:
        """Forget everything; return the consumers of all channels, to be disconnected."""
        self.empty()
        return [consumer for name in list(self.channels) for consumer in self.delete_channel(name)]

    @property
    def _hands_out(self) -> bool:
        return bool(self.channels) and not self.is_paused

    def _keep(self, messages: list[StoredMessage]) -> None:
        self._backlog += messages
        if self.is_ephemeral:
            size = self._common.rules.mem_queue_size
            self._common.memory.free(self._backlog[size:])
            del self._backlog[size:]

    def _hand_out_backlog(self, now: float) -> None:
        if not self._hands_out or not self._backlog:
            return
        backlog, self._backlog = self._backlog, []
        deferred = [message for message in backlog if message.defer_ms]
        self._hand_out(deferred, now=now, deferred=True)
        self._hand_out([message for message in backlog if not message.defer_ms], now=now)

    def _hand_out(
        self, messages: list[StoredMessage], *, now: float, deferred: bool = False
    ) -> None:
        """Give *messages*, whose memory is taken once, to every channel."""
        is_original = True
        for channel in self.channels.values():
            own = messages
            if not is_original:
                own = [message.copy() for message in messages]
                self._common.memory.take(own)
            is_original = False
            if deferred:
                channel.put_deferred(own, now)
            else:
                channel.put(own)
