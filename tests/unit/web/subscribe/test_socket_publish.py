"""PUB, DPUB and MPUB of sockets: what goes to the publisher, and what a client is told."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from gateway.credentials import Secret
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
)
from gateway.session.types import PublishBodies, Refusal
from gateway.telemetry import REGISTRY
from gateway.web.auth import ANONYMOUS, AccessPolicy, Principal
from gateway.web.rate_limit import PublishBuckets, PublishRateLimiter
from gateway.web.subscribe.publishing import SocketPublishing
from tests.support.http.recording_publisher import RecordingPublisher, WaitingPublisher

ALICE = Secret(b"alice")
HERE = "192.0.2.1"
PUB = PublishBodies("PUB", 1, "t", [b"hello"])
DPUB = PublishBodies("DPUB", 2, "t", [b"later"], 500)
MPUB = PublishBodies("MPUB", 3, "u", [b"a", b"b"])


class Telling:
    """A publishing, and what it told."""

    def __init__(
        self, publisher: RecordingPublisher, *, quota: PublishBuckets | None = None
    ) -> None:
        callers = PublishRateLimiter(quota, access=AccessPolicy(), requires_auth=lambda: True)
        self._publishing = SocketPublishing(publisher, callers)
        self.told: list[tuple[object, Refusal | None]] = []

    def begin(self, *publishes: PublishBodies) -> None:
        """Publish for Alice."""
        for publish in publishes:
            self._publishing.begin(
                publish,
                Principal(ALICE),
                HERE,
                lambda done, refusal: self.told.append((done.ref, refusal)),
            )

    @property
    def codes(self) -> list[str | None]:
        """What each was told, None is OK."""
        return [None if refusal is None else refusal.code for _, refusal in self.told]


async def test_what_a_socket_publishes_goes_out_with_its_secret() -> None:
    publisher = RecordingPublisher()
    telling = Telling(publisher)
    telling.begin(PUB, DPUB, MPUB)

    assert [("t", [b"hello"], 0), ("t", [b"later"], 500), ("u", [b"a", b"b"], 0)] == (
        publisher.published
    )
    assert [ALICE] * 3 == publisher.secrets
    assert [(1, None), (2, None), (3, None)] == telling.told


async def test_what_many_bodies_take_apart_is_counted_until_the_answer() -> None:
    """A body of one byte takes fifty; one alone is counted by the publisher itself."""
    publisher = WaitingPublisher()
    telling = Telling(publisher)
    telling.begin(PUB, MPUB)
    held = publisher.held_bytes
    for done in publisher.waiting:
        done(None)

    assert (96, 0) == (held, publisher.held_bytes)
    assert [(1, None), (3, None)] == telling.told


@pytest.mark.parametrize(
    "error,code,words,is_retryable",
    [
        (NoBroker("192.0.2.9:4150 is away"), "NO_BROKER", "no nsqd is reachable", True),
        (
            Overloaded(waiting_bytes=9, size_bytes=2, limit_bytes=10),
            "OVERLOADED",
            "the limit is 10 bytes",
            True,
        ),
        (OutcomeUnknown("no answer"), "OUTCOME_UNKNOWN", "may or may not be published", False),
        (AuthRequired("none"), "E_AUTH_FIRST", "this socket has no secret", False),
        (
            BrokerRefused("E_UNAUTHORIZED", "AUTH failed for PUB"),
            "E_UNAUTHORIZED",
            'AUTH failed for PUB; topic "t"',
            False,
        ),
        (ValueError("a bug"), "INTERNAL_ERROR", "internal error", False),
    ],
)
async def test_what_goes_wrong_is_told(
    error: Exception, code: str, words: str, *, is_retryable: bool
) -> None:
    """With NSQ's code or the gateway's; what only the log should know is left out."""
    telling = Telling(RecordingPublisher(error=error))
    telling.begin(PUB)
    ((_, refusal),) = telling.told

    assert refusal is not None
    assert (code, is_retryable) == (refusal.code, refusal.retryable)
    assert words in refusal.message
    assert "192.0.2.9" not in refusal.message


async def test_a_socket_has_the_rate_of_its_caller() -> None:
    """What is too much is not published, and nothing of it is kept."""
    publisher = RecordingPublisher()
    telling = Telling(publisher, quota=PublishBuckets(0.001, burst=1))
    telling.begin(MPUB, MPUB, PUB)

    assert [None, "RATE_LIMITED", "RATE_LIMITED"] == telling.codes
    assert (1, 0) == (len(publisher.published), publisher.held_bytes)


async def test_publishes_are_counted_by_verb_and_result() -> None:
    """With few labels, whatever a broker says."""
    name = "nsq_gateway_socket_publishes_total"
    labels = {"cmd": "DPUB", "result": "INTERNAL_ERROR"}
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    telling = Telling(RecordingPublisher(error=BrokerRefused("E_STRANGE_1234", "?")))
    telling.begin(DPUB)
    metrics = generate_latest(REGISTRY).decode()

    assert ["E_STRANGE_1234"] == telling.codes
    assert before + 1 == REGISTRY.get_sample_value(name, labels)
    assert "E_STRANGE_1234" not in metrics


async def test_a_client_that_cannot_be_told_gives_bytes_back_once() -> None:
    """Bytes given back twice would let more wait than may."""
    publisher = RecordingPublisher()
    callers = PublishRateLimiter(None, access=AccessPolicy(), requires_auth=lambda: False)

    def fail(publish: PublishBodies, refusal: Refusal | None) -> None:
        raise ValueError(publish, refusal)

    with pytest.raises(ValueError, match="MPUB"):
        SocketPublishing(publisher, callers).begin(MPUB, ANONYMOUS, HERE, fail)

    assert 0 == publisher.held_bytes
