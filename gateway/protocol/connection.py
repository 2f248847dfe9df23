"""
One V2 connection without its socket, in either role.

The client's side sends commands and receives frames; the broker's side is its mirror. Bytes go in
by `receive_data`, which gives what happened as a list, in order; `send` gives the bytes of what
our side says. Both know the state of the connection, so neither says what V2 forbids.

A list holds all that one read of the socket brought: messages that came in a row stand in one
`MessagesArrived`. A peer's mistake is the list's last event, behind what was right.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from gateway.errors import LocalProtocolError, RemoteProtocolError
from gateway.protocol.buffer import ReceiveBuffer
from gateway.protocol.command_reader import CommandReader, Incomplete
from gateway.protocol.commands import Command, Finish, Identify, encode_finishes
from gateway.protocol.frames import (
    ErrorFrame,
    Message,
    Response,
    encode_messages,
    fault_of_head,
    parse_error,
    read_messages,
)
from gateway.protocol.identify import Answer, parse_answer
from gateway.protocol.raw_messages import RawMessages, find_messages
from gateway.protocol.states import State, advance
from gateway.protocol.wire import (
    FRAME_ERROR,
    FRAME_HEAD,
    HEARTBEAT,
    MAGIC,
    Limits,
)


class Role(enum.Enum):
    """Which side of the connection is ours."""

    CLIENT = "client"
    BROKER = "broker"


class Filter(Protocol):
    """What lies between V2 and the socket after an upgrade: compression."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """
        Give what *data* from the socket says, in pieces of at most 1 MiB; none while incomplete.

        A piece is made when it is asked for, so that whoever stops asking stops the decoding:
        a few bytes may say a thousand times as many. The next *data* comes when all pieces have
        been taken.

        Raises:
            RemoteProtocolError: The peer does not speak this layer; nothing comes behind it.
        """

    def encode(self, data: bytes) -> bytes:
        """Return *data* as it goes to the socket, complete up to its last byte."""


class MessagesArrived(msgspec.Struct, frozen=True):
    """Messages that came in a row, at least one, in order."""

    messages: list[Message]


class HeartbeatArrived(msgspec.Struct, frozen=True):
    """The broker asks for a sign of life; NOP is the answer."""


class Identified(msgspec.Struct, frozen=True):
    """The broker answered IDENTIFY; where the answer upgrades, reading has paused."""

    answer: Answer


class PeerViolated(msgspec.Struct, frozen=True):
    """The peer broke V2; nothing behind this is read any more."""

    error: RemoteProtocolError


Event: TypeAlias = (
    MessagesArrived
    | RawMessages
    | HeartbeatArrived
    | Identified
    | Response
    | ErrorFrame
    | Command
    | PeerViolated
)

_INIT = State.INIT
"""Looked up once: a member of an enum costs more than all else that is done for a lone FIN."""

_FRAMES = (Response, ErrorFrame)

_NO_PIECES: Iterator[bytes] = iter(())


class V2Connection:
    """
    Bytes in, events out; commands or frames in, bytes out.

    Where it *is_raw*, messages come as `RawMessages` in place of `MessagesArrived`.
    """

    __slots__ = (
        "_buffer",
        "_expects_answer",
        "_expects_magic",
        "_filter",
        "_is_open",
        "_is_paused",
        "_is_raw",
        "_pieces",
        "_reader",
        "_refusal_at_eof",
        "_undecoded",
        "_unread",
        "_unread_offset",
        "_upgrades_due",
        "role",
        "state",
    )

    def __init__(self, role: Role, limits: Limits | None = None, *, is_raw: bool = False) -> None:
        self.role = role
        self._is_raw = is_raw
        self.state = State.INIT
        self._buffer = ReceiveBuffer()
        self._filter: Filter | None = None
        self._pieces = _NO_PIECES
        self._undecoded: ReceiveBuffer | None = None
        """What came during a pause behind the filter."""
        self._is_open = True
        self._is_paused = False
        self._unread = b""
        self._unread_offset = 0
        self._reader = CommandReader(limits or Limits()) if role is Role.BROKER else None
        self._expects_magic = role is Role.BROKER
        self._expects_answer = False
        self._upgrades_due = 0
        self._refusal_at_eof: RemoteProtocolError | None = None
        if self._expects_magic:
            self._buffer.wait_for(b"", wanted_bytes=len(MAGIC))

    # In

    def receive_data(self, data: bytes) -> list[Event]:
        """Take in what the socket read and return what it says; empty while incomplete."""
        if not self._is_open:
            return []
        if self._filter is not None:
            if self._is_paused:
                self._undecoded = self._undecoded or ReceiveBuffer()
                self._undecoded.hold(data)
                return []
            self._pieces = self._filter.decode(data)
            return self._read_pieces()
        if self._is_paused:
            self._buffer.hold(data)
            return []
        held = data if self._buffer.is_idle else self._buffer.add(data)
        if held is None:
            return []
        return self._frames(held, 0) if self._reader is None else self._commands(held, 0)

    def receive_eof(self) -> list[Event]:
        """
        Learn that nothing more comes: the socket's end, or its deadline.

        A command that lacks a part of its body is a violation then, in the words of nsqd's
        answer; half a line, and half a frame, is none.
        """
        if not self._is_open:
            return []
        self._is_open = False
        return [PeerViolated(self._refusal_at_eof)] if self._refusal_at_eof is not None else []

    def take_unread(self) -> bytes:
        """Return the bytes that came behind the pause; a TLS layer reads them first."""
        unread = self._unread[self._unread_offset :] + self._buffer.take_all()
        self._unread, self._unread_offset = b"", 0
        return unread

    def upgrade(self, layer: Filter | None) -> list[Event]:
        """
        End the pause behind IDENTIFY; from the next byte on read and send through *layer*.

        The broker's side pauses behind every IDENTIFY, since only its handler knows what it
        will answer; the client's side behind an answer that upgrades, and where that names TLS
        and compression, once more behind the OK that TLS is answered with. Returns what the
        bytes that had come behind the pause say. With None the connection goes on as it is (TLS
        lies below it and needs no filter).

        Raises:
            LocalProtocolError: There is no pause, or a layer lies there already.
        """
        if not self._is_paused or (layer is not None and self._filter is not None):
            msg = "an upgrade needs the pause behind IDENTIFY, and there is one layer at most"
            raise LocalProtocolError(msg)
        if not self._is_open:
            return []
        self._is_paused = False
        self._upgrades_due = max(0, self._upgrades_due - 1)
        if layer is None and not len(self._buffer):
            # Read on in place: a client may put thousands of IDENTIFY into one read, and to
            # copy what is behind each would take the square of their number.
            unread, offset = self._unread, self._unread_offset
            self._unread, self._unread_offset = b"", 0
            return self._read(unread, offset) + self._read_pieces()
        unread = self.take_unread()
        if layer is None:
            return self._read(unread, 0)
        self._filter = layer
        return self.receive_data(unread)

    def _read_pieces(self) -> list[Event]:
        """Take pieces from the filter until there is none, or a pause, or a violation."""
        events: list[Event] = []
        try:
            while self._filter is not None and self._is_open and not self._is_paused:
                piece = next(self._pieces, None)
                if piece is not None:
                    held = self._buffer.add(piece)
                    if held is not None:
                        events += self._read(held, 0)
                elif self._undecoded is not None:
                    undecoded, self._undecoded = self._undecoded, None
                    self._pieces = self._filter.decode(undecoded.take_all())
                else:
                    break
        except RemoteProtocolError as error:
            events.append(self._violated(error))
        return events

    def _read(self, data: bytes, offset: int) -> list[Event]:
        if self._reader is None:
            return self._frames(data, offset)
        return self._commands(data, offset)

    def _violated(self, error: RemoteProtocolError) -> PeerViolated:
        self._is_open = False
        return PeerViolated(error)

    def _frames(self, data: bytes, offset: int) -> list[Event]:
        events: list[Event] = []
        end = len(data)
        while True:
            # The way of nearly all bytes: whole messages, and nothing behind them.
            offset = self._messages(data, offset, events)
            if offset == end:
                return events
            if end - offset < FRAME_HEAD.size:
                self._buffer.wait_for(data[offset:], wanted_bytes=FRAME_HEAD.size)
                return events
            size, kind = FRAME_HEAD.unpack_from(data, offset)
            violation = fault_of_head(size, kind)
            if violation is not None:
                events.append(self._violated(violation))
                return events
            behind = offset + 4 + size
            if behind > end:
                self._buffer.wait_for(data[offset:], wanted_bytes=4 + size)
                return events
            events.append(self._frame(kind, data[offset + 8 : behind]))
            offset = behind
            if self._is_paused or not self._is_open:
                if offset < end:
                    self._unread, self._unread_offset = data, offset
                return events

    def _messages(self, data: bytes, offset: int, events: list[Event]) -> int:
        """Add what *data* holds of messages from *offset* on; return where they end."""
        if self._is_raw:
            ids: list[bytes] = []
            end = find_messages(data, offset, ids)
            if ids:
                events.append(RawMessages(data[offset:end], ids))
            return end
        row: list[Message] = []
        end = read_messages(data, offset, row)
        if row:
            events.append(MessagesArrived(row))
        return end

    def _frame(self, kind: int, data: bytes) -> Event:
        """Return the event of a frame that is not a message."""
        if kind == FRAME_ERROR:
            return parse_error(data)
        if data == HEARTBEAT:
            return HeartbeatArrived()
        if not self._expects_answer:
            self._is_paused = self._upgrades_due > 0  # this is the OK of the upgrade before
            return Response(data)
        self._expects_answer = False
        try:
            answer = parse_answer(data)
        except RemoteProtocolError as error:
            return self._violated(error)
        self._upgrades_due = answer.upgrade_count
        self._is_paused = answer.upgrades
        return Identified(answer)

    def _commands(self, data: bytes, offset: int) -> list[Event]:
        events: list[Event] = []
        self._refusal_at_eof = None
        assert self._reader is not None  # noqa: S101 - a broker has one
        try:
            if self._expects_magic:
                offset = _behind_magic(data)
                self._expects_magic = False
            while offset < len(data) and not self._is_paused:
                command, offset = self._reader.read(data, offset, self.state)
                self.state = advance(self.state, type(command))
                events.append(command)
                self._is_paused = type(command) is Identify
        except Incomplete as more:
            self._refusal_at_eof = more.refusal
            self._buffer.wait_for(
                data[more.offset :],
                wanted_bytes=more.wanted_bytes,
                newline_is_enough=more.refusal is None,
            )
            return events
        except RemoteProtocolError as error:
            events.append(self._violated(error))
            return events
        if self._is_paused:
            self._unread, self._unread_offset = data, offset
        return events

    # Out

    def send(self, item: Command | Response | ErrorFrame) -> bytes:
        """
        Return the bytes of one command (client) or frame (broker).

        IDENTIFY is sent while no other answer is due: the next one is taken for its answer.

        Raises:
            LocalProtocolError: The command is not allowed in this state.
        """
        if not isinstance(item, _FRAMES):
            self.state = advance(self.state, type(item))
            if type(item) is Identify:
                self._expects_answer = True
        return self._encode(item.encode())

    def send_magic(self) -> bytes:
        """Return the four bytes that open a connection."""
        return MAGIC

    def send_finishes(self, ids: Sequence[bytes]) -> bytes:
        """Return one FIN for each of *ids*, which are not empty; raises as `send` does."""
        if self.state is _INIT:
            advance(self.state, Finish)  # raises; in the others it is allowed
        data = encode_finishes(ids)
        return data if self._filter is None else self._filter.encode(data)

    def send_messages(self, messages: Sequence[Message]) -> bytes:
        """Return the frames of *messages* (broker)."""
        if self.state is State.INIT:
            msg = "messages go to a subscribed connection only"
            raise LocalProtocolError(msg)
        return self._encode(encode_messages(messages))

    def _encode(self, data: bytes) -> bytes:
        return data if self._filter is None else self._filter.encode(data)


def _behind_magic(data: bytes) -> int:
    if not data.startswith(MAGIC):
        raise RemoteProtocolError("E_BAD_PROTOCOL", "")
    return len(MAGIC)
