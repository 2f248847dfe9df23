"""Publishers and consumers of a history, driven by a seed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.support.history.events import (
    AckAttempted,
    AckResponse,
    CloseWaitReceived,
    History,
    MessageDelivered,
    PublishAcknowledged,
    SocketClosed,
)
from tests.support.history.system import CHANNEL, MSG_TIMEOUT_S, PUBLISH_TIMEOUT_S, TOPIC
from tests.support.websocket.subscriber_client import Json, sub_url

_ANSWERS = ("FIN", "REQ", "TOUCH")
_PATIENCE_S = 3.0
_MOST_DELIVERIES = 60
_SILENCE_S = 0.5
_MOST_SILENCES = 6


class UniqueIds:
    """Numbers that no two bodies, sockets or refs share."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def bodies(self, amount: int) -> tuple[str, ...]:
        """Return that number of unique bodies."""
        return tuple(f"m{next(self._numbers):06}" for _ in range(amount))

    def number(self) -> int:
        """Return a unique number."""
        return next(self._numbers)


class Consumer:
    """A client that opens one socket after another."""

    def __init__(self, history: History, names: UniqueIds, chance: Random) -> None:
        self._history = history
        self._names = names
        self._chance = chance

    async def live(self, url: str, *, until: Callable[[], bool]) -> None:
        """Open one socket after another until *until* returns true."""
        while not until():
            query = {
                "max_in_flight": self._chance.choice([1, 3, 10, 40]),
                "msg_timeout_ms": int(MSG_TIMEOUT_S * 1000),
            }
            try:
                async with _connected(sub_url(url, TOPIC, CHANNEL, **query)) as connection:
                    await self._socket(connection, until)
            except (OSError, InvalidHandshake, TimeoutError, EOFError):
                # Not there now. What may change that is the next thing that happens.
                await self._history.grows(1, within_s=0.1)

    async def _socket(self, connection: ClientConnection, until: Callable[[], bool]) -> None:
        socket = Socket(connection, self._history, self._names, self._chance)
        goal = self._chance.randint(1, _MOST_DELIVERIES)
        silences = 0
        try:
            while socket.delivered < goal and silences < _MOST_SILENCES and not until():
                try:
                    await socket.hear(within_s=_SILENCE_S)
                except TimeoutError:
                    silences += 1
            await self._leave(socket)
        except (ConnectionClosed, TimeoutError):
            pass
        finally:
            if connection.close_code is None:
                await connection.close()
            self._history.add(SocketClosed(socket.number, connection.close_code or 1006))

    async def _leave(self, socket: Socket) -> None:
        """End a socket in some way; to return is to close it in order."""
        match self._chance.choice(["close", "abort", "CLS", "freeze", "freeze and abort"]):
            case "abort":
                socket.abort()
            case "CLS":
                await socket.send({"cmd": "CLS"})
                await socket.hear_to_the_end(within_s=_PATIENCE_S)
            case "freeze":
                await socket.freeze()
                await socket.hear(within_s=_PATIENCE_S)
            case "freeze and abort":
                await socket.freeze()
                socket.abort()
            case _:
                pass


