"""
What a client says: one class for each verb, and its bytes.

Source: the protocol specification, section Commands. Topics and channels are text (valid names
are ASCII); ids and bodies are bytes. Nothing is checked here: a name is checked before it is
put into a command, and the reader of commands checks what comes from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import msgspec

from gateway.protocol.wire import UINT32


class Identify(msgspec.Struct, frozen=True):
    """What the client is and asks for; *body* is JSON (`identify.Offer` makes and reads it)."""

    verb: ClassVar[bytes] = b"IDENTIFY"
    body: bytes

    def encode(self) -> bytes:
        r"""Return ``IDENTIFY\n``, uint32 size, JSON."""
        return b"IDENTIFY\n" + UINT32.pack(len(self.body)) + self.body


class Auth(msgspec.Struct, frozen=True):
    """The secret that says who the client is; its repr hides it."""

    verb: ClassVar[bytes] = b"AUTH"
    secret: bytes

    def __repr__(self) -> str:
        """Name the command without the secret."""
        return "Auth(secret=…)"

    def encode(self) -> bytes:
        r"""Return ``AUTH\n``, uint32 size, secret."""
        return b"AUTH\n" + UINT32.pack(len(self.secret)) + self.secret


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Join a channel; once per connection."""

    verb: ClassVar[bytes] = b"SUB"
    topic: str
    channel: str

    def encode(self) -> bytes:
        r"""Return ``SUB topic channel\n``."""
        return f"SUB {self.topic} {self.channel}\n".encode()


class Publish(msgspec.Struct, frozen=True, gc=False):
    """One message for a topic."""

    verb: ClassVar[bytes] = b"PUB"
    topic: str
    body: bytes

    def encode(self) -> bytes:
        r"""Return ``PUB topic\n``, uint32 size, body."""
        return f"PUB {self.topic}\n".encode() + UINT32.pack(len(self.body)) + self.body


class DeferredPublish(msgspec.Struct, frozen=True, gc=False):
    """One message for a topic, delivered after *defer_ms*."""

    verb: ClassVar[bytes] = b"DPUB"
    topic: str
    defer_ms: int
    body: bytes

    def encode(self) -> bytes:
        r"""Return ``DPUB topic ms\n``, uint32 size, body."""
        line = f"DPUB {self.topic} {self.defer_ms}\n".encode()
        return line + UINT32.pack(len(self.body)) + self.body


class MultiPublish(msgspec.Struct, frozen=True):
    """Several messages for a topic, all or none."""

    verb: ClassVar[bytes] = b"MPUB"
    topic: str
    bodies: Sequence[bytes]

    def encode(self) -> bytes:
        r"""Return ``MPUB topic\n``, uint32 size of the rest, uint32 count, then size and body."""
        bodies = self.bodies
        lengths = list(map(len, bodies))
        size_bytes = 4 + 4 * len(bodies) + sum(lengths)
        # Filled by slices, with sizes from a table: half the time of a loop over the bodies.
        parts = [b""] * (1 + 2 * len(bodies))
        parts[0] = f"MPUB {self.topic}\n".encode() + UINT32.pack(size_bytes)
        parts[0] += UINT32.pack(len(bodies))
        parts[1::2] = map(_packed.__getitem__, lengths)
        parts[2::2] = bodies
        return b"".join(parts)


class _Packed(dict[int, bytes]):
    """The four bytes of a size; those of the first sizes that come are made once."""

    def __missing__(self, size_bytes: int) -> bytes:
        packed = UINT32.pack(size_bytes)
        if len(self) < _KEPT_SIZES:
            self[size_bytes] = packed
        return packed


_KEPT_SIZES = 4_096
_packed = _Packed()


class Ready(msgspec.Struct, frozen=True, gc=False):
    """The most messages that may be in flight on this connection."""

    verb: ClassVar[bytes] = b"RDY"
    count: int

    def encode(self) -> bytes:
        r"""Return ``RDY count\n``."""
        return b"RDY %d\n" % self.count


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The message is done."""

    verb: ClassVar[bytes] = b"FIN"
    id: bytes

    def encode(self) -> bytes:
        r"""Return ``FIN id\n``."""
        return b"FIN " + self.id + b"\n"


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """Give the message to somebody again, after *delay_ms*."""

    verb: ClassVar[bytes] = b"REQ"
    id: bytes
    delay_ms: int

    def encode(self) -> bytes:
        r"""Return ``REQ id ms\n``."""
        return b"REQ %b %d\n" % (self.id, self.delay_ms)


class Touch(msgspec.Struct, frozen=True, gc=False):
    """Start the message's timeout anew."""

    verb: ClassVar[bytes] = b"TOUCH"
    id: bytes

    def encode(self) -> bytes:
        r"""Return ``TOUCH id\n``."""
        return b"TOUCH " + self.id + b"\n"


class StartClose(msgspec.Struct, frozen=True, gc=False):
    """No more messages; the broker answers ``CLOSE_WAIT``."""

    verb: ClassVar[bytes] = b"CLS"

    def encode(self) -> bytes:
        r"""Return ``CLS\n``."""
        return b"CLS\n"


class Nop(msgspec.Struct, frozen=True, gc=False):
    """Nothing; the answer to a heartbeat."""

    verb: ClassVar[bytes] = b"NOP"

    def encode(self) -> bytes:
        r"""Return ``NOP\n``."""
        return b"NOP\n"


Command: TypeAlias = (
    Identify
    | Auth
    | Subscribe
    | Publish
    | DeferredPublish
    | MultiPublish
    | Ready
    | Finish
    | Requeue
    | Touch
    | StartClose
    | Nop
)


def encode_finishes(ids: Sequence[bytes]) -> bytes:
    """Return one FIN line for each of *ids* (at least one), made in one step."""
    return b"FIN " + b"\nFIN ".join(ids) + b"\n"
