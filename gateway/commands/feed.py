"""What `sub` reads from: messages in as lists, what became of them out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be written, and what its feed knows it by."""

    id: str
    """The id of the message on nsqd, of the delivery on a gateway."""
    attempts: int
    timestamp_ns: str
    """When it was published; a text, as in docs/websocket.md."""
    nsqd: str | None
    """host:port of the nsqd that delivered it; None: a gateway stands between."""
    body: bytes
    handle: object


class Feed(Protocol):
    """One subscription, whatever it goes over; an asynchronous context that subscribes."""

    def batches(self) -> AsyncIterator[Sequence[Received]]:
        """
        Give what comes, as lists; ends never.

        Raises:
            GatewayError: There is no coming back: the subscription is refused.
        """

    async def set_window(self, count: int) -> None:
        """Let at most *count* messages be unanswered at a time."""

    async def finish(self, messages: Sequence[Received]) -> None:
        """Have *messages* counted as done."""

    async def requeue(self, messages: Sequence[Received]) -> None:
        """Give *messages* back at once."""
