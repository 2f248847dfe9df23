"""Topics by name, and what the broker has to do next."""

from __future__ import annotations

from gateway.broker.catalog import Catalog
from gateway.broker.client import Client
from gateway.protocol import identify
from gateway.protocol.wire import Limits
from tests.support.broker_core import at, common, consumer, receivers


def subscribed(catalog: Catalog, topic: str, channel: str, *, number: int = 1) -> Client:
    """Return a client that is subscribed with RDY 1."""
    receiver = consumer(number)
    holds = identify.defaults(Limits())
    client = Client(receiver, holds, remote_address="127.0.0.1:1", connect_ts=0)
    client.channel = catalog.topic(topic).channel(channel, now=0.0)
    client.channel.subscribe(receiver)
    client.channel.ready(receiver, 1)
    catalog.clients[number] = client
    return client


def test_a_topic_is_made_once() -> None:
    """The same name is the same topic."""
    catalog = Catalog(common())

    assert catalog.topic("t") is catalog.topic("t")


def test_deleting_a_topic_names_its_consumers() -> None:
    """The topic is gone; a new one of that name is empty."""
    catalog = Catalog(common())
    client = subscribed(catalog, "t", "c")

    assert [client.consumer] == catalog.delete_topic("t")
    assert {} == catalog.topics


def test_deleting_what_is_not_there_is_none() -> None:
    """A topic, a channel of no topic, a channel of another topic."""
    catalog = Catalog(common())
    catalog.topic("t")

    assert [None, None, None] == [
        catalog.delete_topic("none"),
        catalog.delete_channel("none", "c"),
        catalog.delete_channel("t", "c"),
    ]


def test_deleting_a_channel_leaves_a_durable_topic() -> None:
    """Also with its last channel."""
    catalog = Catalog(common())
    client = subscribed(catalog, "t", "c")

    assert [client.consumer] == catalog.delete_channel("t", "c")
    assert ["t"] == list(catalog.topics)


def test_an_ephemeral_topic_goes_with_its_last_channel() -> None:
    """Not before."""
    catalog = Catalog(common())
    subscribed(catalog, "t#ephemeral", "a")
    subscribed(catalog, "t#ephemeral", "b", number=2)

    catalog.delete_channel("t#ephemeral", "a")
    assert ["t#ephemeral"] == list(catalog.topics)

    catalog.delete_channel("t#ephemeral", "b")
    assert [] == list(catalog.topics)


def test_an_ephemeral_channel_goes_with_its_last_client() -> None:
    """And an ephemeral topic with it."""
    catalog = Catalog(common())
    client = subscribed(catalog, "t#ephemeral", "c#ephemeral")

    catalog.leave(client)

    assert ({}, {}) == (catalog.topics, catalog.clients)


def test_a_client_of_a_deleted_channel_leaves_a_new_one_of_that_name_alone() -> None:
    """Its end has nothing to do with the new channel."""
    catalog = Catalog(common())
    old = subscribed(catalog, "t", "c#ephemeral")
    catalog.delete_channel("t", "c#ephemeral")
    subscribed(catalog, "t", "c#ephemeral", number=2)

    catalog.leave(old)

    assert catalog.find_channel("t", "c#ephemeral") is not None


def test_a_client_without_channel_just_goes() -> None:
    """A producer leaves nothing behind."""
    catalog = Catalog(common())
    holds = identify.defaults(Limits())
    producer = Client(consumer(5), holds, remote_address="127.0.0.1:1", connect_ts=0)
    catalog.clients[5] = producer

    catalog.leave(producer)

    assert {} == catalog.clients


def test_every_channel_that_can_deliver_does() -> None:
    """One call for all of them."""
    catalog = Catalog(common())
    subscribed(catalog, "t", "a", number=1)
    subscribed(catalog, "t", "b", number=2)
    catalog.topic("t").publish([b"x"], at(0.0))

    had_deliverable = catalog.has_deliverable

    assert [1, 2] == receivers(catalog.deliver(0.0))
    assert (True, False) == (had_deliverable, catalog.has_deliverable)


def test_what_times_out_can_be_delivered_again() -> None:
    """The next moment tells when to look."""
    catalog = Catalog(common())
    subscribed(catalog, "t", "c")
    catalog.topic("t").publish([b"x"], at(0.0))
    catalog.deliver(0.0)
    moments = [catalog.next_moment]

    catalog.expire(60.0)

    assert [60.0, None] == [*moments, catalog.next_moment]
    assert [1] == receivers(catalog.deliver(60.0))
