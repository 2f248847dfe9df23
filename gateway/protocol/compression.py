"""
Snappy and deflate: what lies between V2 and the socket once IDENTIFY has agreed on one of them.

Both read in pieces of at most 1 MiB, each made when it is asked for, so that a few bytes which
say very much cost one piece; and what they write is complete up to its last byte, as nsqd
flushes behind each of its writes. The codecs and the checksum are python-snappy's and zlib's.
Ours is where a chunk of snappy's framing format ends: the library takes streams that do not
begin as they must, refuses long padding, and copies all it holds for each piece of a chunk.

Sources: framing_format.txt of snappy (chunks); RFC 1951 (deflate); nsqd/client_v2.go,
UpgradeSnappy and UpgradeDeflate.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import snappy

from gateway.errors import RemoteProtocolError
from gateway.protocol.buffer import ReceiveBuffer

MAX_PIECE_BYTES = 1_048_576
"""The longest piece that a filter reads at once."""

_STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_IDENTIFIER_BYTES = 6

# A chunk's head is its type in one byte and the size of what follows in three, lowest first.
_CHUNK_HEAD = struct.Struct("<I")
_HEAD_BYTES = _CHUNK_HEAD.size

_CHECKSUM_BYTES = 4
_MAX_CHUNK_DATA_BYTES = 65_536
"""What the chunks of data can say, compressed or not."""
_CHUNKS_A_PIECE = MAX_PIECE_BYTES // _MAX_CHUNK_DATA_BYTES

_COMPRESSED, _UNCOMPRESSED, _IDENTIFIER = 0x00, 0x01, 0xFF
_FIRST_SKIPPABLE = 0x80
"""From here on a type that nobody knows is skipped, padding (0xfe) too; below it is an error."""

_MAX_SIZE_BYTES = {
    # The most that 65 536 bytes can become, by snappy's own bound: 32 + n + n / 6.
    _COMPRESSED: 76_490,
    _UNCOMPRESSED: _CHECKSUM_BYTES + _MAX_CHUNK_DATA_BYTES,
}
"""The chunks that carry data, and how long they can be; each begins with its checksum."""

_RAW_DEFLATE = -15
"""No header around it, and the window of 32 KiB that every peer writes with at most."""


class SnappyFilter:
    """The framing format of snappy, in both directions of one connection."""

    __slots__ = ("_buffer", "_decoder", "_encoder", "_is_identified", "_skip_bytes")

    def __init__(self) -> None:
        self._encoder = snappy.StreamCompressor()
        self._decoder = snappy.StreamDecompressor()
        self._buffer = ReceiveBuffer()
        self._buffer.wait_for(b"", wanted_bytes=_HEAD_BYTES)
        self._is_identified = False
        self._skip_bytes = 0

    def encode(self, data: bytes) -> bytes:
        """Return *data* in whole chunks, the first of all behind the stream identifier."""
        encoded: bytes = self._encoder.compress(data)
        return encoded

    def decode(self, data: bytes) -> Iterator[bytes]:
        """
        Give what the chunks say that *data* completes, at most 16 of them in one piece.

        Raises:
            RemoteProtocolError: A chunk is not as the format wants it, or its checksum is wrong;
                what stood before it has been given.
        """
        held = self._buffer.add(self._behind_skipped(data))
        if held is None:
            return
        start, wanted_bytes = 0, _HEAD_BYTES
        while len(held) - start >= wanted_bytes:
            end = _end_of_row(held, start) if self._is_identified else start
            if end > start:
                yield from self._decompress(held[start:end])
                start = end
            else:
                start, wanted_bytes = self._pass(held, start)
        self._buffer.wait_for(held[start:], wanted_bytes=wanted_bytes)

    def _decompress(self, row: bytes) -> Iterator[bytes]:
        try:
            piece: bytes = self._decoder.decompress(row)
        except OSError as error:  # the library's way to say that a chunk is corrupt
            # It holds what the chunks before that one said.
            if right := self._decoder.flush():
                yield right
            raise _broken(str(error)) from error
        if piece:
            yield piece

    def _pass(self, held: bytes, start: int) -> tuple[int, int]:
        """
        Go past what is no whole chunk of data.

        Returns where the next chunk starts, and how many bytes of it are needed.
        """
        kind, size = _head(held, start)
        self._check_head(kind, size)
        behind = start + _HEAD_BYTES + size
        if behind <= len(held):
            if kind == _IDENTIFIER and held[start:behind] != _STREAM_IDENTIFIER:
                raise _broken("its identifier is not snappy's")
            self._is_identified = True
            return behind, _HEAD_BYTES
        if kind == _IDENTIFIER or kind in _MAX_SIZE_BYTES:
            return start, _HEAD_BYTES + size
        self._skip_bytes = behind - len(held)
        return len(held), _HEAD_BYTES

    def _check_head(self, kind: int, size: int) -> None:
        if kind == _IDENTIFIER:
            least, most = _IDENTIFIER_BYTES, _IDENTIFIER_BYTES
        elif not self._is_identified:
            raise _broken("it does not begin with a stream identifier")
        elif kind >= _FIRST_SKIPPABLE:
            return
        elif kind in _MAX_SIZE_BYTES:
            least, most = _CHECKSUM_BYTES, _MAX_SIZE_BYTES[kind]
        else:
            raise _broken(f"chunk type 0x{kind:02x} is reserved and must not be skipped")
        if not least <= size <= most:
            raise _broken(
                f"chunk of type 0x{kind:02x} and {size} bytes, allowed: {least} to {most} bytes"
            )

    def _behind_skipped(self, data: bytes) -> bytes:
        """Drop what still belongs to a chunk that is skipped; 16 MiB of padding are never held."""
        skipped_bytes = min(self._skip_bytes, len(data))
        self._skip_bytes -= skipped_bytes
        return data[skipped_bytes:]


def _head(held: bytes, start: int) -> tuple[int, int]:
    """Return type and size of the chunk that begins at *start*."""
    head: int = _CHUNK_HEAD.unpack_from(held, start)[0]
    return head & 0xFF, head >> 8


def _end_of_row(held: bytes, start: int) -> int:
    """Return where the whole chunks of data end that begin at *start*; 16 are one piece."""
    end = len(held)
    for _ in range(_CHUNKS_A_PIECE):
        if end - start < _HEAD_BYTES:
            break
        kind, size = _head(held, start)
        behind = start + _HEAD_BYTES + size
        if behind > end or not _CHECKSUM_BYTES <= size <= _MAX_SIZE_BYTES.get(kind, 0):
            break
        start = behind
    return start


def _broken(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("E_INVALID", f"the snappy stream is broken: {what}")


class DeflateFilter:
    """
    Raw deflate, in both directions of one connection.

    *level* is that of what we write, from 1 (fast) to 9 (small); one outside is brought inside,
    since the peer can read any. A broken stream takes along what the same piece said before.
    """

    __slots__ = ("_compressor", "_decompressor")

    def __init__(self, level: int) -> None:
        self._compressor = zlib.compressobj(min(max(level, 1), 9), wbits=_RAW_DEFLATE)
        self._decompressor = zlib.decompressobj(wbits=_RAW_DEFLATE)

    def encode(self, data: bytes) -> bytes:
        """Return *data* with a sync flush behind it."""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> Iterator[bytes]:
        """
        Give what *data* says, in pieces of 1 MiB and one that is shorter.

        Raises:
            RemoteProtocolError: *data* is no deflate, or comes behind the stream's end.
        """
        inflater, is_full = self._decompressor, True
        while data or is_full:
            try:
                piece = inflater.decompress(data, MAX_PIECE_BYTES)
            except zlib.error as error:
                raise RemoteProtocolError(
                    "E_INVALID", f"the deflate stream is broken: {error}"
                ) from error
            if piece:
                yield piece
            if inflater.unused_data:
                raise RemoteProtocolError("E_INVALID", "the deflate stream has ended before")
            data, is_full = inflater.unconsumed_tail, len(piece) == MAX_PIECE_BYTES
