"""
Parse and encode the frames of RFC 6455; "§" in this package refers to it.

Nearly every frame of a client is a short, unfragmented text. Its header is parsed here, in a fifth
of the time that the library `websockets` needs; the library parses all other frames, one at a time.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterator

from websockets import frames
from websockets.exceptions import PayloadTooBig
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import Protocol, Side, State

from gateway.web.errors import CloseCode

TEXT, PING, PONG = 0x81, 0x89, 0x8A
"""First bytes of unfragmented frames (§5.2: FIN, no reserved bit, the opcode)."""

SHORT_BYTES = 4_096
"""A frame up to this size, header included, is not parsed before it is complete."""

_LOGGER = logging.getLogger("gateway.web.websocket.frames")
# The library would log every frame, and frames contain secrets.
_LOGGER.setLevel(logging.WARNING)
_MAX_REASON_BYTES = 123
"""A control frame's payload has at most 125 bytes (§5.5), and the close code takes two of them."""
_MAX_CONTROL_BYTES = 125
_MAX_FRAGMENTS = 4_096
"""Fragments may be empty, so a limit on bytes alone would not bound their number."""
_MAX_HEADER_BYTES = 10
"""Size of the longest header that a server sends: two bytes, a length of eight, no mask."""
_MASKED = 0x80
_CONTROL = 0x08
_SIZE_16, _SIZE_64 = 126, 127
"""Values of the 7-bit length that announce a length of 16 or 64 bits (§5.2)."""
_MIN_FRAME_BYTES = 6
"""Size of an empty client frame: two bytes of header, four of mask."""
_WHOLE = frozenset({TEXT, PING, PONG})
_SHORT_HEADERS = [bytes((TEXT, size_bytes)) for size_bytes in range(_SIZE_16)]


# (payload, 4 bytes of mask) → payload; the library's C function, if its extension is installed.
_unmask = frames.apply_mask  # type: ignore[attr-defined]


class BadFrame(Exception):
    """The client violated the protocol or a limit; *code* and *reason* are for the close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def text_frame(text: bytes) -> bytes:
    """Return *text* (UTF-8) as one unmasked frame."""
    size_bytes = len(text)
    if size_bytes < _SIZE_16:
        return _SHORT_HEADERS[size_bytes] + text
    if size_bytes < 1 << 16:
        return struct.pack(">BBH", TEXT, _SIZE_16, size_bytes) + text
    return struct.pack(">BBQ", TEXT, _SIZE_64, size_bytes) + text


def text_frames(lines: bytes, limit_bytes: int) -> bytes:
    """
    Return *lines* as text frames with payloads of at most *limit_bytes*, cut at newlines.

    A longer line gets a frame of its own.
    """
    return b"".join(_split_lines(lines, limit_bytes))


def _split_lines(lines: bytes, limit_bytes: int) -> list[bytes]:
    """Return the frames of `text_frames`, each on its own."""
    # A newline byte only separates lines: JSON escapes newlines within strings. The newline at a
    # cut is dropped: the next frame begins with the next line.
    frames = []
    start, end = 0, len(lines)
    while end - start > limit_bytes:
        stop = lines.rfind(b"\n", start, start + limit_bytes + 1)
        if stop < 0:
            stop = lines.find(b"\n", start)
        if stop < 0:
            break
        frames.append(text_frame(lines[start:stop]))
        start = stop + 1
    frames.append(text_frame(lines[start:end]))
    return frames


def payloads(frames: bytes) -> Iterator[bytes]:
    """Yield the payload of each of the gateway's own *frames*, which are not fragmented."""
    at = 0
    while at < len(frames):
        size_bytes, at = frames[at + 1], at + 2
        if size_bytes == _SIZE_16:
            size_bytes, at = int.from_bytes(frames[at : at + 2], "big"), at + 2
        elif size_bytes == _SIZE_64:
            size_bytes, at = int.from_bytes(frames[at : at + 8], "big"), at + 8
        yield frames[at : at + size_bytes]
        at += size_bytes


