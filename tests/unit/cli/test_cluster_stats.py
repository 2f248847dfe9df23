"""Sums over nsqds, what a destructive command destroys, and tables that people can read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.cli.cluster_stats import (
    ClusterStats,
    InvalidStatistics,
    channel_row,
    describe_loss,
    matching,
    most_trouble_first,
    node_row,
    ordered,
    parse_cluster_stats,
    parse_nodes,
    table,
    topic_row,
    with_rates,
)
from tests.support.brokers.stats_answers import channel_stats, topic_stats


def parsed(*topics: dict[str, Any], **errors: str) -> ClusterStats:
    """Return the sums of *topics*, whose node is "a" if they name none; *errors* are by node."""
    placed = [{"node": "a", **topic} for topic in topics]
    names = sorted({topic["node"] for topic in placed})
    nodes: list[dict[str, Any]] = [
        {"node": name, "version": "1.3.0", "health": "OK", "start_time": 1} for name in names
    ]
    nodes += [{"node": name, "error": error} for name, error in errors.items()]
    return parse_cluster_stats(json.dumps({"topics": placed, "nodes": nodes}).encode())


def test_a_channel_is_summed_over_its_nsqds() -> None:
    counts = {
        "depth": 1,
        "in_flight_count": 2,
        "deferred_count": 3,
        "requeue_count": 4,
        "timeout_count": 5,
        "message_count": 6,
        "client_count": 7,
    }
    stats = parsed(
        topic_stats("t", channel_stats("c", **counts)),
        topic_stats("t", channel_stats("c", **counts), channel_stats("d")) | {"node": "b"},
    )

    rows = {row["channel"]: row for row in map(channel_row, stats.channels)}
    expected = {
        "topic": "t",
        "channel": "c",
        "depth": 2,
        "in_flight": 4,
        "deferred": 6,
        "requeued": 8,
        "timed_out": 10,
        "messages": 12,
        "consumers": 14,
        "nodes": 2,
        "paused": False,
    }
    assert expected == rows["c"]
    assert 1 == rows["d"]["nodes"]


def test_the_depth_of_a_topic_includes_its_channels() -> None:
    channel = channel_stats("c", depth=3, in_flight_count=2, deferred_count=1)
    stats = parsed(topic_stats("t", channel, depth=10, message_count=20))

    row = topic_row(stats.topics["t"])
    assert (13, 2, 1, 20) == (row["depth"], row["in_flight"], row["deferred"], row["messages"])


def test_an_nsqd_that_does_not_answer_is_in_the_list_with_its_error() -> None:
    stats = parsed(topic_stats("t", depth=1), b="no answer")

    assert [("a", None, 1), ("b", "no answer", 0)] == [
        (node.node, node.error, node.depth) for node in stats.nodes
    ]
    assert ["b"] == [node.node for node in stats.lost]


def test_one_nsqd_has_only_its_own_part_of_a_topic() -> None:
    topics = topic_stats("t", depth=1), topic_stats("t", depth=2) | {"node": "b"}
    body = json.dumps({"topics": [{"node": "a", **each} for each in topics], "nodes": []}).encode()

    stats = parse_cluster_stats(body, node="b")
    assert [("b", 2)] == [(node.node, node.depth) for node in stats.nodes]
    assert 2 == stats.topics["t"].depth


def test_a_node_that_does_not_answer_has_the_reason_as_its_health() -> None:
    lookupds = [
        {"lookupd": "l1", "error": "no answer"},
        {"lookupd": "l2", "nodes": [], "missing": ["a:4150"]},
    ]
    nodes = [
        {"node": "a:4151", "state": "active", "health": "OK", "depth": 1, "in_flight": 2},
        {"node": "b:4151", "state": "unreachable", "error": "refused"},
    ]
    report = parse_nodes(json.dumps({"nodes": nodes, "lookupds": lookupds}).encode())

    assert [("a:4151", "active", "OK"), ("b:4151", "unreachable", "refused")] == [
        (row["node"], row["state"], row["health"]) for row in map(node_row, report.nodes)
    ]
    assert [3, 0] == [node.waiting for node in report.nodes]
    assert [
        "nsqlookupd l1 did not answer: no answer",
        "nsqlookupd l2 does not know nsqd a:4150, which others do",
    ] == [problem for each in report.lookupds for problem in each.problems]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"nodes":[{}],"lookupds":[]}', b"[" * 100_000])
def test_what_does_not_describe_nodes_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidStatistics, match="check --url"):
        parse_nodes(body)


@pytest.mark.parametrize("paused_at", ["topic", "channel"])
def test_paused_at_one_nsqd_is_paused(paused_at: str) -> None:
    topic = topic_stats("t", channel_stats("c"))
    elsewhere = json.loads(json.dumps(topic)) | {"node": "b"}
    (topic if paused_at == "topic" else topic["channels"][0])["paused"] = True

    stats = parsed(topic, elsewhere)
    assert [paused_at == "topic"] == [each.paused for each in stats.topics.values()]
    assert [paused_at == "channel"] == [each.paused for each in stats.channels]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"nodes":[],"topics":[{}]}', b"[" * 100_000, b"<html>"]
)
def test_what_is_no_statistics_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidStatistics, match="check --url"):
        parse_cluster_stats(body)


def test_no_topics_are_no_error() -> None:
    """nsqd has null for an empty list."""
    assert {} == parse_cluster_stats(b'{"nodes":[],"topics":null}').topics


@pytest.mark.parametrize(
    "column,expected",
    [("depth", ["b", "a", "c"]), ("consumers", ["c", "a", "b"]), ("channel", ["a", "b", "c"])],
)
def test_rows_are_in_the_order_that_is_asked_for(column: str, expected: list[str]) -> None:
    """Numbers from the largest, names from a; equal ones by what falls behind."""
    stats = parsed(
        topic_stats(
            "t",
            channel_stats("a", depth=1, client_count=1),
            channel_stats("b", depth=9),
            channel_stats("c", client_count=3),
        )
    )
    rows = ordered(map(channel_row, stats.channels), column)

    assert expected == [row["channel"] for row in rows]


def test_what_nobody_consumes_comes_first_then_what_waits_most() -> None:
    stats = parsed(
        topic_stats(
            "t",
            channel_stats("busy", depth=500, client_count=1),
            channel_stats("left", depth=1),
            channel_stats("quiet", client_count=1),
            channel_stats("paused", depth=2) | {"paused": True},
            channel_stats("unused"),
        )
    )

    rows = sorted(map(channel_row, stats.channels), key=most_trouble_first)
    assert ["left", "busy", "paused", "quiet", "unused"] == [row["channel"] for row in rows]


@pytest.mark.parametrize(
    "action,channel,expected",
    [
        ("delete", None, "delete topic t: 2 channels and 17 messages on 1 nsqd"),
        ("empty", None, "empty topic t: 10 messages on 1 nsqd"),
        ("delete", "c", "delete channel c of topic t: 6 messages on 1 nsqd"),
        ("empty", "d", "empty channel d of topic t: 1 message on 1 nsqd"),
    ],
)
def test_a_destructive_command_says_what_is_lost(
    action: str, channel: str | None, expected: str
) -> None:
    """To empty a topic leaves its channels as they are."""
    counts = {"depth": 3, "in_flight_count": 2, "deferred_count": 1}
    stats = parsed(
        topic_stats("t", channel_stats("c", **counts), channel_stats("d", depth=1), depth=10)
    )

    assert f"{expected}, which cannot be brought back" == describe_loss(action, stats, "t", channel)


def test_an_nsqd_that_does_not_answer_may_lose_messages_as_well() -> None:
    """The text names it; what is only there is not known to be missing."""
    stats = parsed(topic_stats("t", channel_stats("c", depth=3)), b="no answer")

    assert (
        "empty channel c of topic t: at least 3 messages on 1 nsqd, which cannot be brought back; "
        "not counted, because they did not answer: b"
    ) == describe_loss("empty", stats, "t", "c")
    assert (
        "delete topic u: no nsqd that answered has it; not counted, because they did not answer: b"
    ) == describe_loss("delete", stats, "u", None)


def test_nobody_has_a_topic_that_is_in_no_statistics() -> None:
    assert "delete topic u: no nsqd has it" == describe_loss("delete", parsed(), "u", None)


def test_rates_need_two_readings_and_counters_that_rise() -> None:
    """A counter falls when an nsqd restarts."""
    row = {"messages": 30, "requeued": 5, "timed_out": 1}
    before = {"messages": 10, "requeued": 9, "timed_out": 1}

    assert [None] * 3 == list(with_rates(row, None, 2.0).values())[3:]
    rated = with_rates(row, before, 4.0)
    assert [5.0, None, 0.0] == [
        rated[f"{name}_per_s"] for name in ("messages", "requeued", "timed_out")
    ]


def test_a_table_has_names_on_the_left_and_numbers_on_the_right() -> None:
    rows = [
        {"topic": "orders", "depth": 1_234_567, "messages_per_s": None, "paused": True},
        {"topic": "a", "depth": 5, "messages_per_s": 1_000.0, "paused": False},
    ]

    assert [
        "topic       depth  messages/s  paused",
        "orders  1 234 567           -  paused",
        "a               5     1 000.0",
    ] == table(rows, ["topic", "depth", "messages_per_s", "paused"])


def test_long_names_are_shortened_in_the_middle_to_fit_a_terminal() -> None:
    """Beginning and end tell names apart; numbers stay whole."""
    rows = [{"topic": "orders-of-the-warehouse-in-the-north-2026", "depth": 123_456}]

    lines = table(rows, ["topic", "depth"], width=30)
    assert "orders-of-…north-2026  123 456" == lines[1]
    assert [30, 30] == list(map(len, lines))


def test_a_terminal_that_is_too_narrow_still_shows_twelve_characters() -> None:
    rows = [{"topic": "x" * 60, "channel": "y" * 60, "depth": 1}]

    (_, line) = table(rows, ["topic", "channel", "depth"], width=10)
    assert [12, 12, 1] == list(map(len, line.split()))


def test_a_pattern_may_match_any_name_of_a_row() -> None:
    rows = [{"topic": "a", "channel": "b"}, {"topic": "c", "channel": "a"}, {"topic": "d"}]

    assert rows[:2] == matching(rows, "a".__eq__)


def test_a_row_of_a_hostile_name_is_one_line_without_control_characters() -> None:
    stats = parsed(topic_stats("\x1b[2J\nt", channel_stats("c\r\x07")))
    lines = table([channel_row(each) for each in stats.channels], ["topic", "channel"])

    assert all(line.isprintable() for line in lines)
    assert 2 == len(lines)
