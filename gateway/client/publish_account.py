"""What was published, and what was not: messages and bytes, by topic and by what came of them."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.client.batch import SIZE_BYTES, PendingPublish
from gateway.errors import AuthRequired, BrokerRefused, GatewayError, InvalidRequest, OutcomeUnknown
from gateway.telemetry import FirstNames, tally

TOPICS = FirstNames(100)
"""The topics that have a label of their own; ``limit`` is for the program to set."""

_MESSAGES = tally(
    "publish_messages_total",
    "Messages that were given to nsqd, or were to be, by what came of it.",
    ("topic", "result"),
)
_BYTES = tally(
    "publish_message_bytes_total",
    "The bytes of their bodies.",
    ("topic", "result"),
)


def count_outcome(publishes: Sequence[PendingPublish], error: GatewayError | None) -> None:
    """
    Count *publishes*, at least one, which all had the outcome *error*, None for OK.

    A topic gets a label of its own once nsqd has taken something for it: whoever asks for names
    that are refused takes no place.
    """
    if error is None and len(publishes) > 1:
        # A batch: one topic.
        _count(publishes[0].topic, publishes, "ok")
        return
    result = result_of(error)
    for publish in publishes:
        _count(publish.topic, (publish,), result)


def count_refused(topic: str, bodies: Sequence[bytes], error: GatewayError) -> GatewayError:
    """Count *bodies* that were not taken because of *error*, and return that."""
    _add(topic, result_of(error), len(bodies), sum(map(len, bodies)))
    return error


def _count(topic: str, publishes: Sequence[PendingPublish], result: str) -> None:
    messages = sum([len(publish.bodies) for publish in publishes])
    size_bytes = sum([publish.size_bytes for publish in publishes])
    _add(topic, result, messages, size_bytes - SIZE_BYTES * messages)


def _add(topic: str, result: str, messages: int, size_bytes: int) -> None:
    key = TOPICS.label_of(topic, is_proven=result == "ok"), result
    _MESSAGES.counts[key] += messages
    _BYTES.counts[key] += size_bytes


def result_of(error: GatewayError | None) -> str:
    """Return how an outcome is counted."""
    if error is None:
        return "ok"
    if isinstance(error, OutcomeUnknown):
        return "unknown"
    if isinstance(error, BrokerRefused | AuthRequired | InvalidRequest):
        return "rejected"
    return "unavailable"
