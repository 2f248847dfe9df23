"""A publisher that records messages and returns outcomes that a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.client.producer import Producer
from gateway.credentials import Secret
from gateway.errors import GatewayError, Overloaded
from gateway.protocol.commands import Bodies

Done: TypeAlias = Callable[[GatewayError | None], None]


@dataclass
class RecordingPublisher(Producer):
    """Answer every publish with OK, or with *error*; it has no connections."""

    error: Exception | None = None
    published: list[tuple[str, list[bytes], int]] = field(default_factory=list)
    """Topic, bodies, defer in ms, in order."""
    secrets: list[Secret | None] = field(default_factory=list)
    """The secret of each publish, those that failed too."""

    held_bytes: int = 0
    """Bytes held and not released."""

    requires_auth: bool = False

    def begin(
        self,
        topic: str,
        bodies: Bodies,
        done: Done,
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        """Record the publish, and answer at once."""
        self.secrets.append(secret)
        if self.error is None:
            self.published.append((topic, list(bodies), defer_ms))
            self.answer(done)
        elif isinstance(self.error, GatewayError):
            done(self.error)
        else:
            raise self.error

    def answer(self, done: Done) -> None:
        """Answer the last of `published`."""
        done(None)

    def reserve(self, size_bytes: int) -> None:
        """Add to the held bytes."""
        self.held_bytes += size_bytes

    def unreserve(self, size_bytes: int) -> None:
        """Subtract from the held bytes."""
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "given back twice"

    def reserve_arriving(self, size_bytes: int) -> None:
        """Add to the held bytes."""
        self.reserve(size_bytes)

    def unreserve_arriving(self, size_bytes: int) -> None:
        """Subtract from the held bytes."""
        self.unreserve(size_bytes)


class WaitingPublisher(RecordingPublisher):
    """A publisher that answers when the test calls for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Done] = []

    def answer(self, done: Done) -> None:
        """Record the callback for the outcome."""
        self.waiting.append(done)


class FullPublisher(WaitingPublisher):
    """Has no room for a byte that waits."""

    def reserve(self, size_bytes: int) -> None:
        """Refuse."""
        raise Overloaded(waiting_bytes=0, size_bytes=size_bytes, limit_bytes=0)
