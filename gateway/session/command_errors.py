"""
Explain why a line that a client sent is not a valid command.

JSON.stringify produces invalid lines from strings that were cut inside of a surrogate pair
(ECMA-262 §25.5.2), other encoders from NaN. msgspec then rejects the whole line. This module reads
the members of the outermost object one by one, so that the error can name the command and its ref.
"Member" means a name and its value in that object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress

import msgspec

_MAX_MEMBERS = 16
"""Maximum members that are read; a command has at most 6."""
_NESTED_CHARS = 65_536
"""
Longest line whose nested lists and objects are read with the standard library's decoder.

In a longer line the search ends there, because that decoder allocates an object for each value.
"""

# Possessive quantifiers: each character is read once, whatever follows.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BEGIN = re.compile(r"[ \t\r]*+\{")
_NAME = re.compile(rf"[ \t\r]*+({_STRING})[ \t\r]*+:[ \t\r]*+")
_SCALAR = re.compile(rf'{_STRING}|[^\s"\[\]{{}},:]++')
"""A string, or a number or word."""
_FLAT = re.compile(rf'[\[{{](?:[^"\[\]{{}}]++|{_STRING})*+[\]}}]')
"""A list or an object without nested ones."""
_DEEP = re.compile(r'([^"\]}]++)([^"\[{]*[\]}])')
"""A container nested too deep to decode: opening brackets, then closing ones, without strings."""
# What must follow a value.
_BEHIND = re.compile(r"[ \t\r]*+([,}])")

_scan = json.JSONDecoder(strict=False).raw_decode
_decode_scalar = msgspec.json.Decoder(str | int | float | bool | None).decode


def find_cmd_and_ref(line: str) -> tuple[str | None, str | int | float | bool | None]:
    """
    Return `cmd` and `ref` of *line*, each None if it cannot be read.

    A value is used only if a comma or the end of the object follows it: a truncated ref could be
    equal to the ref of another command. If a name occurs several times, the last one is used. The
    time is linear in the length of *line*.
    """
    values = _members(line)
    cmd = decode_scalar(values.get('"cmd"', ""))
    return cmd if isinstance(cmd, str) else None, decode_scalar(values.get('"ref"', ""))


def decode_scalar(value: str | msgspec.Raw) -> str | int | float | bool | None:
    """Return the scalar JSON *value*; None if it is invalid or not a scalar."""
    try:
        return _decode_scalar(value) if value else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _members(line: str) -> dict[str, str]:
    """Return the undecoded JSON values of `cmd` and `ref`, by name with its quotes."""
    values: dict[str, str] = {}
    begin = _BEGIN.match(line)
    if begin is None:
        return values
    at = begin.end()
    for _ in range(_MAX_MEMBERS):
        name = _NAME.match(line, at)
        end = None if name is None else _end_of_value(line, name.end())
        behind = None if end is None else _BEHIND.match(line, end)
        if name is None or behind is None:
            break
        if name[1] in ('"cmd"', '"ref"'):
            values[name[1]] = line[name.end() : end]
        if behind[1] == "}":
            break
        at = behind.end()
    return values


def _end_of_value(line: str, at: int) -> int | None:
    """Return the index behind the value that begins at *at*; None if its end is not found."""
    if line[at : at + 1] in ("[", "{"):
        return _end_of_container(line, at)
    value = _SCALAR.match(line, at)
    return None if value is None else value.end()


def _end_of_container(line: str, at: int) -> int | None:
    """Return the index behind the list or object that begins at *at*; None if it is not found."""
    if len(line) > _NESTED_CHARS:
        flat = _FLAT.match(line, at)
        if flat is not None:
            return flat.end()
    else:
        # Unlike msgspec, the standard library's decoder accepts lone surrogates and NaN.
        with suppress(ValueError, RecursionError):
            return _scan(line, at)[1]
    deep = _DEEP.match(line, at)
    if deep is None:
        return None
    # Without strings, equal numbers mean that the last bracket closes the first.
    opened = deep[1].count("[") + deep[1].count("{")
    return deep.end() if opened == deep[2].count("]") + deep[2].count("}") else None


_SHOWN_CMD = 32
"""Characters of an invalid verb in its error."""

_TEXT = "a string"
_WHOLE = "a whole number"
_BASE64 = "base64 with its padding"
_ALLOWED = {
    "ref": "a string, a number, true, false or null",
    "id": _TEXT,
    "ids": "a list of strings",
    "timeout_ms": f"{_WHOLE} of milliseconds",
    "count": f"{_WHOLE} of messages",
    "secret": _TEXT,
    "topic": _TEXT,
    "body": f"{_TEXT} is allowed (JSON.stringify it, or send body_base64)",
    "body_base64": _BASE64,
    "bodies": "a list of strings is allowed (JSON.stringify each, or send bodies_base64)",
    "bodies_base64": f"a list of strings, each {_BASE64},",
    "defer_ms": f"{_WHOLE} of milliseconds",
}
"""What each member must be."""
_TYPE_NAMES = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "a number",
    "float": "a number that is not whole",
    "bool": "a boolean",
    "null": "null",
}
"""Types in error texts, by msgspec's names."""
_TYPE_BY_FIRST_CHAR = {
    "{": "object",
    "[": "array",
    '"': "str",
    "t": "bool",
    "f": "bool",
    "n": "null",
}
"""The type of a JSON value by its first character; else a number."""

_WHERE = re.compile(r" - at `\$\.(\w+)((?:\[\d+\])?)`$")
_GOT = re.compile(r"got `(\w+)`")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_LONE_SURROGATE = re.compile(
    r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..)"
)
"""An escaped surrogate without its other half."""
_TAIL = 24
"""Characters at the end of a line that are searched for a lone surrogate."""


