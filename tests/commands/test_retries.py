"""Whether and when a batch is tried again: what is not published, what may be, and for how long."""

from __future__ import annotations

import pytest

from gateway.commands.retries import Retries, TryLater, in_short
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    Forbidden,
    Full,
    GatewayError,
    InvalidRequest,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
)

AWAY = NoBroker("away")
UNKNOWN = OutcomeUnknown("written, and no answer came")


def retries(draw: float = 0.5, *, for_s: float = 30.0, at_least_once: bool = False) -> Retries:
    """Return tries whose delays are all drawn at *draw* of the way."""
    return Retries(lambda: draw, retry_for_s=for_s, at_least_once=at_least_once)


def later(after_s: float) -> TryLater:
    """Return a gateway's refusal for now."""
    return TryLater("503", short="gateway answers 503", retry_after_s=after_s)


@pytest.mark.parametrize(
    "error",
    [
        AWAY,
        later(0),
        Full("too many secrets"),
        Overloaded.__new__(Overloaded),
        BrokerRefused("E_PUB_FAILED", "PUB failed exiting"),
        BrokerRefused("E_MPUB_FAILED", "MPUB failed exiting"),
        BrokerRefused("E_DPUB_FAILED", "DPUB failed exiting"),
    ],
)
def test_what_is_not_published_for_now_is_tried_again(error: GatewayError) -> None:
    """Nothing can be doubled by it."""
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
    """Whoever takes doubled messages gets the same answer once more."""
    assert None is retries(at_least_once=True).next_delay_s(error, now=100.0)


def test_what_may_be_published_is_tried_again_by_who_takes_doubles() -> None:
    """And by nobody else."""
    assert None is retries().next_delay_s(UNKNOWN, now=100.0)
    assert None is not retries(at_least_once=True).next_delay_s(UNKNOWN, now=100.0)


def test_delays_double_up_to_a_ceiling() -> None:
    """Drawn here at the end of their range."""
    tries = retries(1.0, for_s=1_000)

    delays = [tries.next_delay_s(AWAY, now=100.0) for _ in range(8)]

    assert [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0] == delays


def test_all_of_a_delay_is_drawn() -> None:
    """Commands that fail in one moment do not come back in one."""
    assert 0.0 == retries(0.0).next_delay_s(AWAY, now=100.0)


def test_what_the_answer_asks_for_is_waited_and_then_some() -> None:
    """Those whom it told the same do not come in the moment that it named."""
    assert 5.125 == retries().next_delay_s(later(5), now=100.0)


def test_the_last_try_comes_when_the_time_is_over() -> None:
    """From the first failure on, and then it is the end."""
    tries = retries(1.0, for_s=2.0)

    assert 0.25 == tries.next_delay_s(AWAY, now=100.0)
    assert 0.5 == tries.next_delay_s(AWAY, now=100.25)
    assert 0.25 == tries.next_delay_s(AWAY, now=101.75)
    assert None is tries.next_delay_s(AWAY, now=102.0)
    assert 3 == tries.count_of_batch


def test_who_is_asked_to_wait_for_longer_than_the_time_does_not_wait() -> None:
    """It would be in vain."""
    assert None is retries(for_s=30).next_delay_s(later(31), now=100.0)


def test_no_time_is_no_other_try() -> None:
    """0 turns it off."""
    assert None is retries(for_s=0).next_delay_s(AWAY, now=100.0)


def test_each_batch_has_its_own_time() -> None:
    """What failed an hour ago and was published is no failure any more."""
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
        (UNKNOWN, "no answer"),
        (BrokerRefused("E_PUB_FAILED", "exiting"), "nsqd does not take it now"),
    ],
)
def test_what_is_waited_for_is_told_in_short(error: GatewayError, words: str) -> None:
    """There is one line."""
    assert words == in_short(error)
