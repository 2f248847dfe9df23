"""
RFC 6455's frames: what `websockets` parses one after the other, and whole ones that it need not.

Nearly every frame of a client is a short text in one piece. Its head is read here, in a fifth of
the time; whatever has more to it is the library's, which gets one frame at a time.
"""

from __future__ import annotations

import logging
import struct
from collections import deque

from websockets import frames
from websockets.exceptions import PayloadTooBig
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import Protocol, Side, State

from gateway.web.faults import CloseCode

TEXT, PING, PONG = 0x81, 0x89, 0x8A
"""First bytes of frames that are whole messages (§5.2: FIN, no reserved bit, the opcode)."""

SHORT_BYTES = 4_096
"""A frame up to this size, its head included, is read once it is there as a whole."""

_LOGGER = logging.getLogger("gateway.web.websocket_frames")
# It would log every frame, and secrets are in them.
_LOGGER.setLevel(logging.WARNING)
_MAX_REASON_BYTES = 123
_MAX_CONTROL_BYTES = 125
_MAX_FRAGMENTS = 4_096
_LONGEST_HEAD_BYTES = 10
_MASKED = 0x80
_CONTROL = 0x08
_SIZE_16, _SIZE_64 = 126, 127
_SHORTEST_BYTES = 6
_WHOLE = frozenset({TEXT, PING, PONG})
_SHORT_HEADS = [bytes((TEXT, size_bytes)) for size_bytes in range(_SIZE_16)]


# (payload, 4 bytes of mask) → payload; in C where the library could be compiled.
_unmask = frames.apply_mask  # type: ignore[attr-defined]


