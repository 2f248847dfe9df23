"""What GET /nodes shows to whom."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.client.node_report import DRAIN_TOPIC, describe_nodes
from gateway.client.nsqd_answers import NodeAnswer, NodeResponse, NodeUnreachable
from tests.support.brokers.stats_answers import channel_stats, topic_stats
from tests.support.steps import run_steps

GATEWAY = "nsq-gateway/1"


def producer(user_agent: str, **counts: int) -> dict[str, Any]:
    """Return a client that has published *counts* messages, by topic."""
    return {
        "remote_address": "10.0.0.7:1",
        "hostname": "host",
        "user_agent": user_agent,
        "pub_counts": [{"topic": topic, "count": count} for topic, count in counts.items()],
    }


def described(stats: dict[str, Any], **options: Any) -> dict[str, Any]:  # noqa: ANN401 - as they are
    """Return the node of one nsqd with *stats*."""
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [], **stats}
    answer = NodeResponse(node="a:4151", status=200, body=json.dumps(document).encode())
    body = run_steps(describe_nodes([answer], [], **options))
    (node,) = json.loads(body)["nodes"]
    return dict(node)


@pytest.mark.parametrize(
    "counts,state",
    [
        ({}, "drained"),
        ({"depth": 1}, "draining"),
        ({"in_flight_count": 1}, "draining"),
        ({"deferred_count": 1}, "draining"),
    ],
)
def test_a_message_anywhere_keeps_it_draining(counts: dict[str, int], state: str) -> None:
    topics = [
        topic_stats(DRAIN_TOPIC) | {"paused": True},
        topic_stats("t", channel_stats("c", **counts)),
    ]
    assert state == described({"topics": topics})["state"]


def test_who_sees_one_topic_sees_only_its_numbers_and_producers() -> None:
    """The state is of all topics: what is left matters, whoever asks."""
    topics = [
        topic_stats(DRAIN_TOPIC) | {"paused": True},
        topic_stats("mine", channel_stats("c", depth=2)),
        topic_stats("theirs", channel_stats("c", depth=3)),
    ]
    producers = [
        producer(GATEWAY, mine=1),
        producer("mine", mine=1, theirs=2),
        producer("theirs", theirs=2),
    ]
    stats = {"topics": topics, "producers": producers}
    node = described(stats, is_shown=lambda name: name == "mine", own_user_agent=GATEWAY)

    assert ("draining", 1, 2) == (node["state"], node["topics"], node["depth"])
    assert [("mine", [{"topic": "mine", "messages": 1}])] == [
        (each["user_agent"], each["topics"]) for each in node["producers"]
    ]


def test_an_answer_that_is_no_statistics_is_unreachable_with_a_reason() -> None:
    answers: list[NodeAnswer] = [
        NodeResponse(node="a:4151", status=200, body=b"<html>"),
        NodeResponse(node="b:4151", status=502, body=b""),
        NodeUnreachable(node="c:4151", reason="no complete answer within 5 s"),
    ]
    body = run_steps(describe_nodes(answers, []))

    assert [
        ("unreachable", "its response is invalid"),
        ("unreachable", "answered 502"),
        ("unreachable", "no complete answer within 5 s"),
    ] == [(node["state"], node["error"]) for node in json.loads(body)["nodes"]]


def test_an_nsqlookupd_that_answers_nonsense_has_an_error() -> None:
    answers: list[NodeAnswer] = [
        NodeResponse(node="l:4161", status=200, body=b"[]"),
        NodeUnreachable(node="m:4161", reason="Connection refused"),
    ]
    lookupds = json.loads(run_steps(describe_nodes([], answers)))["lookupds"]

    assert ["l:4161", "m:4161"] == [each["lookupd"] for each in lookupds]
    assert "cannot be read" in lookupds[0]["error"]
    assert "Connection refused" == lookupds[1]["error"]
