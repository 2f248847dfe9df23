"""What /stats and /info say about channels, and what they are asked."""

from __future__ import annotations

import pytest

from gateway.client.channel_stats import (
    NodeInfo,
    read_info,
    read_stats,
    stats_question,
)
from gateway.client.node_answers import NodeAnswer, Reached, Unreachable

GONE = Unreachable(node="n:1", reason="Connection refused")


def said(body: bytes, status: int = 200) -> NodeAnswer:
    """Return the answer of a node."""
    return Reached(node="n:1", status=status, body=body)


@pytest.mark.parametrize(
    "topic,more",
    [(None, ""), ("t", "&topic=t"), ("t#ephemeral", "&topic=t%23ephemeral")],
)
def test_a_question_asks_for_no_more_than_is_wanted(topic: str | None, more: str) -> None:
    """A topic may have thousands of consumers, which nobody wants to know here."""
    path = "/stats?format=json&include_clients=false&include_mem=false"

    assert path + more == stats_question(topic).target


def test_a_channel_is_paused_with_its_topic() -> None:
    """Either holds its messages back."""
    body = b"""{"version":"1.3.0","health":"OK","start_time":7,"topics":[
        {"topic_name":"t","paused":false,"depth":1,"channels":[
            {"channel_name":"c","paused":false},{"channel_name":"d","paused":true}]},
        {"topic_name":"p","paused":true,"channels":[{"channel_name":"c","paused":false}]},
        {"topic_name":"none","channels":null}]}"""

    stats = read_stats(said(body))

    assert stats is not None
    assert {("t", "c"): False, ("t", "d"): True, ("p", "c"): True} == stats.channels()
    assert 7 == stats.start_time


def test_an_nsqd_without_topics_has_no_channels() -> None:
    """Go writes a list that was never made as null."""
    stats = read_stats(said(b'{"start_time":7,"topics":null}'))

    assert stats is not None
    assert {} == stats.channels()


def test_info_says_where_it_listens_and_since_when_it_runs() -> None:
    """What else it says is passed over."""
    body = b'{"version":"1.3.0","tcp_port":4150,"http_port":4151,"start_time":7}'

    assert NodeInfo(tcp_port=4150, start_time=7) == read_info(said(body))


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
    """Whoever asks goes on without."""
    assert (None, None) == (read_info(answer), read_stats(answer))
