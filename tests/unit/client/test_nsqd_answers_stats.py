"""Tests of the requests for /stats and /info, and of their decoding."""

from __future__ import annotations

import json

import pytest

from gateway.client.nsqd_answers import (
    NodeAnswer,
    NodeResponse,
    NodeUnreachable,
    NsqdInfo,
    parse_counts,
    parse_info,
    parse_pauses,
    parse_stats,
    stats_request,
)
from tests.support.steps import run_steps

GONE = NodeUnreachable(node="n:1", reason="Connection refused")


def pauses(answer: NodeAnswer, *channels: tuple[str, str]) -> dict[tuple[str, str], bool] | None:
    return run_steps(parse_pauses(answer, channels))


def said(body: bytes, status: int = 200) -> NodeAnswer:
    return NodeResponse(node="n:1", status=status, body=body)


@pytest.mark.parametrize(
    "topic,more",
    [(None, ""), ("t", "&topic=t"), ("t#ephemeral", "&topic=t%23ephemeral")],
)
def test_a_question_asks_for_no_more_than_is_wanted(topic: str | None, more: str) -> None:
    """A topic may have thousands of clients, which are not needed here."""
    path = "/stats?format=json&include_clients=false&include_mem=false"

    assert path + more == stats_request(topic).target


def test_a_channel_is_paused_with_its_topic() -> None:
    body = b"""{"version":"1.3.0","health":"OK","start_time":7,"topics":[
        {"topic_name":"t","paused":false,"depth":1,"channels":[
            {"channel_name":"c","paused":false},{"channel_name":"d","paused":true}]},
        {"topic_name":"p","paused":true,"channels":[{"channel_name":"c","paused":false}]},
        {"topic_name":"none","channels":null}]}"""

    stats = parse_stats(said(body))

    assert stats is not None
    assert {("t", "c"): False, ("t", "d"): True, ("p", "c"): True} == stats.channels()
    assert 7 == stats.start_time
    assert {("t", "d"): True} == pauses(said(body), ("t", "d"), ("none", "c"), ("u", "c"))


def test_an_nsqd_without_topics_has_no_channels() -> None:
    """Go encodes a nil list as null."""
    stats = parse_stats(said(b'{"start_time":7,"topics":null}'))

    assert stats is not None
    assert {} == stats.channels() == pauses(said(b'{"start_time":7,"topics":null}'))


def test_info_says_where_it_listens_and_since_when_it_runs() -> None:
    body = b'{"version":"1.3.0","tcp_port":4150,"http_port":4151,"start_time":7}'

    assert NsqdInfo(tcp_port=4150, start_time=7) == parse_info(said(body))


@pytest.mark.parametrize(
    "answer",
    [
        GONE,
        said(b'{"tcp_port":4150,"start_time":7,"topics":[]}', 500),
        said(b""),
        said(b"null"),
        said(b"\xff"),
        said(b"[" * 100_000),
        said(b'{"tcp_port":"4150","start_time":"7"}'),
        said(b'{"status_code":200,"data":{"tcp_port":4150,"start_time":7}}'),
    ],
)
def test_what_is_no_answer_of_nsqd_is_none(answer: NodeAnswer) -> None:
    """The result is None, and nothing is raised."""
    assert (None, None, None) == (parse_info(answer), parse_stats(answer), pauses(answer))


def test_the_pauses_of_thousands_of_topics_are_read_in_steps() -> None:
    """Each step decodes a limited number of topics."""
    topic = b'{"topic_name":"t%d","paused":true,"channels":[{"channel_name":"c"}]}'
    topics = b",".join(topic % number for number in range(5_000))
    steps = parse_pauses(said(b'{"start_time":7,"topics":[%b]}' % topics), {("t4999", "c")})

    assert sum(1 for _ in steps) >= 5_000 / 500


def test_a_topic_that_cannot_be_read_makes_the_answer_none() -> None:
    """An invalid topic anywhere makes the whole answer unusable."""
    answer = said(b'{"start_time":7,"topics":[{"topic_name":"t"},{"topic_name":5}]}')

    assert (None, None) == (parse_stats(answer), pauses(answer))


CHANNEL = {
    "channel_name": "c",
    "depth": 1,
    "backend_depth": 0,
    "in_flight_count": 0,
    "deferred_count": 0,
    "message_count": 1,
    "requeue_count": 0,
    "timeout_count": 0,
}
TOPIC = {
    "topic_name": "t",
    "depth": 0,
    "backend_depth": 0,
    "message_count": 1,
    "channels": [CHANNEL],
}


def counted(**members: object) -> object:
    topic = {**TOPIC, **members}
    body = json.dumps({"version": "1.3.0", "start_time": 7, "topics": [topic]}).encode()
    return run_steps(parse_counts(said(body)))


@pytest.mark.parametrize("depth", [0, -10, 2**63 - 1, -(2**63)])
def test_a_depth_has_the_64_bits_of_nsqd(depth: int) -> None:
    """It is negative where the files of a disk queue are damaged."""
    assert counted(depth=depth) is not None


@pytest.mark.parametrize(
    "members",
    [
        {"depth": 2**63},
        {"depth": 10**4_000},
        {"depth": "x"},
        {"depth": None},
        {"depth": 1.5},
        {"topic_name": "t" * 65},
        {"channels": [{**CHANNEL, "channel_name": "c" * 65}]},
        {"channels": [{**CHANNEL, "in_flight_count": -(2**63) - 1}]},
    ],
)
def test_counts_that_nsqd_cannot_send_are_not_taken(members: dict[str, object]) -> None:
    """What calculates with them and prints them relies on that."""
    assert counted(**members) is None


@pytest.mark.parametrize("value", [b"0", b"{}", b"[]", b'""'])
def test_an_answer_of_tiny_values_is_not_decoded(value: bytes) -> None:
    """32 MB of them would be a gigabyte of objects; a large answer of nsqd is not refused."""
    tiny = b'{"start_time":7,"topics":[' + value + (b"," + value) * 100_000 + b"]}"
    topics = [{"topic_name": str(number), "channels": [CHANNEL]} for number in range(5_000)]

    assert parse_stats(said(tiny)) is None
    assert parse_stats(said(json.dumps({"start_time": 7, "topics": topics}).encode())) is not None
