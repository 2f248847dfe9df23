"""
All topics of the broker by name, all its clients, and its agenda.

Whoever changes something here looks afterwards whether there is something to deliver
(`has_deliverable`) and when to come back (`next_moment`). Source: nsqd/nsqd.go.
"""

from __future__ import annotations

from gateway.broker.agenda import Delivery
from gateway.broker.channel import Channel
from gateway.broker.client import Client
from gateway.broker.common import Common
from gateway.broker.consumer import Consumer
from gateway.broker.topic import Topic


class Catalog:
    """What the broker holds."""

    def __init__(self, common: Common) -> None:
        self.common = common
        self.topics: dict[str, Topic] = {}
        self.clients: dict[int, Client] = {}
        """Every connection by the number of its consumer."""

    def topic(self, name: str) -> Topic:
        """Return the topic, made when it is missing."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name, self.common)
        return topic

    def find_channel(self, topic: str, channel: str) -> Channel | None:
        """Return the channel; None when it, or its topic, is not there."""
        found = self.topics.get(topic)
        return None if found is None else found.channels.get(channel)

    def delete_topic(self, name: str) -> list[Consumer] | None:
        """Delete a topic; return the consumers to disconnect, None when there is no such topic."""
        topic = self.topics.pop(name, None)
        return None if topic is None else topic.delete()

    def delete_channel(self, topic: str, channel: str) -> list[Consumer] | None:
        """Delete a channel, and an ephemeral topic with its last one; None as above."""
        if self.find_channel(topic, channel) is None:
            return None
        owner = self.topics[topic]
        consumers = owner.delete_channel(channel)
        if owner.is_ephemeral and not owner.channels:
            self.delete_topic(topic)
        return consumers

    def leave(self, client: Client) -> None:
        """Forget *client*; what it had in flight waits for its timeout, as in nsqd."""
        self.clients.pop(client.consumer.id, None)
        channel = client.channel
        if channel is not None and channel.leave(client.consumer):
            self.delete_channel(channel.topic_name, channel.name)

    # The agenda

    @property
    def has_deliverable(self) -> bool:
        """Whether `deliver` has something to do."""
        return self.common.agenda.has_deliverable

    @property
    def next_moment(self) -> float | None:
        """When `expire` has something to do, monotonic seconds; None for never."""
        return self.common.agenda.next_moment

    def deliver(self, now: float) -> list[Delivery]:
        """Send one batch to each consumer with room, of every channel that has messages."""
        return [
            delivery
            for channel in self.common.agenda.take_deliverable()
            for delivery in channel.deliver(now)
        ]

    def expire(self, now: float) -> None:
        """Bring to their queues what has timed out and what was deferred until *now*."""
        for channel in self.common.agenda.take_due(now):
            channel.expire(now)
