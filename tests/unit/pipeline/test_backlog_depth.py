"""The backlog of a channel, from nsqd's /stats."""

from __future__ import annotations

import json

import pytest

from gateway.client.nsqd_answers import NodeAnswer, NodeResponse, NodeUnreachable
from gateway.pipeline.backlog import ChannelBacklog, depth_request, read_depth


def answer(*topics: dict[str, object]) -> NodeResponse:
    """Return an answer of one nsqd."""
    return NodeResponse(node="a:1", status=200, body=json.dumps({"topics": topics}).encode())


def topic(name: str, depth: int, *channels: tuple[str, int, int, int]) -> dict[str, object]:
    names = ("channel_name", "depth", "in_flight_count", "deferred_count")
    return {
        "topic_name": name,
        "depth": depth,
        "channels": [dict(zip(names, channel, strict=True)) for channel in channels],
    }


def test_all_nsqd_are_summed_up() -> None:
    """Messages in the topic's queue count as waiting; other topics and channels do not count."""
    answers = [
        answer(topic("t", 1, ("c", 2, 3, 4), ("d", 50, 50, 50)), topic("u", 60, ("c", 60, 60, 60))),
        answer(topic("t", 10, ("c", 20, 30, 40))),
        answer(),
    ]

    assert ChannelBacklog(33, 33, 44) == read_depth(answers, "t", "c")
    assert 110 == ChannelBacklog(33, 33, 44).total


def test_a_channel_that_is_not_there_yet_begins_with_its_topic() -> None:
    """Its first consumer receives the messages in the topic's queue."""
    assert ChannelBacklog(7, 0, 0) == read_depth([answer(topic("t", 7))], "t", "c")
    assert ("/stats", b"t") == (depth_request("t").path, dict(depth_request("t").query)["topic"])


@pytest.mark.parametrize(
    "other",
    [
        NodeUnreachable(node="b:1", reason="away"),
        NodeResponse(node="b:1", status=500, body=b""),
        NodeResponse(node="b:1", status=200, body=b"<html>"),
        NodeResponse(node="b:1", status=200, body=b'{"topics":[{"topic_name":"t"}]}'),
    ],
)
def test_a_sum_with_an_unreadable_answer_is_none(other: NodeAnswer) -> None:
    """The sum without that nsqd would be too low, without a sign of that."""
    assert read_depth([answer(topic("t", 7)), other], "t", "c") is None
