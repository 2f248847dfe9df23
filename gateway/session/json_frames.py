"""
Decode and encode the text frames of subprotocol ``nsq.json.v1``.

A text frame holds one or more JSON objects, separated by newlines: commands from the client, with
NSQ's verbs, and the three frame types of V2 to the client. docs/websocket.md is the contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from gateway.errors import InvalidRequest
from gateway.protocol.frames import Message
from gateway.session.command_errors import (
    InvalidCommand,
    explain_decode_error,
    nesting_error,
    too_many_items,
)

Ref: TypeAlias = str | int | float | bool | None


def _tag(class_name: str) -> str:
    """Return the verb of a command class, as in a frame's `cmd`: FIN for `FinCommand`."""
    return class_name.removesuffix("Command").upper()


class Command(msgspec.Struct, gc=False, tag_field="cmd", tag=_tag):
    """One command from the client; the gateway's response to it has the same *ref*."""

    ref: Ref = None

    @property
    def cmd(self) -> str:
        """The verb: FIN, REQ and so on."""
        return str(self.__struct_config__.tag)


class DeliveryCommand(Command):
    """A command that names deliveries: *id* names one, *ids* one or more."""

    id: str | None = None
    ids: list[str] | None = None

    def delivery_ids(self) -> list[str]:
        """Return the ids; raises InvalidRequest if there are none, or both *id* and *ids*."""
        if self.ids is None:
            if self.id is None:
                text = f'{self.cmd} needs "id" or "ids"'
                raise InvalidRequest("E_INVALID", text)
            return [self.id]
        if self.id is not None or not self.ids:
            text = f'{self.cmd} needs either "id" or "ids" with at least one id'
            raise InvalidRequest("E_INVALID", text)
        return self.ids

    def bound_ids(self, limit: int) -> None:
        """Raise InvalidRequest if there are more than *limit* ids."""
        if self.ids is not None and len(self.ids) > limit:
            text = f"{self.cmd} has {len(self.ids)} ids; allowed: 1 to {limit} ids at a time"
            raise InvalidRequest("E_INVALID", text)


class FinCommand(DeliveryCommand):
    """FIN: the client is done with the deliveries; nsqd drops their messages."""


class ReqCommand(DeliveryCommand):
    """REQ: nsqd delivers the messages again, to any consumer of the channel."""

    timeout_ms: int | None = None
    """The delay before that; None is 0."""


class TouchCommand(DeliveryCommand):
    """TOUCH: the client needs more time; extend the deadlines of the deliveries."""


class RdyCommand(Command):
    """RDY: the client wants to hold at most *count* deliveries."""

    count: int | None = None


class ClsCommand(Command):
    """CLS: send the client no more messages, and close once it has acknowledged all."""


class NopCommand(Command):
    """NOP: do nothing; the response shows the client that the gateway is alive."""


class AuthCommand(Command):
    """AUTH: subscribe and publish with *secret*, which nsqd verifies."""

    secret: str | None = None

    def __repr__(self) -> str:
        """Hide the secret from error texts and logs."""
        return "Auth()"


class PubCommand(Command):
    """PUB: publish one message, given as text or as base64."""

    topic: str | None = None
    body: str | None = None
    body_base64: bytes | None = None


class DpubCommand(PubCommand):
    """DPUB: publish one message that nsqd delivers only after *defer_ms*."""

    defer_ms: int | None = None


class MpubCommand(Command):
    """MPUB: publish several messages, all or none."""

    topic: str | None = None
    bodies: list[str] | None = None
    bodies_base64: list[bytes] | None = None

    def __len__(self) -> int:
        """Return the number of bodies."""
        return len(self.bodies or ()) + len(self.bodies_base64 or ())

    def __bool__(self) -> bool:
        """Return True; `__len__` alone would make a command without bodies false."""
        return True


ParsedCommand: TypeAlias = Command | InvalidCommand

_VERBS = (
    FinCommand,
    ReqCommand,
    TouchCommand,
    RdyCommand,
    ClsCommand,
    NopCommand,
    AuthCommand,
    PubCommand,
    DpubCommand,
    MpubCommand,
)
VERBS = [str(verb.__struct_config__.tag) for verb in _VERBS]
"""The verbs of all commands that a client may send."""
_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(
    FinCommand
    | ReqCommand
    | TouchCommand
    | RdyCommand
    | ClsCommand
    | NopCommand
    | AuthCommand
    | PubCommand
    | DpubCommand
    | MpubCommand
)
_decode_lines = _decoder.decode_lines


