"""
What a client says, in subprotocol ``nsq.json.v1``: one class for each verb.

A text frame holds one or more JSON objects separated by newlines. The vocabulary is NSQ's; the
contract is docs/websocket.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from gateway.errors import InvalidRequest
from gateway.session.misreading import Unreadable, misread

Ref: TypeAlias = str | int | float | bool | None


class Command(msgspec.Struct, gc=False, tag_field="cmd", tag=str.upper):
    """One object from the client; *ref* comes back with its answer."""

    ref: Ref = None

    @property
    def cmd(self) -> str:
        """The verb."""
        return str(self.__struct_config__.tag)


class Ack(Command):
    """What names deliveries: *id* for one, *ids* for one or more."""

    id: str | None = None
    ids: list[str] | None = None

    def delivery_ids(self) -> list[str]:
        """Return the ids that are named; raises InvalidRequest when there are none."""
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
        """Raise InvalidRequest where more than *limit* ids are named."""
        if self.ids is not None and len(self.ids) > limit:
            text = f"{self.cmd} has {len(self.ids)} ids; allowed: 1 to {limit} ids at a time"
            raise InvalidRequest("E_INVALID", text)


class Fin(Ack):
    """The deliveries are done."""


class Req(Ack):
    """The deliveries go back to NSQ."""

    timeout_ms: int | None = None


class Touch(Ack):
    """The deliveries take longer."""


class Rdy(Command):
    """The window is to be *count* deliveries."""

    count: int | None = None


class Cls(Command):
    """No more messages are wanted."""


class Nop(Command):
    """A sign of life."""


class Auth(Command):
    """The secret to subscribe with."""

    secret: str | None = None

    def __repr__(self) -> str:
        """Leave the secret out: an error text or a log could name the command."""
        return "Auth()"


class Pub(Command):
    """Publish one message, which is text or base64."""

    topic: str | None = None
    body: str | None = None
    body_base64: bytes | None = None


class Dpub(Pub):
    """Publish one message that is delivered after *defer_ms*."""

    defer_ms: int | None = None


class Mpub(Command):
    """Publish several messages, all or none."""

    topic: str | None = None
    bodies: list[str] | None = None
    bodies_base64: list[bytes] | None = None

    def __len__(self) -> int:
        """Return how many bodies there are."""
        return len(self.bodies or ()) + len(self.bodies_base64 or ())

    def __bool__(self) -> bool:
        """Tell that it is a command, with bodies or without."""
        return True


Spoken: TypeAlias = Command | Unreadable

_VERBS = (Fin, Req, Touch, Rdy, Cls, Nop, Auth, Pub, Dpub, Mpub)
VERBS = [str(verb.__struct_config__.tag) for verb in _VERBS]
"""What a command may be."""
_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(
    Fin | Req | Touch | Rdy | Cls | Nop | Auth | Pub | Dpub | Mpub
)
_decode_lines = _decoder.decode_lines


def decode_frame(text: str) -> list[Command] | Iterator[Spoken]:
    """Read a frame's commands; a line that is none stands as `Unreadable` in its place."""
    try:
        return _decode_lines(text)
    except (msgspec.DecodeError, RecursionError):
        # Line by line, so that one bad line spoils neither its neighbours nor their answers.
        return (_decode_line(line) for line in text.split("\n") if line and not line.isspace())


def _decode_line(line: str) -> Spoken:
    try:
        return _decoder.decode(line)
    except RecursionError:
        return Unreadable("nested too deep")
    except msgspec.DecodeError as error:
        return misread(line, error, VERBS)