class FrameQueue:
    """
    The frames that `text_frames` would make of *lines*, to write a few of them at a time.

    Each line must have at least 8 bytes.
    """

    __slots__ = ("_frames", "taken")

    def __init__(self, lines: bytes, limit_bytes: int) -> None:
        self._frames = deque(_split_lines(lines, limit_bytes))
        self.taken = 0
        """Number of lines in the frames taken so far."""

    def __bool__(self) -> bool:
        """Return True if frames are left."""
        return bool(self._frames)

    def take(self, limit_bytes: int) -> bytes:
        """Remove and return the next frames, of at most *limit_bytes* together; at least one."""
        taken: list[bytes] = []
        while self._frames and (not taken or len(self._frames[0]) <= limit_bytes):
            frame = self._frames.popleft()
            limit_bytes -= len(frame)
            # Count newlines behind the header, whose length bytes may have the value of one. A
            # header that is shorter than 10 bytes is followed by a line of at least 8.
            self.taken += frame.count(b"\n", _MAX_HEADER_BYTES) + 1
            taken.append(frame)
        return b"".join(taken)


def pong_frame(payload: bytes) -> bytes:
    """Return the pong that answers a ping with *payload*, which has at most 125 bytes."""
    return bytes((PONG, len(payload))) + payload


def ping_frame(payload: bytes) -> bytes:
    """Return a ping with *payload*, which has at most 125 bytes."""
    return bytes((PING, len(payload))) + payload


def close_frame(code: int, reason: str) -> bytes:
    """Return the close frame with *code*, and with *reason* truncated to 123 bytes."""
    # "ignore" drops a character that the cut has split: a reason must be UTF-8 (§5.5.1).
    text = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
    return Frame(Opcode.CLOSE, Close(code, text).serialize()).serialize(mask=False)


def parse_short_frame(data: bytes, at: int, limit_bytes: int) -> tuple[int, bytes, int] | None:
    """
    Parse the client's frame that begins at *at*, if it is an ordinary one.

    Returns its first byte, its payload, and the index behind it. Returns None if `frame_size` must
    examine it: it is incomplete or invalid, its first byte is not `TEXT`, `PING` or `PONG`, or its
    payload is longer than 65 535 bytes or *limit_bytes*.
    """
    if len(data) - at < _MIN_FRAME_BYTES or (first := data[at]) not in _WHOLE:
        return None
    second = data[at + 1]
    body = at + 6
    # Both tests fail without the mask bit, and `frame_size` then raises (§5.1).
    if _MASKED <= second < _MASKED | _SIZE_16:
        end = body + second - _MASKED
    elif second == _MASKED | _SIZE_16 and first == TEXT:
        size_bytes = data[at + 2] << 8 | data[at + 3]
        if size_bytes < _SIZE_16:
            return None  # not the fewest bytes (§5.2); `frame_size` raises
        body += 2  # the longer length moves the mask and the payload
        end = body + size_bytes
    else:
        return None
    if end > len(data) or end - body > limit_bytes:
        return None
    return first, _unmask(data[body:end], data[body - 4 : body]), end


def frame_size(data: bytes, at: int) -> int | None:
    """
    Return the size of the client's frame that begins at *at*, header included.

    Returns None if the header is not complete yet.

    Raises:
        BadFrame: The frame is unmasked (§5.1), a control frame of more than 125 bytes (§5.5), or
            its length is not encoded in the fewest bytes (§5.2).
    """
    if len(data) < at + 2:
        return None
    second = data[at + 1]
    if not second & _MASKED:
        raise BadFrame(CloseCode.PROTOCOL_ERROR, "a client must mask its frames")
    size_bytes = second & ~_MASKED
    if size_bytes < _SIZE_16:
        return 6 + size_bytes
    # As soon as the header is there: `websockets` would wait for the rest of the frame.
    if data[at] & _CONTROL:
        raise BadFrame(CloseCode.PROTOCOL_ERROR, "a control frame has at most 125 bytes")
    width, least = (2, _SIZE_16) if size_bytes == _SIZE_16 else (8, 1 << 16)
    if len(data) < at + 2 + width:
        return None
    size_bytes = int.from_bytes(data[at + 2 : at + 2 + width])
    if size_bytes < least:
        raise BadFrame(CloseCode.PROTOCOL_ERROR, "a length must be encoded in the fewest bytes")
    return 6 + width + size_bytes


