"""A WebSocket that records frames and accepts as many as a test allows."""

from __future__ import annotations

import json
from typing import Any


class RecordingWebSocket:
    """The server's end of a WebSocket without a client."""

    def __init__(self) -> None:
        self.is_writable = True
        self.unsent_bytes = 0
        self.sent_bytes = 0
        self.is_closed_by_client = False
        self.close_reason = ""
        self.is_reading = True
        self.texts: list[bytes] = []
        """Messages, in order."""
        self.frames: list[bytes] = []
        """Whole frames."""
        self.closed: tuple[int, str] | None = None
        self.fills_up = False
        """True: the socket is not writable after the next message."""

    def send(self, text: bytes) -> None:
        """Record the call."""
        if self.closed is None:
            self.texts.append(text)
            self.sent_bytes += len(text)
            self.is_writable = self.is_writable and not self.fills_up

    def send_encoded(self, frame: bytes) -> None:
        """Record the call."""
        if self.closed is None:
            self.frames.append(frame)
            self.sent_bytes += len(frame)

    def pause_reading(self) -> None:
        """Record the call."""
        self.is_reading = False

    def resume_reading(self) -> None:
        """Record the call."""
        self.is_reading = True

    def close(self, code: int, reason: str) -> None:
        """Record the first close."""
        self.closed = self.closed or (code, reason)

    def take(self) -> list[dict[str, Any]]:
        """Return and remove the objects of all messages."""
        lines = [line for text in self.texts for line in text.split(b"\n")]
        self.texts.clear()
        return [json.loads(line) for line in lines]
