"""Tests of `ErrorCache`: recent refusals repeated without asking nsqd."""

from __future__ import annotations

from gateway.client.error_cache import ErrorCache
from gateway.credentials import Secret
from gateway.errors import BrokerRefused

KEY = (Secret(b"alice"), "t", "c")
REFUSED = BrokerRefused("E_UNAUTHORIZED", 'AUTH failed for SUB on "t" "c"')


def told(refusals: ErrorCache, key: object, now: float) -> str | None:
    found = refusals.find(key, now)
    return None if found is None else str(found)


def test_a_refusal_is_told_again_within_its_time() -> None:
    """It is returned for less than a second."""
    refusals = ErrorCache()

    refusals.remember(KEY, REFUSED, 10.0)

    assert [str(REFUSED), str(REFUSED), None] == [
        told(refusals, KEY, now) for now in (10.0, 10.999, 11.0)
    ]


def test_another_key_is_not_meant() -> None:
    """Other secrets, topics and channels are not affected."""
    refusals = ErrorCache()
    refusals.remember(KEY, REFUSED, 10.0)

    others = [(Secret(b"bob"), "t", "c"), (Secret(b"alice"), "u", "c"), (Secret(b"alice"), "t")]

    assert [None, None, None] == [told(refusals, key, 10.0) for key in others]


def test_each_caller_gets_an_error_of_its_own() -> None:
    """An exception raised twice would carry both tracebacks."""
    refusals = ErrorCache()
    refusals.remember(KEY, REFUSED, 10.0)

    first, second = refusals.find(KEY, 10.0), refusals.find(KEY, 10.0)

    assert first is not second
    assert first is not REFUSED


def test_a_later_refusal_counts_anew() -> None:
    refusals = ErrorCache()
    refusals.remember(KEY, REFUSED, 10.0)

    refusals.remember(KEY, BrokerRefused("E_AUTH_FAILED", "AUTH failed"), 10.5)

    assert "E_AUTH_FAILED AUTH failed" == told(refusals, KEY, 11.4)


def test_what_is_over_is_dropped() -> None:
    """A secret must not be kept longer than needed."""
    refusals = ErrorCache()
    for number in range(100):
        refusals.remember(number, REFUSED, 10.0)

    refusals.remember(KEY, REFUSED, 11.0)

    assert 1 == len(refusals)


def test_of_too_many_the_oldest_goes() -> None:
    """A client that tries many secrets cannot exceed the maximum."""
    refusals = ErrorCache(max_entries=2)

    for key in ("a", "b", "c"):
        refusals.remember(key, REFUSED, 10.0)

    assert [None, str(REFUSED), str(REFUSED)] == [told(refusals, key, 10.0) for key in "abc"]


def test_when_the_last_refusal_is_over_can_be_told() -> None:
    """Publishing compares this time and seldom needs a lookup."""
    refusals = ErrorCache()
    before = refusals.until

    refusals.remember(KEY, REFUSED, 10.0)
    refusals.remember("another", REFUSED, 10.5)

    assert (float("-inf"), 11.5) == (before, refusals.until)
