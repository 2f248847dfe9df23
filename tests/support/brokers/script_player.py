"""Plays byte scripts at two brokers, many at once, and compares all that they show."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any
from urllib.parse import quote

from tests.support.brokers.auth_server import Grant, auth_server
from tests.support.brokers.byte_scripts import FLAGS, Script, make_script
from tests.support.brokers.nsq_clients import broker_program
from tests.support.brokers.nsqd import as_current_nsqd, real_nsqd
from tests.support.brokers.v2_peer import HEARTBEAT, MESSAGE, Frame
from tests.support.manual_clock import turn

_LANES = 3
"""Batches at once: while one waits for its last scripts, the others keep both brokers busy."""
_BATCH = 200
_SILENCE_S = 10.0
"""How long a script waits for a frame before it counts as one that does not come."""
_SETTLE_S = 5.0
"""How long the counters of two brokers may differ before they count as different."""
_REPEATS = 4
"""A difference counts if it comes back this often; some things happen in any order in nsqd."""

ANSWERS = {
    *(b"OK", b"JSON", b"CLOSE_WAIT", b"E_INVALID", b"E_AUTH_DISABLED", b"E_BAD_PROTOCOL"),
    *(b"E_BAD_BODY", b"E_BAD_MESSAGE", b"E_BAD_TOPIC", b"E_BAD_CHANNEL"),
    *(b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"),
}
"""The kinds of answers that a thousand scripts get."""

# Each connection leaves its port behind for a minute; Linux has all of 127.0.0.0/8 for it.
_SOURCES = cycle([f"127.0.0.{host}" for host in range(1, 9)] if sys.platform == "linux" else [""])


@dataclass(frozen=True)
class Address:
    """Where a broker listens, host:port."""

    tcp: str
    http: str


@dataclass(frozen=True)
class Transcript:
    """What one client has got from a broker."""

    answers: list[Frame]
    """Responses and errors, in their order."""
    messages: list[Frame]
    """Messages, in their order; when each comes among the answers is up to the broker."""
    rest: bytes
    """Bytes of a frame that is not whole."""
    is_silent: bool
    """True if a frame did not come that the script waits for."""


@dataclass
class Outcome:
    """What came of many scripts."""

    kinds: Counter[str] = field(default_factory=Counter)
    answers: Counter[bytes] = field(default_factory=Counter)
    """How often nsqd gave which response or code."""
    unsteady: list[int] = field(default_factory=list)
    """Scripts with a difference that did not come back."""
    differences: list[str] = field(default_factory=list)

    @property
    def missing(self) -> set[bytes]:
        """What nsqd said to none of the scripts, although it says it to clients."""
        return ANSWERS - set(self.answers)


async def play_at_both(seed: int, count: int, *flags: str) -> Outcome:
    """
    Play *count* scripts of *seed* at nsqd and at ``nsq-gateway broker``, with low limits.

    *flags* are for the latter alone.
    """
    async with real_nsqd(*FLAGS) as nsqd, broker_program(*FLAGS, *flags) as broker:
        addresses = [Address(each.tcp_address, each.http_address) for each in (nsqd, broker)]
        return await play(seed, range(count), addresses)


async def play_behind_auth(seed: int, count: int) -> Outcome:
    """Play *count* scripts of *seed* at two brokers that ask the same auth server."""
    async with auth_server() as server:
        server.grant("everything", Grant(), identity="me", identity_url="http://me")
        server.grant("publish", Grant(permissions=("publish",)))
        server.grant("subscribe", Grant(permissions=("subscribe",)))
        server.grant("nothing")
        secrets = (b"everything", b"publish", b"subscribe", b"nothing", b"unknown")
        flags = (*FLAGS, f"--auth-http-address={server.address}")
        async with real_nsqd(*flags) as nsqd, broker_program(*flags) as broker:
            addresses = [Address(each.tcp_address, each.http_address) for each in (nsqd, broker)]
            return await play(seed, range(count), addresses, secrets)


async def play(
    seed: int, numbers: range, brokers: Sequence[Address], secrets: Sequence[bytes] = ()
) -> Outcome:
    """Play the scripts *numbers* of *seed* at two *brokers*, nsqd first."""
    outcome = Outcome()
    waiting = iter(numbers)

    async def lane() -> None:
        while batch := list(islice(waiting, _BATCH)):
            scripts = {number: make_script(seed, number, "0", secrets) for number in batch}
            for number, difference in (await _play_batch(scripts, brokers, outcome)).items():
                script_of_life = partial(make_script, seed, number, secrets=secrets)
                if again := await _repeat(number, difference, script_of_life, brokers):
                    outcome.differences.append(f"script {number} of seed {seed}: {again}")
                else:
                    outcome.unsteady.append(number)

    async with asyncio.TaskGroup() as lanes:
        for _ in range(_LANES):
            lanes.create_task(lane())
    return outcome


async def _repeat(
    number: int,
    difference: str,
    script_of_life: Callable[[str], Script],
    brokers: Sequence[Address],
) -> str:
    """Play a script again on other topics, alone; return its difference if it comes back."""
    for life in range(1, _REPEATS):
        again = await _play_batch({number: script_of_life(str(life))}, brokers, Outcome())
        if not again:
            return ""
        difference = again[number]
    return difference


async def _play_batch(
    scripts: dict[int, Script], brokers: Sequence[Address], outcome: Outcome
) -> dict[int, str]:
    """Return the differences by the numbers of their scripts."""
    everything = [
        asyncio.gather(*(_transcript(script, broker.tcp) for script in scripts.values()))
        for broker in brokers
    ]
    ours, theirs = await asyncio.gather(*everything)
    differences = {}
    counted = {}
    for (number, script), one, other in zip(scripts.items(), ours, theirs, strict=True):
        outcome.kinds[script.kind] += 1
        outcome.answers.update(_word(data) for _, data in one.answers)
        if found := _difference(script, one, other):
            differences[number] = f"{found}\n{script}"
        elif script.has_waits or not (one.messages or other.messages):
            # A script that gets messages unawaited leaves them wherever they were when it ended.
            counted[number] = script
    found_later = await _differing_counters(counted, brokers)
    await asyncio.gather(*(_delete_topics(scripts.values(), broker.http) for broker in brokers))
    return differences | found_later


def _word(data: bytes) -> bytes:
    return b"JSON" if data.startswith(b"{") else data.partition(b" ")[0]


def _difference(script: Script, expected: Transcript, actual: Transcript) -> str:
    """Return what two transcripts differ in, or an empty string."""
    names = ["answers", "rest", "is_silent"]
    if script.has_waits:
        names.append("messages")
    for name in names:
        one, other = getattr(expected, name), getattr(actual, name)
        if one != other:
            return f"{script.kind}, {name}\n  nsqd     {one!r}\n  embedded {other!r}"
    return ""


# One client


async def _transcript(script: Script, address: str) -> Transcript:
    """Play *script* at the broker at *address*; return all until the broker closes."""
    client = await _Client.connect(address)
    try:
        for step in script.steps:
            if isinstance(step, bytes):
                await client.send(step)
            elif not await client.receive(step):
                break
        client.end()
        await client.receive(None)
    finally:
        client.close()
    return client.transcript(script)


class _Client:
    """
    One connection.

    Bytes that the broker does not take because it has closed are lost, and no error: what it has
    sent before can still be read.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._frames: list[Frame] = []
        self._ids: list[bytes] = []
        self._awaited = 0
        self._is_silent = False

    @classmethod
    async def connect(cls, address: str) -> _Client:
        """Connect from one of several local addresses."""
        host, _, port = address.rpartition(":")
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source := next(_SOURCES):
            sock.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return cls(sock)

    async def send(self, data: bytes) -> None:
        """Send *data* with the ids of messages in the place of their numbers."""
        if b"<id-" in data:
            for number, message_id in enumerate(self._ids):
                data = data.replace(b"<id-%d>" % number, message_id)
        try:
            await self._loop.sock_sendall(self._sock, data)
        except ConnectionError:
            return
        # What comes next shall not arrive with it.
        await turn()

    async def receive(self, count: int | None) -> bool:
        """Read *count* more frames, or up to the end; return False if they do not come."""
        self._awaited += count or 0
        while count is None or len(self._frames) < self._awaited:
            try:
                async with asyncio.timeout(_SILENCE_S):
                    data = await self._loop.sock_recv(self._sock, 65_536)
            except ConnectionError:
                data = b""
            except TimeoutError:
                self._is_silent = True
                return False
            if not data:
                return count is None
            self._buffer += data
            self._parse()
        return True

    def _parse(self) -> None:
        while len(self._buffer) >= 8:
            size, kind = struct.unpack_from(">II", self._buffer)
            end = size + 4
            if len(self._buffer) < end:
                return
            data, self._buffer = self._buffer[8:end], self._buffer[end:]
            if (kind, data) == HEARTBEAT:
                continue  # it comes when the machine is slow
            if kind == MESSAGE and data[10:26] not in self._ids:
                self._ids.append(data[10:26])
            self._frames.append((kind, data))

    def end(self) -> None:
        """Tell the broker that nothing more comes."""
        with contextlib.suppress(OSError):  # the broker has closed
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def transcript(self, script: Script) -> Transcript:
        """Return what came, with times, ids and topics replaced by what is the same."""
        answers, messages = [], []
        for kind, data in self._frames:
            if kind == MESSAGE:
                number = self._ids.index(data[10:26])
                messages.append((kind, b"%b <id-%d> %b" % (data[8:10], number, data[26:])))
                continue
            text = as_current_nsqd(data).replace(script.topic, b"<topic>")
            for number, message_id in enumerate(self._ids):
                text = text.replace(message_id, b"<id-%d>" % number)
            answers.append((kind, text))
        return Transcript(answers, messages, self._buffer, self._is_silent)


