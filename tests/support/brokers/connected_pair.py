"""Both roles of V2Connection connected without a socket, and streams cut into pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, SupportsIndex

from gateway.protocol.buffer import ReceiveBuffer
from gateway.protocol.commands import Command, Identify, MultiPublish, PackedBodies
from gateway.protocol.connection import (
    Event,
    MessagesReceived,
    Role,
    V2Connection,
    ViolationReceived,
)
from gateway.protocol.frames import ErrorFrame, Message, Response
from gateway.protocol.wire import MAGIC, Limits

Cut = Callable[[bytes], Iterable[bytes]]
"""Function that splits the data of one side into pieces for the other."""


def whole(data: bytes) -> list[bytes]:
    """Return *data* in one piece."""
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    """Return *data* in pieces of one byte."""
    return in_steps(data, 1)


def in_steps(data: bytes, step: int) -> list[bytes]:
    """Return *data* in pieces of *step* bytes; the last may be shorter."""
    return [data[start : start + step] for start in range(0, len(data), step)]


def cut_at(data: bytes, positions: Iterable[int]) -> list[bytes]:
    """Return *data* cut at *positions*, in any order, possibly repeated."""
    edges = [0, *sorted(positions), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def feed(connection: V2Connection, pieces: Iterable[bytes]) -> list[Event]:
    """Return the events of *pieces*, in order; nothing is upgraded after IDENTIFY."""
    events: list[Event] = []
    for piece in pieces:
        news = connection.receive_data(piece)
        events += news
        while connection.role is Role.BROKER and connection.is_paused:
            is_identify = bool(news) and type(news[-1]) is Identify
            news = connection.upgrade(None) if is_identify else connection.resume()
            events += news
    return events


def plain(events: Iterable[Event]) -> list[object]:
    """
    Return *events* in comparable form.

    Batches of messages are flattened, because they depend on how the bytes were split. A violation
    is shown as its error frame, and the messages of an MPUB as a list.
    """
    things: list[object] = []
    for event in events:
        if isinstance(event, MessagesReceived):
            things += event.messages
        elif isinstance(event, ViolationReceived):
            things.append(violation(event))
        elif isinstance(event, MultiPublish) and isinstance(event.bodies, PackedBodies):
            things.append(MultiPublish(event.topic, list(event.bodies)))
        else:
            things.append(event)
    return things


def violation(event: ViolationReceived) -> bytes:
    """Return the error frame that nsqd would send; empty if it closes without one."""
    error = event.error
    return ErrorFrame(error.code, error.description).encode() if error.code else b""


def opened_broker(limits: Limits | None = None) -> V2Connection:
    """Return the broker's side of a connection, after the magic."""
    connection = V2Connection(Role.BROKER, limits)
    connection.receive_data(MAGIC)
    return connection


class ConnectedPair:
    """A client and a broker; each receives the other's bytes in pieces of *cut*."""

    def __init__(self, cut: Cut = whole, limits: Limits | None = None) -> None:
        self.client = V2Connection(Role.CLIENT)
        self.broker = V2Connection(Role.BROKER, limits)
        self._cut = cut
        self.to_broker(self.client.send_magic())

    def to_broker(self, data: bytes) -> list[object]:
        """Return the broker's events for *data*."""
        return plain(feed(self.broker, self._cut(data)))

    def to_client(self, data: bytes) -> list[object]:
        """Return the client's events for *data*."""
        return plain(feed(self.client, self._cut(data)))

    def ask(self, *commands: Command) -> list[object]:
        """Send *commands* in one write; return the broker's events."""
        return self.to_broker(b"".join(map(self.client.send, commands)))

    def answer(self, *frames: Response | ErrorFrame) -> list[object]:
        """Send *frames* in one write; return the client's events."""
        return self.to_client(b"".join(map(self.broker.send, frames)))

    def deliver(self, messages: Sequence[Message]) -> list[object]:
        """Send *messages*; return the client's events."""
        return self.to_client(self.broker.send_messages(messages))


class CountingBuffer(ReceiveBuffer):
    """Count the bytes that the buffer returns: the work of the stream's reader."""

    __slots__ = ("handed_out_bytes", "times")

    def __init__(self) -> None:
        super().__init__()
        self.handed_out_bytes = 0
        self.times = 0

    def feed(self, data: bytes) -> bytes | None:
        """Parse *data*, and count the events."""
        held = super().feed(data)
        if held is not None:
            self.handed_out_bytes += len(held)
            self.times += 1
        return held


class CountedBytes(bytes):
    """Bytes that record the size of each copy, also of their copies."""

    copied_bytes: list[int]

    @classmethod
    def of(cls, data: bytes, copied_bytes: list[int]) -> CountedBytes:
        """Return *data*; the size of each copy is added to the list *copied_bytes*."""
        counted = cls(data)
        counted.copied_bytes = copied_bytes
        return counted

    def __getitem__(self, key: SupportsIndex | slice) -> Any:  # noqa: ANN401 - as bytes has it
        """Return one byte, or a slice that also counts."""
        part = super().__getitem__(key)
        return self._copy(part) if isinstance(part, bytes) else part

    def __add__(self, other: Any) -> bytes:  # noqa: ANN401 - as bytes has it
        """Return a copy with *other* appended."""
        return self._copy(super().__add__(other))

    def _copy(self, part: bytes) -> CountedBytes:
        self.copied_bytes.append(len(part))
        return self.of(part, self.copied_bytes)
