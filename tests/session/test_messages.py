"""The JSON of nsq.json.v1, both ways."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.session.messages import (
    CommandIn,
    ErrorOut,
    MessageOut,
    ResponseOut,
    Unreadable,
    close_wait,
    decode_frame,
    encode_frame,
    message_out,
    not_in_flight,
    sources_changed,
    subscribed,
)
from tests.support.deliveries import lines, message

SCALARS = st.none() | st.booleans() | st.text() | st.integers() | st.floats(allow_nan=False)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def as_written(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what a frame of one object says."""
    (only,) = lines(text)
    return only


# From the client


def test_every_member_of_a_command_is_read() -> None:
    """Each has its type, and what is not there is None."""
    full = '{"cmd":"REQ","ref":7,"id":"a","ids":["b"],"timeout_ms":5,"count":6,"more":[]}'

    commands = list(decode_frame(full + '\n{"cmd":"NOP"}'))

    assert [
        CommandIn("REQ", 7, "a", ["b"], 5, 6),
        CommandIn("NOP", None, None, None, None, None),
    ] == commands


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n", "\r\n"])
def test_a_frame_of_nothing_is_no_command(text: str) -> None:
    """Blank lines stand for nothing."""
    assert [] == list(decode_frame(text))


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_lines_may_end_as_they_like(end: str) -> None:
    """A last newline, a carriage return or an empty line makes no difference."""
    commands = list(decode_frame('{"cmd":"A"}\r\n\n{"cmd":"B"}' + end))

    assert [CommandIn("A"), CommandIn("B")] == commands


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "garbage",
        "null",
        "7",
        '"NOP"',
        '["NOP"]',
        "\0\0\0",
        "\ufeff{}",
        "[" * 100_000,
        "9" * 5_000,
        '{"cmd":"NOP","more":' + "[" * 100_000,
        '{"cmd":"FIN","timeout_ms":' + "9" * 5_000 + "}",
        '{"cmd":"FIN","ref":1e999}',
        '{"cmd":"FIN","ref":"\\ud800"}',
    ],
    ids=lambda line: str(line)[:24].encode("unicode_escape").decode(),
)
def test_a_bad_line_spoils_no_neighbour(line: str) -> None:
    """It stands as Unreadable in its place, and says what is wrong in a few words."""
    before, bad, after = decode_frame(f'{{"cmd":"A"}}\n{line}\n{{"cmd":"B"}}')

    assert [CommandIn("A"), CommandIn("B")] == [before, after]
    assert isinstance(bad, Unreadable)
    assert (None, None) == (bad.cmd, bad.ref)
    assert 0 < len(bad.problem) < 200


@pytest.mark.parametrize(
    "line, expected",
    [
        ('{"cmd":"FIN","ref":7,"id":1}', ("FIN", 7)),
        ('{"cmd":"FIN","ref":"r","ids":"a"}', ("FIN", "r")),
        ('{"cmd":"RDY","ref":1.5,"count":"1"}', ("RDY", 1.5)),
        ('{"cmd":"RDY","ref":false,"count":1.5}', ("RDY", False)),
        ('{"cmd":"NOP","ref":{"a":1}}', ("NOP", None)),
        ('{"cmd":"NOP","ref":[1]}', ("NOP", None)),
        ('{"cmd":7,"ref":1}', (None, 1)),
        ('{"ref":1}', (None, 1)),
    ],
)
def test_an_object_of_wrong_types_keeps_its_cmd_and_ref(
    line: str, expected: tuple[object, object]
) -> None:
    """What can be read of it says whose answer the error is."""
    (bad,) = decode_frame(line)

    assert isinstance(bad, Unreadable)
    assert expected == (bad.cmd, bad.ref)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    """Whatever comes, each line is a command or Unreadable, and nothing is raised."""
    read = list(decode_frame(text))

    assert all(isinstance(each, CommandIn | Unreadable) for each in read)


@given(st.dictionaries(st.sampled_from(["cmd", "ref", "id", "ids", "timeout_ms", "count"]), JSON))
def test_any_object_is_read(given_object: dict[str, object]) -> None:
    """Whatever the members hold, the object is a command or Unreadable, and can be answered."""
    (only,) = decode_frame(json.dumps(given_object))

    answer = ErrorOut(only.cmd, only.ref, "E_INVALID", "no", retryable=False)

    assert only.ref == as_written(encode_frame([answer]))["ref"]


