"""
What the supervisor and one worker say to each other, over a pair of sockets.

Each message is a JSON object behind its length in 4 bytes, big-endian. The end of the stream says
that the other side is gone, in whatever way it went.

From the supervisor: first the order (`order_message`), then ``{"ask": "phase", "id": 1}``,
``{"ask": "metrics", "id": 2}``, ``{"end": true}``, ``{"hurry": true}``. From the worker:
``{"ready": [line, …]}`` or ``{"failed": sentence}`` once, and ``{"id": 1, "answer": …}``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from gateway.nsqd_access import Nsqds
from gateway.secret import Secret
from gateway.settings import ServeSettings

Message: TypeAlias = dict[str, Any]

_LENGTH_BYTES = 4


class Channel:
    """One end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        """Return the channel over *end*, which is closed with it."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: Message) -> None:
        """Send *message*; without effect when the other side is gone."""
        if not self._writer.is_closing():
            body = json.dumps(message).encode()
            self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    async def receive(self) -> Message | None:
        """Return the next message; None when the other side is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            message: Message = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    async def close(self) -> None:
        """Close this end, with what was sent on its way; the other one hears of it."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the other side was first


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is told before it begins."""

    worker: int
    """Its number, from 0."""
    settings: ServeSettings
    """Those of all workers; a secret is in them and not in a file, for a file may change."""
    nsqds: Nsqds
    """The nsqds to use; the supervisor's own broker where there is one."""


def order_message(order: Order, listener: int) -> Message:
    """Return the message for *order*, with the descriptor of the public port's listener."""
    given = {field.name: getattr(order, field.name) for field in fields(order)}
    values = {name: _as_json(value) for name, value in order.settings}
    return {**given, "settings": values, "nsqds": order.nsqds, "listener": listener}


def read_order(message: Mapping[str, Any]) -> tuple[Order, int]:
    """Return the order, and the descriptor of the listener."""
    order = Order(
        worker=message["worker"],
        # Every setting is given, so that nothing comes from the environment a second time.
        settings=ServeSettings.model_validate(message["settings"]),
        nsqds=Nsqds(*map(tuple, message["nsqds"])),
    )
    return order, message["listener"]


def _as_json(value: object) -> object:
    # As the environment would hold it: bytes that are no text come through as they are.
    return os.fsdecode(value.reveal()) if isinstance(value, Secret) else value
