"""Bytes that have arrived and cannot be used yet."""

from __future__ import annotations


class ReceiveBuffer:
    """
    Holds what came until what the reader waits for can be complete.

    The reader says after each look how much it needs (`wait_for`), so however finely a stream is
    cut, each byte is copied a bounded number of times: the whole is linear in the stream.
    """

    __slots__ = ("_held", "_newline_is_enough", "_wanted_bytes")

    def __init__(self) -> None:
        self._held = bytearray()
        self._wanted_bytes = 1
        self._newline_is_enough = False

    def __len__(self) -> int:
        """Return how many bytes are held."""
        return len(self._held)

    def add(self, data: bytes) -> bytes | None:
        """Take *data* in; return all that is held, or None while it cannot be enough."""
        held_bytes = len(self._held) + len(data)
        if held_bytes < self._wanted_bytes and not (self._newline_is_enough and b"\n" in data):
            self._held += data
            return None
        if not self._held:
            self._wanted_bytes = 1
            return data
        self._held += data
        return self.take_all()

    def hold(self, data: bytes) -> None:
        """Take *data* in for later, whatever is waited for."""
        self._held += data

    def take_all(self) -> bytes:
        """Return all that is held and hold nothing."""
        held = bytes(self._held)
        self._held.clear()
        self._wanted_bytes = 1
        return held

    def wait_for(self, rest: bytes, *, wanted_bytes: int, newline_is_enough: bool = False) -> None:
        """
        Put the unused *rest* back, and wait until *wanted_bytes* are there.

        With *newline_is_enough*, a newline in a later piece ends the wait as well.
        """
        self._held += rest
        self._wanted_bytes = wanted_bytes
        self._newline_is_enough = newline_is_enough
