"""Why sockets end, and what is told."""

from __future__ import annotations

import re

import pytest

from gateway.errors import BrokerRefused, LimitReached, NoBroker
from gateway.session.types import CloseReason
from gateway.web.errors import CloseCode
from gateway.web.subscribe.access import SubscribeError, explain_subscribe_error
from gateway.web.subscribe.socket import CLOSE_CODES
from tests.support.project import ROOT

NO_BROKER_TEXT = "no nsqd is reachable; nothing was done, retry later"
INTERNAL_TEXT = "internal error; see the gateway's log for this request id"


def test_every_reason_has_a_close_code() -> None:
    """From 4500 on a client is not to come back: it was wrong itself."""
    final = {reason for reason, code in CLOSE_CODES.items() if code >= CloseCode.BAD_REQUEST}

    assert set(CloseReason) == set(CLOSE_CODES)
    assert final == {
        CloseReason.TOO_MANY_ERRORS,
        CloseReason.TOO_FAST,
        CloseReason.NO_AUTH,
        CloseReason.FORBIDDEN,
    }


def test_every_reason_fits_into_a_close_frame() -> None:
    """RFC 6455 §5.5: 125 bytes with the code."""
    assert all(len(reason.value.encode()) <= 123 for reason in CloseReason)


@pytest.mark.parametrize(
    "error,expected",
    [
        (
            BrokerRefused("E_AUTH_FAILED", "AUTH failed"),
            SubscribeError("E_AUTH_FAILED", "AUTH failed", CloseReason.FORBIDDEN, False),
        ),
        (
            BrokerRefused("E_SUB_FAILED", "too many"),
            SubscribeError("E_SUB_FAILED", "too many", CloseReason.FULL, True),
        ),
        (
            NoBroker("192.0.2.1:4150 is away"),
            SubscribeError("NO_BROKER", NO_BROKER_TEXT, CloseReason.NO_BROKER, True),
        ),
        (
            LimitReached("too many wait"),
            SubscribeError("FULL", "too many wait", CloseReason.FULL, True),
        ),
        (
            ValueError("a bug"),
            SubscribeError("INTERNAL_ERROR", INTERNAL_TEXT, CloseReason.FAILED, False),
        ),
    ],
)
def test_why_there_is_no_subscription(error: Exception, expected: SubscribeError) -> None:
    """NSQ's own words, or the gateway's; addresses and bugs stay in the log."""
    assert expected == explain_subscribe_error(error)


def test_the_codes_are_those_that_clients_are_told() -> None:
    """The table of docs/websocket.md; programs compare with the numbers."""
    table = (ROOT / "docs" / "websocket.md").read_text().partition("## Close codes")[2]
    told = [int(code) for code in re.findall(r"^\| (\d{4}) \|", table, re.MULTILINE)]

    assert sorted(CloseCode) == told
