"""
PURE. Split the input of `nsq-gateway pub` into messages, with the position of each.

An invalid message ends the input: `feed` still returns the messages before it, and
`Framing.refusal` has the reason. Messages are handled in runs, because handling them one by one
would cost more than the rest of the command.
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
class MessageRun:
    """Consecutive messages of the input; the first and the last one are not empty."""

    number: int
    """Number of the first message in the input, from 1; empty lines are counted."""
    start: int
    """Offset of the first message in the input, in bytes."""
    pieces: Sequence[bytes]
    """The bodies, including empty lines in between."""
    framing_bytes: int
    """Bytes of the delimiter or the length prefix of each body."""

    @property
    def bodies(self) -> Sequence[bytes]:
        """The bodies without empty lines."""
        return self.pieces if all(self.pieces) else [body for body in self.pieces if body]

    @property
    def last_number(self) -> int:
        """Number of the last message in the input, from 1."""
        return self.number + len(self.pieces) - 1

    @property
    def end(self) -> int:
        """Offset of the first byte after the run, in bytes."""
        return self.start + self._size_of(self.pieces)

    def _size_of(self, pieces: Sequence[bytes]) -> int:
        return sum(map(len, pieces)) + self.framing_bytes * len(pieces)

    def between(self, first: int, end: int) -> MessageRun:
        """Return pieces *first* to *end* (exclusive) as a run, without empty pieces at its ends."""
        pieces = self.pieces
        while first < end and not pieces[first]:
            first += 1
        while first < end and not pieces[end - 1]:
            end -= 1
        start = self.start + self._size_of(pieces[:first])
        return MessageRun(self.number + first, start, pieces[first:end], self.framing_bytes)

    def batches(self, max_bytes: int) -> list[MessageRun]:
        """
        Split the run into parts that take at most *max_bytes* in an MPUB, length prefixes included.

        A message that is longer is a part of its own.
        """
        # Cumulative sizes with length prefixes, for a binary search of the end of each part.
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


class InvalidInput(NamedTuple):
    """Position of an invalid message, and the reason."""

    number: int
    start: int
    error: InvalidRequest


class Framing(Protocol):
    """Splits a stream of bytes into messages; the bytes may arrive in any pieces."""

    refusal: InvalidInput | None
    """The invalid message that ended the input; set by `feed`, which returns those before it."""

    def feed(self, data: bytes) -> MessageRun:
        """Return the messages that *data* completes; empty *data* ends the input."""

    def describe_range(self, first_number: int, last_number: int, start: int) -> str:
        """Return a phrase for these messages, for errors; the first begins at offset *start*."""

    def resume_command(self, number: int, start: int) -> str:
        """Return a command that prints the input from message *number*, at offset *start*, on."""


class Lines:
    """
    Splits the input into messages that each end with *delimiter*, one byte.

    As in nsqd's /mpub, empty lines are skipped, and the last line needs no delimiter. A line longer
    than *max_bytes* is refused before it is complete, so that it is never held in memory.
    """

    def __init__(self, *, max_bytes: int, delimiter: bytes = NEWLINE) -> None:
        self.refusal: InvalidInput | None = None
        self._max_bytes = max_bytes
        self._delimiter = delimiter
        self._rest: list[bytes] = []
        """The incomplete line after the last delimiter, in pieces."""
        self._rest_bytes = 0
        self._number, self._start = 1, 0
        """Number and offset of the next line."""

    def feed(self, data: bytes) -> MessageRun:
        """Return the lines that *data* completes; see `Framing`."""
        pieces: list[bytes] = []
        if self.refusal is None:
            self._rest.append(data)
            self._rest_bytes += len(data)
            # Join the pieces of a line only once, at its delimiter: joining them at each piece
            # would copy a long line again and again, in quadratic time.
            if self._delimiter in data or not data:
                pieces = b"".join(self._rest).split(self._delimiter)
                rest = pieces.pop() if data else b""
                self._rest, self._rest_bytes = [rest], len(rest)
        run = MessageRun(self._number, self._start, pieces, len(self._delimiter))
        # A line that is too long ends the input; the lines before it are still returned.
        is_whole = max(map(len, pieces), default=0) <= self._max_bytes
        count = len(pieces) if is_whole else self._first_too_long(pieces)
        self._number += count
        self._start += sum(map(len, pieces[:count])) + count
        if self._rest_bytes > self._max_bytes or not is_whole:
            self._end_input()
        return run.between(0, count)

    def _first_too_long(self, pieces: Sequence[bytes]) -> int:
        return next(place for place, piece in enumerate(pieces) if len(piece) > self._max_bytes)

    def _end_input(self) -> None:
        text = f"it is longer than --max-msg-size, {self._max_bytes} bytes"
        self.refusal = InvalidInput(self._number, self._start, InvalidRequest("MSG_TOO_BIG", text))
        self._rest, self._rest_bytes = [], 0

    def describe_range(self, first_number: int, last_number: int, start: int) -> str:
        """Return ``line 3`` or ``lines 3 to 5``; see `Framing`."""
        if self._delimiter == NEWLINE:
            return _numbered("line", first_number, last_number)
        return _with_offset(first_number, last_number, start)

    def resume_command(self, number: int, start: int) -> str:
        """Return a tail command; see `Framing`."""
        return f"tail -n +{number}" if self._delimiter == NEWLINE else f"tail -c +{start + 1}"


class LengthPrefixed:
    """
    Splits the input into messages that each begin with their length.

    Layout of a message: uint32 size, big-endian, then the body. This is nsqd's binary /mpub without
    the leading number of messages.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.refusal: InvalidInput | None = None
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        """The incomplete message, in pieces."""
        self._rest_bytes = 0
        self._needed_bytes = UINT32.size
        """Bytes of `_rest` before which parsing it again is useless: its end is not there yet."""
        self._number, self._start = 1, 0
        """Number and offset of the next message."""

    def feed(self, data: bytes) -> MessageRun:
        """Return the messages that *data* completes; see `Framing`."""
        bodies: list[bytes] = []
        run = MessageRun(self._number, self._start, bodies, UINT32.size)
        if self.refusal is not None:
            return run
        self._rest.append(data)
        self._rest_bytes += len(data)
        # Join the pieces of a message only once it is complete, as for lines.
        if self._rest_bytes >= self._needed_bytes:
            self._split(b"".join(self._rest), bodies)
        if not data and self._rest_bytes:
            self._end_input(self._describe_truncation(b"".join(self._rest)))
        return run

    def _split(self, data: bytes, bodies: list[bytes]) -> None:
        """Append the complete messages of *data* to *bodies*, and keep the rest."""
        unpack, limit_bytes = UINT32.unpack_from, self._max_bytes
        needed_bytes = UINT32.size
        first, last = 0, len(data) - UINT32.size
        while first <= last:
            (size_bytes,) = unpack(data, first)
            # nsqd refuses an MPUB with an empty message, so a length of 0 is invalid, too.
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
        # There is a complete length prefix, and the loop has not added its size to `needed_bytes`:
        # the length is invalid.
        if self._rest_bytes >= UINT32.size and needed_bytes == UINT32.size:
            self._end_input(self._describe_invalid_length(self._rest[0][: UINT32.size]))

    def _describe_invalid_length(self, prefix: bytes) -> str:
        (size_bytes,) = UINT32.unpack(prefix)
        text = f"its length is {size_bytes} bytes; allowed: 1 to {self._max_bytes} (--max-msg-size)"
        if prefix.isascii() and prefix.decode().isprintable():
            text += f'; its 4 bytes are the text "{prefix.decode()}": is --framing lines meant?'
        return text

    def _describe_truncation(self, rest: bytes) -> str:
        received_bytes = len(rest) - UINT32.size
        if received_bytes < 0:
            return f"the input ends after {len(rest)} of the 4 bytes of its length"
        (size_bytes,) = UINT32.unpack_from(rest)
        return (
            f"its length is {size_bytes} bytes, and the input ends after {received_bytes} of them"
        )

    def _end_input(self, text: str) -> None:
        self.refusal = InvalidInput(self._number, self._start, InvalidRequest("BAD_MESSAGE", text))
        self._rest, self._rest_bytes = [], 0

    def describe_range(self, first_number: int, last_number: int, start: int) -> str:
        """Return ``message 3 at offset 120``; see `Framing`."""
        return _with_offset(first_number, last_number, start)

    def resume_command(self, number: int, start: int) -> str:
        """Return a tail command; see `Framing`."""
        del number
        # tail counts bytes from 1, offsets begin at 0.
        return f"tail -c +{start + 1}"


def _numbered(what: str, first: int, last: int) -> str:
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"


def _with_offset(first: int, last: int, start: int) -> str:
    named = _numbered("message", first, last)
    if first == last:
        return f"{named} at offset {start}"
    return f"{named} (from offset {start})"


def parse_delimiter(text: str) -> bytes:
    r"""
    Return the delimiter for *text*: one byte, or an escape such as ``\0``.

    A NUL needs an escape: command-line arguments cannot contain it.

    Raises:
        SettingsError: *text* is neither.
    """
    if found := _HEXADECIMAL.fullmatch(text):
        return bytes.fromhex(found[1])
    if text in _ESCAPES:
        return _ESCAPES[text]
    # Restore the bytes of the command line: Python decodes them with surrogateescape.
    value = text.encode("utf-8", "surrogateescape")
    if len(value) != 1:
        allowed = r"one byte, or \0, \t, \n, \r, \\, \xHH with two hexadecimal digits"
        raise SettingsError("--delimiter", text, allowed=allowed)
    return value
