"""What the console takes for a metric of the pipeline, and how much of it it keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.browser.javascript_tools import node
from tests.support.project import ROOT

pytestmark = pytest.mark.javascript

MODULE = ROOT / "gateway" / "web" / "site" / "static" / "console" / "metrics.js"
_SCRIPT = """
const { MetricsBook, readMetric } = await import(process.argv.at(-2));
const book = new MetricsBook();
const read = JSON.parse(process.argv.at(-1)).map((body) => readMetric(body));
for (const metric of read) if (metric !== null) book.put(metric);
const windows = Object.fromEntries(book.topics.map((topic) => [topic, book.windows(topic)]));
console.log(JSON.stringify({ taken: read.map((each) => each !== null), windows }));
"""
METRIC: dict[str, Any] = {
    "topic": "orders",
    "window_start": "2026-11-22T10:00:00Z",
    "window_end": "2026-11-22T10:01:00Z",
    "count": 120,
    "bytes": 24_000,
    "redelivered": 2,
    "max_attempts": 3,
    "p50_ms": 4.5,
    "p95_ms": 20,
    "p99_ms": 31,
}


def said(*bodies: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node(_SCRIPT, str(MODULE), json.dumps(bodies)))
    return found


def metric(**parts: Any) -> str:  # noqa: ANN401 - any JSON
    """Return the body of a metric with some of its parts said otherwise."""
    return json.dumps(METRIC | parts)


def minute(number: int) -> dict[str, str]:
    times = [f"2026-11-22T{at // 60:02}:{at % 60:02}:00Z" for at in (number, number + 1)]
    return {"window_start": times[0], "window_end": times[1]}


def test_a_metric_is_known_by_its_shape() -> None:
    """No setting says which topic has metrics; a latency may be missing."""
    found = said(metric(), metric(p99_ms=None, **minute(601)))

    assert [True, True] == found["taken"]
    first, second = found["windows"]["orders"]
    assert (60_000, 120, 2, [4.5, 20, 31]) == (
        first["spanMs"],
        first["count"],
        first["redelivered"],
        first["latenciesMs"],
    )
    assert [4.5, 20, None] == second["latenciesMs"]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "window_start",
        '{"window_start"',
        '{"window_start": 1}',
        "[" + metric() + "]",
        metric(topic=""),
        metric(topic=7),
        metric(topic="t" * 129),
        metric(count="120"),
        metric(count=-1),
        metric(window_end="2026-11-22T10:00:00Z"),
        metric(window_start="soon"),
        metric(p50_ms="4"),
        metric(note="x" * 2_048),
    ],
)
def test_anything_else_is_passed_over(body: str) -> None:
    """Other messages, half ones, wrong ones and long ones."""
    assert {"taken": [False], "windows": {}} == said(body)


def test_a_window_that_is_told_again_takes_the_place_of_the_first() -> None:
    """By topic and beginning; what comes late with less does not set it back."""
    found = said(metric(count=1), metric(count=5), metric(count=3), metric(count=5, p50_ms=9))

    (only,) = found["windows"]["orders"]
    assert (5, 9) == (only["count"], only["latenciesMs"][0])


def test_the_newest_windows_and_the_last_topics_are_kept() -> None:
    """120 windows of a topic, 20 topics: a page that stands for weeks does not grow."""
    windows = said(*(metric(**minute(at)) for at in range(130)))["windows"]["orders"]
    topics = said(*(metric(topic=f"t{at:02}") for at in (*range(20), 0, 20)))["windows"]

    assert 120 == len(windows)
    assert windows[-1]["atMs"] - windows[0]["atMs"] == 119 * 60_000
    assert sorted({f"t{at:02}" for at in range(21)} - {"t01"}) == list(topics)
