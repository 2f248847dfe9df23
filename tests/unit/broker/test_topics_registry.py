"""Topics by name, and what the broker has to do next."""

from __future__ import annotations

from gateway.broker.client import Client
from gateway.broker.topics import TopicRegistry
from gateway.protocol import identify
from gateway.protocol.wire import Limits
from tests.support.brokers.broker_core import consumer, context, moment_at, receivers


def subscribed(registry: TopicRegistry, topic: str, channel: str, *, number: int = 1) -> Client:
    """Return a client that is subscribed with RDY 1."""
    receiver = consumer(number)
    options = identify.default_options(Limits())
    client = Client(receiver, options, remote_address="127.0.0.1:1", connect_ts=0)
    client.channel = registry.get_topic(topic).get_channel(channel, now=0.0)
    client.channel.subscribe(receiver)
    client.channel.ready(receiver, 1)
    registry.clients[number] = client
    return client


def test_a_topic_is_made_once() -> None:
    """The same name is the same topic."""
    registry = TopicRegistry(context())

    assert registry.get_topic("t") is registry.get_topic("t")


def test_deleting_a_topic_names_its_consumers() -> None:
    """The topic is gone; a new one of that name is empty."""
    registry = TopicRegistry(context())
    client = subscribed(registry, "t", "c")

    assert [client.consumer] == registry.delete_topic("t")
    assert {} == registry.topics


def test_deleting_an_unknown_name_returns_none() -> None:
    """A topic, a channel of no topic, a channel of another topic."""
    registry = TopicRegistry(context())
    registry.get_topic("t")

    assert [None, None, None] == [
        registry.delete_topic("none"),
        registry.delete_channel("none", "c"),
        registry.delete_channel("t", "c"),
    ]


def test_deleting_a_channel_leaves_a_durable_topic() -> None:
    """Also with its last channel."""
    registry = TopicRegistry(context())
    client = subscribed(registry, "t", "c")

    assert [client.consumer] == registry.delete_channel("t", "c")
    assert ["t"] == list(registry.topics)


def test_an_ephemeral_topic_is_deleted_with_its_last_channel() -> None:
    """Not before."""
    registry = TopicRegistry(context())
    subscribed(registry, "t#ephemeral", "a")
    subscribed(registry, "t#ephemeral", "b", number=2)

    registry.delete_channel("t#ephemeral", "a")
    assert ["t#ephemeral"] == list(registry.topics)

    registry.delete_channel("t#ephemeral", "b")
    assert [] == list(registry.topics)


def test_an_ephemeral_channel_is_deleted_with_its_last_client() -> None:
    """An ephemeral topic is deleted with it."""
    registry = TopicRegistry(context())
    client = subscribed(registry, "t#ephemeral", "c#ephemeral")

    registry.remove_client(client)

    assert ({}, {}) == (registry.topics, registry.clients)


def test_a_client_of_a_deleted_channel_leaves_a_new_one_of_that_name_alone() -> None:
    """Its end has nothing to do with the new channel."""
    registry = TopicRegistry(context())
    old = subscribed(registry, "t", "c#ephemeral")
    registry.delete_channel("t", "c#ephemeral")
    subscribed(registry, "t", "c#ephemeral", number=2)

    registry.remove_client(old)

    assert registry.find_channel("t", "c#ephemeral") is not None


def test_a_client_without_a_channel_is_removed() -> None:
    """A producer leaves nothing after."""
    registry = TopicRegistry(context())
    options = identify.default_options(Limits())
    producer = Client(consumer(5), options, remote_address="127.0.0.1:1", connect_ts=0)
    registry.clients[5] = producer

    registry.remove_client(producer)

    assert {} == registry.clients


def test_every_channel_that_can_deliver_does() -> None:
    """One call for all of them."""
    registry = TopicRegistry(context())
    subscribed(registry, "t", "a", number=1)
    subscribed(registry, "t", "b", number=2)
    registry.get_topic("t").publish([b"x"], moment_at(0.0))

    had_deliverable = registry.has_deliverable

    assert [1, 2] == receivers(registry.deliver(0.0))
    assert (True, False) == (had_deliverable, registry.has_deliverable)


def test_timed_out_messages_can_be_delivered_again() -> None:
    """The next moment tells when to look."""
    registry = TopicRegistry(context())
    subscribed(registry, "t", "c")
    registry.get_topic("t").publish([b"x"], moment_at(0.0))
    registry.deliver(0.0)
    moments = [registry.next_due]

    registry.expire(60.0)

    assert [60.0, None] == [*moments, registry.next_due]
    assert [1] == receivers(registry.deliver(60.0))