class InvalidCommand(msgspec.Struct, gc=False):
    """A line that is not a valid command, and why."""

    problem: str
    cmd: str | None = None
    """The verb that the client sent, truncated; None if the line has none, or none that is text."""
    ref: str | int | float | bool | None = None
    code: str = "E_INVALID"
    """The error code for the client: E_INVALID, or E_BAD_BODY."""


class _Head(msgspec.Struct):
    """The members that identify an error's command; decoding skips all others."""

    cmd: msgspec.Raw = msgspec.Raw()
    ref: msgspec.Raw = msgspec.Raw()


_decode_head = msgspec.json.Decoder(_Head).decode
_SEARCHED_CHARS = 65_536
"""Characters searched for `cmd` and `ref` in a line that has too many strings and is invalid."""


def explain_decode_error(
    line: str, error: msgspec.DecodeError, verbs: Sequence[str]
) -> InvalidCommand:
    """Explain why the decoder raised *error* for *line*; *verbs* are the valid commands."""
    # In order: too deep, not an object, not JSON, `cmd` not text. After that only `cmd` is unknown,
    # or another member is invalid.
    try:
        head = _decode_head(line)
    except RecursionError:
        return nesting_error(line)
    except msgspec.ValidationError:
        kind = _type_of(line.lstrip())
        return InvalidCommand(f"the line is {kind}; a command is a JSON object")
    except msgspec.DecodeError:
        return _invalid_command(line, _explain_invalid_json(line, str(error)))
    cmd, ref = decode_scalar(head.cmd), decode_scalar(head.ref)
    if not isinstance(cmd, str):
        is_what = _type_of(bytes(head.cmd).decode()) if bytes(head.cmd) else "missing"
        return InvalidCommand(f"cmd is {is_what}; allowed: {', '.join(verbs)}", None, ref)
    shown = cmd[:_SHOWN_CMD]
    if cmd in verbs:
        problem = _explain_invalid_member(line, str(error))
    elif shown.upper() in verbs:
        problem = f"unknown command {shown!r}: commands are in capitals, {shown.upper()}"
    else:
        problem = f"unknown command {shown!r}; allowed: {', '.join(verbs)}"
    return InvalidCommand(problem, shown, ref)


def nesting_error(line: str) -> InvalidCommand:
    """Return the error for *line*, whose nesting exceeds the decoder's limit."""
    return _invalid_command(line, "nested too deep")


def _invalid_command(line: str, problem: str) -> InvalidCommand:
    cmd, ref = find_cmd_and_ref(line)
    return InvalidCommand(problem, None if cmd is None else cmd[:_SHOWN_CMD], ref)


def too_many_items(line: str, limit: int) -> InvalidCommand:
    """Return the error for *line*, which has more than *limit* ids, bodies and member names."""
    try:
        head = _decode_head(line)
        cmd, ref = decode_scalar(head.cmd), decode_scalar(head.ref)
    except (msgspec.DecodeError, RecursionError):
        cmd, ref = find_cmd_and_ref(line[:_SEARCHED_CHARS])
    problem = (
        f"the command has over {limit} ids, bodies or members; allowed: up to {limit}, "
        "send the others in further commands"
    )
    shown = cmd[:_SHOWN_CMD] if isinstance(cmd, str) else None
    # The code of an MPUB with too many bodies, as `Publishing` has it.
    code = "E_BAD_BODY" if cmd == "MPUB" else "E_INVALID"
    return InvalidCommand(problem, shown, ref, code)


def _type_of(value: str) -> str:
    """Return the type of the JSON *value*, in words."""
    return _TYPE_NAMES[_TYPE_BY_FIRST_CHAR.get(value[:1], "int")]


def _explain_invalid_json(line: str, error: str) -> str:
    """Return an error text: why *line* is not JSON, from *error*, the text of msgspec's error."""
    at = _BYTE.search(error)
    # "Ends too early" may mean a lone surrogate at the end: msgspec expects the other half.
    half = _LONE_SURROGATE.search(line, max(0, len(line) - _TAIL)) if at is None else None
    if half is not None or "surrogate" in error:
        before = (
            line[: half.start()]
            if half
            else line.encode()[: int(at[1]) if at else 0].decode(errors="replace")
        )
        owner = _member_before(before)
        return (
            f"{owner} has half of a surrogate pair, which is not valid text; allowed: both halves"
        )
    where = f": unexpected byte {at[1]}" if at else ": it ends too early"
    return f"the line is not valid JSON{where}; a command is a JSON object on one line"


def _member_before(text: str) -> str:
    """
    Return the name of the member whose string value *text* breaks off in.

    Returns "the line" if that is no known member: then the error names the whole line.
    """
    name = text.rpartition('"')[0].rstrip().removesuffix(":").rstrip().removesuffix('"')
    member = name.rpartition('"')[2]
    return member if member in _ALLOWED or member == "cmd" else "the line"


def _explain_invalid_member(line: str, error: str) -> str:
    """Return an error text: which member is invalid, the type it has, and what is allowed."""
    where = _WHERE.search(error)
    if where is None:
        return _explain_invalid_json(line, error)
    member, index = where[1], where[2]
    if member == "cmd":
        return "cmd occurs twice; allowed: once"
    allowed = _ALLOWED.get(member, "another type")
    if "allowed" not in allowed:
        allowed += " is allowed"
    if got := _GOT.search(error):
        is_what = _TYPE_NAMES.get(got[1], "of another type")
    else:
        is_what = "no base64" if "base64" in error else "a number out of range"
    return f"{member}{index} is {is_what}; {allowed}"
