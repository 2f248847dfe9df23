"""A publisher that keeps what it is given, for outcomes that a broker cannot be made to have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.secret import Secret


@dataclass
class RecordingPublisher:
    """Answers every publish with OK, or with *error*."""

    error: Exception | None = None
    published: list[tuple[str, list[bytes], int]] = field(default_factory=list)
    """Topic, bodies, defer in ms, in order."""
    secrets: list[Secret | None] = field(default_factory=list)
    """The secret of each publish, those that failed too."""

    async def publish(
        self, topic: str, body: bytes, *, defer_ms: int = 0, secret: Secret | None = None
    ) -> None:
        """Keep one message."""
        self._keep(topic, [body], defer_ms, secret)

    async def publish_many(
        self, topic: str, bodies: Sequence[bytes], *, secret: Secret | None = None
    ) -> None:
        """Keep several messages."""
        self._keep(topic, list(bodies), 0, secret)

    def _keep(self, topic: str, bodies: list[bytes], defer_ms: int, secret: Secret | None) -> None:
        self.secrets.append(secret)
        if self.error is not None:
            raise self.error
        self.published.append((topic, bodies, defer_ms))
