"""
Snappy and deflate: the codecs between V2 and the socket, once IDENTIFY has agreed on one.

Both decode on demand, in pieces of at most 64 KiB, so that a decompression bomb occupies one piece.
They flush every write, as nsqd does. Compression and checksums are python-snappy's and zlib's.

`SnappyCodec` finds the ends of the chunks itself, because python-snappy's stream class has no such
bounds: it decodes a whole input at once (256 KiB become 5.3 MiB), holds up to 16 MiB of a chunk
that it then refuses, padding included, and accepts a stream without its identifier.

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

MAX_PIECE_BYTES = 65_536
"""Maximum size of the decoded piece that a codec yields."""

_STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_IDENTIFIER_BYTES = 6

# Chunk head: one byte type, three bytes size of the rest, little-endian.
_CHUNK_HEAD = struct.Struct("<I")
_HEAD_BYTES = _CHUNK_HEAD.size

_CHECKSUM_BYTES = 4
_MAX_CHUNK_DATA_BYTES = 65_536
"""Maximum uncompressed size of the data in one chunk (framing_format.txt, 4.2 and 4.3)."""
_CHUNKS_PER_PIECE = MAX_PIECE_BYTES // _MAX_CHUNK_DATA_BYTES

_COMPRESSED, _UNCOMPRESSED, _IDENTIFIER = 0x00, 0x01, 0xFF
_FIRST_SKIPPABLE = 0x80
"""Unknown types from here on are skipped, as is padding (0xfe); unknown types below are errors."""

_MAX_SIZE_BYTES = {
    # snappy's MaxCompressedLength of 65,536 bytes: 32 + n + n / 6.
    _COMPRESSED: 76_490,
    _UNCOMPRESSED: _CHECKSUM_BYTES + _MAX_CHUNK_DATA_BYTES,
}
"""The types of data chunks and their largest size; each begins with a checksum."""

_RAW_DEFLATE = -15
"""zlib's wbits: no header, and the largest window (32 KiB)."""


class SnappyCodec:
    """Encode and decode the framing format of snappy for one connection."""

    __slots__ = ("_buffer", "_decoder", "_encoder", "_is_identified", "_skip_bytes")

    def __init__(self) -> None:
        self._encoder = snappy.StreamCompressor()
        self._decoder = snappy.StreamDecompressor()
        self._buffer = ReceiveBuffer()
        self._buffer.put_back(b"", wanted_bytes=_HEAD_BYTES)
        self._is_identified = False
        self._skip_bytes = 0

    def encode(self, data: bytes) -> bytes:
        """Return *data* as whole chunks; those of the first call follow the stream identifier."""
        encoded: bytes = self._encoder.compress(data)
        return encoded

    def decode(self, data: bytes) -> Iterator[bytes]:
        """
        Yield the decoded data of the chunks that *data* completes; one piece has up to 16 chunks.

        Raises:
            RemoteProtocolError: A chunk is invalid or its checksum is wrong; the data before this
                chunk has been yielded.
        """
        held = self._buffer.feed(self._drop_skipped(data))
        if held is None:
            return
        start, wanted_bytes = 0, _HEAD_BYTES
        while len(held) - start >= wanted_bytes:
            # Before the identifier, a data chunk is an error, which `_check_head` raises.
            end = _end_of_data_chunks(held, start) if self._is_identified else start
            if end > start:
                yield from self._decompress(held[start:end])
                start = end
            else:
                start, wanted_bytes = self._read_other_chunk(held, start)
        self._buffer.put_back(held[start:], wanted_bytes=wanted_bytes)

    def _decompress(self, chunks: bytes) -> Iterator[bytes]:
        try:
            piece: bytes = self._decoder.decompress(chunks)
        except OSError as error:  # python-snappy's error for a corrupt chunk
            # The decompressor still holds the data of the chunks before the corrupt one.
            if valid := self._decoder.flush():
                yield valid
            raise _invalid_stream(str(error)) from error
        if piece:
            yield piece

    def _read_other_chunk(self, held: bytes, start: int) -> tuple[int, int]:
        """
        Skip a chunk without data, or check the head of an incomplete chunk.

        Return where the next chunk starts, and how many of its bytes must arrive to go on.
        """
        kind, size = _head(held, start)
        # Before waiting for the chunk, so that no chunk of an invalid size is buffered.
        self._check_head(kind, size)
        end = start + _HEAD_BYTES + size
        if end <= len(held):
            if kind == _IDENTIFIER and held[start:end] != _STREAM_IDENTIFIER:
                raise _invalid_stream("its identifier is not snappy's")
            # Before this is set, `_check_head` lets only an identifier pass.
            self._is_identified = True
            return end, _HEAD_BYTES
        if kind == _IDENTIFIER or kind in _MAX_SIZE_BYTES:
            return start, _HEAD_BYTES + size
        # A skippable chunk may have 16 MiB: drop its bytes as they arrive.
        self._skip_bytes = end - len(held)
        return len(held), _HEAD_BYTES

    def _check_head(self, kind: int, size: int) -> None:
        if kind == _IDENTIFIER:
            min_bytes, max_bytes = _IDENTIFIER_BYTES, _IDENTIFIER_BYTES
        elif not self._is_identified:
            raise _invalid_stream("it does not begin with a stream identifier")
        elif kind >= _FIRST_SKIPPABLE:
            return
        elif kind in _MAX_SIZE_BYTES:
            min_bytes, max_bytes = _CHECKSUM_BYTES, _MAX_SIZE_BYTES[kind]
        else:
            raise _invalid_stream(f"chunk type 0x{kind:02x} is reserved and must not be skipped")
        if not min_bytes <= size <= max_bytes:
            raise _invalid_stream(
                f"chunk of type 0x{kind:02x} and {size} bytes, "
                f"allowed: {min_bytes} to {max_bytes} bytes"
            )

    def _drop_skipped(self, data: bytes) -> bytes:
        """Return *data* without the bytes of a chunk that is being skipped; none is ever held."""
        skipped_bytes = min(self._skip_bytes, len(data))
        self._skip_bytes -= skipped_bytes
        return data[skipped_bytes:]


