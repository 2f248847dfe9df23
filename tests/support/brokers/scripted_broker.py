"""
A broker on a real socket that follows a test's rules: answer, refuse, be silent, close.

By default it answers IDENTIFY, SUB, CLS and publishes like nsqd; `ScriptedBroker.on` sets a rule
for one kind of command. `Peer.received` has the received commands.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from gateway.protocol.commands import (
    Command,
    DeferredPublish,
    Identify,
    MultiPublish,
    Publish,
    StartClose,
    Subscribe,
)
from gateway.protocol.connection import Role, V2Connection, ViolationReceived
from gateway.protocol.frames import CLOSE_WAIT, HEARTBEAT_FRAME, OK, ErrorFrame, Message, Response
from gateway.protocol.identify import IdentifyResponse

_WAIT_S = 60.0

CommandT = TypeVar("CommandT")
Rule: TypeAlias = "Callable[[Peer, Command], None]"


class Peer(asyncio.Protocol):
    """One client connection to the broker."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._protocol = V2Connection(Role.BROKER)
        self._new: asyncio.Queue[Command] = asyncio.Queue()
        self.received: list[Command] = []
        """Every command, in order."""
        self.ended = asyncio.Event()
        """Set when the connection has ended, by either side."""

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notify the test."""
        self.transport = cast("asyncio.Transport", transport)
        self._broker.came(self)

    def data_received(self, data: bytes) -> None:
        """Record the commands, and apply the rules."""
        events = self._protocol.receive_data(data)
        while events:
            event = events.pop(0)
            assert not isinstance(event, ViolationReceived), event
            command = cast("Command", event)
            self.received.append(command)
            self._new.put_nowait(command)
            if isinstance(command, Identify):
                events += self._protocol.upgrade(None)
            self._broker.rule(type(command))(self, command)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the test."""
        del exc
        self.ended.set()

    # What the test says

    async def next(self, kind: type[CommandT]) -> CommandT:
        """Return the next command of *kind* that was not returned before; skip others."""
        async with asyncio.timeout(_WAIT_S):
            while not isinstance(command := await self._new.get(), kind):
                pass
        return command

    def all(self, kind: type[CommandT]) -> list[CommandT]:
        """Return the commands of *kind* so far."""
        return [command for command in self.received if isinstance(command, kind)]

    def send(self, *items: Response | ErrorFrame | list[Message]) -> None:
        """Write *items* at once, so that the client reads them together."""
        self.write(
            b"".join(
                self._protocol.send_messages(item)
                if isinstance(item, list)
                else self._protocol.send(item)
                for item in items
            )
        )

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.transport.write(data)

    def beat(self) -> None:
        """Send a heartbeat."""
        self.send(HEARTBEAT_FRAME)

    def close(self) -> None:
        """Close the connection without a message, like nsqd."""
        self.transport.close()

    def reset(self) -> None:
        """Close the connection with RST, like a crashed host."""
        sock: socket.socket = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    async def gone(self) -> None:
        """Wait until the connection has ended."""
        async with asyncio.timeout(_WAIT_S):
            await self.ended.wait()


class ScriptedBroker:
    """Listen on a port of 127.0.0.1; `start` first, `stop` last."""

    def __init__(self) -> None:
        self.address = ""
        self.peers: list[Peer] = []
        self._new: asyncio.Queue[Peer] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._rules: dict[type[Command], Rule] = {}
        self.identifies_as(IdentifyResponse())
        self.on(Subscribe, respond(OK))
        self.on(StartClose, respond(CLOSE_WAIT))
        for kind in (Publish, MultiPublish, DeferredPublish):
            self.on(kind, respond(OK))

    def on(self, kind: type[Command], rule: Rule) -> None:
        """Do *rule* with every command of *kind* from now on."""
        self._rules[kind] = rule

    def identifies_as(self, answer: IdentifyResponse) -> None:
        """Set the response to IDENTIFY."""
        self.on(Identify, respond(Response(answer.to_json())))

    def rule(self, kind: type[Command]) -> Rule:
        """Return the rule for a command of *kind*."""
        return self._rules.get(kind, no_response)

    async def start(self) -> None:
        """Listen; after a stop, on the same port again."""
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Peer(self), host or "127.0.0.1", int(port or 0), reuse_address=True
        )
        name = self._server.sockets[0].getsockname()
        self.address = f"{name[0]}:{name[1]}"

    async def stop(self) -> None:
        """Stop listening, and close every connection."""
        if self._server is not None:
            self._server.close()
        for peer in self.peers:
            peer.transport.abort()

    def came(self, peer: Peer) -> None:
        """Record a new client."""
        self.peers.append(peer)
        self._new.put_nowait(peer)

    async def peer(self) -> Peer:
        """Return the next connection that was not returned before."""
        async with asyncio.timeout(_WAIT_S):
            return await self._new.get()

    def all(self, kind: type[CommandT]) -> list[CommandT]:
        """Return the commands of *kind* so far, over all connections."""
        return [command for peer in self.peers for command in peer.all(kind)]


def respond(*items: Response | ErrorFrame | list[Message]) -> Rule:
    """Return a rule that answers with *items*."""
    return lambda peer, _command: peer.send(*items)


def respond_raw(data: bytes) -> Rule:
    """Return a rule that answers with these bytes."""
    return lambda peer, _command: peer.write(data)


def refuse(code: str, description: str = "") -> Rule:
    """Return a rule that sends an error frame and closes, as nsqd does."""

    def rule(peer: Peer, _command: Command) -> None:
        peer.send(ErrorFrame(code, description))
        peer.close()

    return rule


def no_response(_peer: Peer, _command: Command) -> None:
    """Answer nothing."""


def close(peer: Peer, _command: Command) -> None:
    """Close the connection instead of an answer."""
    peer.close()


def reset(peer: Peer, _command: Command) -> None:
    """Reset the connection instead of an answer."""
    peer.reset()
