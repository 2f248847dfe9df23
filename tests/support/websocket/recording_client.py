"""A subscriber that validates everything it sends and receives against asyncapi.yaml."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.websocket.contract import (
    MESSAGES,
    contract_errors,
    gateway_contract_errors,
    message_of,
)
from tests.support.websocket.subscriber_client import WAIT_S, Json, SubscriberClient, open_socket


class Record:
    """The frames that several sockets received, in order."""

    def __init__(self) -> None:
        self.received: list[Json] = []

    @property
    def breaches(self) -> list[str]:
        """Violations of the contract by received frames."""
        return [breach for each in self.received for breach in gateway_contract_errors(each)]

    @property
    def messages(self) -> set[str]:
        """Names of the contract's messages that were received."""
        return {message_of(each) for each in self.received}

    @property
    def codes(self) -> set[str]:
        """Error codes that were received."""
        return {each["code"] for each in self.received if each["type"] == "error"}

    @asynccontextmanager
    async def open(
        self, url: str, *, headers: Json | None = None
    ) -> AsyncIterator[RecordingClient]:
        """Open the WebSocket at *url*, and record its frames."""
        async with open_socket(url, headers=headers) as client:
            yield RecordingClient(client, self)


class RecordingClient(SubscriberClient):
    """One subscriber; its commands must be in the contract unless marked as invalid."""

    def __init__(self, client: SubscriberClient, record: Record) -> None:
        super().__init__(client.connection)
        self._record = record

    async def receive(self, *, within_s: float = WAIT_S) -> Json:
        """Return the next object, and record it."""
        received = await super().receive(within_s=within_s)
        self._record.received.append(received)
        return received

    async def send(self, *commands: Json) -> None:
        """Send *commands*, which the contract has to know."""
        for command in commands:
            assert command["cmd"] in MESSAGES
            assert [] == contract_errors(command["cmd"], command)
        await super().send(*commands)

    async def ask_wrongly(self, command: Json) -> Json:
        """Send a command that the contract forbids; return the response."""
        assert [] != contract_errors(str(command.get("cmd")), command)
        await super().send(command)
        return await self.receive()
