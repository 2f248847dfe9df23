"""The response to /stats; test_against_nsqd.py compares its keys and order with nsqd."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from operator import sub
from typing import Any

import pytest

from gateway.broker import stats
from gateway.broker.handler import Handler
from gateway.broker.stats import JsonStats, StatsEncoder, StatsQuery, TextStats
from gateway.broker.topics import TopicRegistry
from gateway.protocol.commands import Command, Finish, Publish, Ready, Subscribe
from tests.support.brokers.broker_core import context, moment_at
from tests.support.steps import run_steps

ALL = StatsQuery()


def busy_catalog() -> TopicRegistry:
    """
    Return a registry with two topics.

    b has channels x, y and a consumer of y with one message in flight; a has one message and no
    channel, and is paused. Both messages come from one producer.
    """
    registry = TopicRegistry(context())
    handler = Handler(registry)
    commands: list[list[Command]] = [
        [Subscribe("b", "y"), Ready(1)],
        [Publish("b", b"hello"), Publish("a", b"hi")],
    ]
    for number, command in enumerate(commands):
        client = handler.connect(remote_address=f"10.0.0.1:{5000 + number}", at=moment_at(0.0))
        handler.handle(client, command, moment_at(0.0))
    registry.get_topic("b").get_channel("x", now=0.0)
    registry.get_topic("a").pause()
    registry.deliver(0.0)
    return registry


def shown(selection: StatsQuery) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of the busy registry."""
    return shown_of(busy_catalog(), selection)


