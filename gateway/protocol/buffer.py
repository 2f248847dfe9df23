"""A receive buffer that copies each byte a bounded number of times."""

from __future__ import annotations


class ReceiveBuffer:
    """
    Hold received bytes until the parser has as many as it needs.

    If a frame or command is incomplete, the parser calls `put_back` with the number of bytes that
    it needs. Until the buffer holds that many, `feed` returns None and nothing is parsed again. So
    parsing takes time linear in the length of the stream, however small the pieces of the stream.
    """

    __slots__ = ("_held", "_newline_is_enough", "_wanted_bytes", "is_idle")

    def __init__(self) -> None:
        # None in place of an empty bytearray: most connections hold nothing most of the time.
        self._held: bytearray | None = None
        self._wanted_bytes = 1
        self._newline_is_enough = False
        self.is_idle = True
        """True while nothing is held and one byte is enough: `feed` would return *data* itself."""

    def __len__(self) -> int:
        """Return the number of bytes held."""
        return 0 if self._held is None else len(self._held)

    def feed(self, data: bytes) -> bytes | None:
        """Append *data*; return all held bytes, or None if the parser needs more than these."""
        held_bytes = len(self) + len(data)
        # Only *data* is searched for a newline: the bytes before it have none.
        if held_bytes < self._wanted_bytes and not (self._newline_is_enough and b"\n" in data):
            self.append(data)
            return None
        if self._held is None:
            # The usual case, one read with whole frames: return it without a copy.
            self._wanted_bytes = 1
            self.is_idle = True
            return data
        self._held += data
        return self.take_all()

    def append(self, data: bytes) -> None:
        """Append *data*; unlike `feed`, return nothing, even if the parser could continue."""
        # A bytearray grows in place: many small pieces are copied once each, not again each time.
        if self._held is None:
            self._held = bytearray()
        self._held += data
        self.is_idle = False

    def take_all(self) -> bytes:
        """Return everything held and empty the buffer."""
        held = b"" if self._held is None else bytes(self._held)
        self._held = None
        self._wanted_bytes = 1
        self.is_idle = True
        return held

    def put_back(self, rest: bytes, *, wanted_bytes: int, newline_is_enough: bool = False) -> None:
        """
        Put back the unparsed *rest* and wait until *wanted_bytes* are held.

        With *newline_is_enough*, a newline in later bytes also ends the wait, because the length of
        a command line is not announced; *wanted_bytes* is then the maximum length of the line.
        """
        if rest:
            self.append(rest)
        self._wanted_bytes = wanted_bytes
        self._newline_is_enough = newline_is_enough
        self.is_idle = False