class Socket:
    """One open socket; everything it receives is recorded."""

    def __init__(
        self, connection: ClientConnection, history: History, names: UniqueIds, chance: Random
    ) -> None:
        self.number = names.number()
        self.delivered = 0
        self._connection = connection
        self._history = history
        self._names = names
        self._chance = chance
        self._publishing: dict[str, tuple[str, ...]] = {}

    async def hear(self, *, within_s: float) -> None:
        """Receive a frame, and answer its messages at random."""
        await self._answer(await self._deliveries(within_s))

    async def finish(self, *, within_s: float) -> None:
        """Receive a frame, and FIN its messages."""
        if deliveries := await self._deliveries(within_s):
            await self._say_it([{"cmd": "FIN", "ids": deliveries}])

    async def hear_to_the_end(self, *, within_s: float) -> None:
        """Receive and answer frames until the gateway closes, or until the timeout."""
        async with asyncio.timeout(within_s):
            while True:
                await self.hear(within_s=within_s)

    async def freeze(self) -> None:
        """Stop reading for a while, including pings."""
        self._connection.transport.pause_reading()
        await self._history.grows(200, within_s=self._chance.choice([0.3, MSG_TIMEOUT_S + 0.5]))
        if not self._connection.transport.is_closing():
            self._connection.transport.resume_reading()

    def abort(self) -> None:
        """Drop the connection."""
        self._connection.transport.abort()

    async def send(self, *commands: Json) -> None:
        """Send *commands* in one frame."""
        await self._connection.send("\n".join(json.dumps(command) for command in commands))

    async def _deliveries(self, within_s: float) -> list[str]:
        async with asyncio.timeout(within_s):
            frame = await self._connection.recv()
        objects: list[Json] = [json.loads(line) for line in str(frame).split("\n")]
        for each in objects:
            self._write_down(each)
        return [each["id"] for each in objects if each["type"] == "message"]

    def _write_down(self, each: Json) -> None:
        match each["type"], each.get("cmd"):
            case "message", _:
                self.delivered += 1
                self._history.add(
                    MessageDelivered(self.number, each["id"], each["attempts"], each["body"])
                )
            case "response", "CLS":
                self._history.add(CloseWaitReceived(self.number))
            case kind, ("FIN" | "REQ" | "TOUCH") as verb:
                refused = each.get("ids", [each["id"]] if "id" in each else [])
                assert (kind == "error") is bool(refused), each
                self._history.add(AckResponse(self.number, verb, each["ref"], tuple(refused)))
            case "response", ("PUB" | "MPUB"):
                self._history.add(PublishAcknowledged(self._publishing.pop(each["ref"])))
            case _:
                pass

    async def _answer(self, deliveries: list[str]) -> None:
        """Send a random ack, or none, for each delivery, in one or more frames."""
        commands: list[Json] = []
        self._chance.shuffle(deliveries)
        while deliveries:
            some = deliveries[: self._chance.choice([1, 1, 1, 5])]
            del deliveries[: len(some)]
            commands += self._say(some)
            if self._chance.random() < 0.5:
                await self._say_it(commands)
                commands = []
        if self._chance.random() < 0.1:
            commands.append(self._publish())
        await self._say_it(commands)

    async def _say_it(self, commands: list[Json]) -> None:
        if not commands:
            return
        for command in commands:
            if command["cmd"] in _ANSWERS:
                ids = command.get("ids") or [command["id"]]
                asked = AckAttempted(self.number, command["cmd"], tuple(ids), command.get("ref"))
                self._history.add(asked)
        await self.send(*commands)

    def _say(self, ids: list[str]) -> list[Json]:
        verbs: tuple[str, ...] = self._chance.choices(
            [("FIN",), ("REQ",), ("TOUCH", "FIN"), ("TOUCH",), (), ("FIN", "FIN"), ("REQ", "FIN")],
            weights=[60, 10, 8, 4, 4, 4, 4],
        )[0]
        return [self._command(verb, ids) for verb in verbs]

    def _command(self, verb: str, ids: list[str]) -> Json:
        command: Json = {"cmd": verb, "id": ids[0]} if len(ids) == 1 else {"cmd": verb, "ids": ids}
        if verb == "REQ":
            command["timeout_ms"] = self._chance.choice([0, 0, 50, 400])
        if self._chance.random() < 0.4:
            command["ref"] = f"r{self._names.number()}"
        return command

    def _publish(self) -> Json:
        bodies = self._names.bodies(self._chance.choice([1, 3]))
        ref = f"p{self._names.number()}"
        self._publishing[ref] = bodies
        if len(bodies) == 1:
            return {"cmd": "PUB", "topic": TOPIC, "body": bodies[0], "ref": ref}
        return {"cmd": "MPUB", "topic": TOPIC, "bodies": bodies, "ref": ref}


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[ClientConnection]:
    async with asyncio.timeout(_PATIENCE_S):
        connection = await connect(
            url, compression=None, proxy=None, ping_interval=None, close_timeout=1
        )
    try:
        yield connection
    finally:
        await connection.close()


class Publisher:
    """Post to the gateway, several messages at a time, and record the responses."""

    def __init__(
        self,
        history: History,
        names: UniqueIds,
        chance: Random,
        batches: Sequence[int] = (1, 1, 2, 10),
    ) -> None:
        self._history = history
        self._names = names
        self._chance = chance
        self._batches = batches

    async def live(
        self, url: str, *, until: Callable[[], bool], has_room: Callable[[], bool]
    ) -> None:
        """Publish until *until* returns true, pausing while consumers are behind."""
        async with httpx.AsyncClient(
            base_url=url, timeout=2 * PUBLISH_TIMEOUT_S, trust_env=False
        ) as http:
            while not until():
                if not await self._history.until(lambda: has_room() or until(), within_s=1.0):
                    continue
                await self._post(http)

    async def _post(self, http: httpx.AsyncClient) -> None:
        bodies = self._names.bodies(self._chance.choice(self._batches))
        path = "/pub" if len(bodies) == 1 else "/mpub"
        query: dict[str, str | int] = {"topic": TOPIC}
        if path == "/pub" and self._chance.random() < 0.2:
            query["defer"] = self._chance.choice([1, 300])
        try:
            answer = await http.post(path, content="\n".join(bodies).encode(), params=query)
        except httpx.HTTPError:
            await self._history.grows(1, within_s=0.1)
            return  # nobody knows
        if answer.status_code == httpx.codes.OK:
            self._history.add(PublishAcknowledged(bodies))
        else:
            await self._history.grows(1, within_s=0.1)
