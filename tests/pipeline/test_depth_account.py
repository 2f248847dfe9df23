"""What nsqd says of a channel."""

from __future__ import annotations

import json

import pytest

from gateway.client.node_answers import NodeAnswer, Reached, Unreachable
from gateway.pipeline.depth_account import Account, depth_question, read_depth


def answer(*topics: dict[str, object]) -> Reached:
    """Return an answer of one nsqd."""
    return Reached(node="a:1", status=200, body=json.dumps({"topics": topics}).encode())


def topic(name: str, depth: int, *channels: tuple[str, int, int, int]) -> dict[str, object]:
    """Return a topic with channels: name, depth, in flight, deferred."""
    names = ("channel_name", "depth", "in_flight_count", "deferred_count")
    return {
        "topic_name": name,
        "depth": depth,
        "channels": [dict(zip(names, channel, strict=True)) for channel in channels],
    }


def test_all_nsqd_are_summed_up() -> None:
    """What is on its way from the topic to its channels waits, too; other names do not count."""
    answers = [
        answer(topic("t", 1, ("c", 2, 3, 4), ("d", 50, 50, 50)), topic("u", 60, ("c", 60, 60, 60))),
        answer(topic("t", 10, ("c", 20, 30, 40))),
        answer(),
    ]

    assert Account(33, 33, 44) == read_depth(answers, "t", "c")
    assert 110 == Account(33, 33, 44).total


def test_a_channel_that_is_not_there_yet_begins_with_its_topic() -> None:
    """Its first consumer gets what the topic holds."""
    assert Account(7, 0, 0) == read_depth([answer(topic("t", 7))], "t", "c")
    assert ("/stats", b"t") == (depth_question("t").path, dict(depth_question("t").query)["topic"])


@pytest.mark.parametrize(
    "other",
    [
        Unreachable(node="b:1", reason="away"),
        Reached(node="b:1", status=500, body=b""),
        Reached(node="b:1", status=200, body=b"<html>"),
        Reached(node="b:1", status=200, body=b'{"topics":[{"topic_name":"t"}]}'),
    ],
)
def test_a_sum_without_one_of_them_is_none(other: NodeAnswer) -> None:
    """It would be too low, and nobody could see that."""
    assert read_depth([answer(topic("t", 7)), other], "t", "c") is None
