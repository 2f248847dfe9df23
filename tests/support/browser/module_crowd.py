"""Many clients of nsq.js in Node processes, and the events that they recorded."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.support.browser.module_crowd_check import (
    AckConfirmed,
    AckResolved,
    AckSent,
    CloseResolved,
    ConnectAttempted,
    Doing,
    ErrorReported,
    MessageHandled,
    SocketLost,
    StateChanged,
)
from tests.support.history.events import (
    AckAttempted,
    CloseWaitReceived,
    MessageDelivered,
    Record,
    SocketClosed,
)
from tests.support.history.system import CHANNEL, TOPIC
from tests.support.websocket.subscriber_client import Json

MSG_TIMEOUT_S = 4.0
CLIENTS = 20
_OF_A_PROCESS = 5
_PROGRAM = Path(__file__).with_suffix(".mjs")
_END_TIMEOUT_S = 30.0
_LINE_LIMIT_BYTES = 1_048_576
_SOCKETS_OF_A_CLIENT = 1_000_000


@dataclass(frozen=True, slots=True)
class _Client:
    """The configuration of one client, as its process receives it."""

    number: int
    url: str
    form: str
    max_in_flight: int
    seed: int

    def to_json(self) -> Json:
        return {
            "number": self.number,
            "url": self.url,
            "form": self.form,
            "maxInFlight": self.max_in_flight,
            "seed": self.seed,
        }


class ModuleCrowd:
    """Clients of nsq.js in Node processes; create with `module_crowd`."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self.records: list[Record] = []
        """Traffic of the clients' sockets, for `history_check`."""
        self.doings: list[Doing] = []
        """Events and results reported by the module, for `module_crowd_check`."""
        self.errors: list[str] = []
        """Unexpected output of their processes."""
        self.states: dict[int, str] = {}
        """State of each client, by number."""
        self._waited: dict[int, int] = {}
        """Index in `doings` of each client's last scheduled reconnect."""
        self._processes = processes
        self._changed = asyncio.Event()
        self._reading = [
            asyncio.create_task(reading)
            for process in processes
            for reading in (self._read(process), self._read_errors(process))
        ]

    async def until(self, is_reached: Callable[[], bool], *, within_s: float, what: str) -> None:
        """
        Return once *is_reached* is true; it is checked after each event of a client.

        Raises:
            TimeoutError: The condition is not met in time; the message has *what* and all states.
        """
        try:
            async with asyncio.timeout(within_s):
                while not is_reached():
                    assert not self.errors, "\n".join(self.errors)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            message = f"{what}: not within {within_s:g} s; {self.states}"
            raise TimeoutError(message) from None

    async def all_connected(self, *, within_s: float) -> None:
        """Wait until every client is connected."""
        await self.until(
            lambda: [*self.states.values()].count("connected") == CLIENTS,
            within_s=within_s,
            what="all are connected",
        )

    async def come_back(self, clients: Iterable[int], *, since: int, within_s: float) -> None:
        """Wait until each of *clients* has scheduled a reconnect after the first *since* doings."""
        await self.until(
            lambda: all(self._waited.get(client, -1) >= since for client in clients),
            within_s=within_s,
            what=f"{clients} notice the end of their connections",
        )

    def since(self, index: int) -> Iterator[Doing]:
        """Yield the doings from *index* on."""
        yield from self.doings[index:]

    async def pass_time(self, clients: Sequence[int], speed: float) -> None:
        """Run time *speed* times as fast for *clients* and their processes."""
        for number in {client // _OF_A_PROCESS for client in clients}:
            await self._command(self._processes[number], {"speed": speed})

    async def close(self) -> list[int]:
        """Close every client; return the exit statuses of their processes."""
        for process in self._processes:
            await self._command(process, {"close": True})
        async with asyncio.timeout(_END_TIMEOUT_S):
            return [await process.wait() for process in self._processes]

    async def leave(self) -> None:
        """Kill the processes that still run, and wait for all."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await asyncio.gather(*self._reading)

    async def _command(self, process: Process, command: Json) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(command).encode() + b"\n")
        await process.stdin.drain()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._take(json.loads(line))
            self._changed.set()

    async def _read_errors(self, process: Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.errors.append(line.decode().rstrip())
            self._changed.set()

    def _take(self, told: Json) -> None:
        if told["it"] == "state":
            self.states[told["client"]] = told["state"]
            if "retryInMs" in told:
                self._waited[told["client"]] = len(self.doings)
        self.records += _record(told)
        self.doings += _doing(told)


def _record(told: Json) -> Iterator[Record]:
    at_s: float = told["at"]
    match told["it"]:
        case "delivered":
            event = MessageDelivered(told["socket"], told["id"], told["attempts"], told["body"])
            yield Record(at_s, event)
        case "asked":
            yield Record(at_s, AckAttempted(told["socket"], told["verb"], tuple(told["ids"])))
        case "leaving":
            yield Record(at_s, CloseWaitReceived(told["socket"]))
        case "closed":
            yield Record(at_s, SocketClosed(told["socket"], told["code"]))
        case _:
            pass


def _doing(told: Json) -> Iterator[Doing]:
    who: Json = {"at_s": told["at"], "client": told["client"], "now_ms": told["nowMs"]}
    match told["it"]:
        case "tried":
            yield ConnectAttempted(**who)
        case "state":
            retry_in_ms, reason = told.get("retryInMs"), told.get("reason", "")
            yield StateChanged(**who, state=told["state"], retry_in_ms=retry_in_ms, reason=reason)
        case "closed":
            yield SocketLost(**who, socket=told["socket"])
        case "error":
            yield ErrorReported(**who, code=told["code"], message=told["message"])
        case "ended":
            yield CloseResolved(**who, code=told["code"])
        case "asked":
            ids = tuple(told["ids"])
            yield AckSent(**who, socket=told["socket"], verb=told["verb"], deliveries=ids)
        case "confirmed":
            ids = tuple(told["ids"])
            yield AckConfirmed(**who, socket=told["socket"], verb=told["verb"], deliveries=ids)
        case "worked" | "answered":
            yield _work(told, {**who, "socket": told["socket"], "delivery": told["id"]})
        case _:
            pass


def _work(told: Json, which: Json) -> MessageHandled | AckResolved:
    if told["it"] == "worked":
        return MessageHandled(**which, attempts=told["attempts"], body=told["body"])
    return AckResolved(**which, verb=told["verb"], took=told["took"], is_lost=told["isLost"])


@asynccontextmanager
async def module_crowd(
    urls: Sequence[str], chance: Random, *, has_jitter: bool = True
) -> AsyncIterator[ModuleCrowd]:
    """
    Run a client for each of *urls* until the block ends; every second one uses the iterator.

    *has_jitter* is false to prove that the checks detect a module without jitter: its
    ``Math.random()`` returns 0.
    """
    clients = [
        _Client(
            number,
            url,
            form="callback" if number % 2 else "iterator",
            max_in_flight=chance.choice([1, 5, 20]),
            seed=chance.randrange(2**32),
        )
        for number, url in enumerate(urls)
    ]
    processes = [
        await _start(clients[first : first + _OF_A_PROCESS], has_jitter=has_jitter)
        for first in range(0, len(clients), _OF_A_PROCESS)
    ]
    crowd = ModuleCrowd(processes)
    try:
        yield crowd
    finally:
        await crowd.leave()


async def _start(clients: Sequence[_Client], *, has_jitter: bool) -> Process:
    wish = {
        "topic": TOPIC,
        "channel": CHANNEL,
        "msgTimeoutMs": int(MSG_TIMEOUT_S * 1_000),
        "hasJitter": has_jitter,
        "firstSocket": clients[0].number * _SOCKETS_OF_A_CLIENT,
        "clients": [client.to_json() for client in clients],
    }
    return await asyncio.create_subprocess_exec(
        "node",
        _PROGRAM,
        json.dumps(wish),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=_LINE_LIMIT_BYTES,
    )
