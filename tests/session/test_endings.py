"""The clocks that end a session: outage, slowness, a close that was begun."""

import math

import pytest

from gateway.session.actions import EndReason
from gateway.session.endings import Endings


@pytest.fixture
def endings() -> Endings:
    """Return the clocks of a session that began at 0 and has a broker."""
    endings = Endings(now=0.0, slow_consumer_s=30.0, broker_outage_s=300.0)
    endings.broker_came()
    return endings


def test_nothing_ends_while_all_is_well(endings: Endings) -> None:
    """No clock runs, so there is no moment to wake for."""
    assert (None, math.inf) == (endings.due_reason(1e9), endings.due)


@pytest.mark.parametrize("now,expected", [(399.9, None), (400.0, EndReason.NO_BROKER)])
def test_an_outage_ends_it_after_its_time(
    endings: Endings, now: float, expected: EndReason | None
) -> None:
    """The clock starts when the last broker goes."""
    endings.last_broker_went(100.0)

    assert (expected, 400.0) == (endings.due_reason(now), endings.due)


def test_a_session_that_never_had_a_broker_ends_as_well() -> None:
    """The outage begins with the session."""
    endings = Endings(now=5.0, slow_consumer_s=30.0, broker_outage_s=300.0)

    assert 305.0 == endings.due


@pytest.mark.parametrize("now,expected", [(39.9, None), (40.0, EndReason.SLOW)])
def test_slowness_ends_it_after_its_time(
    endings: Endings, now: float, expected: EndReason | None
) -> None:
    """The clock starts when more waits than may."""
    endings.client_is_slow(10.0)

    assert (expected, 40.0) == (endings.due_reason(now), endings.due)


def test_who_has_caught_up_is_forgiven(endings: Endings) -> None:
    """The clock of the slow client stops."""
    endings.client_is_slow(10.0)
    endings.client_has_caught_up()

    assert (False, math.inf) == (endings.is_slow, endings.due)


@pytest.mark.parametrize(
    "reason,is_open,now,expected",
    [
        (EndReason.DONE, False, 0.0, EndReason.DONE),
        (EndReason.DONE, True, 9.9, None),
        (EndReason.DONE, True, 10.0, EndReason.DONE),
        (EndReason.DRAINED, False, 9.9, None),
        (EndReason.DRAINED, False, 10.0, EndReason.DRAINED),
        (EndReason.DRAINED, True, 10.0, EndReason.DRAINED),
        (EndReason.AGED, False, 0.0, EndReason.AGED),
        (EndReason.AGED, True, 9.9, None),
        (EndReason.AGED, True, 10.0, EndReason.AGED),
    ],
)
def test_a_close_waits_for_answers_and_a_drain_for_its_moment(
    endings: Endings,
    reason: EndReason,
    is_open: bool,  # noqa: FBT001 - one column of the table
    now: float,
    expected: EndReason | None,
) -> None:
    """A drain spreads its closes over time even when nothing is in flight."""
    endings.close_by(10.0, reason)

    assert expected == endings.closed_reason(is_open=is_open, now=now)


def test_the_earlier_of_two_closes_holds(endings: Endings) -> None:
    """What was to be closed by then stays so."""
    endings.close_by(10.0, EndReason.DRAINED)
    endings.close_by(60.0, EndReason.DONE)

    assert 10.0 == endings.due


@pytest.mark.parametrize(
    "reasons", [(EndReason.DRAINED, EndReason.DONE), (EndReason.DONE, EndReason.DRAINED)]
)
def test_what_the_client_asks_for_is_its_own_close(
    endings: Endings, reasons: tuple[EndReason, EndReason]
) -> None:
    """CLS in a drain, or a drain behind CLS: nothing waits for the drain's moment."""
    for reason in reasons:
        endings.close_by(10.0, reason)

    assert (True, EndReason.DONE) == (
        endings.is_asked_by_client,
        endings.closed_reason(is_open=False, now=0.0),
    )


def test_the_gateway_wants_a_close_for_the_first_time_once(endings: Endings) -> None:
    """What the client asks for is not the gateway's wish."""
    reasons = (EndReason.DONE, EndReason.AGED, EndReason.DRAINED, EndReason.DONE)

    assert [False, True, False, False] == [endings.close_by(9.0, reason) for reason in reasons]
