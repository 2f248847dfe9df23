"""What the console takes for allowed: as the gateway, or more where it cannot know."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.rights import Grant, Permission, Rights
from gateway.name_patterns import PatternRefused, check_pattern
from tests.support.browser.javascript_tools import node
from tests.support.project import ROOT

pytestmark = pytest.mark.javascript

MODULE = ROOT / "gateway" / "web" / "site" / "static" / "console" / "grants.js"
_SCRIPT = """
const { allowsPublish, allowsSubscribe } = await import(process.argv.at(-2));
const asked = JSON.parse(process.argv.at(-1));
console.log(JSON.stringify(asked.map(({ grants, topic, channel }) => [
  allowsPublish(grants, topic),
  allowsSubscribe(grants, topic, channel),
])));
"""
NAMES = ("orders", "old-orders-2", "orders.dead", "billing", "Orders", "a#ephemeral")
SIMPLE = (
    "",
    ".*",
    "orders",
    "^orders$",
    "^orders",
    "orders$",
    "^(orders|billing)$",
    "^[a-z]+$",
    "[.]dead$",
    "^o.d?ers",
    "#ephemeral$",
    r"^gw\.[a-z2-7]{26}#ephemeral$",
    "^$",
)
# RE2 has another meaning for them than a browser, or a browser may take long.
UNKNOWN = (r"\Aorders\z", "(?i)ORDERS", "[[:alpha:]]", r"\Qorders\E", r"\pN", "(a+)+$", "(?P<n>o)")
CASES = 300


class Asked(msgspec.Struct):
    """One question to both."""

    grants: Sequence[Grant]
    topic: str
    channel: str

    @property
    def allowed(self) -> list[bool]:
        """What the gateway allows: to publish, and to subscribe."""
        rights = Rights(self.grants)
        return [
            rights.allows(Permission.PUBLISH, self.topic),
            rights.allows(Permission.SUBSCRIBE, self.topic, self.channel)
            if self.channel
            else rights.allows_viewer(self.topic),
        ]


def shown(asked: Sequence[Asked]) -> list[list[bool]]:
    """Return what the console takes for allowed."""
    found: list[list[bool]] = json.loads(
        node(_SCRIPT, str(MODULE), msgspec.json.encode(asked).decode())
    )
    return found


def grants_of(patterns: Sequence[str]) -> st.SearchStrategy[Grant]:
    pattern = st.sampled_from(patterns)
    return st.builds(
        Grant,
        topic=pattern,
        permissions=st.lists(st.sampled_from(list(Permission)), max_size=3).map(tuple),
        channels=st.lists(pattern, max_size=2).map(tuple),
    )


def questions(patterns: Sequence[str]) -> st.SearchStrategy[list[Asked]]:
    each = st.builds(
        Asked,
        grants=st.lists(grants_of(patterns), max_size=3),
        topic=st.sampled_from(NAMES),
        channel=st.sampled_from(("", *NAMES)),
    )
    return st.lists(each, min_size=CASES, max_size=CASES)


@settings(max_examples=5)
@given(questions(SIMPLE))
def test_simple_patterns_are_judged_as_in_the_gateway(asked: list[Asked]) -> None:
    assert [each.allowed for each in asked] == shown(asked)


@settings(max_examples=5)
@given(questions((*SIMPLE, *UNKNOWN)))
def test_nothing_that_the_gateway_allows_is_hidden(asked: list[Asked]) -> None:
    """A pattern that a browser cannot judge counts as matching: the gateway decides."""
    hidden = [
        each
        for each, found in zip(asked, shown(asked), strict=True)
        if any(allowed and not seen for allowed, seen in zip(each.allowed, found, strict=True))
    ]

    assert [] == hidden


@settings(max_examples=20)
@given(
    st.lists(st.text("orde.^$|()[]{}*+?\\-aAzZpdwsQEP<:2,", max_size=8), min_size=40, max_size=60)
)
def test_no_pattern_of_the_gateway_hides_what_it_allows(patterns: list[str]) -> None:
    """Patterns of random characters, as far as RE2 takes them."""
    asked = []
    for pattern in patterns:
        try:
            check_pattern(pattern)
        except PatternRefused:
            continue
        grant = Grant(pattern, (Permission.PUBLISH, Permission.SUBSCRIBE), (pattern,))
        asked += [Asked([grant], name, name) for name in NAMES]
    hidden = [
        each
        for each, found in zip(asked, shown(asked), strict=True)
        if any(allowed and not seen for allowed, seen in zip(each.allowed, found, strict=True))
    ]

    assert [] == hidden


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "((a*)*)*$", "a*a*a*a*a*a*a*a*$"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """RE2 takes linear time for each; a browser would take years for some."""
    grant = Grant(pattern, (Permission.PUBLISH,))
    began = time.monotonic()
    shown([Asked([grant], "a" * 63 + "!", "")])

    assert time.monotonic() - began < 10
