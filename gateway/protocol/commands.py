"""
The commands of a client: one class per verb, with its encoding.

Topics and channels are text (valid names are ASCII); ids and bodies are bytes. Names are checked
where they enter the client, and `command_parser` checks those of a peer. This module refuses only
line breaks in parameters, which would start another command.

Source: the protocol specification, section Commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeAlias

import msgspec

from gateway.errors import LocalProtocolError
from gateway.protocol.wire import UINT32


def _line(verb: str, *params: str) -> bytes:
    """Return a command line; raise LocalProtocolError if one of *params* has a line break."""
    line = f"{verb} {' '.join(params)}\n".encode()
    # Prevents command injection, even where a caller has not checked a name.
    if line.count(b"\n") > 1:
        raise LocalProtocolError(f"{verb}: a parameter contains a line break: {params!r}")
    return line


class Identify(msgspec.Struct, frozen=True):
    """The client's features and options; *body* is JSON (`identify.IdentifyRequest`)."""

    verb: ClassVar[bytes] = b"IDENTIFY"
    body: bytes

    def encode(self) -> bytes:
        r"""Return ``IDENTIFY\n``, uint32 size, JSON."""
        return b"IDENTIFY\n" + UINT32.pack(len(self.body)) + self.body


class Auth(msgspec.Struct, frozen=True):
    """Authenticate the client with a secret; `repr` does not show the secret."""

    verb: ClassVar[bytes] = b"AUTH"
    secret: bytes

    def __repr__(self) -> str:
        """Return the name of the command without its secret."""
        return "Auth(secret=…)"

    def encode(self) -> bytes:
        r"""Return ``AUTH\n``, uint32 size, secret."""
        return b"AUTH\n" + UINT32.pack(len(self.secret)) + self.secret


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Subscribe to a channel; allowed once per connection."""

    verb: ClassVar[bytes] = b"SUB"
    topic: str
    channel: str

    def encode(self) -> bytes:
        r"""Return ``SUB topic channel\n``."""
        return _line("SUB", self.topic, self.channel)


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Publish one message."""

    verb: ClassVar[bytes] = b"PUB"
    topic: str
    body: bytes

    def encode(self) -> bytes:
        r"""Return ``PUB topic\n``, uint32 size, body."""
        return _line("PUB", self.topic) + UINT32.pack(len(self.body)) + self.body


class DeferredPublish(msgspec.Struct, frozen=True, gc=False):
    """Publish one message, to be delivered after *defer_ms*."""

    verb: ClassVar[bytes] = b"DPUB"
    topic: str
    defer_ms: int
    body: bytes

    def encode(self) -> bytes:
        r"""Return ``DPUB topic ms\n``, uint32 size, body."""
        line = _line("DPUB", self.topic, str(self.defer_ms))
        return line + UINT32.pack(len(self.body)) + self.body


STEP_MESSAGES = 2_048
"""Maximum number of messages that one turn of the event loop parses or stores."""


class PackedBodies:
    """
    Message bodies in MPUB's encoding, uint32 size and body of each, in a few large chunks.

    A list of a million one-byte messages is a million objects, and each pass over it blocks the
    event loop for tens of milliseconds. Packed, it is 5 MB to copy.
    """

    __slots__ = ("_count", "chunks", "size_bytes")

    def __init__(self, chunks: Sequence[bytes], count: int) -> None:
        self.chunks = chunks
        """The encoded messages in order; each chunk ends at the end of a message."""
        self.size_bytes = sum(map(len, chunks))
        """Size of all chunks: the bodies, and 4 bytes for the size of each."""
        self._count = count

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        """Yield each body as an object of its own; avoid this for large numbers."""
        for chunk in self.chunks:
            start = 0
            while start < len(chunk):
                end = start + 4 + UINT32.unpack_from(chunk, start)[0]
                yield chunk[start + 4 : end]
                start = end


Bodies: TypeAlias = Sequence[bytes] | PackedBodies


def pack_bodies(bodies: Sequence[bytes]) -> bytes:
    """Return *bodies* in MPUB's encoding: uint32 size and body of each."""
    return b"".join(_interleaved(b"", bodies))


def _interleaved(head: bytes, bodies: Sequence[bytes]) -> list[bytes]:
    """Return a list of *head*, then the size and the bytes of each of *bodies*."""
    # Slice assignment with sizes from a table takes half the time of a loop over the bodies.
    parts = [head] * (1 + 2 * len(bodies))
    parts[1::2] = map(_packed_sizes.__getitem__, map(len, bodies))
    parts[2::2] = bodies
    return parts


