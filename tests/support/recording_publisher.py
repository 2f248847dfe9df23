"""A publisher that keeps what it is given, for outcomes that a broker cannot be made to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.errors import GatewayError
from gateway.secret import Secret


@dataclass
class RecordingPublisher:
    """Answers every publish with OK, or with *error*."""

    error: Exception | None = None
    published: list[tuple[str, list[bytes], int]] = field(default_factory=list)
    """Topic, bodies, defer in ms, in order."""
    secrets: list[Secret | None] = field(default_factory=list)
    """The secret of each publish, those that failed too."""

    held_bytes: int = 0
    """What `hold` was told and `release` was not."""

    asks_for_auth: bool = False

    def begin(
        self,
        topic: str,
        bodies: Sequence[bytes],
        done: Callable[[GatewayError | None], None],
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        """Keep what comes, and answer at once."""
        self.secrets.append(secret)
        if self.error is None:
            self.published.append((topic, list(bodies), defer_ms))
            done(None)
        elif isinstance(self.error, GatewayError):
            done(self.error)
        else:
            raise self.error

    def hold(self, size_bytes: int) -> None:
        """Count."""
        self.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count no more."""
        self.held_bytes -= size_bytes


class WaitingPublisher(RecordingPublisher):
    """Answers when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[GatewayError | None], None]] = []

    def begin(
        self,
        topic: str,
        bodies: Sequence[bytes],
        done: Callable[[GatewayError | None], None],
        *,
        defer_ms: int = 0,
        secret: Secret | None = None,
    ) -> None:
        """Keep what comes, and who waits for its outcome."""
        super().begin(topic, bodies, lambda _: None, defer_ms=defer_ms, secret=secret)
        self.waiting.append(done)