class BadFrame(Exception):
    """The client has left the protocol: the *code* and the reason to close with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def text_frame(text: bytes) -> bytes:
    """Return *text*, which is UTF-8, as one frame of a server."""
    size_bytes = len(text)
    if size_bytes < _SIZE_16:
        return _SHORT_HEADS[size_bytes] + text
    if size_bytes < 1 << 16:
        return struct.pack(">BBH", TEXT, _SIZE_16, size_bytes) + text
    return struct.pack(">BBQ", TEXT, _SIZE_64, size_bytes) + text


def text_frames(lines: bytes, limit_bytes: int) -> bytes:
    """Return *lines* as frames of a server, each closed before it is larger; a large line alone."""
    return b"".join(_split(lines, limit_bytes))


def _split(lines: bytes, limit_bytes: int) -> list[bytes]:
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


class LinesInFrames:
    """What `text_frames` makes of *lines*, none of which is shorter than 8 bytes, bit by bit."""

    __slots__ = ("_frames", "taken")

    def __init__(self, lines: bytes, limit_bytes: int) -> None:
        self._frames = deque(_split(lines, limit_bytes))
        self.taken = 0
        """How many lines were in what was taken out."""

    def __bool__(self) -> bool:
        """Whether there is more."""
        return bool(self._frames)

    def take(self, limit_bytes: int) -> bytes:
        """Take out frames of so many bytes together, at least one frame."""
        taken: list[bytes] = []
        while self._frames and (not taken or len(self._frames[0]) <= limit_bytes):
            frame = self._frames.popleft()
            limit_bytes -= len(frame)
            # In a head any byte may be a newline, and the first line is longer than the head.
            self.taken += frame.count(b"\n", _LONGEST_HEAD_BYTES) + 1
            taken.append(frame)
        return b"".join(taken)


def pong_frame(payload: bytes) -> bytes:
    """Return the answer to a ping with *payload*, of at most 125 bytes."""
    return bytes((PONG, len(payload))) + payload


def ping_frame(payload: bytes) -> bytes:
    """Return a ping with *payload*, of at most 125 bytes."""
    return bytes((PING, len(payload))) + payload


def close_frame(code: int, reason: str) -> bytes:
    """Return the frame that closes with *code*; of *reason* what has room in it."""
    text = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
    return Frame(Opcode.CLOSE, Close(code, text).serialize()).serialize(mask=False)


def whole_frame(data: bytes, at: int, limit_bytes: int) -> tuple[int, bytes, int] | None:
    """
    Return the first byte, the payload and the end of the frame at *at*, as most frames are.

    None: it is not there as a whole, is no `TEXT`, `PING` or `PONG`, or is longer than 65 535 or
    *limit_bytes*, or anything is wrong with it.
    """
    if len(data) - at < _SHORTEST_BYTES or (first := data[at]) not in _WHOLE:
        return None
    second = data[at + 1]
    body = at + 6
    if _MASKED <= second < _MASKED | _SIZE_16:
        end = body + second - _MASKED
    elif second == _MASKED | _SIZE_16 and first == TEXT:
        size_bytes = data[at + 2] << 8 | data[at + 3]
        if size_bytes < _SIZE_16:
            return None
        body += 2
        end = body + size_bytes
    else:
        return None
    if end > len(data) or end - body > limit_bytes:
        return None
    return first, _unmask(data[body:end], data[body - 4 : body]), end


def frame_bytes(data: bytes, at: int) -> int | None:
    """
    Return the size of the client's frame whose head begins at *at*; None: it is not known yet.

    Raises:
        BadFrame: It is not masked (§5.1), a control frame of more than 125 bytes (§5.5), or has
            its size in more bytes than are needed (§5.2).
    """
    if len(data) < at + 2:
        return None
    second = data[at + 1]
    if not second & _MASKED:
        raise BadFrame(CloseCode.PROTOCOL_ERROR, "a client's frames are masked")
    size_bytes = second & ~_MASKED
    if size_bytes < _SIZE_16:
        return 6 + size_bytes
    if data[at] & _CONTROL:
        raise BadFrame(CloseCode.PROTOCOL_ERROR, "control frames have at most 125 bytes")
    width, least = (2, _SIZE_16) if size_bytes == _SIZE_16 else (8, 1 << 16)
    if len(data) < at + 2 + width:
        return None
    size_bytes = int.from_bytes(data[at + 2 : at + 2 + width])
    if size_bytes < least:
        raise BadFrame(CloseCode.PROTOCOL_ERROR, "a size is told in as few bytes as it needs")
    return 6 + width + size_bytes


def read_control(frame: bytes) -> tuple[Opcode, bytes, int, bytes]:
    """
    Return opcode and payload of a whole control *frame*, its close code, and the answer to it.

    The close code of a close frame without one is 1005, that of any other frame 0. Raises BadFrame.
    """
    parser = _new_parser(_MAX_CONTROL_BYTES)
    try:
        parser.receive_data(frame)
        _check(parser, _MAX_CONTROL_BYTES)
        (event,) = parser.events_received()
        assert isinstance(event, Frame)  # noqa: S101 - a Protocol without handshake has no others
        code = parser.close_rcvd.code if parser.close_rcvd is not None else 0
        return event.opcode, bytes(event.data), code, b"".join(parser.data_to_send())
    finally:
        _end(parser)


class LongMessage:
    """
    A text message that is long, or in fragments; control frames between them go elsewhere.

    Once it is whole, has raised or is closed it leaves nothing to the garbage collector.
    """

    __slots__ = ("_count", "_limit_bytes", "_parser", "_text", "left_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.left_bytes = 0
        """What is still to come of the frame that has begun; 0: the next head comes."""
        self._limit_bytes = limit_bytes
        self._parser = _new_parser(limit_bytes)
        self._text = bytearray()
        self._count = 0

    def feed(self, part: bytes) -> bytes | None:
        """
        Take the next *part* of a frame, and return the message once it is whole.

        Raises:
            BadFrame: It is too big, in too many fragments, in a wrong order, or no text.
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
        """Give it up: nothing can be fed any more; idempotent."""
        _end(self._parser)

    def _feed(self, part: bytes) -> bytes | None:
        self.left_bytes -= len(part)
        parser = self._parser
        parser.receive_data(part)
        _check(parser, self._limit_bytes)
        for frame in parser.events_received():
            assert isinstance(frame, Frame)  # noqa: S101 - see read_control
            if frame.opcode is Opcode.BINARY:
                raise BadFrame(CloseCode.WRONG_KIND, "commands are text, this is a binary message")
            self._count += 1
            if self._count > _MAX_FRAGMENTS:
                text = f"a message has at most {_MAX_FRAGMENTS} fragments"
                raise BadFrame(CloseCode.TOO_BIG, text)
            self._text += frame.data
            if frame.fin:
                return bytes(self._text)
        return None


def _new_parser(limit_bytes: int) -> Protocol:
    """Return the library's parser for a client's frames; it costs 1.1 KiB while it is there."""
    return Protocol(Side.SERVER, state=State.OPEN, max_size=limit_bytes, logger=_LOGGER)


def _end(parser: Protocol) -> None:
    """Take it out of the two cycles it stands in: its generator, and the traceback it keeps."""
    parser.parser.close()
    parser.parser_exc = None


def _check(parser: Protocol, limit_bytes: int) -> None:
    if parser.parser_exc is None:
        return
    if isinstance(parser.parser_exc, PayloadTooBig):
        raise BadFrame(CloseCode.TOO_BIG, f"a message has at most {limit_bytes} bytes")
    close = parser.close_sent
    assert close is not None  # noqa: S101 - the library closes with whatever stopped it
    raise BadFrame(close.code, close.reason)
