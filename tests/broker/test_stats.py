"""What /stats shows; that keys and order are nsqd's is compared in test_against_nsqd.py."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from gateway.broker import stats
from gateway.broker.catalog import Catalog
from gateway.broker.handler import Handler
from gateway.broker.stats import Selection
from gateway.protocol.commands import Command, Finish, Publish, Ready, Subscribe
from tests.support.broker_core import at, common


def busy_catalog() -> Catalog:
    """
    Return a catalog with two topics.

    b has channels x, y and a consumer of y with one message in flight; a has one message and no
    channel, and is paused. Both messages come from one producer.
    """
    catalog = Catalog(common())
    handler = Handler(catalog)
    commands: list[list[Command]] = [
        [Subscribe("b", "y"), Ready(1)],
        [Publish("b", b"hello"), Publish("a", b"hi")],
    ]
    for number, said in enumerate(commands):
        client = handler.connect(remote_address=f"10.0.0.1:{5000 + number}", at=at(0.0))
        handler.handle(client, said, at(0.0))
    catalog.topic("b").channel("x", now=0.0)
    catalog.topic("a").pause()
    catalog.deliver(0.0)
    return catalog


def shown(selection: Selection) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of the busy catalog's snapshot."""
    return msgspec.json.decode(
        msgspec.json.encode(stats.snapshot(busy_catalog(), selection, start_time=5))
    )


def test_topics_and_channels_are_in_order_of_name() -> None:
    """Whatever was made first."""
    topics = shown(Selection())["topics"]

    assert [("a", []), ("b", ["x", "y"])] == [
        (topic["topic_name"], [channel["channel_name"] for channel in topic["channels"]])
        for topic in topics
    ]


def test_a_topic_shows_its_counters() -> None:
    """Depth is what waits in the topic itself."""
    topic = shown(Selection(topic="a"))["topics"][0]

    assert (1, 1, 2, True) == (
        topic["depth"],
        topic["message_count"],
        topic["message_bytes"],
        topic["paused"],
    )


def test_a_channel_shows_its_counters_and_consumers() -> None:
    """What is in flight is not part of the depth."""
    channel = shown(Selection(topic="b"))["topics"][0]["channels"][1]

    assert (0, 1, 1, 1) == (
        channel["depth"],
        channel["in_flight_count"],
        channel["message_count"],
        channel["client_count"],
    )
    client = channel["clients"][0]
    assert (3, 1, 1, 1) == (
        client["state"],
        client["ready_count"],
        client["in_flight_count"],
        client["message_count"],
    )


def test_an_unknown_topic_makes_topics_and_producers_null() -> None:
    """Not empty lists."""
    answer = shown(Selection(topic="none"))

    assert (None, None) == (answer["topics"], answer["producers"])


def test_a_topic_without_the_channel_is_left_out() -> None:
    """Also when the topic was named."""
    assert [] == shown(Selection(topic="a", channel="y"))["topics"]
    assert ["b"] == [topic["topic_name"] for topic in shown(Selection(channel="y"))["topics"]]


def test_a_channel_filter_shows_that_channel_only() -> None:
    """The others of its topic are left out."""
    topic = shown(Selection(topic="b", channel="y"))["topics"][0]

    assert ["y"] == [channel["channel_name"] for channel in topic["channels"]]


def test_without_clients_both_lists_are_null() -> None:
    """Their number is right all the same."""
    answer = shown(Selection(topic="b", include_clients=False))

    assert answer["producers"] is None
    assert [(0, None), (1, None)] == [
        (channel["client_count"], channel["clients"]) for channel in answer["topics"][0]["channels"]
    ]


def test_no_clients_are_an_empty_list_and_no_producers_null() -> None:
    """As in Go, where one is made and the other is not."""
    catalog = Catalog(common())
    catalog.topic("t").channel("c", now=0.0)

    snapshot = stats.snapshot(catalog, Selection(), start_time=0)

    assert snapshot.topics is not None
    assert ([], None) == (snapshot.topics[0].channels[0].clients, snapshot.producers)


@pytest.mark.parametrize("topic,expected", [("", "b"), ("a", "a")])
def test_a_producer_shows_one_topic(topic: str, expected: str) -> None:
    """The first, or the one that was asked for."""
    producers = shown(Selection(topic=topic))["producers"]

    assert [[{"topic": expected, "count": 1}]] == [each["pub_counts"] for each in producers]


def test_a_producer_of_other_topics_shows_no_count() -> None:
    """The key is left out, as Go leaves out what is empty."""
    catalog = busy_catalog()
    catalog.topic("c")

    (producer,) = stats.snapshot(catalog, Selection(topic="c"), start_time=0).producers or []

    assert "pub_counts" not in msgspec.to_builtins(producer)


def test_memory_can_be_left_out() -> None:
    """The key too."""
    assert "memory" in shown(Selection())
    assert "memory" not in shown(Selection(include_mem=False))


def test_memory_shows_what_messages_take() -> None:
    """It is what the bound of the broker counts."""
    catalog = busy_catalog()

    snapshot = stats.snapshot(catalog, Selection(), start_time=0)

    assert snapshot.memory
    assert catalog.common.memory.used_bytes == snapshot.memory.heap_in_use_bytes


def test_the_text_tells_the_same() -> None:
    """One line for each topic, channel and client; a paused one has a mark."""
    snapshot = stats.snapshot(busy_catalog(), Selection(), start_time=5)

    text = stats.to_text(snapshot, uptime_s=7)

    assert text.startswith("nsqd v1.3.0 ")
    assert LINES == [line for line in LINES if re.search(line, text)]


LINES = [
    r"uptime 7s\n\nHealth: OK\n",
    r"\nMemory:\n   heap_objects +\t0\n",
    r"\nTopics:\n\n\*P \[a +\] depth: 1 +be-depth: 0 +msgs: 1 ",
    r"\n   \[b +\] depth: 0 ",
    r"\n      \[x +\] depth: 0 ",
    r"\n      \[y +\] depth: 0 +be-depth: 0 +inflt: 1 ",
    r"\n        \[V2 10\.0\.0\.1:5000 +\] state: 3 inflt: 1 +rdy: 1 ",
    r"\nProducers:\n   \[V2 10\.0\.0\.1:5001 +\] msgs: 1 +topics: b=1\n",
]


def test_the_text_of_an_empty_broker_says_none() -> None:
    """No topics, no producers, no memory when that was not asked for."""
    snapshot = stats.snapshot(Catalog(common()), Selection(include_mem=False), start_time=5)

    text = stats.to_text(snapshot, uptime_s=7)

    assert text.endswith("Health: OK\n\nTopics: None\n\nProducers: None\n")


def test_finished_messages_are_counted_at_the_consumer() -> None:
    """finish_count rises, in_flight_count falls."""
    catalog = busy_catalog()
    client = catalog.clients[1]
    message_id = next(iter(client.consumer.in_flight))
    Handler(catalog).handle(client, [Finish(message_id)], at(1.0))

    snapshot = stats.snapshot(catalog, Selection(topic="b", channel="y"), start_time=0)

    (topic,) = snapshot.topics or []
    (shown_client,) = topic.channels[0].clients or []
    assert (1, 0) == (shown_client.finish_count, shown_client.in_flight_count)
