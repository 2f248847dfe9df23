"""Who is told what a subscription brings."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from gateway.errors import BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import Answer

Told: TypeAlias = tuple[str, int, object]


class SubscriptionListener:
    """Keeps what it is told as (what, source, with what), in order."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Told] = asyncio.Queue()

    def messages_arrived(self, source: int, messages: list[Message]) -> None:
        """Keep the ids of a list."""
        self.told.put_nowait(("messages", source, [message.id for message in messages]))

    def answer_refused(self, source: int, frame: ErrorFrame) -> None:
        """Keep the code."""
        self.told.put_nowait(("refused", source, frame.code))

    def source_opened(self, source: int, answer: Answer) -> None:
        """Keep the broker's message timeout, by which a test tells brokers apart."""
        self.told.put_nowait(("opened", source, answer.msg_timeout))

    def source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Keep the reason."""
        self.told.put_nowait(("lost", source, error.reason))

    def channel_gone(self, address: str) -> None:
        """Keep where."""
        self.told.put_nowait(("gone", 0, address))

    def auth_required(self) -> None:
        """Keep that it was told."""
        self.told.put_nowait(("auth_required", 0, None))

    @property
    def all(self) -> list[Told]:
        """Take out everything that was told."""
        return [self.told.get_nowait() for _ in range(self.told.qsize())]