def _head(held: bytes, start: int) -> tuple[int, int]:
    """Return the type of the chunk at *start*, and its size without the head."""
    head: int = _CHUNK_HEAD.unpack_from(held, start)[0]
    return head & 0xFF, head >> 8


def _end_of_data_chunks(held: bytes, start: int) -> int:
    """Return the end of the complete data chunks that begin at *start*, at most one piece."""
    for _ in range(_CHUNKS_PER_PIECE):
        if len(held) - start < _HEAD_BYTES:
            break
        kind, size = _head(held, start)
        chunk_end = start + _HEAD_BYTES + size
        if chunk_end > len(held) or not _CHECKSUM_BYTES <= size <= _MAX_SIZE_BYTES.get(kind, 0):
            break  # incomplete, or no valid data chunk: `_read_other_chunk` checks it
        start = chunk_end
    return start


def _invalid_stream(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError("E_INVALID", f"the snappy stream is invalid: {reason}")


class DeflateCodec:
    """
    Encode and decode raw deflate for one connection.

    *level* is the compression level for `encode`, limited to 1 (fast) to 9 (small). In an invalid
    stream, the valid data in front of the error is lost if it belongs to the same piece; with
    snappy it is not.
    """

    __slots__ = ("_compressor", "_decompressor")

    def __init__(self, level: int) -> None:
        self._compressor = zlib.compressobj(min(max(level, 1), 9), wbits=_RAW_DEFLATE)
        self._decompressor = zlib.decompressobj(wbits=_RAW_DEFLATE)

    def encode(self, data: bytes) -> bytes:
        """Return *data* compressed, followed by a sync flush."""
        # Without the flush, zlib would hold back the end of the data.
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> Iterator[bytes]:
        """
        Yield *data* decompressed, in pieces of 64 KiB and a shorter last one.

        Raises:
            RemoteProtocolError: *data* is not deflate, or comes after the end of the stream.
        """
        # After a full piece, zlib may hold more output although it has consumed all input.
        inflater, is_full = self._decompressor, True
        while data or is_full:
            try:
                piece = inflater.decompress(data, MAX_PIECE_BYTES)
            except zlib.error as error:
                msg = f"the deflate stream is invalid: {error}"
                raise RemoteProtocolError("E_INVALID", msg) from error
            if piece:
                yield piece
            if inflater.unused_data:
                raise RemoteProtocolError(
                    "E_INVALID", "the deflate stream is invalid: data after its end"
                )
            data, is_full = inflater.unconsumed_tail, len(piece) == MAX_PIECE_BYTES
