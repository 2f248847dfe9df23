"""A publisher that keeps what it is given, for outcomes that a broker cannot be made to have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class RecordingPublisher:
    """Answers every publish with OK, or with *error*."""

    error: Exception | None = None
    published: list[tuple[str, list[bytes], int]] = field(default_factory=list)
    """Topic, bodies, defer in ms, in order."""

    async def publish(self, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        """Keep one message."""
        self._keep(topic, [body], defer_ms)

    async def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Keep several messages."""
        self._keep(topic, list(bodies), 0)

    def _keep(self, topic: str, bodies: list[bytes], defer_ms: int) -> None:
        if self.error is not None:
            raise self.error
        self.published.append((topic, bodies, defer_ms))
