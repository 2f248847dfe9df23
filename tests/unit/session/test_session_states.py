"""The states of a session, and the timers that end it: outage, slowness, a close."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gateway.session.session import Lifecycle, SessionState
from gateway.session.types import CloseReason


@pytest.fixture
def lifecycle() -> Lifecycle:
    """Return the clocks of a session that began at 0 and has a broker."""
    lifecycle = Lifecycle(now=0.0, slow_consumer_s=30.0, broker_outage_s=300.0)
    lifecycle.on_broker()
    return lifecycle


def test_nothing_ends_while_all_is_well(lifecycle: Lifecycle) -> None:
    """No clock runs, so there is no moment to wake for."""
    assert (None, math.inf) == (lifecycle.due_reason(1e9), lifecycle.due)


@pytest.mark.parametrize("now,expected", [(399.9, None), (400.0, CloseReason.NO_BROKER)])
def test_an_outage_ends_it_after_its_time(
    lifecycle: Lifecycle, now: float, expected: CloseReason | None
) -> None:
    """The clock starts when the last broker goes."""
    lifecycle.on_last_broker_lost(100.0)

    assert (expected, 400.0) == (lifecycle.due_reason(now), lifecycle.due)


def test_a_session_that_never_had_a_broker_ends_as_well() -> None:
    lifecycle = Lifecycle(now=5.0, slow_consumer_s=30.0, broker_outage_s=300.0)

    assert 305.0 == lifecycle.due


@pytest.mark.parametrize("now,expected", [(39.9, None), (40.0, CloseReason.SLOW)])
def test_slowness_ends_it_after_its_time(
    lifecycle: Lifecycle, now: float, expected: CloseReason | None
) -> None:
    """The clock starts when more waits than may."""
    lifecycle.on_slow_client(10.0)

    assert (expected, 40.0) == (lifecycle.due_reason(now), lifecycle.due)


def test_who_has_caught_up_is_forgiven(lifecycle: Lifecycle) -> None:
    """The clock of the slow client stops."""
    lifecycle.on_slow_client(10.0)
    lifecycle.on_client_caught_up()

    assert (False, math.inf) == (lifecycle.is_slow, lifecycle.due)


@pytest.mark.parametrize(
    "reason,is_open,now,expected",
    [
        (CloseReason.DONE, False, 0.0, CloseReason.DONE),
        (CloseReason.DONE, True, 9.9, None),
        (CloseReason.DONE, True, 10.0, CloseReason.DONE),
        (CloseReason.DRAINED, False, 9.9, None),
        (CloseReason.DRAINED, False, 10.0, CloseReason.DRAINED),
        (CloseReason.DRAINED, True, 10.0, CloseReason.DRAINED),
        (CloseReason.AGED, False, 0.0, CloseReason.AGED),
        (CloseReason.AGED, True, 9.9, None),
        (CloseReason.AGED, True, 10.0, CloseReason.AGED),
    ],
)
def test_a_close_waits_for_answers_and_a_drain_for_its_moment(
    lifecycle: Lifecycle,
    reason: CloseReason,
    is_open: bool,  # noqa: FBT001 - one column of the table
    now: float,
    expected: CloseReason | None,
) -> None:
    """A drain spreads its closes over time even when nothing is in flight."""
    lifecycle.begin_close(10.0, reason)

    assert expected == lifecycle.closed_reason(is_open=is_open, now=now)


def test_the_earlier_of_two_closes_holds(lifecycle: Lifecycle) -> None:
    """What was to be closed by then stays so."""
    lifecycle.begin_close(10.0, CloseReason.DRAINED)
    lifecycle.begin_close(60.0, CloseReason.DONE)

    assert 10.0 == lifecycle.due


@pytest.mark.parametrize(
    "reasons", [(CloseReason.DRAINED, CloseReason.DONE), (CloseReason.DONE, CloseReason.DRAINED)]
)
def test_what_the_client_asks_for_is_its_own_close(
    lifecycle: Lifecycle, reasons: tuple[CloseReason, CloseReason]
) -> None:
    """CLS in a drain, or a drain behind CLS: nothing waits for the drain's moment."""
    for reason in reasons:
        lifecycle.begin_close(10.0, reason)

    assert (True, CloseReason.DONE) == (
        lifecycle.is_client_closing,
        lifecycle.closed_reason(is_open=False, now=0.0),
    )


def test_the_gateway_wants_a_close_for_the_first_time_once(lifecycle: Lifecycle) -> None:
    """What the client asks for is not the gateway's wish."""
    reasons = (CloseReason.DONE, CloseReason.AGED, CloseReason.DRAINED, CloseReason.DONE)

    assert [False, True, False, False] == [lifecycle.begin_close(9.0, reason) for reason in reasons]


def subscribe(lifecycle: Lifecycle) -> None:
    """SUB is sent."""
    lifecycle.on_subscribed()


def begin_close(lifecycle: Lifecycle) -> None:
    """CLS, a drain or an age."""
    lifecycle.begin_close(10.0, CloseReason.DRAINED)


def end(lifecycle: Lifecycle) -> None:
    lifecycle.end()


STATES = {
    SessionState.OPENING: [],
    SessionState.SUBSCRIBED: [subscribe],
    SessionState.CLOSE_WAIT: [subscribe, begin_close],
    SessionState.ENDED: [subscribe, begin_close, end],
}


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize(
    "event,expected",
    [
        (
            subscribe,
            [
                SessionState.SUBSCRIBED,
                SessionState.SUBSCRIBED,
                SessionState.CLOSE_WAIT,
                SessionState.ENDED,
            ],
        ),
        (
            begin_close,
            [
                SessionState.CLOSE_WAIT,
                SessionState.CLOSE_WAIT,
                SessionState.CLOSE_WAIT,
                SessionState.ENDED,
            ],
        ),
        (end, [SessionState.ENDED, SessionState.ENDED, SessionState.ENDED, SessionState.ENDED]),
    ],
)
def test_every_event_leads_where_the_table_says(
    event: Callable[[Lifecycle], None], expected: list[SessionState], state: SessionState
) -> None:
    """The columns of the table in the module, by its rows."""
    lifecycle = Lifecycle(now=0.0, slow_consumer_s=30.0, broker_outage_s=300.0)
    for step in STATES[state]:
        step(lifecycle)
    before = lifecycle.state
    event(lifecycle)

    assert (state, dict(zip(SessionState, expected, strict=True))[state]) == (
        before,
        lifecycle.state,
    )
    assert lifecycle.wants_messages == (
        lifecycle.state in {SessionState.OPENING, SessionState.SUBSCRIBED}
    )


def test_a_session_ends_once(lifecycle: Lifecycle) -> None:
    """The second time is no news."""
    assert [True, False] == [lifecycle.end(), lifecycle.end()]
