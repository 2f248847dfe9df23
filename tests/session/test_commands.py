"""What a client says, in the JSON of nsq.json.v1."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.session.commands import (
    Ack,
    Auth,
    Cls,
    Command,
    Dpub,
    Fin,
    Mpub,
    Nop,
    Pub,
    Rdy,
    Req,
    Touch,
    decode_frame,
)
from gateway.session.messages import ErrorOut, encode_frame
from gateway.session.misreading import Unreadable
from tests.support.deliveries import lines

SCALARS = st.none() | st.booleans() | st.text() | st.integers() | st.floats(allow_nan=False)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@pytest.mark.parametrize(
    "line, expected",
    [
        ('{"cmd":"FIN","ref":7,"id":"a","ids":["b"]}', Fin(7, "a", ["b"])),
        ('{"cmd":"REQ","ref":7,"id":"a","ids":["b"],"timeout_ms":5}', Req(7, "a", ["b"], 5)),
        ('{"cmd":"TOUCH","ref":7,"id":"a","ids":["b"]}', Touch(7, "a", ["b"])),
        ('{"cmd":"RDY","ref":7,"count":6}', Rdy(7, 6)),
        ('{"cmd":"CLS","ref":7}', Cls(7)),
        ('{"cmd":"NOP"}', Nop(None)),
        ('{"cmd":"AUTH","ref":7,"secret":"s"}', Auth(7, "s")),
        ('{"cmd":"PUB","ref":7,"topic":"t","body":"b"}', Pub(7, "t", "b")),
        ('{"cmd":"PUB","topic":"t","body_base64":"/w=="}', Pub(None, "t", None, b"\xff")),
        ('{"cmd":"DPUB","topic":"t","body":"b","defer_ms":5}', Dpub(None, "t", "b", None, 5)),
        ('{"cmd":"MPUB","topic":"t","bodies":["a","b"]}', Mpub(None, "t", ["a", "b"])),
        ('{"cmd":"MPUB","topic":"t","bodies_base64":["/w=="]}', Mpub(None, "t", None, [b"\xff"])),
        ('{"ref":7,"more":[{"cmd":"FIN"}],"count":6,"cmd":"RDY"}', Rdy(7, 6)),
    ],
)
def test_every_member_of_a_command_is_read(line: str, expected: Command) -> None:
    """Each has its type, in any order; what is not there is None, what is not known passed over."""
    assert [expected, Nop(8)] == list(decode_frame(line + '\n{"cmd":"NOP","ref":8}'))


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n", "\r\n"])
def test_a_frame_of_nothing_is_no_command(text: str) -> None:
    """Blank lines stand for nothing."""
    assert [] == list(decode_frame(text))


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_lines_may_end_as_they_like(end: str) -> None:
    """A last newline, a carriage return or an empty line makes no difference."""
    commands = list(decode_frame('{"cmd":"NOP","ref":"A"}\r\n\n{"cmd":"NOP","ref":"B"}' + end))

    assert [Nop("A"), Nop("B")] == commands


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
        '{"cmd":"FIN","ref":"\\ud800"}',
    ],
    ids=lambda line: str(line)[:24].encode("unicode_escape").decode(),
)
def test_a_bad_line_spoils_no_neighbour(line: str) -> None:
    """It stands as Unreadable in its place, and says what is wrong in a few words."""
    before, bad, after = decode_frame(
        f'{{"cmd":"NOP","ref":"A"}}\n{line}\n{{"cmd":"NOP","ref":"B"}}'
    )

    assert [Nop("A"), Nop("B")] == [before, after]
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
        ('{"cmd":"REQ","timeout_ms":' + "9" * 5_000 + "}", ("REQ", None)),
        ('{"cmd":"FIN","ref":1e999}', ("FIN", None)),
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

    assert all(isinstance(each, Command | Unreadable) for each in read)


@given(st.dictionaries(st.sampled_from(["cmd", "ref", "id", "ids", "timeout_ms", "count"]), JSON))
def test_any_object_is_read(given_object: dict[str, object]) -> None:
    """Whatever the members hold, the object is a command or Unreadable, and can be answered."""
    (only,) = decode_frame(json.dumps(given_object))

    answer = ErrorOut(only.cmd, only.ref, "E_INVALID", "no", retryable=False)

    assert only.ref == lines(encode_frame([answer]))[0]["ref"]


@pytest.mark.parametrize(
    "command, expected",
    [
        (Fin(id="a"), ["a"]),
        (Fin(id=""), [""]),
        (Fin(ids=["a", "b"]), ["a", "b"]),
    ],
)
def test_an_answer_names_one_id_or_several(command: Ack, expected: list[str]) -> None:
    """Both forms are the same to what follows."""
    assert expected == command.delivery_ids()


@pytest.mark.parametrize(
    "command",
    [
        Fin(),
        Fin(ids=[]),
        Fin(id="a", ids=["b"]),
        Fin(id="a", ids=[]),
    ],
)
def test_an_answer_without_clear_ids_is_refused(command: Ack) -> None:
    """None, an empty list and both forms at once say nothing that could be done."""
    with pytest.raises(InvalidRequest, match="FIN needs") as caught:
        command.delivery_ids()

    assert "E_INVALID" == caught.value.token


def test_a_command_does_not_show_its_secret() -> None:
    """AUTH carries one, and an error text or a log could name the command."""
    (auth,) = decode_frame('{"cmd":"AUTH","secret":"alice"}')

    assert isinstance(auth, Auth)
    assert ("alice", "Auth()") == (auth.secret, repr(auth))
