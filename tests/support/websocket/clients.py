"""
Other WebSocket client libraries with one interface: gorilla, ws, Node's own, websockets.

The Go and Node clients are programs in ``tools/`` that read JSON commands and write JSON events,
one per line.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.support.project import ROOT
from tests.support.websocket.subscriber_client import WAIT_S, Json

_BUILT_BY_MAKE = ROOT / "tools" / "bin"
_LONGEST_LINE_BYTES = 64 * 1_048_576
_END_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library, and the features of its API."""

    name: str
    has_headers: bool = True
    """True if it can send custom headers, and exposes the response to a refused upgrade."""
    shows_pings: bool = True
    """True if it reports received pings."""


GORILLA = Library(name="gorilla")
WS = Library(name="ws")
BUILTIN = Library(
    name="builtin",
    has_headers=False,
    shows_pings=False,
)
WEBSOCKETS = Library(name="websockets", shows_pings=False)


@dataclass(frozen=True, kw_only=True)
class SocketRequest:
    """The socket that a client opens."""

    url: str
    headers: dict[str, str] | None = None
    subprotocols: Sequence[str] = ()
    fragment_bytes: int = 0
    """The longest frame that it writes; 0: whole messages."""


class _Mouthpiece(Protocol):
    """The connection to a client program: commands in, events out."""

    async def do(self, command: Json) -> None:
        """Carry out one command: text, binary, ping, close or abort."""

    async def event(self) -> Json:
        """Return the next event."""


class SocketClient:
    """One socket of any library; frames are split into objects."""

    def __init__(self, mouthpiece: _Mouthpiece) -> None:
        self._mouthpiece = mouthpiece
        self._lines: deque[Json] = deque()

    async def opened(self) -> Json:
        """Return how it began: an event ``open`` or ``refused``."""
        return await self._event()

    async def send(self, *commands: Json) -> None:
        """Send *commands* in one message."""
        await self.send_text("\n".join(json.dumps(each, ensure_ascii=False) for each in commands))

    async def send_text(self, text: str) -> None:
        """Send one text message."""
        await self._mouthpiece.do({"do": "text", "data": text})

    async def send_binary(self, text: str) -> None:
        """Send one binary message."""
        await self._mouthpiece.do({"do": "binary", "data": text})

    async def receive(self) -> Json:
        """Return the next object."""
        while not self._lines:
            event = await self._event()
            assert "text" == event["event"], event
            self._keep(event)
        return self._lines.popleft()

    async def message(self) -> Json:
        """Return the next object, which must be a delivery."""
        received = await self.receive()
        assert "message" == received["type"], received
        return received

    async def ask(self, command: Json) -> Json:
        """Send *command* and return the next object, its answer."""
        await self.send(command)
        return await self.receive()

    async def ping(self, text: str) -> str:
        """Send a ping; return the payload of the pong. Texts that arrive before are kept."""
        await self._mouthpiece.do({"do": "ping", "data": text})
        pong = await self.saw("pong")
        return str(pong["data"])

    async def saw(self, name: str) -> Json:
        """Wait for the event *name*; texts that arrive before are kept, and pings skipped."""
        while (event := await self._next())["event"] != name:
            assert event["event"] in ("text", "ping"), event
            if event["event"] == "text":
                self._keep(event)
        return event

    async def close(self, code: int = 1000) -> tuple[int, str]:
        """Close, and return the library's close event."""
        await self._mouthpiece.do({"do": "close", "code": code})
        return await self.closed()

    async def abort(self) -> None:
        """Drop the connection without a close frame."""
        await self._mouthpiece.do({"do": "abort"})

    async def closed(self) -> tuple[int, str]:
        """Return the close code and reason from the library, past earlier events."""
        while (event := await self._event())["event"] != "close":
            pass
        return event["code"], event.get("reason", "")

    def _keep(self, text: Json) -> None:
        self._lines += [json.loads(line) for line in text["data"].split("\n")]

    async def _event(self) -> Json:
        while (event := await self._next())["event"] == "ping":
            pass
        return event

    async def _next(self) -> Json:
        async with asyncio.timeout(WAIT_S):
            return await self._mouthpiece.event()


@asynccontextmanager
async def socket_client(library: Library, wish: SocketRequest) -> AsyncIterator[SocketClient]:
    """Open the socket with *library*; its result is the first event."""
    mouthpiece = _in_process(wish) if library is WEBSOCKETS else _program(library, wish)
    async with mouthpiece as speaks:
        yield SocketClient(speaks)


