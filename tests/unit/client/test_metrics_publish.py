"""Tests of the metrics of publishes, by topic and outcome."""

from __future__ import annotations

import pytest

from gateway.client.batch import SIZE_BYTES, PendingPublish
from gateway.client.producer import count_outcome, count_refused, result_of
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    GatewayError,
    InvalidRequest,
    NoBroker,
    OutcomeUnknown,
)
from gateway.telemetry import REGISTRY


def counted(topic: str, result: str) -> tuple[float, float]:
    labels = {"topic": topic, "result": result}
    names = ("publish_messages_total", "publish_message_bytes_total")
    messages, size_bytes = (
        REGISTRY.get_sample_value(f"nsq_gateway_{name}", labels) or 0.0 for name in names
    )
    return messages, size_bytes


def publish(topic: str, *bodies: bytes) -> PendingPublish:
    size_bytes = sum(SIZE_BYTES + len(body) for body in bodies)
    return PendingPublish(topic, bodies, 0, size_bytes, 0.0, lambda _error: None)


@pytest.mark.parametrize(
    "error,result",
    [
        (None, "ok"),
        (BrokerRefused("E_BAD_TOPIC", ""), "rejected"),
        (BrokerRefused("E_PUB_FAILED", "no space left on device"), "unavailable"),
        (AuthRequired("no secret"), "rejected"),
        (InvalidRequest("BODY_TOO_BIG", ""), "rejected"),
        (NoBroker("nobody"), "unavailable"),
        (OutcomeUnknown("silence"), "unknown"),
    ],
)
def test_an_outcome_is_one_of_four(error: GatewayError | None, result: str) -> None:
    """ok, rejected, unavailable or unknown."""
    assert result == result_of(error)


def test_messages_and_their_bytes_are_counted() -> None:
    """For one publish and for a batch; length prefixes do not count as bytes."""
    count_outcome([publish("account_a", b"12345")], None)
    count_outcome([publish("account_a", b"1", b"22"), publish("account_a", b"333")], None)

    assert (4, 11) == counted("account_a", "ok")


def test_a_topic_has_every_result_from_its_first_message_on() -> None:
    """`increase()` sees the first failure of a topic only if its series was 0 before."""
    count_outcome([publish("account_zero", b"1")], None)

    for name in ("publish_messages_total", "publish_message_bytes_total"):
        shown = {
            result: REGISTRY.get_sample_value(
                f"nsq_gateway_{name}", {"topic": "account_zero", "result": result}
            )
            for result in ("ok", "rejected", "unavailable", "unknown")
        }
        assert {"ok": 1.0, "rejected": 0.0, "unavailable": 0.0, "unknown": 0.0} == shown


def test_a_topic_that_nsqd_has_not_taken_anything_for_has_no_label() -> None:
    """A client that uses many refused names takes no labels."""
    before = counted("other", "unavailable")

    count_outcome([publish("account_new", b"12345")], NoBroker("nobody"))
    error = count_refused("account_newer", (b"1",), NoBroker("nobody"))

    after = counted("other", "unavailable")
    assert "nobody" == str(error)
    assert (2, 6) == (after[0] - before[0], after[1] - before[1])
    assert (0, 0) == counted("account_new", "unavailable")