MAX_ITEMS = 32_768
"""Maximum strings in one command: ids, bodies, member names. Decoding them takes 2 ms."""
_MEMBER_QUOTES = 64
"""Quotes that a line may have in addition, for the names of its members."""
CHUNK_CHARS = 65_536
"""
Maximum characters decoded at once, except for a longer line.

A shorter text has fewer than `MAX_ITEMS` strings, of at least 4 characters each.
"""


def decode_frame(text: str) -> list[Command] | Iterator[ParsedCommand]:
    """
    Decode the commands of a client's text frame; each invalid line yields an `InvalidCommand`.

    A list is decoded already; an iterator decodes each command when it is taken. A text longer than
    `CHUNK_CHARS` must be a single line, as `chunks` yields it.
    """
    if len(text) > CHUNK_CHARS:
        return iter((_decode_line(text),) if _is_line(text) else ())
    try:
        commands = _decode_lines(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    else:
        # msgspec accepts several objects on one line, which would evade the limits on lines. The
        # count holds only if each line begins with an object, which excludes blank lines, too.
        if len(commands) == text.count("\n{") + text.startswith("{"):
            return commands
    # Line by line, so that the valid lines of a frame still run if one is invalid.
    return (_decode_line(line) for line in text.split("\n") if _is_line(line))


def decode_later(text: str) -> Iterator[ParsedCommand]:
    """Yield the commands of *text*, which is decoded only when the first one is taken."""
    yield from decode_frame(text)


def chunks(text: str) -> Iterator[str]:
    """
    Yield *text* in chunks of whole lines, of up to `CHUNK_CHARS`, or of one longer line.

    Decoding 2 MiB of commands at once would block the event loop.
    """
    start = 0
    while start < len(text):
        end = text.rfind("\n", start, start + CHUNK_CHARS)
        if start + CHUNK_CHARS >= len(text):
            end = len(text)
        elif end < 0:
            end = text.find("\n", start + CHUNK_CHARS)
            if end < 0:
                end = len(text)
        yield text[start:end]
        start = end + 1


def _is_line(text: str) -> bool:
    """Return True if *text* has other characters than JSON's white space."""
    # Not `str.strip()`, which would also remove Unicode's white space, such as U+2028.
    return bool(text.strip(" \t\r\n"))


def _has_too_many_items(line: str) -> bool:
    r"""
    Return True if *line* certainly has more than `MAX_ITEMS` strings, by counting its quotes.

    Every string begins with a quote that has no backslash before it, and ends with one that may
    have a backslash before it (a string may end with an escaped backslash). So there are at least
    half as many strings as quotes without a backslash, and at most as many: a line with up to twice
    `MAX_ITEMS` strings may pass. Commas and escaped quotes inside of strings do not count.
    """
    limit = 2 * MAX_ITEMS + _MEMBER_QUOTES
    quotes = 0
    # Chunk by chunk: a line with too many is refused after its first chunks.
    for start in range(0, len(line), CHUNK_CHARS):
        end = start + CHUNK_CHARS
        quotes += line.count('"', start, end) - line.count('\\"', start, end)
        if quotes > limit:
            return True
    return False


def _decode_line(line: str) -> ParsedCommand:
    # Before it is decoded: a shorter line has fewer strings than allowed, see `CHUNK_CHARS`.
    if len(line) > CHUNK_CHARS and _has_too_many_items(line):
        return too_many_items(line, MAX_ITEMS)
    try:
        return _decoder.decode(line)
    except RecursionError:
        return nesting_error(line)
    except msgspec.DecodeError as error:
        return explain_decode_error(line, error, VERBS)


SUBPROTOCOL = "nsq.json.v1"


class MessageOut(msgspec.Struct, gc=False, tag_field="type", tag="message"):
    """A delivery to the client, of a message whose body is UTF-8."""

    id: str
    topic: str
    channel: str
    timestamp_ns: str
    attempts: int
    deadline_ms: int
    """Time until nsqd times the delivery out, and delivers the message again."""
    body: str
    lease: str | msgspec.UnsetType = msgspec.UNSET
    """Only in event streams: their clients answer by leases."""


class BinaryMessageOut(msgspec.Struct, gc=False, tag_field="type", tag="message"):
    """A delivery to the client, of a message whose body is not UTF-8: it is sent as base64."""

    id: str
    topic: str
    channel: str
    timestamp_ns: str
    attempts: int
    deadline_ms: int
    body_base64: bytes
    lease: str | msgspec.UnsetType = msgspec.UNSET


class ResponseOut(msgspec.Struct, gc=False, tag_field="type", tag="response"):
    """The response to a client's command, or a status that the client did not ask for (no ref)."""

    cmd: str
    ref: Ref
    data: Any


class ErrorOut(msgspec.Struct, gc=False, omit_defaults=True, tag_field="type", tag="error"):
    """
    An error for the client.

    *cmd* and *ref* are those of its command; None if they cannot be read, or if there is none.
    """

    cmd: str | None
    ref: Ref
    code: str
    message: str
    retryable: bool
    id: str | None = None
    """The refused delivery, if the command named one by `id`."""
    ids: list[str] | None = None
    """The refused deliveries, if the command named them by `ids`."""


DeliveryOut: TypeAlias = MessageOut | BinaryMessageOut
Out: TypeAlias = DeliveryOut | ResponseOut | ErrorOut

_encode_lines = msgspec.json.Encoder().encode_lines


def encode_frame(lines: Sequence[Out]) -> bytes:
    """Return *lines* as one text frame, one JSON object per line, without a newline at its end."""
    return _encode_lines(lines)[:-1]


def encode_messages(
    messages: Sequence[Message], ids: Sequence[str], names: tuple[str, str], left_ms: int
) -> Sequence[DeliveryOut]:
    """
    Return the deliveries of *messages*, ready for `encode_frame`.

    *ids* are the delivery ids, one for each message; *names* is (topic, channel). *left_ms* is the
    time until nsqd times the deliveries out.
    """
    topic, channel = names
    if len(messages) == 1:
        return [_encode_message(messages[0], ids[0], names, left_ms)]
    # Most bodies are UTF-8: one `try` for all of them costs less than one for each.
    try:
        return [
            MessageOut(
                delivery_id,
                topic,
                channel,
                f"{message.timestamp_ns}",
                message.attempts,
                left_ms,
                message.body.decode(),
            )
            for message, delivery_id in zip(messages, ids, strict=True)
        ]
    except UnicodeDecodeError:
        return [
            _encode_message(message, delivery_id, names, left_ms)
            for message, delivery_id in zip(messages, ids, strict=True)
        ]


def _encode_message(
    message: Message, delivery_id: str, names: tuple[str, str], left_ms: int
) -> DeliveryOut:
    topic, channel = names
    published, attempts, body = f"{message.timestamp_ns}", message.attempts, message.body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return BinaryMessageOut(delivery_id, topic, channel, published, attempts, left_ms, body)
    return MessageOut(delivery_id, topic, channel, published, attempts, left_ms, text)


def subscribed_response(
    names: tuple[str, str], max_in_flight: int, msg_timeout_ms: int
) -> ResponseOut:
    """
    Return the SUB frame, which tells the client that it is subscribed, and with which parameters.

    *names* is (topic, channel); *max_in_flight* is the window.
    """
    data = {
        "topic": names[0],
        "channel": names[1],
        "max_in_flight": max_in_flight,
        "msg_timeout_ms": msg_timeout_ms,
    }
    return ResponseOut("SUB", None, data)


def status_response(nsqds: int, lost_ids: list[str], *, is_paused: bool = False) -> ResponseOut:
    """
    Return the NOP frame, which tells the client the status of its subscription.

    *nsqds* is the number of connected nsqds. *lost_ids* are deliveries that the client holds and
    can no longer acknowledge. *is_paused* is True while the channel is paused.
    """
    state = "channel_paused" if is_paused else "connected"
    data = {"state": state if nsqds else "disconnected", "nsqds": nsqds, "lost_ids": lost_ids}
    return ResponseOut("NOP", None, data)


def close_wait_response(
    reason: str, *, ref: Ref = None, reconnect_after_ms: int | None
) -> ResponseOut:
    """
    Return the CLS frame, which announces to the client that its socket will close.

    *reason* is client (it sent CLS itself, with *ref*), drain or age.
    """
    data = {"state": "CLOSE_WAIT", "reason": reason, "reconnect_after_ms": reconnect_after_ms}
    return ResponseOut("CLS", ref, data)


def channel_gone_error(names: tuple[str, str]) -> ErrorOut:
    """Return the error for a client whose channel was deleted; its socket closes after it."""
    text = f"channel {names[1]} of topic {names[0]} was deleted; subscribing again creates it empty"
    return ErrorOut("SUB", None, "CHANNEL_GONE", text, retryable=True)


def not_in_flight_error(command: DeliveryCommand, refused: list[str]) -> ErrorOut:
    """Return the error for *command*: one for all of its delivery ids that are *refused*."""
    verb = command.cmd
    text = f"{verb} came too late or for an unknown id: the message is not in flight on this socket"
    error = ErrorOut(verb, command.ref, f"E_{verb}_FAILED", text, retryable=False)
    if command.ids is None:
        error.id = refused[0]
    else:
        error.ids = refused
    return error
