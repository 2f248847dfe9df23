"""What is published over a socket: checked here, since nsqd would close a shared connection."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.wire import Limits
from gateway.session.json_frames import DpubCommand, ErrorOut, MpubCommand, PubCommand, ResponseOut
from gateway.session.publishing import Publishing
from gateway.session.types import PublishBodies, Refusal

LIMITS = Limits(max_msg_size_bytes=10, max_body_size_bytes=50, max_req_timeout_ms=1_000)


@pytest.fixture
def publishing() -> Publishing:
    """Return the publishes of a socket, with small limits."""
    return Publishing(LIMITS)


@pytest.mark.parametrize(
    "command, expected",
    [
        (PubCommand(1, "t", "text"), PublishBodies("PUB", 1, "t", [b"text"])),
        (
            PubCommand(None, "t#ephemeral", "é"),
            PublishBodies("PUB", None, "t#ephemeral", [b"\xc3\xa9"]),
        ),
        (PubCommand(1, "t", None, b"\xff"), PublishBodies("PUB", 1, "t", [b"\xff"])),
        (PubCommand(1, "t", "0123456789"), PublishBodies("PUB", 1, "t", [b"0123456789"])),
        (DpubCommand("r", "t", "text", None, 0), PublishBodies("DPUB", "r", "t", [b"text"], 0)),
        (
            DpubCommand("r", "t", "text", None, 1_000),
            PublishBodies("DPUB", "r", "t", [b"text"], 1_000),
        ),
        (MpubCommand(2, "t", ["a", "b"]), PublishBodies("MPUB", 2, "t", [b"a", b"b"])),
        (
            MpubCommand(2, "t", None, [b"\x00", b"\xff"]),
            PublishBodies("MPUB", 2, "t", [b"\x00", b"\xff"]),
        ),
    ],
)
def test_what_is_right_is_published(
    publishing: Publishing, command: PubCommand | MpubCommand, expected: PublishBodies
) -> None:
    """Text and base64, at the limits too."""
    assert expected == publishing.begin(command)


@pytest.mark.parametrize(
    "command, code, detail",
    [
        (PubCommand(1, None, "b"), "E_BAD_TOPIC", "topic is missing; allowed: 1 to 64 bytes of"),
        (PubCommand(1, "", "b"), "E_BAD_TOPIC", "topic is '', 0 bytes; allowed"),
        (PubCommand(1, "a b", "b"), "E_BAD_TOPIC", "topic is 'a b', 3 bytes; allowed"),
        (PubCommand(1, "t\n", "b"), "E_BAD_TOPIC", "topic is"),
        (PubCommand(1, "é", "b"), "E_BAD_TOPIC", "topic is 'é', 2 bytes"),
        (PubCommand(1, "t" * 65, "b"), "E_BAD_TOPIC", ", 65 bytes; allowed"),
        (PubCommand(1, "t" * 10_000, "b"), "E_BAD_TOPIC", ", 10000 bytes; allowed"),
        (PubCommand(1, "t"), "E_BAD_MESSAGE", 'PUB needs "body"'),
        (
            PubCommand(1, "t", ""),
            "E_BAD_MESSAGE",
            "the message has 0 bytes; allowed: 1 to 10 bytes",
        ),
        (PubCommand(1, "t", None, b""), "E_BAD_MESSAGE", "the message has 0 bytes"),
        (
            PubCommand(1, "t", "é" * 6),
            "E_BAD_MESSAGE",
            "the message has 12 bytes; allowed: 1 to 10",
        ),
        (PubCommand(1, "t", "b", b"b"), "E_INVALID", "PUB needs either"),
        (DpubCommand(1, "t", "b"), "E_INVALID", "defer_ms is missing; allowed: 0 to 1000 ms"),
        (DpubCommand(1, "t", "b", None, -1), "E_INVALID", "defer_ms is -1"),
        (DpubCommand(1, "t", "b", None, 1_001), "E_INVALID", "defer_ms is 1001"),
        (DpubCommand(1, "t", None, None, 5), "E_BAD_MESSAGE", 'DPUB needs "body"'),
        (MpubCommand(1, "t"), "E_BAD_BODY", 'MPUB needs "bodies"'),
        (MpubCommand(1, "t", []), "E_BAD_BODY", 'MPUB needs "bodies"'),
        (MpubCommand(1, "t", None, []), "E_BAD_BODY", 'MPUB needs "bodies"'),
        (MpubCommand(1, "t", ["a"], [b"a"]), "E_INVALID", "MPUB needs either"),
        (MpubCommand(1, "t", ["a", ""]), "E_BAD_MESSAGE", "message 2 of 2 has 0 bytes"),
        (MpubCommand(1, "t", ["a", "b" * 11]), "E_BAD_MESSAGE", "message 2 of 2 has 11 bytes"),
        (
            MpubCommand(1, "t", ["b" * 10] * 4),
            "E_BAD_BODY",
            "an MPUB of 60 bytes; the limit is 50 bytes; send fewer messages in one MPUB",
        ),
        (MpubCommand(1, "", ["a"]), "E_BAD_TOPIC", "topic is"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_nsqd_would_refuse_is_not_published(
    publishing: Publishing, command: PubCommand | MpubCommand, code: str, detail: str
) -> None:
    """NSQ's code, and a text with value, limit and unit."""
    with pytest.raises(InvalidRequest) as caught:
        publishing.begin(command)

    assert (code, True) == (caught.value.token, detail in caught.value.detail)
    assert len(caught.value.detail) < 250
    assert (0, 0) == (len(publishing), publishing.unanswered_bytes)


