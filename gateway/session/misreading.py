"""Why a line of a frame is no command: in a sentence for whoever wrote the client."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_SHOWN_CMD = 32
"""Characters of a verb that come back."""

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
"""What each member may be."""
_KINDS = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "a number",
    "float": "a number that is not whole",
    "bool": "a boolean",
    "null": "null",
}
"""What is said of a type, by the name that the decoder has for it."""
_LETTERS = {"{": "object", "[": "array", '"': "str", "t": "bool", "f": "bool", "n": "null"}
"""The type of a JSON value by its first letter; with any other one it is a number."""

_WHERE = re.compile(r" - at `\$\.(\w+)((?:\[\d+\])?)`$")
_GOT = re.compile(r"got `(\w+)`")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_HALF_PAIR = re.compile(
    r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..)"
)
"""A surrogate that is escaped alone."""
_TAIL = 24
"""Characters at the end of a line among which one is looked for."""


class Unreadable(msgspec.Struct, gc=False):
    """A line of a frame that is not a command: what is wrong with it."""

    problem: str
    cmd: str | None = None
    """As much of the verb as is shown."""
    ref: str | int | float | bool | None = None


class _Head(msgspec.Struct):
    """What says whose answer an error is; all else is passed over, and makes no objects."""

    cmd: msgspec.Raw = msgspec.Raw()
    ref: msgspec.Raw = msgspec.Raw()


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_scalar = msgspec.json.Decoder(str | int | float | bool | None).decode


def misread(line: str, error: msgspec.DecodeError, verbs: Sequence[str]) -> Unreadable:
    """Return what stands for *line*, which is none of *verbs*: the decoder raised *error*."""
    try:
        head = _decode_head(line)
    except RecursionError:
        return Unreadable("nested too deep")
    except msgspec.ValidationError:
        kind = _kind_of(line.lstrip())
        return Unreadable(f"the line is {kind}; a command is a JSON object")
    except msgspec.DecodeError:
        return Unreadable(_no_json(line, str(error)))
    cmd, ref = _scalar(head.cmd), _scalar(head.ref)
    if not isinstance(cmd, str):
        is_what = _kind_of(bytes(head.cmd).decode()) if bytes(head.cmd) else "missing"
        return Unreadable(f"cmd is {is_what}; allowed: {', '.join(verbs)}", None, ref)
    shown = cmd[:_SHOWN_CMD]
    if cmd in verbs:
        problem = _wrong_member(line, str(error))
    elif shown.upper() in verbs:
        problem = f"{shown!r} is no command: commands are in capitals, {shown.upper()}"
    else:
        problem = f"{shown!r} is no command; known are {', '.join(verbs)}"
    return Unreadable(problem, shown, ref)


def _scalar(raw: msgspec.Raw) -> str | int | float | bool | None:
    """Return the value, None where it is none that could come back."""
    try:
        return _decode_scalar(raw) if bytes(raw) else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _kind_of(value: str) -> str:
    """Say what the JSON *value* is."""
    return _KINDS[_LETTERS.get(value[:1], "int")]


def _no_json(line: str, error: str) -> str:
    at = _BYTE.search(error)
    # What ends too early may be half a pair at the end: the decoder looks for the other half.
    half = _HALF_PAIR.search(line, max(0, len(line) - _TAIL)) if at is None else None
    if half is not None or "surrogate" in error:
        before = (
            line[: half.start()]
            if half
            else line.encode()[: int(at[1]) if at else 0].decode(errors="replace")
        )
        whose = _member_before(before)
        return f"{whose} has half of a surrogate pair, which is no text; allowed: both halves"
    where = f": byte {at[1]} does not fit" if at else ": it ends too early"
    return f"the line is no whole JSON{where}; a command is a JSON object on one line"


def _member_before(text: str) -> str:
    """Return the member whose string has begun at the end of *text*, else "the line"."""
    name = text.rpartition('"')[0].rstrip().removesuffix(":").rstrip().removesuffix('"')
    member = name.rpartition('"')[2]
    return member if member in _ALLOWED or member == "cmd" else "the line"


def _wrong_member(line: str, error: str) -> str:
    """Say which member is wrong, what it is, and what is allowed."""
    where = _WHERE.search(error)
    if where is None:
        return _no_json(line, error)
    member, index = where[1], where[2]
    if member == "cmd":
        return "cmd is there twice; allowed: once"
    allowed = _ALLOWED.get(member, "another type")
    if "allowed" not in allowed:
        allowed += " is allowed"
    if got := _GOT.search(error):
        is_what = _KINDS.get(got[1], "of another type")
    else:
        is_what = "no base64" if "base64" in error else "a number out of range"
    return f"{member}{index} is {is_what}; {allowed}"
