"""How fast one caller may publish, and that forgetting callers keeps the promise."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RateLimited
from gateway.web.rate_limit import MAX_DEBT_S, PublishBuckets, address_key

START = 1_000.0


def publish(quota: PublishBuckets, messages: int, now: float, caller: str = "a") -> bool:
    """Publish when *caller* may; tell whether it did."""
    try:
        quota.check(caller, now)
        quota.charge(caller, messages, now)
    except RateLimited:
        return False
    return True


def refusal(quota: PublishBuckets, now: float, caller: str = "a") -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        quota.check(caller, now)
    return caught.value


def test_a_new_caller_may_publish_a_burst() -> None:
    """Its bucket is full: one message after the other, and then no more."""
    quota = PublishBuckets(10)

    assert [True] * 10 + [False] == [publish(quota, 1, START) for _ in range(11)]


def test_a_burst_of_its_own_size_may_be_set() -> None:
    quota = PublishBuckets(10, burst=3)

    assert [True] * 3 + [False] == [publish(quota, 1, START) for _ in range(4)]


@pytest.mark.parametrize("rate_per_s", [0.001, 0.3, 7, 1e6])
def test_a_caller_that_waits_as_told_is_let_in(rate_per_s: float) -> None:
    """Not a moment before, and then whatever the rounding."""
    quota = PublishBuckets(rate_per_s, burst=1)
    publish(quota, 1, START)
    wait_s = refusal(quota, START).retry_after_s

    assert pytest.approx(1 / rate_per_s) == wait_s
    assert publish(quota, 1, START + wait_s)


def test_the_error_tells_the_limit_and_when_to_come_back() -> None:
    """Value, unit and what to do, for a person and for a program."""
    quota = PublishBuckets(2, burst=1)
    publish(quota, 4, START)

    error = refusal(quota, START)

    assert (2, 2.0) == (error.limit_per_s, error.retry_after_s)
    assert [] == [part for part in ("2 messages a second", "in 2 s") if part not in str(error)]


def test_a_request_pays_afterwards_for_all_its_messages() -> None:
    """An mpub of 100 is let in by a bucket that holds 10, and keeps its caller out for long."""
    quota = PublishBuckets(10)
    publish(quota, 100, START)

    assert pytest.approx(9.1) == refusal(quota, START).retry_after_s


def test_what_a_caller_owes_beyond_a_minute_is_forgiven() -> None:
    """A million messages in one request do not keep it out for a day."""
    quota = PublishBuckets(10)
    publish(quota, 1_000_000, START)

    assert pytest.approx(MAX_DEBT_S + 0.1) == refusal(quota, START).retry_after_s


def test_requests_that_arrive_together_do_not_all_go_over() -> None:
    """All were let in while the bucket held something; the first one empties it."""
    quota = PublishBuckets(10)
    quota.check("a", START)
    quota.check("a", START)
    quota.charge("a", 50, START)

    with pytest.raises(RateLimited):
        quota.charge("a", 50, START)


def test_callers_do_not_pay_for_each_other() -> None:
    quota = PublishBuckets(1)
    publish(quota, 50, START)

    assert publish(quota, 1, START, "b")


def test_a_pause_fills_no_more_than_the_bucket() -> None:
    """A caller who was away for a day may not publish a day's worth at once."""
    quota = PublishBuckets(10)
    publish(quota, 10, START)

    later = START + 86_400
    assert [True] * 10 + [False] == [publish(quota, 1, later) for _ in range(11)]


def test_a_clock_that_starts_at_zero_finds_full_buckets() -> None:
    """A machine that has just started publishes as well."""
    assert publish(PublishBuckets(1), 1, 0.0)


# Who is one caller


@pytest.mark.parametrize(
    "host,expected",
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("", ""),
    ],
)
def test_all_addresses_of_one_owner_are_one_caller(host: str, expected: str) -> None:
    """Whoever has an IPv6 address has 2^64 of them, and one bucket."""
    assert expected == address_key(host)


# Forgetting


def test_so_many_callers_are_remembered_and_no_more() -> None:
    """Whoever sends from a thousand addresses takes no more memory than this."""
    quota = PublishBuckets(1, max_callers=100)

    for number in range(1_000):
        publish(quota, 50, START, f"caller {number}")

    assert 100 == len(quota)


def test_a_caller_whose_bucket_is_full_again_is_forgotten_first() -> None:
    """Its bucket is full for who does not know it, too: nobody notices."""
    quota = PublishBuckets(10, max_callers=2)
    publish(quota, 500, START, "owes")
    publish(quota, 1, START, "full soon")

    publish(quota, 1, START + 1, "new")

    assert pytest.approx(48.1) == refusal(quota, START + 1, "owes").retry_after_s


def test_the_caller_that_published_least_recently_is_forgotten_else() -> None:
    """Who goes on publishing keeps its place."""
    quota = PublishBuckets(10, max_callers=2)
    for caller in ("busy", "idle", "busy", "busy"):
        publish(quota, 8, START, caller)

    publish(quota, 1, START, "new")

    assert [False, True] == [publish(quota, 1, START, caller) for caller in ("busy", "idle")]


Requests = list[tuple[float, int, str]]

REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 5).map(lambda gap_s: round(gap_s, 3)),
        st.integers(1, 200),
        st.sampled_from("abc"),
    ),
    max_size=80,
)


@given(requests=REQUESTS, rate_per_s=st.floats(10, 100), burst=st.floats(1, 100))
def test_in_no_window_anybody_gets_more_than_the_rate_a_burst_and_one_request(
    requests: Requests, rate_per_s: float, burst: float
) -> None:
    """Whatever is sent, by whom, when: no request here is a minute's worth."""
    quota = PublishBuckets(rate_per_s, burst=burst)
    accepted: dict[str, list[tuple[float, int]]] = {}
    now = START
    for gap_s, messages, caller in requests:
        now += gap_s
        if publish(quota, messages, now, caller):
            accepted.setdefault(caller, []).append((now, messages))

    windows = [
        (mine[last][0] - mine[first][0], [count for _, count in mine[first : last + 1]])
        for mine in accepted.values()
        for first in range(len(mine))
        for last in range(first, len(mine))
    ]
    excess = [
        sum(counts) - (burst + rate_per_s * window_s + max(counts)) for window_s, counts in windows
    ]
    assert [] == [each for each in excess if each > 0.01]


@given(
    messages=st.lists(st.integers(1, 10_000), min_size=2, max_size=20),
    rate_per_s=st.floats(0.01, 1_000),
    burst=st.floats(1, 1_000),
)
def test_whoever_waits_as_told_is_served_and_never_waits_long(
    messages: list[int], rate_per_s: float, burst: float
) -> None:
    """A minute and what one message takes, at most."""
    quota = PublishBuckets(rate_per_s, burst=burst)
    times = [START]
    for count in messages:
        if not publish(quota, count, times[-1]):
            times.append(times[-1] + refusal(quota, times[-1]).retry_after_s)
            quota.charge("a", count, times[-1])

    waits = [later - sooner for sooner, later in pairwise(times)]
    assert [] == [wait_s for wait_s in waits if wait_s > MAX_DEBT_S + 1 / rate_per_s + 0.01]
