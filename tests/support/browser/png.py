"""
Read the size of PNG images, and compress them better than browsers do.

Source: https://www.w3.org/TR/png-3/, sections 9.2 (filters) and 11.2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB, _BYTES_OF_A_PIXEL = 2, 3
_SUB, _UP, _AVERAGE, _PAETH = 1, 2, 3, 4


def size_px(png: bytes) -> tuple[int, int]:
    """Return width and height in pixels."""
    width, height = struct.unpack_from(">II", png, 16)
    return int(width), int(height)


def compressed(png: bytes) -> bytes:
    """
    Return the same image as 8-bit RGB, recompressed and without comments.

    Filters are for photographs; text on an even ground packs better as it is.
    """
    chunks = list(_chunks(png))
    head = dict(chunks)[b"IHDR"]
    assert (8, _RGB) == tuple(head[8:10])
    filtered = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    rows = b"".join(b"\0" + row for row in _rows(filtered, size_px(png)[0]))
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        yield kind, png[at + 8 : at + 8 + length]
        at += 12 + length


def _rows(filtered: bytes, width: int) -> Iterator[bytes]:
    length = width * _BYTES_OF_A_PIXEL
    above = bytearray(length + _BYTES_OF_A_PIXEL)
    for start in range(0, len(filtered), length + 1):
        # A pixel of zeros stands before each row, as the filters want it.
        row = bytearray(_BYTES_OF_A_PIXEL) + filtered[start + 1 : start + 1 + length]
        kind = filtered[start]
        for at in range(_BYTES_OF_A_PIXEL, len(row)) if kind else ():
            left, corner = row[at - _BYTES_OF_A_PIXEL], above[at - _BYTES_OF_A_PIXEL]
            row[at] = (row[at] + _guess(kind, left, above[at], corner)) & 0xFF
        yield bytes(row[_BYTES_OF_A_PIXEL:])
        above = row


def _guess(kind: int, left: int, above: int, corner: int) -> int:
    """Return a filter's prediction from the neighbouring values."""
    if kind == _PAETH:
        near = left + above - corner
        return min((left, above, corner), key=lambda value: abs(near - value))
    return {_SUB: left, _UP: above, _AVERAGE: (left + above) // 2}[kind]
