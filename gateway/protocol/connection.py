"""
One V2 connection without its socket, in either role.

The client's side sends commands and receives frames; the broker's side does the reverse.
`receive_data` takes bytes and returns a list of events in order; `send` returns the bytes to write.
Both follow the state machine in `states`, so neither side sends what V2 forbids.

In the list of events, consecutive messages are one `MessagesReceived`. If the peer violates V2,
`ViolationReceived` is the last event, after all valid ones, and the connection reads nothing more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from gateway.errors import LocalProtocolError, RemoteProtocolError
from gateway.protocol.buffer import ReceiveBuffer
from gateway.protocol.command_parser import CommandParser, Incomplete, ReadPaused
from gateway.protocol.commands import (
    STEP_MESSAGES,
    Command,
    Finish,
    Identify,
    MultiPublish,
    PackedBodies,
    encode_finishes,
)
from gateway.protocol.frames import (
    ErrorFrame,
    Message,
    RawMessages,
    Response,
    check_frame_head,
    encode_messages,
    parse_error,
    read_messages,
)
from gateway.protocol.identify import IdentifyResponse, parse_identify_response
from gateway.protocol.states import State, advance
from gateway.protocol.wire import (
    FRAME_ERROR,
    FRAME_HEAD,
    HEARTBEAT,
    MAGIC,
    Limits,
)


class Role(enum.Enum):
    """The role of this process in a connection; the peer has the other one."""

    CLIENT = "client"
    BROKER = "broker"


class Codec(Protocol):
    """A compression layer between V2 and the socket; `compression` implements two."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """
        Decode *data* from the socket, and yield the result in pieces of at most 64 KiB.

        Each piece is decoded on demand, so a decompression bomb occupies only one piece. The caller
        must exhaust the iterator before the next call. Incomplete input yields nothing.

        Raises:
            RemoteProtocolError: *data* is not in this format; decode nothing after it.
        """

    def encode(self, data: bytes) -> bytes:
        """Return *data* encoded and flushed, so that the peer can decode its last byte."""


class MessagesReceived(msgspec.Struct, frozen=True):
    """One or more consecutive messages, in order."""

    messages: list[Message]


class HeartbeatReceived(msgspec.Struct, frozen=True):
    """The broker sent a heartbeat; the client must send NOP in answer."""


class Identified(msgspec.Struct, frozen=True):
    """The broker answered IDENTIFY; if *response* upgrades, reading is paused until `upgrade`."""

    response: IdentifyResponse


class ViolationReceived(msgspec.Struct, frozen=True):
    """The peer violated V2; nothing after this is read."""

    error: RemoteProtocolError


Event: TypeAlias = (
    MessagesReceived
    | RawMessages
    | HeartbeatReceived
    | Identified
    | Response
    | ErrorFrame
    | Command
    | ViolationReceived
)

_INIT = State.INIT
"""Looked up once: access to an enum member costs more than encoding a lone FIN."""

_FRAMES = (Response, ErrorFrame)

_NO_PIECES: Iterator[bytes] = iter(())

MAX_STEP_BYTES = 65_536
"""Decompressed bytes after which the broker's side pauses: up to 30 ms of work (NOPs)."""


