"""Why sockets end, and what is told."""

from __future__ import annotations

import pytest

from gateway.errors import BrokerRefused, Full, NoBroker
from gateway.session.actions import EndReason
from gateway.web.faults import CloseCode
from gateway.web.socket_ends import CLOSE_CODES, NoSubscription, why_not_subscribed

NO_BROKER_TEXT = "no nsqd can be reached; nothing was done, try again later"
INTERNAL_TEXT = "the gateway failed; its log tells more under this request id"


def test_every_reason_has_a_close_code() -> None:
    """From 4500 on a client is not to come back: it was wrong itself."""
    final = {reason for reason, code in CLOSE_CODES.items() if code >= CloseCode.BAD_REQUEST}

    assert set(EndReason) == set(CLOSE_CODES)
    assert final == {
        EndReason.TOO_MANY_ERRORS,
        EndReason.TOO_FAST,
        EndReason.NO_AUTH,
        EndReason.FORBIDDEN,
    }


def test_every_reason_fits_into_a_close_frame() -> None:
    """RFC 6455 §5.5: 125 bytes with the code."""
    assert all(len(reason.value.encode()) <= 123 for reason in EndReason)


@pytest.mark.parametrize(
    "error,expected",
    [
        (
            BrokerRefused("E_AUTH_FAILED", "AUTH failed"),
            NoSubscription("E_AUTH_FAILED", "AUTH failed", EndReason.FORBIDDEN, False),
        ),
        (
            BrokerRefused("E_SUB_FAILED", "too many"),
            NoSubscription("E_SUB_FAILED", "too many", EndReason.FULL, True),
        ),
        (
            NoBroker("192.0.2.1:4150 is away"),
            NoSubscription("NO_BROKER", NO_BROKER_TEXT, EndReason.NO_BROKER, True),
        ),
        (Full("too many wait"), NoSubscription("FULL", "too many wait", EndReason.FULL, True)),
        (
            ValueError("a bug"),
            NoSubscription("INTERNAL_ERROR", INTERNAL_TEXT, EndReason.FAILED, False),
        ),
    ],
)
def test_why_there_is_no_subscription(error: Exception, expected: NoSubscription) -> None:
    """NSQ's own words, or the gateway's; addresses and bugs stay in the log."""
    assert expected == why_not_subscribed(error)
