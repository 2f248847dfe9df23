"""/metrics has the numbers of every nsqd, within bounds, and none that are old."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from gateway.client.nsqd_answers import NodeAnswer, NodeResponse, NodeUnreachable
from gateway.telemetry import TextFamily, exposition
from gateway.web.broker_metrics import broker_families
from tests.support.brokers.stats_answers import (
    channel_stats,
    families_of,
    parsed,
    stats_answer,
    topic_stats,
)

NODE = "n:4151"


def values(metrics: list[Metric]) -> dict[str, float]:
    """Return each value by name, without the prefix, and label values."""
    return {
        " ".join((sample.name.removeprefix("nsq_gateway_broker_"), *sample.labels.values())): (
            sample.value
        )
        for family in metrics
        for sample in family.samples
    }


def test_each_number_has_its_series() -> None:
    channel = channel_stats(
        "c",
        depth=5,
        backend_depth=4,
        in_flight_count=3,
        deferred_count=2,
        message_count=20,
        requeue_count=6,
        timeout_count=7,
        client_count=8,
    )
    topic = topic_stats("t", channel, depth=9, backend_depth=1, message_count=30)

    found = values(parsed(families_of([stats_answer(NODE, topic)])))

    assert {
        "up n:4151": 1,
        "info n:4151 1.3.0": 1,
        "start_time_seconds n:4151": 1_790_000_000,
        "topic_depth t n:4151": 9,
        "topic_backend_depth t n:4151": 1,
        "topic_paused t n:4151": 0,
        "topic_messages_total t n:4151": 30,
        "channel_depth t c n:4151": 5,
        "channel_backend_depth t c n:4151": 4,
        "channel_in_flight t c n:4151": 3,
        "channel_deferred t c n:4151": 2,
        "channel_clients t c n:4151": 8,
        "channel_paused t c n:4151": 0,
        "channel_messages_total t c n:4151": 20,
        "channel_requeued_total t c n:4151": 6,
        "channel_timed_out_total t c n:4151": 7,
        "topics_left_out": 0,
    } == found


@pytest.mark.parametrize(
    "answer",
    [
        NodeUnreachable(node="lost:4151", reason="no connection"),
        NodeResponse(node="lost:4151", status=500, body=b"{}"),
        NodeResponse(node="lost:4151", status=200, body=b""),
        NodeResponse(node="lost:4151", status=200, body=b"[" * 100_000),
        NodeResponse(node="lost:4151", status=200, body=b'{"version":"1","start_time":1}'),
        stats_answer("lost:4151", {"topic_name": "half"}),
        stats_answer("lost:4151", topic_stats("t", {"channel_name": "half"})),
        stats_answer("lost:4151", topic_stats("t", channel_stats("c") | {"depth": "many"})),
    ],
)
def test_an_nsqd_without_a_usable_answer_is_down_and_has_no_other_series(
    answer: NodeAnswer,
) -> None:
    """Half of the channels of an nsqd would look like all of them."""
    others = stats_answer(NODE, topic_stats("t", channel_stats("c", depth=1)))

    found = values(parsed(families_of([answer, others])))

    assert {"up lost:4151": 0} == {key: each for key, each in found.items() if "lost" in key}
    assert 1 == found["channel_depth t c n:4151"]


def test_a_channel_on_two_nsqds_has_a_series_for_each() -> None:
    answers = [
        stats_answer(node, topic_stats("t", channel_stats("c", depth=depth)))
        for node, depth in (("a:4151", 3), ("b:4151", 4))
    ]

    found = values(parsed(families_of(answers)))

    assert (3, 4) == (found["channel_depth t c a:4151"], found["channel_depth t c b:4151"])


@pytest.mark.parametrize("max_rows,left_out", [(0, 3), (5, 2), (6, 1), (8, 1), (9, 0), (100, 0)])
def test_beyond_the_limit_whole_topics_are_left_out(max_rows: int, left_out: int) -> None:
    """They have 4, 2 and 3 rows, and the first by name stay."""
    topics = [
        topic_stats("a", *map(channel_stats, "xyz")),
        topic_stats("c", *map(channel_stats, "xy")),
        topic_stats("b", channel_stats("x")),
    ]
    found = values(parsed(families_of([stats_answer(NODE, *topics)], max_rows=max_rows)))

    shown = {key.split()[1] for key in found if key.startswith("topic_depth")}
    rows = sum(key.startswith(("topic_depth", "channel_depth")) for key in found)
    assert left_out == found["topics_left_out"]
    assert set(sorted("abc")[: 3 - left_out]) == shown
    assert max_rows >= rows


def test_channels_of_viewers_have_no_series() -> None:
    """Each reconnect of a viewer would leave twelve behind."""
    viewer = channel_stats(f"gw.{'a2' * 13}#ephemeral", depth=1)
    like_it = channel_stats("gw.tools#ephemeral", depth=2)

    found = values(parsed(families_of([stats_answer(NODE, topic_stats("t", viewer, like_it))])))

    depths = {key: each for key, each in found.items() if key.startswith("channel_depth")}
    assert {"channel_depth t gw.tools#ephemeral n:4151": 2} == depths


def test_a_hostile_name_stays_within_its_label() -> None:
    """An nsqd has no such names, but what answers at its address may not be an nsqd."""
    name = 'a"} 1\nup{x="\\'

    found = values(parsed(families_of([stats_answer(NODE, topic_stats(name, depth=7))])))

    assert 7 == found[f"topic_depth {name} {NODE}"]


async def test_both_formats_have_the_same_series() -> None:
    topics = [topic_stats("t", channel_stats("c", requeue_count=4))]
    families = families_of([stats_answer(NODE, *topics)])
    registry = CollectorRegistry()

    text, _ = await exposition(registry, "", families)
    accept = "application/openmetrics-text; version=1.0.0"
    open_text, content_type = await exposition(registry, accept, families)

    read = values(list(open_metrics(open_text.decode())))  # type: ignore[no-untyped-call]
    assert content_type.startswith("application/openmetrics-text")
    assert values(list(text_format(text.decode()))) == read
    assert 4 == read["channel_requeued_total t c n:4151"]


def test_a_family_without_samples_is_left_out() -> None:
    family = TextFamily("broker_channel_depth", "Depth.", "gauge", b"")

    assert b"" == family.encode(is_openmetrics=True)


@pytest.mark.parametrize("topics,channels", [(100, 10), (1, 1_000), (1_000, 0)])
def test_large_statistics_are_read_in_many_steps(topics: int, channels: int) -> None:
    """No step has more than 256 topics and channels to decode, or 64 of them to write."""
    entries = topics * (1 + channels)
    stats = [
        topic_stats(f"t{number}", *(channel_stats(f"c{each}") for each in range(channels)))
        for number in range(topics)
    ]
    steps = broker_families([stats_answer(NODE, *stats)], max_rows=entries)

    assert entries // 256 + entries // 64 <= sum(1 for _ in steps)
