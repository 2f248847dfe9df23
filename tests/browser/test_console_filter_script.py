"""The filter of messages: which messages a text selects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.browser.javascript_tools import node
from tests.support.project import ROOT

pytestmark = pytest.mark.javascript

MODULE = ROOT / "gateway" / "web" / "site" / "static" / "console" / "message_filter.js"
_NOW_MS = 1_790_000_000_000
_SCRIPT = """
const { parseFilter } = await import(process.argv.at(-2));
const [text, nowMs, messages] = JSON.parse(process.argv.at(-1));
const condition = parseFilter(text);
const deliveries = messages.map(({ ageMs, ...message }) => ({
  message: { ...message, timestampNs: BigInt(nowMs - ageMs) * 1000000n },
}));
const found = deliveries.map((delivery) => condition === null || condition(delivery, nowMs));
console.log(JSON.stringify(found));
"""


def message(body: str, *, attempts: int = 1, age_ms: int = 0, id_: str = "0d3a") -> dict[str, Any]:
    return {"id": id_, "body": body, "attempts": attempts, "ageMs": age_ms}


MESSAGES = {
    "order": message(
        '{"order": 1, "customer": {"city": "Lisbon", "name": "Ada Lovelace"}, "tags": ["a"]}'
    ),
    "again": message("plain text of Ada", attempts=3),
    "old": message("", age_ms=600_000, id_="ffff"),
    "broken": message('{"order": 1'),
}
NUMBERS = {
    "one": message('{"id": 9007199254740993, "rate": 27.0, "of": {"ids": [9007199254740993]}}'),
    "next": message('{"id": 9007199254740992, "rate": "27.0", "text": "1.0 \\"2.0\\" 3.0"}'),
    "invalid": message('{"id": 09007199254740993, 0.5: 1}'),
}


@pytest.mark.parametrize(
    "text,expected",
    [
        ("", {"order", "again", "old", "broken"}),
        ("  ", {"order", "again", "old", "broken"}),
        ("ada", {"order", "again"}),
        ("plain Ada", {"again"}),
        ("plain order", set()),
        ("ffff", {"old"}),
        ("attempts>2", {"again"}),
        ("attempts=1", {"order", "old", "broken"}),
        ("attempts<=3 text", {"again"}),
        ("age>5min", {"old"}),
        ("age<1d", {"order", "again", "old", "broken"}),
        ("age<1", {"order", "again", "broken"}),
        ("age>=600000ms", {"old"}),
        (".order=1", {"order"}),
        (".customer.city=Lisbon", {"order"}),
        (".customer.city=Oslo", set()),
        (".customer.town=Lisbon", set()),
        ('.tags=["a"]', {"order"}),
        (".tags.0=a", {"order"}),
        (".toString=x", set()),
        ("'plain text'", {"again"}),
        ('"text plain"', set()),
        ('.customer.name="ada lovelace"', {"order"}),
        (".customer.name='Ada Lovelace'", {"order"}),
        (".customer.name=Ada Lovelace", set()),
        (".order>0", {"order"}),
        (".order>=1", {"order"}),
        (".order<1", set()),
        (".customer.city>1", set()),
        ('"', {"order", "broken"}),
        ("attempts>x", set()),
    ],
)
def test_a_text_selects_messages(text: str, expected: set[str]) -> None:
    """Every word of it must hold; a word that is no condition is looked for."""
    assert expected == selected(text, MESSAGES)


@pytest.mark.parametrize(
    "text,expected",
    [
        (".id=9007199254740993", {"one"}),
        (".id=9007199254740992", {"next"}),
        (".of.ids=[9007199254740993]", {"one"}),
        (".rate=27.0", {"one", "next"}),
        (".rate=27", {"one"}),
        (".rate=27.00", {"one"}),
        (".rate>26.9", {"one", "next"}),
        (""".text='1.0 "2.0" 3.0'""", {"next"}),
        (".rate=", set()),
    ],
)
def test_a_number_is_compared_as_it_is_written(text: str, expected: set[str]) -> None:
    """JavaScript would round 9007199254740993, and forget that 27.0 is no integer."""
    assert expected == selected(text, NUMBERS)


def selected(text: str, messages: dict[str, dict[str, Any]]) -> set[str]:
    """Return the names of the messages that *text* selects."""
    asked = json.dumps([text, _NOW_MS, list(messages.values())])
    found = json.loads(node(_SCRIPT, str(MODULE), asked))
    return {name for name, holds in zip(messages, found, strict=True) if holds}