def shown_of(registry: TopicRegistry, selection: StatsQuery = ALL) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of a registry."""
    return json.loads(
        b"".join(run_steps(stats.collect(registry, selection, JsonStats(), start_time=5)))
    )


def text_of(registry: TopicRegistry, selection: StatsQuery = ALL) -> str:
    """Return the text of a registry."""
    form = TextStats(now=12, started="2026-01-02T03:04:05Z")
    return b"".join(run_steps(stats.collect(registry, selection, form, start_time=5))).decode()


def test_topics_and_channels_are_in_order_of_name() -> None:
    """The order of creation does not matter."""
    topics = shown(StatsQuery())["topics"]

    assert [("a", []), ("b", ["x", "y"])] == [
        (topic["topic_name"], [channel["channel_name"] for channel in topic["channels"]])
        for topic in topics
    ]


def test_a_topic_shows_its_counters() -> None:
    """Depth is what waits in the topic itself."""
    topic = shown(StatsQuery(topic="a"))["topics"][0]

    assert (1, 1, 2, True) == (
        topic["depth"],
        topic["message_count"],
        topic["message_bytes"],
        topic["paused"],
    )


def test_a_channel_shows_its_counters_and_consumers() -> None:
    """Messages in flight are not part of the depth."""
    channel = shown(StatsQuery(topic="b"))["topics"][0]["channels"][1]

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
    answer = shown(StatsQuery(topic="none"))

    assert (None, None) == (answer["topics"], answer["producers"])


def test_a_topic_without_the_channel_is_left_out() -> None:
    """Also when the topic was named."""
    assert [] == shown(StatsQuery(topic="a", channel="y"))["topics"]
    assert ["b"] == [topic["topic_name"] for topic in shown(StatsQuery(channel="y"))["topics"]]


def test_a_channel_filter_shows_that_channel_only() -> None:
    """The others of its topic are left out."""
    topic = shown(StatsQuery(topic="b", channel="y"))["topics"][0]

    assert ["y"] == [channel["channel_name"] for channel in topic["channels"]]


def test_without_clients_both_lists_are_null() -> None:
    """Their number is right all the same."""
    answer = shown(StatsQuery(topic="b", include_clients=False))

    assert answer["producers"] is None
    assert [(0, None), (1, None)] == [
        (channel["client_count"], channel["clients"]) for channel in answer["topics"][0]["channels"]
    ]


def test_no_clients_are_an_empty_list_and_no_producers_null() -> None:
    """As in Go, where one is made and the other is not."""
    registry = TopicRegistry(context())
    registry.get_topic("t").get_channel("c", now=0.0)

    answer = shown_of(registry)

    assert ([], None) == (answer["topics"][0]["channels"][0]["clients"], answer["producers"])


@pytest.mark.parametrize("topic,expected", [("", "b"), ("a", "a")])
def test_a_producer_shows_one_topic(topic: str, expected: str) -> None:
    """The first, or the one that was asked for."""
    producers = shown(StatsQuery(topic=topic))["producers"]

    assert [[{"topic": expected, "count": 1}]] == [each["pub_counts"] for each in producers]


def test_a_producer_of_other_topics_shows_no_count() -> None:
    """The key is left out, as Go leaves out what is empty."""
    registry = busy_catalog()
    registry.get_topic("c")

    (producer,) = shown_of(registry, StatsQuery(topic="c"))["producers"]

    assert "pub_counts" not in producer


def test_memory_can_be_left_out() -> None:
    """The key too."""
    assert "memory" in shown(StatsQuery())
    assert "memory" not in shown(StatsQuery(include_mem=False))


def test_memory_shows_the_size_of_messages() -> None:
    """It is what the bound of the broker counts."""
    registry = busy_catalog()

    answer = shown_of(registry)

    assert registry.context.memory.used_bytes == answer["memory"]["heap_in_use_bytes"]


def test_the_text_has_the_same_numbers() -> None:
    """One line for each topic, channel and client; a paused one has a mark."""
    text = text_of(busy_catalog())

    assert text.startswith("nsqd v1.3.0 ")
    assert LINES == [line for line in LINES if re.search(line, text)]


LINES = [
    r"start_time \S+T\S+\nuptime 7s\n\nHealth: OK\n",
    r"\nMemory:\n   heap_objects +\t0\n",
    r"\nTopics:\n\*P \[a +\] depth: 1 +be-depth: 0 +msgs: 1 ",
    r"\n\n   \[b +\] depth: 0 ",
    r"\n      \[x +\] depth: 0 ",
    r"\n      \[y +\] depth: 0 +be-depth: 0 +inflt: 1 ",
    r"\n        \[V2 10\.0\.0\.1:5000 +\] state: 3 inflt: 1 +rdy: 1 ",
    r"\nProducers:\n   \[V2 10\.0\.0\.1:5001 +\] msgs: 1 +topics: b=1 connected: 0s\n",
]


def test_the_text_of_an_empty_broker_has_none() -> None:
    """No topics, no producers, no memory when that was not asked for."""
    text = text_of(TopicRegistry(context()), StatsQuery(include_mem=False))

    assert text.endswith("Health: OK\n\nTopics: None\n\nProducers: None\n")


def test_finished_messages_are_counted_at_the_consumer() -> None:
    """finish_count rises, in_flight_count falls."""
    registry = busy_catalog()
    client = registry.clients[1]
    message_id = next(iter(client.consumer.in_flight))
    Handler(registry).handle(client, [Finish(message_id)], moment_at(1.0))

    (topic,) = shown_of(registry, StatsQuery(topic="b", channel="y"))["topics"]

    (client_shown,) = topic["channels"][0]["clients"]
    assert (1, 0) == (client_shown["finish_count"], client_shown["in_flight_count"])


# In steps


def crowded(*, topics: int = 1, channels: int = 1, consumers: int = 0) -> TopicRegistry:
    """Return a registry with so many topics, each with channels, each of these with consumers."""
    registry = TopicRegistry(context())
    handler = Handler(registry)
    for topic in range(topics):
        for number in range(channels):
            channel = registry.get_topic(f"t{topic:05}").get_channel(f"c{number:05}", now=0.0)
            for _ in range(consumers):
                client = handler.connect(remote_address="10.0.0.1:5000", at=moment_at(0.0))
                handler.handle(
                    client, [Subscribe(channel.topic_name, channel.name)], moment_at(0.0)
                )
    return registry


@pytest.mark.parametrize("form", [JsonStats(), TextStats(now=12, started="2026-01-02T03:04:05Z")])
@pytest.mark.parametrize(
    "registry",
    [crowded(topics=2_000), crowded(channels=2_000), crowded(consumers=2_000)],
    ids=["topics", "channels", "consumers"],
)
def test_large_lists_are_shown_in_steps(
    registry: TopicRegistry, form: StatsEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them shows more than a few hundred entries."""
    shown = 0
    is_step_done = stats._StatsCollector._is_step_done

    def count(look: stats._StatsCollector, parts: Sequence[bytes]) -> bool:
        nonlocal shown
        shown += 1
        return is_step_done(look, parts)

    monkeypatch.setattr(stats._StatsCollector, "_is_step_done", count)
    steps = stats.collect(registry, ALL, form, start_time=5)
    reached = [shown for _ in steps]

    assert shown > 2_000
    assert max(map(sub, [*reached, shown], [0, *reached])) <= 500


def test_topics_and_channels_come_and_go_between_the_steps() -> None:
    """Deleted and later topics are missing; the others are complete."""
    registry = crowded(topics=2_000)
    steps = stats.collect(registry, ALL, JsonStats(), start_time=5)
    next(steps)
    registry.delete_topic("t01500")
    registry.delete_channel("t01600", "c00000")
    registry.get_topic("u")

    topics = json.loads(b"".join(run_steps(steps)))["topics"]

    names = [f"t{number:05}" for number in range(2_000) if number != 1_500]
    assert names == [topic["topic_name"] for topic in topics]
    assert [0, 1] == [len(topics[number]["channels"]) for number in (1_599, 1_600)]


def test_a_channel_shows_as_many_clients_as_it_counts() -> None:
    """Also those that leave while they are being shown."""
    registry = crowded(consumers=2_000)
    steps = stats.collect(registry, ALL, JsonStats(), start_time=5)
    next(steps)
    handler = Handler(registry)
    for client in list(registry.clients.values())[500:]:
        handler.disconnect(client)

    ((channel,),) = [
        topic["channels"] for topic in json.loads(b"".join(run_steps(steps)))["topics"]
    ]

    assert (2_000, 2_000) == (channel["client_count"], len(channel["clients"]))
