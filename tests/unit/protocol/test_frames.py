"""Frames have the bytes of the specification."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.frames import (
    CLOSE_WAIT,
    HEARTBEAT_FRAME,
    OK,
    ErrorFrame,
    Message,
    Response,
    encode_messages,
    parse_error,
    read_messages,
)

ID = b"0123456789abcdef"


@pytest.mark.parametrize(
    "frame,data",
    [
        (OK, b"\x00\x00\x00\x06\x00\x00\x00\x00OK"),
        (CLOSE_WAIT, b"\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"),
        (HEARTBEAT_FRAME, b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"),
        (Response(b""), b"\x00\x00\x00\x04\x00\x00\x00\x00"),
        (ErrorFrame("E_X", "why not"), b"\x00\x00\x00\x0f\x00\x00\x00\x01E_X why not"),
        (ErrorFrame("E_BAD_PROTOCOL", ""), b"\x00\x00\x00\x12\x00\x00\x00\x01E_BAD_PROTOCOL"),
        (ErrorFrame("E_X", "\udcff\u00e9"), b"\x00\x00\x00\x0b\x00\x00\x00\x01E_X \xff\xc3\xa9"),
    ],
    ids=["OK", "CLOSE_WAIT", "heartbeat", "empty", "error", "error-code-only", "error-any-bytes"],
)
def test_frame_has_size_type_and_data(frame: Response | ErrorFrame, data: bytes) -> None:
    assert data == frame.encode()


@pytest.mark.parametrize(
    "data,frame",
    [
        (b"E_BAD_TOPIC PUB topic name", ErrorFrame("E_BAD_TOPIC", "PUB topic name")),
        (b"E_BAD_PROTOCOL", ErrorFrame("E_BAD_PROTOCOL", "")),
        (b"E_X ", ErrorFrame("E_X", "")),
        (b"E_X  two", ErrorFrame("E_X", " two")),
        (b"", ErrorFrame("", "")),
        (b"E_X \xff", ErrorFrame("E_X", "\ufffd")),
    ],
)
def test_error_is_split_at_its_first_space(data: bytes, frame: ErrorFrame) -> None:
    """The code is the first word; what is not UTF-8 is replaced."""
    assert frame == parse_error(data)


@pytest.mark.parametrize(
    "code,is_fatal",
    [
        ("E_FIN_FAILED", False),
        ("E_REQ_FAILED", False),
        ("E_TOUCH_FAILED", False),
        ("E_PUB_FAILED", True),
        ("E_INVALID", True),
        ("", True),
    ],
)
def test_all_errors_but_three_are_fatal(code: str, is_fatal: bool) -> None:  # noqa: FBT001
    """FIN, REQ and TOUCH of a message that is not in flight leave the connection open."""
    assert is_fatal is ErrorFrame(code, "").is_fatal


def test_message_has_time_attempts_id_and_body() -> None:
    """The body stands after 8 bytes of time, 2 of attempts and 16 of id."""
    message = Message(1, 2, ID, b"body")

    data = encode_messages([message])

    assert (
        b"\x00\x00\x00\x22\x00\x00\x00\x02"
        b"\x00\x00\x00\x00\x00\x00\x00\x01\x00\x020123456789abcdefbody"
    ) == data


def test_frames_of_messages_are_consecutive() -> None:
    """Many messages are the bytes of each, without anything between."""
    first, second = Message(1, 1, ID, b"a"), Message(2, 1, ID, b"")

    data = encode_messages([first, second])

    assert encode_messages([first]) + encode_messages([second]) == data


@pytest.mark.parametrize(
    "attempts,data", [(65_535, b"\xff\xff"), (65_536, b"\x00\x00"), (65_537, b"\x00\x01")]
)
def test_attempts_wrap_at_16_bits(attempts: int, data: bytes) -> None:
    """The delivery after 65 535 others begins anew, as in nsqd."""
    frame = encode_messages([Message(0, attempts, ID, b"")])

    assert data == frame[16:18]


def test_no_messages_are_no_bytes() -> None:
    """An empty row says nothing."""
    assert b"" == encode_messages([])


# Many messages in one read

BODY = b"x" * 20
OTHERS = {
    "nothing": b"",
    "half a head": b"\x00\x00\x00",
    "half a message": encode_messages([Message(1, 1, ID, BODY)])[:-1],
    "a response as long": Response(b"y" * (26 + len(BODY))).encode(),
    "an error as long": ErrorFrame("E_FIN_FAILED", "z" * (13 + len(BODY))).encode(),
    "a head that lies": b"\x00\x00\x00\x1d\x00\x00\x00\x02" + b"\x00" * 60,
}


@pytest.mark.parametrize("rest", OTHERS.values(), ids=OTHERS.keys())
def test_consecutive_messages_are_read_up_to_something_else(rest: bytes) -> None:
    """The table for frames of one size ends where the loop over single frames does."""
    for count, before in itertools.product(range(13), (0, 1, 3)):
        other = [Message(number, 2, ID, b"other") for number in range(before)]
        equal = [Message(2**62 + number, 65_535, ID, BODY) for number in range(count)]
        stream = encode_messages(other + equal)
        messages: list[Message] = []
        ids: list[bytes] = []

        end = read_messages(b"??" + stream + rest, 2, messages)
        end_of_ids = read_messages(b"??" + stream + rest, 2, ids, ids_only=True)

        assert other + equal == messages, (count, before)
        assert [ID] * (count + before) == ids
        assert (2 + len(stream),) * 2 == (end, end_of_ids)


@given(st.lists(st.sampled_from([b"", b"1", b"22"]), max_size=60), st.integers(0, 60))
def test_messages_of_any_sizes_are_read_whole(bodies: list[bytes], cut_bytes: int) -> None:
    """In order, each once; the one that is cut off is left."""
    messages = [Message(number, 1, ID, body) for number, body in enumerate(bodies)]
    stream = encode_messages(messages)
    row: list[Message] = []
    data = stream[: max(0, len(stream) - cut_bytes)]

    end = read_messages(data, 0, row)

    assert messages[: len(row)] == row
    assert len(encode_messages(row)) == end
    assert messages == row or len(data) < len(encode_messages(messages[: len(row) + 1]))
