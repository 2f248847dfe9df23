"""
What a client is told, in subprotocol ``nsq.json.v1``: the three frame types of V2, as JSON.

A text frame holds one or more objects separated by newlines; the contract is docs/websocket.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from gateway.protocol.frames import Message
from gateway.session.commands import Ack, Ref

SUBPROTOCOL = "nsq.json.v1"


class MessageOut(msgspec.Struct, gc=False, tag_field="type", tag="message"):
    """One delivery whose body is text."""

    id: str
    topic: str
    channel: str
    timestamp_ns: str
    attempts: int
    deadline_ms: int
    """What is left before the broker delivers it again."""
    body: str


class BinaryMessageOut(msgspec.Struct, gc=False, tag_field="type", tag="message"):
    """One delivery whose body is not UTF-8: base64 in place of text."""

    id: str
    topic: str
    channel: str
    timestamp_ns: str
    attempts: int
    deadline_ms: int
    body_base64: bytes


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


DeliveryOut: TypeAlias = MessageOut | BinaryMessageOut
Out: TypeAlias = DeliveryOut | ResponseOut | ErrorOut

_encode_lines = msgspec.json.Encoder().encode_lines


def encode_frame(lines: Sequence[Out]) -> bytes:
    """Return the text frame that holds *lines*, without a newline at its end."""
    return _encode_lines(lines)[:-1]


def messages_out(
    messages: Sequence[Message], ids: Sequence[str], names: tuple[str, str], left_ms: int
) -> Sequence[DeliveryOut]:
    """Return *messages* of (topic, channel) as deliveries *ids*, *left_ms* before the deadline."""
    topic, channel = names
    if len(messages) == 1:
        return [_message_out(messages[0], ids[0], names, left_ms)]
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
            _message_out(message, delivery_id, names, left_ms)
            for message, delivery_id in zip(messages, ids, strict=True)
        ]


def _message_out(
    message: Message, delivery_id: str, names: tuple[str, str], left_ms: int
) -> DeliveryOut:
    topic, channel = names
    published, attempts, body = f"{message.timestamp_ns}", message.attempts, message.body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return BinaryMessageOut(delivery_id, topic, channel, published, attempts, left_ms, body)
    return MessageOut(delivery_id, topic, channel, published, attempts, left_ms, text)


def subscribed(names: tuple[str, str], max_in_flight: int, msg_timeout_ms: int) -> ResponseOut:
    """Return the first frame of a socket: what it is subscribed to."""
    data = {
        "topic": names[0],
        "channel": names[1],
        "max_in_flight": max_in_flight,
        "msg_timeout_ms": msg_timeout_ms,
    }
    return ResponseOut("SUB", None, data)


def state_changed(nsqds: int, lost_ids: list[str], *, is_paused: bool = False) -> ResponseOut:
    """Return what tells how many brokers there are, what went with one, and if NSQ holds back."""
    state = "channel_paused" if is_paused else "connected"
    data = {"state": state if nsqds else "disconnected", "nsqds": nsqds, "lost_ids": lost_ids}
    return ResponseOut("NOP", None, data)


def close_wait(reason: str, *, ref: Ref = None, reconnect_after_ms: int | None) -> ResponseOut:
    """Return what comes before a planned close."""
    data = {"state": "CLOSE_WAIT", "reason": reason, "reconnect_after_ms": reconnect_after_ms}
    return ResponseOut("CLS", ref, data)


def channel_gone(names: tuple[str, str]) -> ErrorOut:
    """Return what comes before the close when somebody has deleted the channel."""
    text = (
        f"channel {names[1]} of topic {names[0]} was deleted; to subscribe again makes it anew, "
        "without what it held"
    )
    return ErrorOut("SUB", None, "CHANNEL_GONE", text, retryable=True)


def not_in_flight(command: Ack, refused: list[str]) -> ErrorOut:
    """Return the one error for all of *command*'s ids that are *refused*."""
    verb = command.cmd
    text = f"{verb} came too late or for an unknown id: the message is not in flight here"
    error = ErrorOut(verb, command.ref, f"E_{verb}_FAILED", text, retryable=False)
    if command.ids is None:
        error.id = refused[0]
    else:
        error.ids = refused
    return error