# Programs


def go_client() -> Path | None:
    return _found("go-socket-client")


def node_clients() -> Path | None:
    clients = _BUILT_BY_MAKE / "node" / "client.mjs"
    return clients if clients.exists() and shutil.which("node") else None


@cache
def node_has_websocket() -> bool:
    """Return whether this Node has a built-in WebSocket (some need a flag)."""
    look = "process.exit(typeof WebSocket === 'function' ? 0 : 1)"
    arguments = ("node", "--experimental-websocket", "-e", look)
    return subprocess.run(arguments, check=False, capture_output=True).returncode == 0


def _found(program: str) -> Path | None:
    found = shutil.which(program, path=_BUILT_BY_MAKE)
    return Path(found) if found else None


def _command_line(library: Library, wish: SocketRequest) -> tuple[str, ...]:
    told = json.dumps(
        {
            "url": wish.url,
            "headers": wish.headers or {},
            "subprotocols": list(wish.subprotocols),
            "fragment_bytes": wish.fragment_bytes,
        }
    )
    if library is GORILLA:
        return (str(go_client()), told)
    flags = ("--no-warnings", "--experimental-websocket") if library is BUILTIN else ()
    return ("node", *flags, str(node_clients()), library.name, told)


class _Program:
    """A client that is a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    async def do(self, command: Json) -> None:
        self._stdin.write(json.dumps(command).encode() + b"\n")
        await self._stdin.drain()

    async def event(self) -> Json:
        line = await self._stdout.readline()
        assert line, "the client ended without saying why"
        event: Json = json.loads(line)
        return event


@asynccontextmanager
async def _program(library: Library, wish: SocketRequest) -> AsyncIterator[_Mouthpiece]:
    process = await asyncio.create_subprocess_exec(
        *_command_line(library, wish), stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE_BYTES
    )
    assert process.stdin is not None
    try:
        yield _Program(process)
    finally:
        # The end of its input is the end of the program.
        process.stdin.close()
        try:
            await asyncio.wait_for(process.communicate(), _END_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.communicate()


# websockets, in this process


class _Websockets:
    """The library `websockets` behind the same interface."""

    def __init__(self, fragment_bytes: int) -> None:
        self._fragment_bytes = fragment_bytes
        self._events: asyncio.Queue[Json] = asyncio.Queue()
        self._connection: ClientConnection | None = None

    async def run(self, wish: SocketRequest) -> None:
        """Open the socket, and report its events until it is closed."""
        try:
            self._connection = await connect(
                wish.url,
                additional_headers=wish.headers,
                subprotocols=[Subprotocol(name) for name in wish.subprotocols] or None,
                compression=None,
                proxy=None,
                max_size=None,
                close_timeout=2,
            )
        except InvalidStatus as error:
            answer = error.response
            told = {"status": answer.status_code, "data": (answer.body or b"").decode()}
            self._events.put_nowait({"event": "refused", **told})
            return
        connection = self._connection
        self._events.put_nowait({"event": "open", "subprotocol": connection.subprotocol or ""})
        try:
            async for data in connection:
                name = "text" if isinstance(data, str) else "binary"
                self._events.put_nowait({"event": name, "data": data})
        except ConnectionClosed:
            pass
        code, reason = connection.close_code, connection.close_reason
        self._events.put_nowait({"event": "close", "code": code, "reason": reason or ""})

    async def do(self, command: Json) -> None:
        connection = self._connection
        assert connection is not None
        match command["do"]:
            case "text":
                await connection.send(list(self._fragments(command["data"])))
            case "binary":
                await connection.send(command["data"].encode())
            case "ping":
                await (await connection.ping(command["data"]))
                self._events.put_nowait({"event": "pong", "data": command["data"]})
            case "close":
                await connection.close(command["code"])
            case _:
                connection.transport.abort()

    async def event(self) -> Json:
        return await self._events.get()

    def _fragments(self, text: str) -> Iterator[str]:
        size = self._fragment_bytes or len(text)
        return (text[start : start + size] for start in range(0, len(text), size))


@asynccontextmanager
async def _in_process(wish: SocketRequest) -> AsyncIterator[_Mouthpiece]:
    library = _Websockets(wish.fragment_bytes)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(library.run(wish))
        yield library
        running.cancel()