# Counters


async def _differing_counters(
    scripts: dict[int, Script], brokers: Sequence[Address]
) -> dict[int, str]:
    """Return where the topics of *scripts* differ in /stats, after time to settle."""
    loop = asyncio.get_running_loop()
    settled_at = loop.time() + _SETTLE_S
    while True:
        expected, actual = await asyncio.gather(*(_stats(broker.http) for broker in brokers))
        left = {}
        for number, script in scripts.items():
            names = (script.topic.decode(), script.subscribed_topic.decode())
            one, other = ([stats.get(name) for name in names] for stats in (expected, actual))
            if one != other:
                left[number] = (
                    f"{script.kind}, /stats\n  nsqd     {one!r}\n  embedded {other!r}\n{script}"
                )
        if not left or loop.time() > settled_at:
            return left
        scripts = {number: scripts[number] for number in left}


async def _stats(address: str) -> dict[str, Any]:
    """Return all topics by name, without their names."""
    target = "/stats?format=json&include_clients=false&include_mem=false"
    (body,) = await _requests(address, [f"GET {target}"])
    return {topic.pop("topic_name"): topic for topic in json.loads(body)["topics"] or ()}


async def _delete_topics(scripts: Iterable[Script], address: str) -> None:
    names = [name for each in scripts for name in (each.topic, each.subscribed_topic)]
    await _requests(address, [f"POST /topic/delete?topic={quote(name)}" for name in names])


async def _requests(address: str, lines: list[str]) -> list[bytes]:
    """Send requests over one connection; return the bodies of their answers."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    bodies = []
    for line in lines:
        writer.write(f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            bodies.append(await _chunks(reader))
            continue
        size = int(head.partition(b"content-length:")[2].split()[0])
        bodies.append(await reader.readexactly(size))
    writer.close()
    return bodies


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body
