"""Whether and when a batch is retried, by error, delay and time limit."""

from __future__ import annotations

import pytest

from gateway.cli.retry import Retries, RetryableRefusal, delay_reason
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    Forbidden,
    GatewayError,
    InvalidRequest,
    LimitReached,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
)

AWAY = NoBroker("away")
UNKNOWN = OutcomeUnknown("written, and no answer came")


def retries(draw: float = 0.5, *, for_s: float = 30.0, at_least_once: bool = False) -> Retries:
    """Return a `Retries` whose random numbers are all *draw*."""
    return Retries(lambda: draw, retry_for_s=for_s, at_least_once=at_least_once)


def later(after_s: float) -> RetryableRefusal:
    return RetryableRefusal("503", short="gateway answers 503", retry_after_s=after_s)


@pytest.mark.parametrize(
    "error",
    [
        AWAY,
        later(0),
        LimitReached("too many secrets"),
        Overloaded.__new__(Overloaded),
        BrokerRefused("E_PUB_FAILED", "PUB failed exiting"),
        BrokerRefused("E_MPUB_FAILED", "MPUB failed exiting"),
        BrokerRefused("E_DPUB_FAILED", "DPUB failed exiting"),
    ],
)
def test_what_is_not_published_for_now_is_tried_again(error: GatewayError) -> None:
    """A retry cannot duplicate these messages."""
    assert None is not retries().next_delay_s(error, now=100.0)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("MSG_TOO_BIG", "too big"),
        Forbidden("no"),
        AuthRequired("who?"),
        BrokerRefused("E_BAD_TOPIC", "PUB topic name is not valid"),
        BrokerRefused("E_UNAUTHORIZED", "AUTH failed"),
    ],
)
def test_what_is_refused_for_good_is_not_tried_again(error: GatewayError) -> None:
    """Even with --at-least-once: a retry would be refused as well."""
    assert None is retries(at_least_once=True).next_delay_s(error, now=100.0)


def test_what_may_be_published_is_tried_again_by_who_takes_doubles() -> None:
    """An unknown outcome is retried with --at-least-once only."""
    assert None is retries().next_delay_s(UNKNOWN, now=100.0)
    assert None is not retries(at_least_once=True).next_delay_s(UNKNOWN, now=100.0)


def test_delays_double_up_to_a_ceiling() -> None:
    """The random number is at the end of its range here."""
    tries = retries(1.0, for_s=1_000)

    delays = [tries.next_delay_s(AWAY, now=100.0) for _ in range(8)]

    assert [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0] == delays


def test_all_of_a_delay_is_drawn() -> None:
    """Full jitter: commands that failed together do not retry together."""
    assert 0.0 == retries(0.0).next_delay_s(AWAY, now=100.0)


def test_what_the_answer_asks_for_is_waited_and_then_some() -> None:
    """Retry-After gets jitter as well, for clients that received the same value."""
    assert 5.125 == retries().next_delay_s(later(5), now=100.0)


def test_the_last_try_comes_when_the_time_is_over() -> None:
    """The time counts from the first failure of the batch."""
    tries = retries(1.0, for_s=2.0)

    assert 0.25 == tries.next_delay_s(AWAY, now=100.0)
    assert 0.5 == tries.next_delay_s(AWAY, now=100.25)
    assert 0.25 == tries.next_delay_s(AWAY, now=101.75)
    assert None is tries.next_delay_s(AWAY, now=102.0)
    assert 3 == tries.count_of_batch


def test_who_is_asked_to_wait_for_longer_than_the_time_does_not_wait() -> None:
    """A Retry-After beyond the time limit ends the retries at once."""
    assert None is retries(for_s=30).next_delay_s(later(31), now=100.0)


def test_no_time_is_no_other_try() -> None:
    """--retry-for-s 0 turns retries off."""
    assert None is retries(for_s=0).next_delay_s(AWAY, now=100.0)


def test_each_batch_has_its_own_time() -> None:
    """A failure of an earlier batch does not count."""
    tries = retries(1.0, for_s=10)
    tries.next_delay_s(AWAY, now=100.0)
    tries.next_delay_s(AWAY, now=101.0)

    tries.succeeded()

    assert 0.25 == tries.next_delay_s(AWAY, now=3_700.0)
    assert 1 == tries.count_of_batch


@pytest.mark.parametrize(
    "error,words",
    [
        (later(0), "gateway answers 503"),
        (AWAY, "nsqd unreachable"),
        (UNKNOWN, "no response"),
        (BrokerRefused("E_PUB_FAILED", "exiting"), "nsqd does not accept messages"),
    ],
)
def test_what_is_waited_for_is_told_in_short(error: GatewayError, words: str) -> None:
    """The progress line has room for a few words."""
    assert words == delay_reason(error)
