"""Patterns are taken or refused as by Go's regexp, which nsqd uses."""

from __future__ import annotations

import pytest

from gateway.name_patterns import PatternRefused, check_pattern

# What regexp.Compile of Go 1.26 says to each.
TAKEN = (
    *("", ".*", "^a$", "(?P<a>x)", "(?<a>x)", r"\Qa.b\E", r"\Q\C\E", r"\Q\C", r"\\C", r"\pL"),
    *(r"\p{Greek}", "[[:word:]]", r"\z", "(?s).", "(?i)abc", r"\x{10FFFF}", r"[\d-z]"),
    *("(?U)a+", r"\_", "(?i:a)", "a{,2}", r"\p{Any}"),
)
REFUSED = (
    *(
        r"a\E",
        r"\C",
        r"a\C*",
        r"\Qa\E\C",
        r"\\\C",
        r"[\C]",
        r"\Z",
        "a{1001}",
        "(a{100}){100}",
        r"\8",
    ),
    *(r"\é", "a**", "x{2}{3}", "(?=a)", "(?<!a)", r"(a)\1", "(", "[", "a\\"),
)


@pytest.mark.parametrize("pattern", TAKEN)
def test_a_pattern_that_nsqd_takes_is_taken(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_that_nsqd_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused, match=r"the pattern .* is not valid: "):
        check_pattern(pattern)
