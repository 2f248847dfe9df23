"""What is published over a socket: checked here, since nsqd would close a shared connection."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.wire import Limits
from gateway.session.actions import Publish, Refusal
from gateway.session.commands import Dpub, Mpub, Pub
from gateway.session.messages import ErrorOut, ResponseOut
from gateway.session.publishing import Publishing

LIMITS = Limits(max_msg_size_bytes=10, max_body_size_bytes=50, max_req_timeout_ms=1_000)


@pytest.fixture
def publishing() -> Publishing:
    """Return the publishes of a socket, with small limits."""
    return Publishing(LIMITS)


@pytest.mark.parametrize(
    "command, expected",
    [
        (Pub(1, "t", "text"), Publish("PUB", 1, "t", [b"text"])),
        (Pub(None, "t#ephemeral", "é"), Publish("PUB", None, "t#ephemeral", [b"\xc3\xa9"])),
        (Pub(1, "t", None, b"\xff"), Publish("PUB", 1, "t", [b"\xff"])),
        (Pub(1, "t", "0123456789"), Publish("PUB", 1, "t", [b"0123456789"])),
        (Dpub("r", "t", "text", None, 0), Publish("DPUB", "r", "t", [b"text"], 0)),
        (Dpub("r", "t", "text", None, 1_000), Publish("DPUB", "r", "t", [b"text"], 1_000)),
        (Mpub(2, "t", ["a", "b"]), Publish("MPUB", 2, "t", [b"a", b"b"])),
        (Mpub(2, "t", None, [b"\x00", b"\xff"]), Publish("MPUB", 2, "t", [b"\x00", b"\xff"])),
    ],
)
def test_what_is_right_is_published(
    publishing: Publishing, command: Pub | Mpub, expected: Publish
) -> None:
    """Text and base64, at the limits too."""
    assert expected == publishing.begin(command)


@pytest.mark.parametrize(
    "command, code, detail",
    [
        (Pub(1, None, "b"), "E_BAD_TOPIC", "topic is missing; allowed: 1 to 64 letters"),
        (Pub(1, "", "b"), "E_BAD_TOPIC", "topic is ''; allowed"),
        (Pub(1, "a b", "b"), "E_BAD_TOPIC", "topic is 'a b'; allowed"),
        (Pub(1, "t\n", "b"), "E_BAD_TOPIC", "topic is"),
        (Pub(1, "é", "b"), "E_BAD_TOPIC", "topic is"),
        (Pub(1, "t" * 65, "b"), "E_BAD_TOPIC", "topic is"),
        (Pub(1, "t" * 10_000, "b"), "E_BAD_TOPIC", "topic is"),
        (Pub(1, "t"), "E_BAD_MESSAGE", 'PUB needs "body"'),
        (Pub(1, "t", ""), "E_BAD_MESSAGE", "the message has 0 bytes; allowed: 1 to 10 bytes"),
        (Pub(1, "t", None, b""), "E_BAD_MESSAGE", "the message has 0 bytes"),
        (Pub(1, "t", "é" * 6), "E_BAD_MESSAGE", "the message has 12 bytes; allowed: 1 to 10"),
        (Pub(1, "t", "b", b"b"), "E_INVALID", "PUB needs either"),
        (Dpub(1, "t", "b"), "E_INVALID", "defer_ms is missing; allowed: 0 to 1000 ms"),
        (Dpub(1, "t", "b", None, -1), "E_INVALID", "defer_ms is -1"),
        (Dpub(1, "t", "b", None, 1_001), "E_INVALID", "defer_ms is 1001"),
        (Dpub(1, "t", None, None, 5), "E_BAD_MESSAGE", 'DPUB needs "body"'),
        (Mpub(1, "t"), "E_BAD_BODY", 'MPUB needs "bodies"'),
        (Mpub(1, "t", []), "E_BAD_BODY", 'MPUB needs "bodies"'),
        (Mpub(1, "t", None, []), "E_BAD_BODY", 'MPUB needs "bodies"'),
        (Mpub(1, "t", ["a"], [b"a"]), "E_INVALID", "MPUB needs either"),
        (Mpub(1, "t", ["a", ""]), "E_BAD_MESSAGE", "message 2 of 2 has 0 bytes"),
        (Mpub(1, "t", ["a", "b" * 11]), "E_BAD_MESSAGE", "message 2 of 2 has 11 bytes"),
        (Mpub(1, "t", ["b" * 10] * 4), "E_BAD_BODY", "an MPUB of 60 bytes; the limit is 50"),
        (Mpub(1, "", ["a"]), "E_BAD_TOPIC", "topic is"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_nsqd_would_refuse_is_not_published(
    publishing: Publishing, command: Pub | Mpub, code: str, detail: str
) -> None:
    """NSQ's code, and a text with value, limit and unit."""
    with pytest.raises(InvalidRequest) as caught:
        publishing.begin(command)

    assert (code, True) == (caught.value.token, detail in caught.value.detail)
    assert len(caught.value.detail) < 200
    assert (0, 0) == (len(publishing), publishing.unanswered_bytes)


@pytest.mark.parametrize("limit_bytes, is_published", [(46, True), (45, False)])
def test_an_mpub_counts_as_it_is_on_the_wire(
    limit_bytes: int,
    is_published: bool,  # noqa: FBT001 - one column of the table
) -> None:
    """Four bytes for the count, four for each size, and the bodies."""
    publishing = Publishing(Limits(max_body_size_bytes=limit_bytes))
    command = Mpub(1, "t", ["0123456789"] * 3)

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
    command = Mpub(1, "t", texts)
    if of == "bodies_base64":
        command = Mpub(1, "t", None, [text.encode() for text in texts])

    with pytest.raises(InvalidRequest, match="message 5001 of 10002 has 0 bytes"):
        publishing.begin(command)

    assert (10_002, 0) == (len(command), publishing.unanswered_bytes)


def test_ok_is_the_answer_to_what_is_published(publishing: Publishing) -> None:
    """With the ref of its command."""
    publish = publishing.begin(Mpub(7, "t", ["a"]))

    assert ResponseOut("MPUB", 7, "OK") == publishing.end(publish, None)


@pytest.mark.parametrize("retryable", [True, False])
def test_a_refusal_is_an_error(publishing: Publishing, retryable: bool) -> None:  # noqa: FBT001
    """It says why, and whether to try again."""
    publish = publishing.begin(Pub("r", "t", "a"))

    answer = publishing.end(publish, Refusal("OVERLOADED", "too much", retryable))

    assert ErrorOut("PUB", "r", "OVERLOADED", "too much", retryable) == answer


def test_a_publish_is_answered_once(publishing: Publishing) -> None:
    """What is said of it a second time is nothing, nor of one that is equal."""
    publish = publishing.begin(Pub(1, "t", "a"))
    twin = Publish("PUB", 1, "t", [b"a"])

    answers = [publishing.end(each, None) for each in (twin, publish, publish)]

    assert [None, ResponseOut("PUB", 1, "OK"), None] == answers


def test_what_is_unanswered_is_counted(publishing: Publishing) -> None:
    """In messages' bytes, and a little for each, so that many small ones count too."""
    first = publishing.begin(Pub(1, "t", "0123456789"))
    one_bytes = publishing.unanswered_bytes
    second = publishing.begin(Mpub(1, "t", ["a"] * 5))
    both_bytes = publishing.unanswered_bytes
    is_counted = one_bytes > 10 and both_bytes > 3 * one_bytes

    publishing.end(first, None)
    publishing.end(second, Refusal("E", "no", retryable=False))

    assert is_counted
    assert (0, 0) == (len(publishing), publishing.unanswered_bytes)
