"""What the client is told of a line that is no command: in our words, one line."""

from __future__ import annotations

import pytest

from gateway.session.command_errors import InvalidCommand
from gateway.session.json_frames import decode_frame

VERBS = "FIN, REQ, TOUCH, RDY, CLS, NOP, AUTH, PUB, DPUB, MPUB"
TEXT = "a string is allowed"
LIST = "a list of strings"
EACH = "(JSON.stringify each, or send bodies_base64)"
NO_JSON = "the line is not valid JSON"
IS_COMMAND = "a command is a JSON object on one line"
HALF = "has half of a surrogate pair, which is not valid text; allowed: both halves"


def problem(line: str) -> str:
    (bad,) = decode_frame(line)
    assert isinstance(bad, InvalidCommand)
    return bad.problem


@pytest.mark.parametrize(
    "line, expected",
    [
        (
            '{"cmd":"PUB","body":{}}',
            f"body is an object; {TEXT} (JSON.stringify it, or send body_base64)",
        ),
        ('{"cmd":"PUB","topic":["t"]}', f"topic is a list; {TEXT}"),
        ('{"cmd":"AUTH","secret":true}', f"secret is a boolean; {TEXT}"),
        ('{"cmd":"FIN","id":1}', f"id is a number; {TEXT}"),
        ('{"cmd":"FIN","ids":"a"}', "ids is a string; a list of strings is allowed"),
        ('{"cmd":"FIN","ids":["a",null]}', "ids[1] is null; a list of strings is allowed"),
        ('{"cmd":"RDY","count":"1"}', "count is a string; a whole number of messages is allowed"),
        (
            '{"cmd":"RDY","count":1.5}',
            "count is a number that is not whole; a whole number of messages is allowed",
        ),
        (
            '{"cmd":"REQ","timeout_ms":' + "9" * 5_000 + "}",
            "timeout_ms is a number out of range; a whole number of milliseconds is allowed",
        ),
        (
            '{"cmd":"NOP","ref":[1]}',
            "ref is a list; a string, a number, true, false or null is allowed",
        ),
        (
            '{"cmd":"PUB","body_base64":"!"}',
            "body_base64 is no base64; base64 with its padding is allowed",
        ),
        (
            '{"cmd":"MPUB","bodies_base64":["/w==","!"]}',
            f"bodies_base64[1] is no base64; {LIST}, each base64 with its padding, is allowed",
        ),
        (
            '{"cmd":"MPUB","bodies":["a",{}]}',
            f"bodies[1] is an object; {LIST} is allowed {EACH}",
        ),
        ('{"cmd":"NOP","cmd":"FIN"}', "cmd occurs twice; allowed: once"),
    ],
    ids=lambda value: value[:36],
)
def test_a_member_of_a_wrong_type_is_named(line: str, expected: str) -> None:
    assert expected == problem(line)


@pytest.mark.parametrize(
    "line, expected",
    [
        ('{"cmd":"pub","topic":"t"}', "unknown command 'pub': commands are in capitals, PUB"),
        ('{"cmd":"JUMP"}', f"unknown command 'JUMP'; allowed: {VERBS}"),
        ('{"cmd":"A\\nB"}', f"unknown command 'A\\nB'; allowed: {VERBS}"),
        ('{"cmd":7}', f"cmd is a number; allowed: {VERBS}"),
        ('{"cmd":null}', f"cmd is null; allowed: {VERBS}"),
        ("{}", f"cmd is missing; allowed: {VERBS}"),
        (" []", "the line is a list; a command is a JSON object"),
        ('"NOP"', "the line is a string; a command is a JSON object"),
        ("null", "the line is null; a command is a JSON object"),
        ("7", "the line is a number; a command is a JSON object"),
    ],
)
def test_what_names_no_command_is_told_what_does(line: str, expected: str) -> None:
    """Small letters as well as other words, and what is no object."""
    assert expected == problem(line)


@pytest.mark.parametrize(
    "line, expected",
    [
        ('{"cmd":"RDY"', f"{NO_JSON}: it ends too early; {IS_COMMAND}"),
        ('{"cmd":"NOP","ref":NaN}', f"{NO_JSON}: unexpected byte 19; {IS_COMMAND}"),
        ('{"cmd":"NOP"} x', f"{NO_JSON}: unexpected byte 15; {IS_COMMAND}"),
        ('{"cmd":"PUB","body":"\\ud83d\\ude00', f"{NO_JSON}: it ends too early; {IS_COMMAND}"),
        ('{"cmd":"PUB","body":"\\\\ud83d', f"{NO_JSON}: it ends too early; {IS_COMMAND}"),
    ],
)
def test_what_is_no_json_is_told_where(line: str, expected: str) -> None:
    assert expected == problem(line)


@pytest.mark.parametrize(
    "line, whose",
    [
        ('{"cmd":"NOP","ref":"\\ud800"}', "ref"),
        ('{"cmd":"NOP","ref" : "a\\udc00"}', "ref"),
        ('{"cmd":"PUB","body":"text \\uD83D text"}', "body"),
        ('{"cmd":"FIN","ids":["\\ud800"]}', "the line"),
        ('{"\\ud800":1}', "the line"),
    ],
)
def test_half_of_a_surrogate_pair_is_told(line: str, whose: str) -> None:
    """It can be written in JSON, and is no text."""
    assert f"{whose} {HALF}" == problem(line)