@pytest.mark.parametrize("limit_bytes, is_published", [(46, True), (45, False)])
def test_an_mpub_counts_as_it_is_on_the_wire(
    limit_bytes: int,
    is_published: bool,  # noqa: FBT001 - one column of the table
) -> None:
    """Four bytes for the count, four for each size, and the bodies."""
    publishing = Publishing(Limits(max_body_size_bytes=limit_bytes))
    command = MpubCommand(1, "t", ["0123456789"] * 3)

    if is_published:
        assert 3 == len(publishing.begin(command).bodies)
    else:
        with pytest.raises(InvalidRequest, match="46 bytes; the limit is 45 bytes"):
            publishing.begin(command)


@pytest.mark.parametrize("of", ["bodies", "bodies_base64"])
def test_of_many_bodies_the_one_that_is_wrong_is_named(of: str) -> None:
    """Text and base64 alike, the first of those that are wrong; nothing is begun."""
    publishing = Publishing(LIMITS)
    texts = ["a"] * 5_000 + [""] + ["a"] * 5_000 + ["a" * 11]
    command = MpubCommand(1, "t", texts)
    if of == "bodies_base64":
        command = MpubCommand(1, "t", None, [text.encode() for text in texts])

    with pytest.raises(InvalidRequest, match="message 5001 of 10002 has 0 bytes"):
        publishing.begin(command)

    assert (10_002, 0) == (len(command), publishing.unanswered_bytes)


def test_ok_is_the_answer_to_what_is_published(publishing: Publishing) -> None:
    publish = publishing.begin(MpubCommand(7, "t", ["a"]))

    assert ResponseOut("MPUB", 7, "OK") == publishing.end(publish, None)


@pytest.mark.parametrize("retryable", [True, False])
def test_a_refusal_is_an_error(publishing: Publishing, retryable: bool) -> None:  # noqa: FBT001
    """It says why, and whether to try again."""
    publish = publishing.begin(PubCommand("r", "t", "a"))

    answer = publishing.end(publish, Refusal("OVERLOADED", "too much", retryable))

    assert ErrorOut("PUB", "r", "OVERLOADED", "too much", retryable) == answer


def test_a_publish_is_answered_once(publishing: Publishing) -> None:
    """What is said of it a second time is nothing, nor of one that is equal."""
    publish = publishing.begin(PubCommand(1, "t", "a"))
    twin = PublishBodies("PUB", 1, "t", [b"a"])

    answers = [publishing.end(each, None) for each in (twin, publish, publish)]

    assert [None, ResponseOut("PUB", 1, "OK"), None] == answers


def test_what_is_unanswered_is_counted(publishing: Publishing) -> None:
    """In messages' bytes, and a little for each, so that many small ones count too."""
    first = publishing.begin(PubCommand(1, "t", "0123456789"))
    one_bytes = publishing.unanswered_bytes
    second = publishing.begin(MpubCommand(1, "t", ["a"] * 5))
    both_bytes = publishing.unanswered_bytes
    is_counted = one_bytes > 10 and both_bytes > 3 * one_bytes

    publishing.end(first, None)
    publishing.end(second, Refusal("E", "no", retryable=False))

    assert is_counted
    assert (0, 0) == (len(publishing), publishing.unanswered_bytes)