@pytest.mark.parametrize(
    "command, expected",
    [
        (CommandIn("FIN", id="a"), ["a"]),
        (CommandIn("FIN", id=""), [""]),
        (CommandIn("FIN", ids=["a", "b"]), ["a", "b"]),
    ],
)
def test_an_answer_names_one_id_or_several(command: CommandIn, expected: list[str]) -> None:
    """Both forms are the same to what follows."""
    assert expected == command.delivery_ids()


@pytest.mark.parametrize(
    "command",
    [
        CommandIn("FIN"),
        CommandIn("FIN", ids=[]),
        CommandIn("FIN", id="a", ids=["b"]),
        CommandIn("FIN", id="a", ids=[]),
    ],
)
def test_an_answer_without_clear_ids_is_refused(command: CommandIn) -> None:
    """None, an empty list and both forms at once say nothing that could be done."""
    with pytest.raises(InvalidRequest, match="FIN needs") as caught:
        command.delivery_ids()

    assert "E_INVALID" == caught.value.token


# To the client


def test_a_message_is_written_as_the_contract_shows() -> None:
    """Types, order and names are those of docs/websocket.md."""
    out = message_out(message(0xA, b"text"), "000000000000000a-1", ("t", "c"), 59_999)

    assert (
        '{"type":"message","id":"000000000000000a-1","topic":"t","channel":"c",'
        '"timestamp_ns":"1790000000000000000","attempts":1,"deadline_ms":59999,"body":"text"}'
    ) == encode_frame([out])


@given(st.binary(min_size=1))
def test_any_body_comes_through(body: bytes) -> None:
    """UTF-8 comes as text, anything else as base64, never both."""
    out = as_written(encode_frame([message_out(message(1, body), "1", ("t", "c"), 1)]))

    if "body" in out:
        assert ("body_base64" not in out, body) == (True, out["body"].encode())
    else:
        assert body == base64.b64decode(out["body_base64"])


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
    body = message_out(message(1, b"two\nlines"), "1", ("t", "c"), 1)

    frame = encode_frame([body, ResponseOut("NOP", "a\nb", "OK")])

    assert 1 == frame.count("\n")
    assert ["two\nlines", "a\nb"] == [lines(frame)[0]["body"], lines(frame)[1]["ref"]]


@pytest.mark.parametrize(
    "out, expected",
    [
        (
            subscribed(("t", "c"), 10, 60_000),
            (
                '"cmd":"SUB","ref":null,"data":'
                '{"topic":"t","channel":"c","max_in_flight":10,"msg_timeout_ms":60000}'
            ),
        ),
        (
            sources_changed(1, ["a"]),
            '"cmd":"NOP","ref":null,"data":{"state":"connected","nsqds":1,"lost_ids":["a"]}',
        ),
        (
            sources_changed(0, []),
            '"cmd":"NOP","ref":null,"data":{"state":"disconnected","nsqds":0,"lost_ids":[]}',
        ),
        (
            close_wait("drain", reconnect_after_ms=1_234),
            (
                '"cmd":"CLS","ref":null,"data":'
                '{"state":"CLOSE_WAIT","reason":"drain","reconnect_after_ms":1234}'
            ),
        ),
        (
            close_wait("client", ref="r", reconnect_after_ms=None),
            (
                '"cmd":"CLS","ref":"r","data":'
                '{"state":"CLOSE_WAIT","reason":"client","reconnect_after_ms":null}'
            ),
        ),
    ],
)
def test_a_response_is_written_as_the_contract_shows(out: ResponseOut, expected: str) -> None:
    """Names and order of the members are those of docs/websocket.md."""
    assert f'{{"type":"response",{expected}}}' == encode_frame([out])


@pytest.mark.parametrize(
    "command, expected",
    [
        (CommandIn("FIN", 7, id="a"), ("FIN", 7, "E_FIN_FAILED", "a", None)),
        (CommandIn("REQ", ids=["a", "b"]), ("REQ", None, "E_REQ_FAILED", None, ["a"])),
    ],
)
def test_a_refusal_names_ids_as_the_command_did(
    command: CommandIn, expected: tuple[object, ...]
) -> None:
    """One id for one, a list for a list."""
    error = not_in_flight(command, ["a"])

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


def test_a_command_does_not_show_its_secret() -> None:
    """AUTH carries one, and an error text or a log could name the command."""
    (auth,) = decode_frame('{"cmd":"AUTH","secret":"alice"}')

    assert isinstance(auth, CommandIn)
    assert ("alice", "CommandIn('AUTH')") == (auth.secret, repr(auth))
