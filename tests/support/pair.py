"""Both roles of V2Connection against each other, with no socket, and streams in any pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, SupportsIndex

from gateway.protocol.buffer import ReceiveBuffer
from gateway.protocol.commands import Command, Identify
from gateway.protocol.connection import Event, MessagesArrived, PeerViolated, Role, V2Connection
from gateway.protocol.frames import ErrorFrame, Message, Response
from gateway.protocol.wire import MAGIC, Limits

Cut = Callable[[bytes], Iterable[bytes]]
"""How what one side says comes to the other."""


def whole(data: bytes) -> list[bytes]:
    """Return *data* in one piece."""
    return [data]


def singly(data: bytes) -> list[bytes]:
    """Return *data* byte by byte."""
    return in_steps(data, 1)


def in_steps(data: bytes, step: int) -> list[bytes]:
    """Return *data* in pieces of *step* bytes, the last one shorter."""
    return [data[start : start + step] for start in range(0, len(data), step)]


def cut_at(data: bytes, positions: Iterable[int]) -> list[bytes]:
    """Return *data* cut at *positions*, in any order, some of them perhaps equal."""
    edges = [0, *sorted(positions), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def feed(connection: V2Connection, pieces: Iterable[bytes]) -> list[Event]:
    """Return what *pieces* say one after the other; behind IDENTIFY nothing is upgraded."""
    events: list[Event] = []
    for piece in pieces:
        news = connection.receive_data(piece)
        events += news
        while news and type(news[-1]) is Identify:
            news = connection.upgrade(None)
            events += news
    return events


def plain(events: Iterable[Event]) -> list[object]:
    """
    Return *events* so that they can be compared.

    Messages stand alone, for their rows depend on how bytes were cut; a violation is the error
    frame that it leads to.
    """
    things: list[object] = []
    for event in events:
        if isinstance(event, MessagesArrived):
            things += event.messages
        elif isinstance(event, PeerViolated):
            things.append(violation(event))
        else:
            things.append(event)
    return things


def violation(event: PeerViolated) -> bytes:
    """Return the error frame that nsqd would send; nothing where it closes without one."""
    error = event.error
    return ErrorFrame(error.code, error.description).encode() if error.code else b""


def opened_broker(limits: Limits | None = None) -> V2Connection:
    """Return a broker's side that has read the magic."""
    connection = V2Connection(Role.BROKER, limits)
    connection.receive_data(MAGIC)
    return connection


class Pair:
    """A client and a broker; what one of them says the other one hears, in pieces of *cut*."""

    def __init__(self, cut: Cut = whole, limits: Limits | None = None) -> None:
        self.client = V2Connection(Role.CLIENT)
        self.broker = V2Connection(Role.BROKER, limits)
        self._cut = cut
        self.to_broker(self.client.send_magic())

    def to_broker(self, data: bytes) -> list[object]:
        """Return what the broker makes of *data*."""
        return plain(feed(self.broker, self._cut(data)))

    def to_client(self, data: bytes) -> list[object]:
        """Return what the client makes of *data*."""
        return plain(feed(self.client, self._cut(data)))

    def ask(self, *commands: Command) -> list[object]:
        """Say *commands* in one write; return what the broker hears."""
        return self.to_broker(b"".join(map(self.client.send, commands)))

    def answer(self, *frames: Response | ErrorFrame) -> list[object]:
        """Say *frames* in one write; return what the client hears."""
        return self.to_client(b"".join(map(self.broker.send, frames)))

    def deliver(self, messages: Sequence[Message]) -> list[object]:
        """Send *messages*; return what the client hears."""
        return self.to_client(self.broker.send_messages(messages))


class CountingBuffer(ReceiveBuffer):
    """Counts what it hands out: the work that the reader of the stream has with it."""

    __slots__ = ("handed_out_bytes", "times")

    def __init__(self) -> None:
        super().__init__()
        self.handed_out_bytes = 0
        self.times = 0

    def add(self, data: bytes) -> bytes | None:
        """Take *data* in, and count what is handed out."""
        held = super().add(data)
        if held is not None:
            self.handed_out_bytes += len(held)
            self.times += 1
        return held


class CountedBytes(bytes):
    """Bytes that write down the size of each copy, of themselves and of their copies."""

    copied_bytes: list[int]

    @classmethod
    def of(cls, data: bytes, copied_bytes: list[int]) -> CountedBytes:
        """Return *data*; the size of each copy is added to the list *copied_bytes*."""
        counted = cls(data)
        counted.copied_bytes = copied_bytes
        return counted

    def __getitem__(self, key: SupportsIndex | slice) -> Any:  # noqa: ANN401 - as bytes has it
        """Return one byte, or a part that counts as well."""
        part = super().__getitem__(key)
        return self._copy(part) if isinstance(part, bytes) else part

    def __add__(self, other: Any) -> bytes:  # noqa: ANN401 - as bytes has it
        """Return a copy with *other* behind it."""
        return self._copy(super().__add__(other))

    def _copy(self, part: bytes) -> CountedBytes:
        self.copied_bytes.append(len(part))
        return self.of(part, self.copied_bytes)
