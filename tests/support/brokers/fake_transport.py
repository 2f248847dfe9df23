"""A transport without a socket, for what a real one does once in a thousand times."""

from __future__ import annotations

import asyncio


class FakeTransport(asyncio.Transport):
    """A transport that keeps what is written and closes when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = False
        self.has_closed = False
        self.is_paused = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return nothing: the peer has gone already."""
        del name
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take no notice."""

    def get_write_buffer_size(self) -> int:
        """Return that everything is written."""
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep *data*."""
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        """Note that nothing is to be read."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Note that it goes on."""
        self.is_paused = False

    def is_closing(self) -> bool:
        """True if it was closed."""
        return self.has_closed

    def close(self) -> None:
        """Close."""
        self.has_closed = True

    def abort(self) -> None:
        """Close at once."""
        self.is_aborted = self.has_closed = True
