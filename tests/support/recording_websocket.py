"""A WebSocket that keeps what it is told, and takes as much as a test lets it."""

from __future__ import annotations

import json
from typing import Any


class RecordingWebSocket:
    """One end of a socket that nobody is at the other end of."""

    def __init__(self) -> None:
        self.is_writable = True
        self.unsent_bytes = 0
        self.sent_bytes = 0
        self.is_reading = True
        self.texts: list[bytes] = []
        """Messages, in order."""
        self.frames: list[bytes] = []
        """Whole frames."""
        self.closed: tuple[int, str] | None = None
        self.fills_up = False
        """Whether the next message makes it not writable."""

    def send(self, text: bytes) -> None:
        """Keep it."""
        if self.closed is None:
            self.texts.append(text)
            self.sent_bytes += len(text)
            self.is_writable = self.is_writable and not self.fills_up

    def send_frame(self, frame: bytes) -> None:
        """Keep it."""
        if self.closed is None:
            self.frames.append(frame)
            self.sent_bytes += len(frame)

    def pause_reading(self) -> None:
        """Keep it."""
        self.is_reading = False

    def resume_reading(self) -> None:
        """Keep it."""
        self.is_reading = True

    def close(self, code: int, reason: str) -> None:
        """Keep the first one."""
        self.closed = self.closed or (code, reason)

    def take(self) -> list[dict[str, Any]]:
        """Take out the objects of all messages."""
        lines = [line for text in self.texts for line in text.split(b"\n")]
        self.texts.clear()
        return [json.loads(line) for line in lines]
