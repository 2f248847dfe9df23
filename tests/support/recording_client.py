"""A subscriber whose every word, and every word to it, is held against asyncapi.yaml."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.socket_contract import (
    MESSAGES,
    breaches,
    breaches_from_gateway,
    message_of,
)
from tests.support.subscriber_client import WAIT_S, Json, SubscriberClient, open_socket


class Record:
    """What several sockets were told, in the order in which it came."""

    def __init__(self) -> None:
        self.received: list[Json] = []

    @property
    def breaches(self) -> list[str]:
        """What of it was not promised."""
        return [breach for each in self.received for breach in breaches_from_gateway(each)]

    @property
    def messages(self) -> set[str]:
        """Which messages of the contract were among it."""
        return {message_of(each) for each in self.received}

    @property
    def codes(self) -> set[str]:
        """Which codes of refusals were among it."""
        return {each["code"] for each in self.received if each["type"] == "error"}

    @asynccontextmanager
    async def open(
        self, url: str, *, headers: Json | None = None
    ) -> AsyncIterator[RecordingClient]:
        """Open the WebSocket at *url*, and keep what it says."""
        async with open_socket(url, headers=headers) as client:
            yield RecordingClient(client, self)


class RecordingClient(SubscriberClient):
    """One of them; what it says has to be in the contract, unless it is said to be wrong."""

    def __init__(self, client: SubscriberClient, record: Record) -> None:
        super().__init__(client.connection)
        self._record = record

    async def receive(self, *, within_s: float = WAIT_S) -> Json:
        """Return the next object, and keep it."""
        received = await super().receive(within_s=within_s)
        self._record.received.append(received)
        return received

    async def send(self, *commands: Json) -> None:
        """Send *commands*, which the contract has to know."""
        for command in commands:
            assert command["cmd"] in MESSAGES
            assert [] == breaches(command["cmd"], command)
        await super().send(*commands)

    async def ask_wrongly(self, command: Json) -> Json:
        """Send a command that the contract refuses, and return what is said to it."""
        assert [] != breaches(str(command.get("cmd")), command)
        await super().send(command)
        return await self.receive()
