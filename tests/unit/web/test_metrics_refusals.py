"""Whom nobody let in, by a word for the reason."""

from __future__ import annotations

import pytest

from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    Forbidden,
    HeadersTooLarge,
    InvalidRequest,
    LimitReached,
    NoBroker,
)
from gateway.web.metrics import RATE_LIMITED, SOCKETS_REFUSED, count_refused_socket


@pytest.mark.parametrize(
    "error,reason",
    [
        (Forbidden("x"), "origin"),
        (AuthRequired("x"), "auth"),
        (BrokerRefused("E_UNAUTHORIZED", "x"), "auth"),
        (BrokerRefused("E_SUB_FAILED", "x"), "nsqd"),
        (LimitReached("x"), "full"),
        (LimitReached("x", "address_full"), "address_full"),
        (LimitReached("x", "draining"), "draining"),
        (InvalidRequest("INVALID_TOPIC", "x"), "bad_request"),
        (HeadersTooLarge(2, limit_bytes=1), "bad_request"),
        (NoBroker("x"), "no_broker"),
        (RuntimeError("x"), "failed"),
    ],
    ids=repr,
)
def test_each_reason_has_its_word(error: Exception, reason: str) -> None:
    """There are few of them, whatever clients send."""
    before = SOCKETS_REFUSED.counts[reason,]

    count_refused_socket(error)

    assert before + 1 == SOCKETS_REFUSED.counts[reason,]


@pytest.mark.parametrize(
    "reason,more", [("full", 0), ("address_full", 1), ("secret_full", 1), ("draining", 0)]
)
def test_who_has_too_many_sockets_is_told_to_be_slower(reason: str, more: int) -> None:
    """A gateway that is full says that to everybody, and no caller has done anything wrong."""
    before = RATE_LIMITED.counts["socket",]

    count_refused_socket(LimitReached("x", reason))

    assert before + more == RATE_LIMITED.counts["socket",]
