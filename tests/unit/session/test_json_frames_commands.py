"""What a client says, in the JSON of nsq.json.v1."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.session import json_frames
from gateway.session.command_errors import InvalidCommand
from gateway.session.json_frames import (
    AuthCommand,
    ClsCommand,
    Command,
    DeliveryCommand,
    DpubCommand,
    ErrorOut,
    FinCommand,
    MpubCommand,
    NopCommand,
    ParsedCommand,
    PubCommand,
    RdyCommand,
    ReqCommand,
    TouchCommand,
    chunks,
    decode_frame,
    encode_frame,
)
from tests.support.websocket.session_messages import lines

SCALARS = st.none() | st.booleans() | st.text() | st.integers() | st.floats(allow_nan=False)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def read(text: str) -> list[ParsedCommand]:
    """Return what stands in a frame, however long it is."""
    return [each for chunk in chunks(text) for each in decode_frame(chunk)]


@pytest.mark.parametrize(
    "line, expected",
    [
        ('{"cmd":"FIN","ref":7,"id":"a","ids":["b"]}', FinCommand(7, "a", ["b"])),
        ('{"cmd":"REQ","ref":7,"id":"a","ids":["b"],"timeout_ms":5}', ReqCommand(7, "a", ["b"], 5)),
        ('{"cmd":"TOUCH","ref":7,"id":"a","ids":["b"]}', TouchCommand(7, "a", ["b"])),
        ('{"cmd":"RDY","ref":7,"count":6}', RdyCommand(7, 6)),
        ('{"cmd":"CLS","ref":7}', ClsCommand(7)),
        ('{"cmd":"NOP"}', NopCommand(None)),
        ('{"cmd":"AUTH","ref":7,"secret":"s"}', AuthCommand(7, "s")),
        ('{"cmd":"PUB","ref":7,"topic":"t","body":"b"}', PubCommand(7, "t", "b")),
        ('{"cmd":"PUB","topic":"t","body_base64":"/w=="}', PubCommand(None, "t", None, b"\xff")),
        (
            '{"cmd":"DPUB","topic":"t","body":"b","defer_ms":5}',
            DpubCommand(None, "t", "b", None, 5),
        ),
        ('{"cmd":"MPUB","topic":"t","bodies":["a","b"]}', MpubCommand(None, "t", ["a", "b"])),
        (
            '{"cmd":"MPUB","topic":"t","bodies_base64":["/w=="]}',
            MpubCommand(None, "t", None, [b"\xff"]),
        ),
        ('{"ref":7,"more":[{"cmd":"FIN"}],"count":6,"cmd":"RDY"}', RdyCommand(7, 6)),
    ],
)
def test_every_member_of_a_command_is_read(line: str, expected: Command) -> None:
    """Each has its type, in any order; what is not there is None, what is not known passed over."""
    assert [expected, NopCommand(8)] == list(read(line + '\n{"cmd":"NOP","ref":8}'))


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n", "\r\n"])
def test_a_frame_of_nothing_is_no_command(text: str) -> None:
    """Blank lines stand for nothing."""
    assert [] == list(read(text))


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_lines_may_end_as_they_like(end: str) -> None:
    """A last newline, a carriage return or an empty line makes no difference."""
    commands = list(read('{"cmd":"NOP","ref":"A"}\r\n\n{"cmd":"NOP","ref":"B"}' + end))

    assert [NopCommand("A"), NopCommand("B")] == commands


@pytest.mark.parametrize("text", ["{two}\n", "\n{two}", "{two}\n\n{one}", "{one}\n \n{two}\n"])
def test_a_blank_line_makes_no_room_for_two_objects_on_another(text: str) -> None:
    """They are refused as without it, and their neighbours hold."""
    one = '{"cmd":"NOP"}'

    spoken = read(text.replace("{two}", one * 2).replace("{one}", one))

    kinds = [InvalidCommand if each == "{two}" else NopCommand for each in text.split()]
    assert kinds == [type(each) for each in spoken]


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
        '{"more":' + "[" * 100_000,
        '{"ref":"\\ud800"}',
        "\u2028",
        "\x85\xa0\u2029",
    ],
    ids=lambda line: str(line)[:24].encode("unicode_escape").decode(),
)
def test_a_bad_line_spoils_no_neighbour(line: str) -> None:
    """It stands as Unreadable in its place, and says what is wrong in a few words."""
    before, bad, after = read(f'{{"cmd":"NOP","ref":"A"}}\n{line}\n{{"cmd":"NOP","ref":"B"}}')

    assert [NopCommand("A"), NopCommand("B")] == [before, after]
    assert isinstance(bad, InvalidCommand)
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
        ('{"cmd":"NOP","more":' + "[" * 100_000, ("NOP", None)),
        ('{"cmd":"FIN","ref":"\\ud800"}', ("FIN", None)),
    ],
    ids=lambda value: str(value)[:36],
)
def test_an_object_of_wrong_types_keeps_its_cmd_and_ref(
    line: str, expected: tuple[object, object]
) -> None:
    """What can be read of it says whose answer the error is."""
    (bad,) = read(line)

    assert isinstance(bad, InvalidCommand)
    assert expected == (bad.cmd, bad.ref)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "line, expected",
    [
        ('{"cmd":"PUB","topic":"t","body":"caf\\u00e9 \\ud83d","ref":7}', ("PUB", 7)),
        ('{"cmd":"PUB","body":"\\udc00 text","topic":"t","ref":"r"}', ("PUB", "r")),
        ('{"cmd":"MPUB","bodies":["a","\\ud83d","{"],"ref":7}', ("MPUB", 7)),
        ('{"cmd":"NOP","more":' + DEEP + ',"ref":7}', ("NOP", 7)),
        ('{"cmd":"NOP","more":NaN,"ref":7}', ("NOP", 7)),
        ('{"cmd":"' + "x" * 100 + '","more":NaN,"ref":7}', ("x" * 32, 7)),
    ],
    ids=["a body's end", "its begin", "of several", "deep", "not a number", "a long verb"],
)
def test_a_line_that_is_no_json_keeps_its_cmd_and_ref(
    line: str, expected: tuple[object, object]
) -> None:
    """Whoever waits for the answer to its ref hears that it is refused."""
    (bad,) = read(line)

    assert isinstance(bad, InvalidCommand)
    assert expected == (bad.cmd, bad.ref)


def test_a_line_of_too_many_strings_that_is_no_json_keeps_what_stands_first() -> None:
    ids = ",".join(['"a"'] * 100_000)
    first = f'{{"cmd":"FIN","ref":7,"ids":[{ids}],"more":NaN}}'
    last = f'{{"cmd":"FIN","ids":[{ids}],"more":NaN,"ref":7}}'

    assert [("FIN", 7), ("FIN", None)] == [(bad.cmd, bad.ref) for bad in read(f"{first}\n{last}")]


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    """Whatever comes, each line is a command or Unreadable, and nothing is raised."""
    spoken = list(read(text))

    assert all(isinstance(each, Command | InvalidCommand) for each in spoken)


@given(st.dictionaries(st.sampled_from(["cmd", "ref", "id", "ids", "timeout_ms", "count"]), JSON))
def test_any_object_is_read(given_object: dict[str, object]) -> None:
    """Whatever the members hold, the object is a command or Unreadable, and can be answered."""
    (only,) = read(json.dumps(given_object))

    answer = ErrorOut(only.cmd, only.ref, "E_INVALID", "no", retryable=False)

    assert only.ref == lines(encode_frame([answer]))[0]["ref"]


@pytest.mark.parametrize(
    "command, expected",
    [
        (FinCommand(id="a"), ["a"]),
        (FinCommand(id=""), [""]),
        (FinCommand(ids=["a", "b"]), ["a", "b"]),
    ],
)
def test_an_answer_names_one_id_or_several(command: DeliveryCommand, expected: list[str]) -> None:
    assert expected == command.delivery_ids()


@pytest.mark.parametrize(
    "command",
    [
        FinCommand(),
        FinCommand(ids=[]),
        FinCommand(id="a", ids=["b"]),
        FinCommand(id="a", ids=[]),
    ],
)
def test_an_answer_without_clear_ids_is_refused(command: DeliveryCommand) -> None:
    """None, an empty list and both forms at once say nothing that could be done."""
    with pytest.raises(InvalidRequest, match="FIN needs") as caught:
        command.delivery_ids()

    assert "E_INVALID" == caught.value.token


def test_a_command_does_not_show_its_secret() -> None:
    """AUTH carries one, and an error text or a log could name the command."""
    (auth,) = read('{"cmd":"AUTH","secret":"alice"}')

    assert isinstance(auth, AuthCommand)
    assert ("alice", "Auth()") == (auth.secret, repr(auth))


@given(st.lists(st.sampled_from(['{"cmd":"NOP"}', "", " ", "x", '{"cmd":"FIN","id":"abc"}'])))
def test_a_long_frame_in_chunks_is_the_same_as_its_lines(spoken: list[str]) -> None:
    text = "\n".join(spoken)
    expected = list(read(text))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_frames, "CHUNK_CHARS", 20)
        assert expected == list(read(text))
