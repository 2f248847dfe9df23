"""Several reports as one: nsqd's own shape, every node named, nothing lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.client.nsqd_answers import NodeAnswer, NodeResponse, NodeUnreachable
from gateway.errors import PartialFailure
from gateway.web.admin.merge import GatewayIdentity, merge_infos, merge_stats, merge_texts
from tests.support.steps import run_steps

MEMORY = {"heap_objects": 7}
GATEWAY = GatewayIdentity("0.1.0", "gw.example", "gw", 8080, 1_800_000_000)
GONE = NodeUnreachable(node="z:1", reason="Connection refused")


def topic(name: str, depth: int = 0) -> dict[str, Any]:
    """Return a topic with something of a later nsqd in it."""
    return {"topic_name": name, "channels": [], "depth": depth, "of_later": {"x": 1.50}}


def stats(*topics: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return /stats as nsqd writes it."""
    return {
        "version": "1.3.0",
        "health": "OK",
        "start_time": 1_700_000_000,
        "topics": list(topics),
        "memory": MEMORY,
        "producers": None,
        **more,
    }


def info(**more: object) -> dict[str, Any]:
    """Return /info as nsqd writes it."""
    return {
        "version": "1.3.0",
        "broadcast_address": "n1",
        "hostname": "n1",
        "http_port": 4151,
        "tcp_port": 4150,
        "start_time": 1_700_000_000,
        "max_heartbeat_interval": 60_000_000_000,
        "max_output_buffer_size": 65_536,
        "max_output_buffer_timeout": 30_000_000_000,
        "max_deflate_level": 6,
        **more,
    }


def said(node: str, document: object) -> NodeResponse:
    return NodeResponse(node=node, status=200, body=json.dumps(document).encode())


# /stats


def merged_stats(answers: Sequence[NodeAnswer]) -> bytes:
    return b"".join(run_steps(merge_stats(answers)))


def test_one_report_is_what_its_node_says_with_the_node_named() -> None:
    """A program that reads nsqd's /stats finds everything where it was."""
    report = stats(topic("b"), topic("a"), of_later=[1])

    merged = json.loads(merged_stats([said("n:1", report)]))

    assert {
        **report,
        "topics": [{**topic("a"), "node": "n:1"}, {**topic("b"), "node": "n:1"}],
        "nodes": [
            {
                "version": "1.3.0",
                "health": "OK",
                "start_time": 1_700_000_000,
                "memory": MEMORY,
                "node": "n:1",
            }
        ],
    } == merged
    assert [*report, "nodes"] == list(merged)


def test_topics_are_in_order_of_name_and_then_of_node() -> None:
    """The same topic of several nodes stands together, each with its own counts."""
    first = stats(topic("orders", 1), topic("a"))
    second = stats(topic("orders", 2))

    merged = json.loads(merged_stats([said("n2:1", first), said("n1:1", second)]))

    assert [("a", "n2:1", 0), ("orders", "n1:1", 2), ("orders", "n2:1", 1)] == [
        (each["topic_name"], each["node"], each["depth"]) for each in merged["topics"]
    ]


def test_what_is_one_for_all_is_what_a_monitor_can_rely_on() -> None:
    """The lowest version, the earliest start; memory is each node's own."""
    answers = [
        said("n1:1", stats(version="1.10.0", start_time=30)),
        said("n2:1", stats(version="1.9.1", start_time=20)),
        said("n3:1", stats(version="1.9.2-alpha", start_time=25)),
    ]

    merged = json.loads(merged_stats(answers))

    assert ("1.9.1", "OK", 20) == (merged["version"], merged["health"], merged["start_time"])
    assert "memory" not in merged
    assert [MEMORY] * 3 == [node["memory"] for node in merged["nodes"]]


def test_a_node_that_is_ill_or_not_there_is_told_as_health() -> None:
    """A monitor that looks for OK does not find it; the others' topics are there."""
    answers: list[NodeAnswer] = [
        said("n2:1", stats(topic("t"), health="NOK - disk full")),
        GONE,
        said("n1:1", stats(topic("t"))),
    ]

    merged = json.loads(merged_stats(answers))

    assert "NOK - n2:1: NOK - disk full; z:1: Connection refused" == merged["health"]
    assert ["n1:1", "n2:1"] == [each["node"] for each in merged["topics"]]
    assert {"error": "Connection refused", "node": "z:1"} == merged["nodes"][-1]


