"""Tests of the metrics of connections to nsqd."""

from __future__ import annotations

import pytest

from gateway.client.metrics import (
    PUBLISHER,
    ConnectionMetrics,
    connection_closed_error,
    count_auth,
    count_error,
)
from gateway.telemetry import REGISTRY


def value(name: str, **labels: str) -> float:
    """Return the value of the metric *name*, 0 without one."""
    return REGISTRY.get_sample_value(f"nsq_gateway_{name}", labels) or 0.0


@pytest.mark.parametrize("reason,lost", [(None, 0), ("closed from this side", 1)])
def test_a_connection_is_counted_from_its_beginning_to_its_end(
    reason: str | None, lost: int
) -> None:
    """It counts as lost unless the gateway closed it; its RDY is subtracted."""
    names = ("nsqd_connections", "nsqd_connections_opened_total", "nsqd_connections_lost_total")
    before = [value(name, role=PUBLISHER, nsqd="a:4150") for name in names]
    ready = value("ready_messages")
    account = ConnectionMetrics()

    account.opened(PUBLISHER, "a:4150")
    account.ready(7)
    account.ready(5)
    while_open = [value(name, role=PUBLISHER, nsqd="a:4150") for name in names]
    ready_while_open = value("ready_messages")
    account.ended(connection_closed_error("a:4150", reason))

    after = [value(name, role=PUBLISHER, nsqd="a:4150") for name in names]
    assert [before[0] + 1, before[1] + 1, before[2]] == while_open
    assert [before[0], before[1] + 1, before[2] + lost] == after
    assert (ready + 5, ready) == (ready_while_open, value("ready_messages"))


@pytest.mark.parametrize("code,label", [("E_BAD_TOPIC", "E_BAD_TOPIC"), ("E_MADE_UP", "other")])
def test_codes_that_nsqd_does_not_have_are_one(code: str, label: str) -> None:
    """A broker may send any code, and the number of labels is limited."""
    before = value("nsqd_errors_total", code=label)

    count_error(code)

    assert before + 1 == value("nsqd_errors_total", code=label)


def test_what_came_of_an_auth_is_counted() -> None:
    before = value("auth_total", result="refused")

    count_auth("refused")

    assert before + 1 == value("auth_total", result="refused")