def join_bodies(parts: Sequence[Bodies]) -> PackedBodies:
    """Return the messages of all *parts* in order, as one `PackedBodies`."""
    chunks: list[bytes] = []
    for bodies in parts:
        if isinstance(bodies, PackedBodies):
            chunks += bodies.chunks
        else:
            chunks.append(pack_bodies(bodies))
    return PackedBodies(chunks, sum(map(len, parts)))


class MultiPublish(msgspec.Struct, frozen=True):
    """Publish several messages; the broker stores all of them or none."""

    verb: ClassVar[bytes] = b"MPUB"
    topic: str
    bodies: Bodies

    def encode(self) -> bytes:
        r"""Return ``MPUB topic\n``, uint32 size of the rest, uint32 count, sizes and bodies."""
        bodies = self.bodies
        if isinstance(bodies, PackedBodies):
            head = self._head(bodies.size_bytes)
            return b"".join((head, *bodies.chunks))
        head = self._head(4 * len(bodies) + sum(map(len, bodies)))
        return b"".join(_interleaved(head, bodies))

    def _head(self, size_bytes: int) -> bytes:
        line = _line("MPUB", self.topic)
        # The first size counts all bytes after it: the count (4 bytes) and the messages.
        return line + UINT32.pack(4 + size_bytes) + UINT32.pack(len(self.bodies))


class _PackedSizes(dict[int, bytes]):
    """Map a size to its four bytes; the first `_MAX_CACHED_SIZES` different sizes are cached."""

    def __missing__(self, size_bytes: int) -> bytes:
        packed = UINT32.pack(size_bytes)
        # Bounded: with ever new sizes up to 1 MiB, the cache would reach a million entries.
        if len(self) < _MAX_CACHED_SIZES:
            self[size_bytes] = packed
        return packed


_MAX_CACHED_SIZES = 4_096
_packed_sizes = _PackedSizes()


class Ready(msgspec.Struct, frozen=True, gc=False):
    """Set the maximum number of messages that the broker keeps in flight on this connection."""

    verb: ClassVar[bytes] = b"RDY"
    count: int

    def encode(self) -> bytes:
        r"""Return ``RDY count\n``."""
        return b"RDY %d\n" % self.count


class Finish(msgspec.Struct, frozen=True, gc=False):
    """Tell the broker that a message has been processed; it is then removed from the channel."""

    verb: ClassVar[bytes] = b"FIN"
    id: bytes

    def encode(self) -> bytes:
        r"""Return ``FIN id\n``."""
        return b"FIN " + self.id + b"\n"


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """Tell the broker to requeue a message, and to deliver it again after *delay_ms*."""

    verb: ClassVar[bytes] = b"REQ"
    id: bytes
    delay_ms: int

    def encode(self) -> bytes:
        r"""Return ``REQ id ms\n``."""
        return b"REQ %b %d\n" % (self.id, self.delay_ms)


class Touch(msgspec.Struct, frozen=True, gc=False):
    """Tell the broker to restart the timeout of a message, which is still being processed."""

    verb: ClassVar[bytes] = b"TOUCH"
    id: bytes

    def encode(self) -> bytes:
        r"""Return ``TOUCH id\n``."""
        return b"TOUCH " + self.id + b"\n"


class StartClose(msgspec.Struct, frozen=True, gc=False):
    """Tell the broker to stop deliveries before a close; it answers ``CLOSE_WAIT``."""

    verb: ClassVar[bytes] = b"CLS"

    def encode(self) -> bytes:
        r"""Return ``CLS\n``."""
        return b"CLS\n"


class Nop(msgspec.Struct, frozen=True, gc=False):
    """Do nothing; a client answers a heartbeat with it."""

    verb: ClassVar[bytes] = b"NOP"

    def encode(self) -> bytes:
        r"""Return ``NOP\n``."""
        return b"NOP\n"


class MultiPublishStart(msgspec.Struct, frozen=True, gc=False):
    """
    The line of an MPUB whose body follows; never sent.

    nsqd checks the client's permission before it reads the body.
    """

    verb: ClassVar[bytes] = b"MPUB"
    topic: str

    def encode(self) -> bytes:
        """Return nothing: `MultiPublish` encodes the line, too."""
        return b""


Command: TypeAlias = (
    Identify
    | Auth
    | Subscribe
    | Publish
    | DeferredPublish
    | MultiPublishStart
    | MultiPublish
    | Ready
    | Finish
    | Requeue
    | Touch
    | StartClose
    | Nop
)


def encode_finishes(ids: Sequence[bytes]) -> bytes:
    """Return one FIN for each of *ids*, which must not be empty."""
    return b"FIN " + b"\nFIN ".join(ids) + b"\n"
