"""One delivery in the console: what can be answered, and when no more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.browser.javascript_tools import node
from tests.support.project import ROOT

pytestmark = pytest.mark.javascript

MODULE = ROOT / "gateway" / "web" / "site" / "static" / "console" / "delivery.js"
# The deadline passes between two ticks of the page, which look at it twice a second.
_SCRIPT = """
const { Delivery } = await import(process.argv.at(-2));
const [verb, lateMs, delayMs] = JSON.parse(process.argv.at(-1));
const nowMs = Date.now();
const sent = [];
const record = (name) => async () => sent.push(name) > 0;
const message = {
  isAnswered: false,
  deadline: nowMs - lateMs,
  finish: record("FIN"),
  requeue: record("REQ"),
  touch: record("TOUCH"),
};
const delivery = new Delivery(message, nowMs - 60_000);
const answers = {
  FIN: () => delivery.finish(nowMs),
  REQ: () => delivery.requeue(delayMs, nowMs),
  TOUCH: () => delivery.touch(),
};
const isTaken = await answers[verb]();
console.log(JSON.stringify({ isTaken, sent, state: delivery.state, note: delivery.note }));
"""


def answered(verb: str, late_ms: int, delay_ms: int = 0) -> dict[str, Any]:
    ran = node(_SCRIPT, str(MODULE), json.dumps([verb, late_ms, delay_ms]))
    found: dict[str, Any] = json.loads(ran)
    return found


def outcome(verb: str, late_ms: int) -> tuple[bool, list[str], str]:
    found = answered(verb, late_ms)
    return found["isTaken"], found["sent"], found["state"]


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
def test_a_message_that_has_timed_out_is_not_answered(verb: str) -> None:
    """It goes back at once, which frees its place in the window; nsqd has it already."""
    assert outcome(verb, 1) == (False, ["REQ"], "lost")


@pytest.mark.parametrize(
    "verb,state", [("FIN", "finished"), ("REQ", "requeued"), ("TOUCH", "in flight")]
)
def test_a_message_in_time_is_answered(verb: str, state: str) -> None:
    assert outcome(verb, -5_000) == (True, [verb], state)


@pytest.mark.parametrize(
    "delay_ms,note",
    [(0, "at once"), (1_000, "after 1 s"), (60_000, "after 1 min"), (3_600_000, "after 1 h")],
)
def test_a_delay_is_named_as_it_is_chosen(delay_ms: int, note: str) -> None:
    """In the units of the select."""
    assert answered("REQ", -5_000, delay_ms)["note"] == note
