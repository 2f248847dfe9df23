"""
PURE. How an input is cut into messages, and where in it each one stands.

What cannot be a message ends the input: `Framing.refusal` says why, and what stood before it has
been given. Messages are handled as runs, never one by one where nothing asks for it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from gateway.errors import InvalidRequest, SettingsError
from gateway.protocol.wire import UINT32

NEWLINE = b"\n"

_ESCAPES = {r"\0": b"\0", r"\t": b"\t", r"\n": b"\n", r"\r": b"\r", r"\\": b"\\"}
_HEXADECIMAL = re.compile(r"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class Run:
    """Messages that follow each other in the input; the first and the last one are not empty."""

    number: int
    """Which one the first is, from 1; of lines the empty ones count too."""
    start: int
    """Bytes of the input before it."""
    pieces: Sequence[bytes]
    """The bodies; of lines those between two that are empty, too."""
    framing_bytes: int
    """What stands in the input beside each body."""

    @property
    def bodies(self) -> Sequence[bytes]:
        """The messages."""
        return self.pieces if all(self.pieces) else [body for body in self.pieces if body]

    @property
    def last_number(self) -> int:
        """Which one the last is."""
        return self.number + len(self.pieces) - 1

    @property
    def end(self) -> int:
        """Bytes of the input before what follows."""
        return self.start + self._size_of(self.pieces)

    def _size_of(self, pieces: Sequence[bytes]) -> int:
        return sum(map(len, pieces)) + self.framing_bytes * len(pieces)

    def between(self, first: int, end: int) -> Run:
        """Return the part from piece *first* to before piece *end*, without empty ones around."""
        pieces = self.pieces
        while first < end and not pieces[first]:
            first += 1
        while first < end and not pieces[end - 1]:
            end -= 1
        start = self.start + self._size_of(pieces[:first])
        return Run(self.number + first, start, pieces[first:end], self.framing_bytes)

    def batches(self, max_bytes: int) -> list[Run]:
        """Return parts that take *max_bytes* each in an MPUB, or are one message; none is empty."""
        ends = list(accumulate(len(piece) + UINT32.size for piece in self.pieces))
        parts = []
        first = before_bytes = 0
        while first < len(ends):
            end = max(bisect_right(ends, before_bytes + max_bytes, first), first + 1)
            part = self.between(first, end)
            if part.pieces:
                parts.append(part)
            first, before_bytes = end, ends[end - 1]
        return parts


class Refusal(NamedTuple):
    """What is no message, and why."""

    number: int
    start: int
    error: InvalidRequest


class Framing(Protocol):
    """Cuts a stream of bytes into messages, however the stream itself is cut."""

    refusal: Refusal | None
    """Why there are no more messages; set by `feed`, which returns those before all the same."""

    def feed(self, data: bytes) -> Run:
        """Return the messages that *data* completes, or none; no data ends the input."""

    def name(self, first_number: int, last_number: int, start: int) -> str:
        """Return how a person finds these messages, the first of which begins at *start*."""

    def resume(self, number: int, start: int) -> str:
        """Return the command that gives the input from message *number*, at *start*, on."""


class Lines:
    """
    Ends a message at each *delimiter*, one byte that is no part of it.

    Empty ones are left out, and the last one needs no delimiter, as for nsqd's /mpub. One that has
    outgrown *max_bytes* is not waited for.
    """

    def __init__(self, *, max_bytes: int, delimiter: bytes = NEWLINE) -> None:
        self.refusal: Refusal | None = None
        self._max_bytes = max_bytes
        self._delimiter = delimiter
        self._rest: list[bytes] = []
        """What came behind the last delimiter."""
        self._rest_bytes = 0
        self._number, self._start = 1, 0
        """Of the next line."""

    def feed(self, data: bytes) -> Run:
        """Return what *data* completes; see `Framing`."""
        pieces: list[bytes] = []
        if self.refusal is None:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._delimiter in data or not data:
                pieces = b"".join(self._rest).split(self._delimiter)
                rest = pieces.pop() if data else b""
                self._rest, self._rest_bytes = [rest], len(rest)
        run = Run(self._number, self._start, pieces, len(self._delimiter))
        is_whole = max(map(len, pieces), default=0) <= self._max_bytes
        count = len(pieces) if is_whole else self._first_too_long(pieces)
        self._number += count
        self._start += sum(map(len, pieces[:count])) + count
        if self._rest_bytes > self._max_bytes or not is_whole:
            self._refuse()
        return run.between(0, count)

    def _first_too_long(self, pieces: Sequence[bytes]) -> int:
        return next(place for place, piece in enumerate(pieces) if len(piece) > self._max_bytes)

    def _refuse(self) -> None:
        text = f"it is longer than --max-msg-size, {self._max_bytes} bytes"
        self.refusal = Refusal(self._number, self._start, InvalidRequest("MSG_TOO_BIG", text))
        self._rest, self._rest_bytes = [], 0

    def name(self, first_number: int, last_number: int, start: int) -> str:
        """Return ``line 3``, ``lines 3 to 5``; see `Framing`."""
        if self._delimiter == NEWLINE:
            return _range("line", first_number, last_number)
        return _by_offset(first_number, last_number, start)

    def resume(self, number: int, start: int) -> str:
        """Return the command of tail; see `Framing`."""
        return f"tail -n +{number}" if self._delimiter == NEWLINE else f"tail -c +{start + 1}"


class LengthPrefixed:
    """
    Takes messages with their length before them.

    Layout of each: uint32 size, big-endian, then the body; nothing between two, nothing behind the
    last one. These are the messages of nsqd's binary /mpub, without the count at its front.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.refusal: Refusal | None = None
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        """What has come of the next message."""
        self._rest_bytes = 0
        self._needed_bytes = UINT32.size
        """What there must be of it before it is worth a look."""
        self._number, self._start = 1, 0
        """Of the next message."""

    def feed(self, data: bytes) -> Run:
        """Return what *data* completes; see `Framing`."""
        bodies: list[bytes] = []
        run = Run(self._number, self._start, bodies, UINT32.size)
        if self.refusal is not None:
            return run
        self._rest.append(data)
        self._rest_bytes += len(data)
        if self._rest_bytes >= self._needed_bytes:
            self._take(b"".join(self._rest), bodies)
        if not data and self._rest_bytes:
            self._refuse(self._what_is_cut(b"".join(self._rest)))
        return run

    def _take(self, data: bytes, bodies: list[bytes]) -> None:
        """Append to *bodies* what is whole in *data*, and keep the rest."""
        unpack, limit_bytes = UINT32.unpack_from, self._max_bytes
        needed_bytes = UINT32.size
        first, last = 0, len(data) - UINT32.size
        while first <= last:
            (size_bytes,) = unpack(data, first)
            if not 0 < size_bytes <= limit_bytes:
                break
            end = first + 4 + size_bytes
            if end > len(data):
                needed_bytes += size_bytes
                break
            bodies.append(data[first + 4 : end])
            first = end
        self._number += len(bodies)
        self._start += first
        self._rest, self._rest_bytes = [data[first:]], len(data) - first
        self._needed_bytes = needed_bytes
        if self._rest_bytes >= UINT32.size and needed_bytes == UINT32.size:
            self._refuse(self._what_is_wrong(self._rest[0][: UINT32.size]))

    def _what_is_wrong(self, prefix: bytes) -> str:
        (size_bytes,) = UINT32.unpack(prefix)
        text = f"its length is {size_bytes} bytes; allowed: 1 to {self._max_bytes} (--max-msg-size)"
        if prefix.isascii() and prefix.decode().isprintable():
            text += f'. The 4 bytes of it read "{prefix.decode()}": is the input lines?'
        return text

    def _what_is_cut(self, rest: bytes) -> str:
        came_bytes = len(rest) - UINT32.size
        if came_bytes < 0:
            return f"the input ends after {len(rest)} of the 4 bytes of its length"
        (size_bytes,) = UINT32.unpack_from(rest)
        return f"its length is {size_bytes} bytes, and the input ends after {came_bytes} of them"

    def _refuse(self, text: str) -> None:
        self.refusal = Refusal(self._number, self._start, InvalidRequest("BAD_MESSAGE", text))
        self._rest, self._rest_bytes = [], 0

    def name(self, first_number: int, last_number: int, start: int) -> str:
        """Return ``message 3 at offset 120``; see `Framing`."""
        return _by_offset(first_number, last_number, start)

    def resume(self, number: int, start: int) -> str:
        """Return the command of tail; see `Framing`."""
        del number
        return f"tail -c +{start + 1}"


def _range(what: str, first: int, last: int) -> str:
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"


def _by_offset(first: int, last: int, start: int) -> str:
    named = _range("message", first, last)
    if first == last:
        return f"{named} at offset {start}"
    return f"{named}, from offset {start} on,"


def parse_delimiter(text: str) -> bytes:
    r"""
    Return the byte that *text* names: one of one byte, or an escape, for no shell passes a NUL.

    Raises:
        SettingsError: It is neither.
    """
    if found := _HEXADECIMAL.fullmatch(text):
        return bytes.fromhex(found[1])
    if text in _ESCAPES:
        return _ESCAPES[text]
    # The bytes of the command line, whatever their encoding.
    value = text.encode("utf-8", "surrogateescape")
    if len(value) != 1:
        allowed = r"one byte, or \0, \t, \n, \r, \\, \xHH with two hexadecimal digits"
        raise SettingsError("--delimiter", text, allowed=allowed)
    return value
