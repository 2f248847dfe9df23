"""Bytes that have arrived and cannot be used yet."""

from __future__ import annotations


class ReceiveBuffer:
    """
    Holds what came until what the reader waits for can be complete.

    The reader says after each look how much it needs (`wait_for`), so however finely a stream is
    cut, each byte is copied a bounded number of times: the whole is linear in the stream.
    """

    __slots__ = ("_held", "_newline_is_enough", "_wanted_bytes", "is_idle")

    def __init__(self) -> None:
        self._held: bytearray | None = None
        """None: nothing; most connections hold nothing most of the time."""
        self._wanted_bytes = 1
        self._newline_is_enough = False
        self.is_idle = True
        """Whether nothing is held and any byte is enough: `add` would return what it is given."""

    def __len__(self) -> int:
        """Return how many bytes are held."""
        return 0 if self._held is None else len(self._held)

    def add(self, data: bytes) -> bytes | None:
        """Take *data* in; return all that is held, or None while it cannot be enough."""
        held_bytes = len(self) + len(data)
        if held_bytes < self._wanted_bytes and not (self._newline_is_enough and b"\n" in data):
            self.hold(data)
            return None
        if self._held is None:
            self._wanted_bytes = 1
            self.is_idle = True
            return data
        self._held += data
        return self.take_all()

    def hold(self, data: bytes) -> None:
        """Take *data* in for later, whatever is waited for."""
        if self._held is None:
            self._held = bytearray()
        self._held += data
        self.is_idle = False

    def take_all(self) -> bytes:
        """Return all that is held and hold nothing."""
        held = b"" if self._held is None else bytes(self._held)
        self._held = None
        self._wanted_bytes = 1
        self.is_idle = True
        return held

    def wait_for(self, rest: bytes, *, wanted_bytes: int, newline_is_enough: bool = False) -> None:
        """
        Put the unused *rest* back, and wait until *wanted_bytes* are there.

        With *newline_is_enough*, a newline in a later piece ends the wait as well.
        """
        if rest:
            self.hold(rest)
        self._wanted_bytes = wanted_bytes
        self._newline_is_enough = newline_is_enough
        self.is_idle = False
