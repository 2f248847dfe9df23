"""
The JSON of subprotocol ``nsq.json.v1``, both ways.

A text frame holds one or more objects separated by newlines. The vocabulary is NSQ's: frames to
the client are of the three types of V2, commands from it carry its verbs. The contract is
docs/websocket.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from gateway.errors import InvalidRequest
from gateway.protocol.frames import Message

SUBPROTOCOL = "nsq.json.v1"

Ref: TypeAlias = str | int | float | bool | None


class MessageOut(msgspec.Struct, gc=False, omit_defaults=True, tag_field="type", tag="message"):
    """One delivery; the body is text, or base64 where it is not UTF-8."""

    id: str
    topic: str
    channel: str
    timestamp_ns: str
    attempts: int
    deadline_ms: int
    """What is left before the broker delivers it again."""
    body: str | None = None
    body_base64: bytes | None = None


class ResponseOut(msgspec.Struct, gc=False, tag_field="type", tag="response"):
    """The answer to a command, or a change of state that nobody asked for (*ref* null)."""

    cmd: str
    ref: Ref
    data: Any


class ErrorOut(msgspec.Struct, gc=False, omit_defaults=True, tag_field="type", tag="error"):
    """A refusal; *cmd* is None where the frame could not be read that far."""

    cmd: str | None
    ref: Ref
    code: str
    message: str
    retryable: bool
    id: str | None = None
    ids: list[str] | None = None


Out: TypeAlias = MessageOut | ResponseOut | ErrorOut


class CommandIn(msgspec.Struct, gc=False):
    """One object from the client; which fields count depends on *cmd*."""

    cmd: str
    ref: Ref = None
    id: str | None = None
    ids: list[str] | None = None
    timeout_ms: int | None = None
    count: int | None = None
    secret: str | None = None

    def __repr__(self) -> str:
        """Name the command only: it may hold a secret."""
        return f"CommandIn({self.cmd!r})"

    def delivery_ids(self) -> list[str]:
        """Return the ids that an answer is for; raises InvalidRequest when there are none."""
        if self.ids is None:
            if self.id is None:
                text = f'{self.cmd} needs "id" or "ids"'
                raise InvalidRequest("E_INVALID", text)
            return [self.id]
        if self.id is not None or not self.ids:
            text = f'{self.cmd} needs either "id" or "ids" with at least one id'
            raise InvalidRequest("E_INVALID", text)
        return self.ids


class Unreadable(msgspec.Struct, gc=False):
    """A line of a frame that is not a command: what is wrong with it."""

    problem: str
    cmd: str | None = None
    ref: Ref = None


_decode_lines = msgspec.json.Decoder(CommandIn).decode_lines
_decode_one = msgspec.json.Decoder(CommandIn).decode
_encode_lines = msgspec.json.Encoder().encode_lines


def decode_frame(text: str) -> Iterator[CommandIn | Unreadable] | list[CommandIn]:
    """Read a frame's commands; a line that is none stands as `Unreadable` in its place."""
    try:
        return _decode_lines(text)
    except (msgspec.DecodeError, RecursionError):
        # Line by line, so that one bad line spoils neither its neighbours nor their answers.
        return (_decode_line(line) for line in text.split("\n") if line and not line.isspace())


def _decode_line(line: str) -> CommandIn | Unreadable:
    try:
        return _decode_one(line)
    except RecursionError:
        return Unreadable("nested too deep")
    except msgspec.DecodeError as error:
        problem = str(error)
    try:
        given = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return Unreadable(problem)
    if not isinstance(given, dict):
        return Unreadable("a command is a JSON object")
    cmd, ref = given.get("cmd"), given.get("ref")
    return Unreadable(
        problem,
        cmd if isinstance(cmd, str) else None,
        ref if isinstance(ref, str | int | float | bool) else None,
    )


def encode_frame(lines: list[Out]) -> str:
    """Return the text frame that holds *lines*."""
    return _encode_lines(lines)[:-1].decode()


def message_out(
    message: Message, delivery_id: str, names: tuple[str, str], left_ms: int
) -> MessageOut:
    """Return the delivery of *message* on (topic, channel), with *left_ms* until its deadline."""
    out = MessageOut(
        delivery_id,
        names[0],
        names[1],
        str(message.timestamp_ns),
        message.attempts,
        left_ms,
    )
    try:
        out.body = message.body.decode()
    except UnicodeDecodeError:
        out.body_base64 = message.body
    return out


def subscribed(names: tuple[str, str], max_in_flight: int, msg_timeout_ms: int) -> ResponseOut:
    """Return the first frame of a socket: what it is subscribed to."""
    data = {
        "topic": names[0],
        "channel": names[1],
        "max_in_flight": max_in_flight,
        "msg_timeout_ms": msg_timeout_ms,
    }
    return ResponseOut("SUB", None, data)


def sources_changed(nsqds: int, lost_ids: list[str]) -> ResponseOut:
    """Return what tells that a broker came or went: how many there are, and what went with it."""
    state = "connected" if nsqds else "disconnected"
    return ResponseOut("NOP", None, {"state": state, "nsqds": nsqds, "lost_ids": lost_ids})


def close_wait(reason: str, *, ref: Ref = None, reconnect_after_ms: int | None) -> ResponseOut:
    """Return what comes before a planned close."""
    data = {"state": "CLOSE_WAIT", "reason": reason, "reconnect_after_ms": reconnect_after_ms}
    return ResponseOut("CLS", ref, data)


def not_in_flight(command: CommandIn, refused: list[str]) -> ErrorOut:
    """Return the one error for all of *command*'s ids that are *refused*."""
    verb = command.cmd
    text = f"{verb} came too late or for an unknown id: the message is not in flight here"
    error = ErrorOut(verb, command.ref, f"E_{verb}_FAILED", text, retryable=False)
    if command.ids is None:
        error.id = refused[0]
    else:
        error.ids = refused
    return error