@pytest.mark.parametrize(
    "first,second,merged",
    [
        (None, None, None),
        ([], None, []),
        (None, [{"a": 1}], [{"a": 1, "node": "n2:1"}]),
        ([{"a": 1}], [{}], [{"a": 1, "node": "n1:1"}, {"node": "n2:1"}]),
    ],
)
@pytest.mark.parametrize("key", ["topics", "producers"])
def test_null_means_that_nobody_has_any(
    key: str, first: object, second: object, merged: object
) -> None:
    """As nsqd says it of itself."""
    answers = [said("n1:1", stats(**{key: first})), said("n2:1", stats(**{key: second}))]

    assert merged == json.loads(merged_stats(answers))[key]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[1]}',
        b'{"version":"1.3.0","health":"OK","start_time":"1","topics":[]}',
        b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[{"topic_name":5}]}',
        b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[{"topic_name":"\xff"}]}',
        b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[{"other":"\xff"}]}',
        b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[{"depth":"x"}]}',
        b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[{"depth":' + b"9" * 99 + b"}]}",
        b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[{"channels":[{"depth":[]}]}]}',
        b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[' + b"{}," * 99_999 + b"{}]}",
        b'{"version":"' + b"9" * 5_000 + b'","health":"OK","start_time":1,"topics":[]}',
    ],
)
def test_an_answer_that_is_none_is_an_error_of_its_node(bad: bytes) -> None:
    answers = [NodeResponse(node="n1:1", status=200, body=bad), said("n2:1", stats())]

    nodes = json.loads(merged_stats(answers))["nodes"]

    assert ["n1:1", "n2:1"] == [node["node"] for node in nodes]
    assert nodes[0]["error"].startswith("its response is invalid: ")


def test_thousands_of_topics_are_merged_in_steps() -> None:
    """Read, put in order, and joined, each a bounded part of the whole at a time."""
    answers = [
        said(node, stats(*(topic(f"t{number:05}") for number in range(5_000))))
        for node in ("n1:1", "n2:1")
    ]

    reading = merge_stats(answers)

    assert sum(1 for _ in reading) >= 2 * 2 * 5_000 / 1_000
    merged = json.loads(merged_stats(answers))["topics"]
    assert 10_000 == len(merged)
    assert merged == sorted(merged, key=lambda each: (each["topic_name"], each["node"]))


def test_a_topic_without_a_name_is_told_all_the_same() -> None:
    merged = json.loads(merged_stats([said("n:1", stats(topic("a"), {"depth": 3}))]))

    assert [{"depth": 3, "node": "n:1"}, {**topic("a"), "node": "n:1"}] == merged["topics"]


@pytest.mark.parametrize("merge", [merged_stats, merge_texts, lambda it: merge_infos(it, GATEWAY)])
def test_not_one_answer_is_a_failure(merge: Any) -> None:  # noqa: ANN401 - any of the three
    broken = NodeResponse(node="y:1", status=500, body=b'{"message":"INTERNAL_ERROR"}')

    with pytest.raises(PartialFailure) as caught:
        merge([broken, GONE])

    assert (
        "nsqd y:1: answered 500 INTERNAL_ERROR",
        "nsqd z:1: Connection refused",
    ) == caught.value.lines


# As text


def test_the_text_of_one_node_is_its_own() -> None:
    text = b"nsqd v1.3.0\n\nTopics: None\n"

    assert text == merge_texts([NodeResponse(node="n:1", status=200, body=text)])


def test_each_of_several_texts_stands_below_its_node() -> None:
    answers: list[NodeAnswer] = [NodeResponse(node="n:1", status=200, body=b"nsqd v1.3.0\n"), GONE]

    assert (b"node n:1\nnsqd v1.3.0\n\nnode z:1\nerror: Connection refused\n") == merge_texts(
        answers
    )


# /info


def test_info_says_what_holds_on_every_node() -> None:
    """The lowest of all, under nsqd's names; nobody can connect by TCP."""
    answers: list[NodeAnswer] = [
        said("n1:1", info(version="1.2.1", max_heartbeat_interval=30_000_000_000)),
        said("n2:1", info(max_output_buffer_size=1_024, topology_zone="a")),
        GONE,
    ]

    merged = json.loads(merge_infos(answers, GATEWAY))

    assert {
        "version": "1.2.1",
        "broadcast_address": "gw.example",
        "hostname": "gw",
        "http_port": 8080,
        "tcp_port": -1,
        "start_time": 1_800_000_000,
        "max_heartbeat_interval": 30_000_000_000,
        "max_output_buffer_size": 1_024,
        "max_output_buffer_timeout": 30_000_000_000,
        "max_deflate_level": 6,
        "gateway": "0.1.0",
        "nodes": [
            {
                **info(version="1.2.1", max_heartbeat_interval=30_000_000_000),
                "node": "n1:1",
            },
            {**info(max_output_buffer_size=1_024, topology_zone="a"), "node": "n2:1"},
            {"error": "Connection refused", "node": "z:1"},
        ],
    } == merged
    assert [*info(), "gateway", "nodes"] == list(merged)


def test_a_limit_that_no_node_tells_is_left_out() -> None:
    """An older nsqd has less of them."""
    merged = json.loads(merge_infos([said("n:1", {"version": "0.3.8"})], GATEWAY))

    assert "max_deflate_level" not in merged
    assert [{"version": "0.3.8", "node": "n:1"}] == merged["nodes"]