def parse_control_frame(frame: bytes) -> tuple[Opcode, bytes, int, bytes]:
    """
    Parse a client's complete control *frame*.

    Returns its opcode, its payload, its close code, and the bytes that answer it. The close code is
    1005 for a close frame without one, and 0 for other frames. Raises BadFrame if it is invalid.
    """
    parser = _new_parser(_MAX_CONTROL_BYTES)
    try:
        parser.receive_data(frame)
        _check(parser, _MAX_CONTROL_BYTES)
        (event,) = parser.events_received()
        assert isinstance(event, Frame)  # noqa: S101 - without a handshake there are only frames
        code = parser.close_rcvd.code if parser.close_rcvd is not None else 0
        return event.opcode, bytes(event.data), code, b"".join(parser.data_to_send())
    finally:
        _close_parser(parser)


class LongMessage:
    """
    Assemble a text message that is long or fragmented.

    The caller handles control frames, which may arrive between fragments (§5.4). Once the message
    is complete, invalid or closed, it is in no reference cycle, so that no garbage collection is
    needed to free it.
    """

    __slots__ = ("_count", "_limit_bytes", "_parser", "_text", "left_bytes", "size_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.left_bytes = 0
        """
        Bytes of the current frame that have not arrived; 0 between frames.

        The caller sets it at the start of each frame.
        """
        self.size_bytes = 0
        """Bytes received, including frame headers."""
        self._limit_bytes = limit_bytes
        self._parser = _new_parser(limit_bytes)
        self._text = bytearray()
        self._count = 0

    def feed(self, part: bytes) -> bytes | None:
        """
        Add *part*, the next bytes of a frame; return the payload once the message is complete.

        Returns None while it is incomplete.

        Raises:
            BadFrame: The message is too big, has too many or unexpected fragments, or is binary.
        """
        try:
            text = self._feed(part)
        except BadFrame:
            self.close()
            raise
        if text is not None:
            self.close()
        return text

    def close(self) -> None:
        """Discard the message; `feed` must not follow. Idempotent."""
        _close_parser(self._parser)

    def _feed(self, part: bytes) -> bytes | None:
        self.left_bytes -= len(part)
        self.size_bytes += len(part)
        parser = self._parser
        parser.receive_data(part)
        _check(parser, self._limit_bytes)
        for frame in parser.events_received():
            assert isinstance(frame, Frame)  # noqa: S101 - see parse_control_frame
            if frame.opcode is Opcode.BINARY:
                raise BadFrame(
                    CloseCode.WRONG_KIND, "commands are text messages, this one is binary"
                )
            self._count += 1
            if self._count > _MAX_FRAGMENTS:
                text = f"a message has at most {_MAX_FRAGMENTS} fragments"
                raise BadFrame(CloseCode.TOO_BIG, text)
            self._text += frame.data
            if frame.fin:
                return bytes(self._text)
        return None


def _new_parser(limit_bytes: int) -> Protocol:
    """Return the library's parser for a client's frames; it takes 1.1 KiB of memory."""
    # OPEN: the handshake was done without this object.
    return Protocol(Side.SERVER, state=State.OPEN, max_size=limit_bytes, logger=_LOGGER)


def _close_parser(parser: Protocol) -> None:
    """Break the parser's reference cycles: by its generator, and by the traceback it keeps."""
    parser.parser.close()
    parser.parser_exc = None


def _check(parser: Protocol, limit_bytes: int) -> None:
    """Raise BadFrame if *parser* has found its input invalid, or longer than *limit_bytes*."""
    if parser.parser_exc is None:
        return
    if isinstance(parser.parser_exc, PayloadTooBig):
        raise BadFrame(CloseCode.TOO_BIG, f"a message has at most {limit_bytes} bytes")
    close = parser.close_sent
    assert close is not None  # noqa: S101 - the library has prepared a close frame
    raise BadFrame(close.code, close.reason)
