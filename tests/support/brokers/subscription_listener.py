"""A listener that records the events of a subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeAlias

from gateway.errors import BrokerUnreachable
from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse

Told: TypeAlias = tuple[str, int, object]


class SubscriptionListener:
    """Record events as (event, source, argument), in order."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Told] = asyncio.Queue()
        self.in_flight: dict[int, int] = {}
        """Messages in flight by source, set by the test."""

    def in_flight_by_source(self) -> Mapping[int, int]:
        """Return the value that the test has set."""
        return self.in_flight

    def on_messages(self, source: int, messages: list[Message], sent_after: float) -> None:
        """Record the ids of the messages."""
        del sent_after
        self.told.put_nowait(("messages", source, [message.id for message in messages]))

    def on_ack_refused(self, source: int, frame: ErrorFrame) -> None:
        """Record the error code."""
        self.told.put_nowait(("refused", source, frame.code))

    def on_source_opened(self, source: int, answer: IdentifyResponse) -> None:
        """Record the broker's message timeout, which identifies the broker in tests."""
        self.told.put_nowait(("opened", source, answer.msg_timeout))

    def on_source_lost(self, source: int, error: BrokerUnreachable) -> None:
        """Record the reason."""
        self.told.put_nowait(("lost", source, error.reason))

    def on_channel_gone(self, address: str) -> None:
        """Record the address of nsqd."""
        self.told.put_nowait(("gone", 0, address))

    def on_secret_missing(self) -> None:
        """Record the call."""
        self.told.put_nowait(("auth_required", 0, None))

    @property
    def all(self) -> list[Told]:
        """Return and remove all recorded events."""
        return [self.told.get_nowait() for _ in range(self.told.qsize())]