class V2Connection:
    """
    One V2 connection: it turns received bytes into events, and commands or frames into bytes.

    With *is_raw*, messages are returned as `RawMessages` in place of `MessagesReceived`. With
    *announces_mpub*, `MultiPublishStart` precedes each `MultiPublish`, before its body has arrived.
    """

    __slots__ = (
        "_buffer",
        "_codec",
        "_decoded_bytes",
        "_error_at_eof",
        "_expects_magic",
        "_expects_response",
        "_is_open",
        "_is_paused",
        "_is_raw",
        "_parser",
        "_pieces",
        "_undecoded",
        "_unread",
        "_unread_offset",
        "_upgrades_due",
        "role",
        "state",
    )

    def __init__(
        self,
        role: Role,
        limits: Limits | None = None,
        *,
        is_raw: bool = False,
        announces_mpub: bool = False,
    ) -> None:
        self.role = role
        self._is_raw = is_raw
        self.state = State.INIT
        self._buffer = ReceiveBuffer()
        self._codec: Codec | None = None
        self._pieces = _NO_PIECES
        self._undecoded: ReceiveBuffer | None = None  # received while paused, with a codec
        self._decoded_bytes = 0
        self._is_open = True
        self._is_paused = False
        self._unread = b""
        self._unread_offset = 0
        self._parser = (
            CommandParser(limits or Limits(), announces_mpub=announces_mpub)
            if role is Role.BROKER
            else None
        )
        self._expects_magic = role is Role.BROKER
        self._expects_response = False
        self._upgrades_due = 0
        self._error_at_eof: RemoteProtocolError | None = None
        if self._expects_magic:
            # Fewer bytes could still become the magic, so they must not be refused yet.
            self._buffer.put_back(b"", wanted_bytes=len(MAGIC))

    # Receiving

    @property
    def is_between_frames(self) -> bool:
        """True if the received bytes end with a complete frame or command."""
        return self._buffer.is_idle

    @property
    def is_paused(self) -> bool:
        """
        True while received bytes are kept unparsed.

        After IDENTIFY, this ends with `upgrade`; otherwise (MPUB, compression) with `resume`.
        """
        return self._is_paused

    def receive_data(self, data: bytes) -> list[Event]:
        """
        Process bytes from the socket and return the events that they complete.

        The broker's side pauses reading after about `STEP_MESSAGES` messages of MPUB in one call,
        after every MPUB with more than that, and after a piece or more of decompressed data.
        """
        if not self._is_open:
            return []
        self._decoded_bytes = 0
        if self._parser is not None:
            self._parser.messages_left = STEP_MESSAGES
        if self._codec is not None:
            if self._is_paused:
                # The codec may not have finished the previous read: keep this one encoded.
                self._undecoded = self._undecoded or ReceiveBuffer()
                self._undecoded.append(data)
                return []
            self._pieces = self._codec.decode(data)
            return self._read_pieces()
        if self._is_paused:
            self._buffer.append(data)
            return []
        # `is_idle` saves a call: most reads find the buffer empty.
        held = data if self._buffer.is_idle else self._buffer.feed(data)
        if held is None:
            return []
        return self._read_frames(held, 0) if self._parser is None else self._read_commands(held, 0)

    def receive_eof(self) -> list[Event]:
        """
        Process the end of the stream.

        If the stream ends within the body of a command, return a violation with the text of nsqd's
        error. If it ends within a line or a frame, return nothing.
        """
        if not self._is_open:
            return []
        self._is_open = False
        return [ViolationReceived(self._error_at_eof)] if self._error_at_eof is not None else []

    def take_unread(self) -> bytes:
        """Remove and return the bytes since the pause; a new TLS layer reads these first."""
        unread = self._unread[self._unread_offset :] + self._buffer.take_all()
        self._unread, self._unread_offset = b"", 0
        return unread

    def upgrade(self, codec: Codec | None) -> list[Event]:
        """
        End the pause after IDENTIFY, and pass all further bytes through *codec*.

        The broker's side pauses after every IDENTIFY, because only its handler knows the response.
        The client's side pauses after a response that upgrades. If that enables TLS and
        compression, it pauses again after the OK that confirms TLS. With None for *codec*, bytes
        are read as before (TLS is a layer below this class). Return the events of the bytes
        received since the pause.

        Raises:
            LocalProtocolError: Reading is not paused, or there is a codec already.
        """
        if not self._is_paused or (codec is not None and self._codec is not None):
            msg = "upgrade() needs a connection that is paused after IDENTIFY and has no codec yet"
            raise LocalProtocolError(msg)
        if not self._is_open:
            return []  # the stream ended during the pause
        self._is_paused = False
        # Not below 0, because `resume` ends its pause here, too.
        self._upgrades_due = max(0, self._upgrades_due - 1)
        if codec is None and (self._codec is not None or not len(self._buffer)):
            # Continue in place: one read may hold thousands of IDENTIFY, and copying the rest
            # after each one would take quadratic time.
            unread, offset = self._unread, self._unread_offset
            self._unread, self._unread_offset = b"", 0
            # If nothing is left, an incomplete command may be in the buffer: keep its state.
            events = self._read(unread, offset) if offset < len(unread) else []
            return events + self._read_pieces()
        unread = self.take_unread()
        if codec is None:
            return self._read(unread, 0)
        # The peer may have sent encoded bytes right after its last plain byte.
        self._codec = codec
        return self.receive_data(unread)

    def resume(self) -> list[Event]:
        """
        Continue after the pause that MPUB or compression causes (broker); return the next events.

        Raises:
            LocalProtocolError: Reading is not paused.
        """
        if self._parser is not None:
            self._parser.messages_left = STEP_MESSAGES
        self._decoded_bytes = 0
        return self.upgrade(None)

    def require_tls(self, *, is_due: bool) -> None:
        """While *is_due*, refuse every command but IDENTIFY (broker)."""
        assert self._parser is not None  # noqa: S101 - a broker has one
        self._parser.require_tls(is_due=is_due)

    def _read_pieces(self) -> list[Event]:
        """Decode and parse until the input ends, reading is paused, or the peer violates V2."""
        events: list[Event] = []
        try:
            while self._codec is not None and self._is_open and not self._is_paused:
                # On demand: a pause leaves the rest encoded, so that a bomb takes no memory.
                piece = next(self._pieces, None)
                if piece is not None:
                    held = self._buffer.feed(piece)
                    if held is not None:
                        events += self._read(held, 0)
                    self._decoded_bytes += len(piece)
                    if self._parser is not None and self._decoded_bytes >= MAX_STEP_BYTES:
                        # A small read can become a thousand times as many bytes of commands.
                        self._is_paused = True
                elif self._undecoded is not None:
                    undecoded, self._undecoded = self._undecoded, None
                    self._pieces = self._codec.decode(undecoded.take_all())
                else:
                    break
        except RemoteProtocolError as error:
            # The codec yields the valid data before it raises, so its events precede this one.
            if self._parser is not None:
                # To nsqd this is a read that failed, as at the end of the stream.
                error = self._error_at_eof or RemoteProtocolError("", error.description)
            events.append(self._close_on(error))
        return events

    def _read(self, data: bytes, offset: int) -> list[Event]:
        if self._parser is None:
            return self._read_frames(data, offset)
        return self._read_commands(data, offset)

    def _close_on(self, error: RemoteProtocolError) -> ViolationReceived:
        # Nothing more is read: it is unknown where the next frame or command would start.
        self._is_open = False
        return ViolationReceived(error)

    def _read_frames(self, data: bytes, offset: int) -> list[Event]:
        events: list[Event] = []
        end = len(data)
        while True:
            # The common case first: nothing but whole messages.
            offset = self._read_messages(data, offset, events)
            if offset == end:
                return events
            if end - offset < FRAME_HEAD.size:
                self._buffer.put_back(data[offset:], wanted_bytes=FRAME_HEAD.size)
                return events
            size, kind = FRAME_HEAD.unpack_from(data, offset)
            # Before waiting for the data: with a wrong size, that could be gigabytes.
            try:
                check_frame_head(size, kind)
            except RemoteProtocolError as error:
                events.append(self._close_on(error))
                return events
            frame_end = offset + 4 + size
            if frame_end > end:
                self._buffer.put_back(data[offset:], wanted_bytes=4 + size)
                return events
            events.append(self._parse_frame(kind, data[offset + 8 : frame_end]))
            offset = frame_end
            if self._is_paused or not self._is_open:
                # After an upgrade, the rest belongs to the next layer.
                if offset < end:
                    self._unread, self._unread_offset = data, offset
                return events

    def _read_messages(self, data: bytes, offset: int, events: list[Event]) -> int:
        """Append the consecutive messages at *offset* to *events*, as one; return their end."""
        if self._is_raw:
            ids: list[bytes] = []
            end = read_messages(data, offset, ids, ids_only=True)
            if ids:
                events.append(RawMessages(data[offset:end], ids))
            return end
        messages: list[Message] = []
        end = read_messages(data, offset, messages)
        if messages:
            events.append(MessagesReceived(messages))
        return end

    def _parse_frame(self, kind: int, data: bytes) -> Event:
        """Return the event of a frame that is not a message."""
        if kind == FRAME_ERROR:
            return parse_error(data)
        # Before the response to IDENTIFY, since a heartbeat may precede it.
        if data == HEARTBEAT:
            return HeartbeatReceived()
        if not self._expects_response:
            # If another upgrade is due, this OK confirms the previous one, and the bytes after it
            # belong to the next layer.
            self._is_paused = self._upgrades_due > 0
            return Response(data)
        self._expects_response = False
        try:
            response = parse_identify_response(data)
        except RemoteProtocolError as error:
            return self._close_on(error)
        self._upgrades_due = response.upgrade_count
        self._is_paused = response.upgrades
        return Identified(response)

    def _read_commands(self, data: bytes, offset: int) -> list[Event]:
        events: list[Event] = []
        # The error was that of the previous incomplete command, which may be complete now.
        self._error_at_eof = None
        assert self._parser is not None  # noqa: S101 - a broker has one
        try:
            if self._expects_magic:
                offset = _after_magic(data)
                self._expects_magic = False
            # The body of an announced MPUB is awaited, even if none of it has come.
            while not self._is_paused and (offset < len(data) or self._parser.is_in_mpub):
                command, offset = self._parser.read(data, offset, self.state)
                kind = type(command)
                # The parser has checked the state, so `advance` cannot raise here.
                self.state = advance(self.state, kind)
                events.append(command)
                if kind is Identify:
                    # Only the handler knows whether its response upgrades the connection.
                    self._is_paused = True
                elif type(command) is MultiPublish:
                    # A large MPUB is stored in steps, and the commands after it must wait.
                    is_large = type(command.bodies) is PackedBodies
                    self._is_paused = is_large or self._parser.messages_left <= 0
        except ReadPaused as pause:
            self._is_paused = True
            offset = pause.offset
        except Incomplete as more:
            # MPUB has kept its complete messages: *offset* may be after the start of the command.
            self._error_at_eof = more.error_at_eof
            self._buffer.put_back(
                data[more.offset :],
                wanted_bytes=more.wanted_bytes,
                newline_is_enough=more.error_at_eof is None,
            )
            return events
        except RemoteProtocolError as error:
            events.append(self._close_on(error))
            return events
        if self._is_paused:
            self._unread, self._unread_offset = data, offset
        return events

    # Sending

    def send(self, item: Command | Response | ErrorFrame) -> bytes:
        """
        Return the bytes of one command (client) or frame (broker).

        Send IDENTIFY only while no response is due, because the next response frame is parsed as
        the response to IDENTIFY.

        Raises:
            LocalProtocolError: The command is not allowed in this state.
        """
        if not isinstance(item, _FRAMES):
            self.state = advance(self.state, type(item))
            if type(item) is Identify:
                self._expects_response = True
        return self._encode(item.encode())

    def send_magic(self) -> bytes:
        """Return the four bytes that open a connection."""
        return MAGIC

    def send_finishes(self, ids: Sequence[bytes]) -> bytes:
        """Return one FIN for each of *ids*, which must not be empty; raises as `send` does."""
        if self.state is _INIT:
            advance(self.state, Finish)  # raises; all other states allow FIN
        data = encode_finishes(ids)
        return data if self._codec is None else self._codec.encode(data)

    def send_messages(self, messages: Sequence[Message]) -> bytes:
        """Return the frames of *messages* (broker)."""
        if self.state is State.INIT:
            msg = "messages can be sent to a subscribed connection only"
            raise LocalProtocolError(msg)
        return self._encode(encode_messages(messages))

    def send_encoded(self, frames: bytes) -> bytes:
        """Return the bytes to write for *frames*, which `encode_messages` has returned (broker)."""
        return self._encode(frames)

    def _encode(self, data: bytes) -> bytes:
        return data if self._codec is None else self._codec.encode(data)


def _after_magic(data: bytes) -> int:
    # Without a description: nsqd's error frame for this has only the code.
    if not data.startswith(MAGIC):
        raise RemoteProtocolError("E_BAD_PROTOCOL", "")
    return len(MAGIC)
