"""What a client is told, in the JSON of nsq.json.v1."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.json_frames import (
    DeliveryCommand,
    DeliveryOut,
    ErrorOut,
    FinCommand,
    MessageOut,
    ReqCommand,
    ResponseOut,
    close_wait_response,
    encode_frame,
    encode_messages,
    not_in_flight_error,
    status_response,
    subscribed_response,
)
from tests.support.websocket.session_messages import lines, message


def message_out(body: bytes, delivery_id: str = "1", left_ms: int = 1) -> DeliveryOut:
    """Return one delivery on topic t, channel c."""
    (out,) = encode_messages([message(0xA, body)], [delivery_id], ("t", "c"), left_ms)
    return out


def as_written(text: bytes) -> Any:  # noqa: ANN401 - any JSON
    """Return what a frame of one object says."""
    (only,) = lines(text)
    return only


def test_a_message_is_written_as_the_contract_shows() -> None:
    """Types, order and names are those of docs/websocket.md."""
    out = message_out(b"text", "000000000000000a-1", 59_999)

    assert (
        b'{"type":"message","id":"000000000000000a-1","topic":"t","channel":"c",'
        b'"timestamp_ns":"1790000000000000000","attempts":1,"deadline_ms":59999,"body":"text"}'
    ) == encode_frame([out])


@given(st.binary(min_size=1))
def test_any_body_comes_through(body: bytes) -> None:
    """UTF-8 comes as text, anything else as base64, never both."""
    out = as_written(encode_frame([message_out(body)]))

    if "body" in out:
        assert ("body_base64" not in out, body) == (True, out["body"].encode())
    else:
        assert body == base64.b64decode(out["body_base64"])


def test_a_body_that_is_no_text_changes_nothing_for_its_neighbours() -> None:
    """Of messages that came together each has the form that it needs."""
    bodies = [b"a", b"\xff", b"c"]
    arrived = [message(number, body) for number, body in enumerate(bodies)]

    frame = encode_frame(encode_messages(arrived, ["1", "2", "3"], ("t", "c"), 1))

    assert [("a", None), (None, "/w=="), ("c", None)] == [
        (each.get("body"), each.get("body_base64")) for each in lines(frame)
    ]


def test_an_error_leaves_out_what_it_does_not_name() -> None:
    """Without ids there is no member for them; cmd and ref are null where they are not known."""
    error = ErrorOut(None, None, "E_INVALID", "no", retryable=False)

    assert {
        "type": "error",
        "cmd": None,
        "ref": None,
        "code": "E_INVALID",
        "message": "no",
        "retryable": False,
    } == as_written(encode_frame([error]))


def test_a_frame_is_one_line_for_each_object() -> None:
    """Newlines stand between objects and nowhere else."""
    body = message_out(b"two\nlines")

    frame = encode_frame([body, ResponseOut("NOP", "a\nb", "OK")])

    assert 1 == frame.count(b"\n")
    assert ["two\nlines", "a\nb"] == [lines(frame)[0]["body"], lines(frame)[1]["ref"]]


@pytest.mark.parametrize(
    "out, expected",
    [
        (
            subscribed_response(("t", "c"), 10, 60_000),
            (
                '"cmd":"SUB","ref":null,"data":'
                '{"topic":"t","channel":"c","max_in_flight":10,"msg_timeout_ms":60000}'
            ),
        ),
        (
            status_response(1, ["a"]),
            '"cmd":"NOP","ref":null,"data":{"state":"connected","nsqds":1,"lost_ids":["a"]}',
        ),
        (
            status_response(0, []),
            '"cmd":"NOP","ref":null,"data":{"state":"disconnected","nsqds":0,"lost_ids":[]}',
        ),
        (
            close_wait_response("drain", reconnect_after_ms=1_234),
            (
                '"cmd":"CLS","ref":null,"data":'
                '{"state":"CLOSE_WAIT","reason":"drain","reconnect_after_ms":1234}'
            ),
        ),
        (
            close_wait_response("client", ref="r", reconnect_after_ms=None),
            (
                '"cmd":"CLS","ref":"r","data":'
                '{"state":"CLOSE_WAIT","reason":"client","reconnect_after_ms":null}'
            ),
        ),
    ],
)
def test_a_response_is_written_as_the_contract_shows(out: ResponseOut, expected: str) -> None:
    """Names and order of the members are those of docs/websocket.md."""
    assert f'{{"type":"response",{expected}}}'.encode() == encode_frame([out])


@pytest.mark.parametrize(
    "command, expected",
    [
        (FinCommand(7, id="a"), ("FIN", 7, "E_FIN_FAILED", "a", None)),
        (ReqCommand(ids=["a", "b"]), ("REQ", None, "E_REQ_FAILED", None, ["a"])),
    ],
)
def test_a_refusal_names_ids_as_the_command_did(
    command: DeliveryCommand, expected: tuple[object, ...]
) -> None:
    """One id for one, a list for a list."""
    error = not_in_flight_error(command, ["a"])

    assert expected == (error.cmd, error.ref, error.code, error.id, error.ids)


def test_what_is_sent_is_of_three_types() -> None:
    """The types of V2: message, response, error."""
    frame = encode_frame(
        [
            MessageOut("1", "t", "c", "1", 1, 1, "b"),
            ResponseOut("NOP", None, "OK"),
            ErrorOut("FIN", None, "E", "m", retryable=True),
        ]
    )

    assert ["message", "response", "error"] == [each["type"] for each in lines(frame)]
