"""What falls behind, and why; what is kept for charts; and which page an address names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.browser.javascript_tools import node
from tests.support.project import ROOT

pytestmark = pytest.mark.javascript

FOLDER = ROOT / "gateway" / "web" / "site" / "static" / "console"
_JUDGE = """
const { Trends } = await import(process.argv.at(-2) + "/trouble.js");
const { readReport } = await import(process.argv.at(-2) + "/report.js");
const trends = new Trends();
let before = null;
let found = [];
for (const [atMs, stats] of JSON.parse(process.argv.at(-1))) {
  before = readReport(stats, atMs, before);
  found = trends.judge(before);
}
const told = found.map(({ topic, channel, growth, why }) => [topic, channel.name, growth, why]);
console.log(JSON.stringify(told));
"""
_KEEP = """
const { QueueHistory } = await import(process.argv.at(-2) + "/series.js");
const { readReport } = await import(process.argv.at(-2) + "/report.js");
const history = new QueueHistory();
for (const [atMs, stats] of JSON.parse(process.argv.at(-1)))
  history.add(readReport(stats, atMs, null));
const valuesOf = ({ points }) => points.map(({ value }) => value);
const values = (channel) => history.of("t", channel).map(valuesOf);
console.log(JSON.stringify(["", "c", "d", "c1999", "c2000"].map(values)));
"""
_PARSE = """
globalThis.addEventListener = () => {};
const { addressOf, parseView } = await import(process.argv.at(-2) + "/views.js");
const [hash, hasTopic] = JSON.parse(process.argv.at(-1));
const { name, topic, channel } = parseView(hash, hasTopic);
console.log(JSON.stringify([name, topic, channel, addressOf(topic, channel)]));
"""


def channel(name: str, **counts: int | bool) -> dict[str, Any]:
    return {"channel_name": name, "client_count": 1, **counts}


def stats(*channels: dict[str, Any], **topic: int | bool) -> dict[str, Any]:
    """Return /stats with one topic."""
    return {"topics": [{"topic_name": "t", "node": "n", "channels": channels, **topic}]}


def kept(*readings: tuple[int, dict[str, Any]]) -> list[list[list[int]]]:
    """Return depths and in flight of the topic, and of "c", "d", "c1999", "c2000"."""
    asked = json.dumps([[at_s * 1_000, read] for at_s, read in readings])
    found: list[list[list[int]]] = json.loads(node(_KEEP, str(FOLDER), asked))
    return found


def judged(*readings: tuple[int, dict[str, Any]]) -> list[list[Any]]:
    """Return what is found after *readings*, each at a time in s."""
    asked = json.dumps([[at_s * 1_000, read] for at_s, read in readings])
    found: list[list[Any]] = json.loads(node(_JUDGE, str(FOLDER), asked))
    return found


@pytest.mark.parametrize(
    "then,now,why",
    [
        ({"depth": 5}, {"depth": 5}, ""),
        ({"depth": 5}, {"depth": 5, "client_count": 0}, "no consumers"),
        ({"depth": 0}, {"depth": 0, "client_count": 0}, ""),
        ({"depth": 5}, {"depth": 5, "paused": True}, "paused"),
        ({"depth": 5}, {"depth": 14}, ""),
        ({"depth": 5}, {"depth": 15}, "grows by 10 a minute"),
        ({"depth": 15}, {"depth": 5}, ""),
        ({"depth": 1_513}, {"depth": 1_500}, "shrinks slowly: empty in 1 h 55 min"),
        ({"depth": 2_000}, {"depth": 1_500}, ""),
        ({"depth": 2_000}, {"depth": 1_987, "in_flight_count": 200}, "grows by 187 a minute"),
        ({"depth": 200}, {"depth": 187, "deferred_count": 13}, ""),
        ({"depth": 0}, {"depth": 9, "in_flight_count": 50}, ""),
        ({"timeout_count": 1}, {"timeout_count": 3}, "2 timeouts a minute"),
        ({"timeout_count": 9}, {"timeout_count": 0}, ""),
    ],
    ids=[
        "steady",
        "nobody consumes it",
        "nothing waits",
        "paused",
        "no trend yet",
        "it grows",
        "it shrinks",
        "it shrinks slowly",
        "it shrinks fast",
        "a consumer holds what it has taken",
        "a consumer defers what it has taken",
        "consumers happen to have more in flight",
        "messages time out",
        "nsqd was restarted",
    ],
)
def test_a_channel_falls_behind_for_a_reason(
    then: dict[str, Any], now: dict[str, Any], why: str
) -> None:
    """Between two readings, a minute apart."""
    found = judged((0, stats(channel("c", **then))), (60, stats(channel("c", **now))))

    assert [why] == [each[3] for each in found]


def test_a_trend_is_of_the_last_minute() -> None:
    """Not of all the time that the page is open."""
    readings = [(at_s, stats(channel("c", depth=min(at_s, 120)))) for at_s in range(0, 300, 2)]

    assert [["t", "c", 0, ""]] == judged(*readings)


def test_what_is_bad_comes_first_then_what_waits_most() -> None:
    """By depth within the same trouble, then by name."""
    channels = [
        channel("fine", depth=900),
        channel("b", depth=1),
        channel("a", depth=1),
        channel("left", depth=2, client_count=0),
        channel("paused", depth=3, paused=True),
        channel("more-left", depth=4, client_count=0),
    ]
    found = judged((0, stats(*channels)))

    assert ["more-left", "left", "paused", "fine", "a", "b"] == [each[1] for each in found]


def test_the_mark_of_a_drain_is_no_topic() -> None:
    """The page of nodes shows it; a topic of that name that is in use is one."""
    mark = {"topic_name": "gw.draining", "node": "n", "paused": True, "channels": []}
    used = {**mark, "paused": False, "depth": 1}

    assert [] == judged((0, {"topics": [mark]}))
    assert [["gw.draining", "", None, "no channels"]] == judged((0, {"topics": [mark, used]}))


def test_a_topic_without_channels_has_trouble_if_something_waits() -> None:
    assert [["t", "", None, "no channels"]] == judged((0, stats(depth=1)))
    assert [] == judged((0, stats(depth=0)))


def test_three_minutes_of_each_queue_are_kept() -> None:
    """Of a topic with its channels; what is gone is forgotten."""
    both = stats(channel("c", depth=1, in_flight_count=2), channel("d", depth=3), depth=4)
    later = stats(channel("c", depth=5, in_flight_count=6))
    of_topic, of_c, of_d, *_ = kept((0, both), (20, both), (190, later))

    assert [[8, 5], [2, 6]] == of_topic
    assert [[1, 5], [2, 6]] == of_c
    assert [[], []] == of_d


def test_the_queues_that_are_kept_are_limited() -> None:
    """To 2,000, so that the page does not grow with the cluster."""
    many = stats(*({"channel_name": f"c{number}"} for number in range(2_100)))
    *_, within, beyond = kept((0, many))

    assert [[0], [0]] == within
    assert [[], []] == beyond


@pytest.mark.parametrize(
    "hash_,has_topic,expected",
    [
        ("", False, ["overview", "", ""]),
        ("", True, ["messages", "", ""]),
        ("#/", True, ["overview", "", ""]),
        ("#/messages", False, ["messages", "", ""]),
        ("#/nodes", False, ["nodes", "", ""]),
        ("#/topics/t", False, ["subject", "t", ""]),
        ("#/topics/t/c", False, ["subject", "t", "c"]),
        ("#/topics/t%23ephemeral/c%23ephemeral", False, ["subject", "t#ephemeral", "c#ephemeral"]),
        ("#/topics/%zz", False, ["subject", "%zz", ""]),
        ("#/topics/", False, ["overview", "", ""]),
        ("#/?filter=t%2Fc&channels=-depth", False, ["overview", "", ""]),
        ("#/messages?x=1", True, ["messages", "", ""]),
        ("#/somewhere", False, ["overview", "", ""]),
    ],
)
def test_an_address_names_a_page(hash_: str, expected: list[str], *, has_topic: bool) -> None:
    """The address of a topic or channel is read back as it was."""
    *view, address = json.loads(node(_PARSE, str(FOLDER), json.dumps([hash_, has_topic])))

    assert expected == view
    if expected[0] == "subject" and "%zz" not in hash_:
        assert hash_ == address
