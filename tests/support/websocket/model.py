"""
WebSocket clients that send random commands, and the answers that the contract requires.

`ChannelModel` is the state shared by all sockets of a channel: each message is published, held by
one of them, or finished. `ModelClient` is one socket: it sends random frames, and knows the
expected answer to each object in them. An outcome is "maybe" if the socket ended before the answer.
Messages do not time out and no nsqd is lost, so every refusal is known beforehand.
"""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64encode
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

Json: TypeAlias = dict[str, Any]
Ref: TypeAlias = str | int | None

WAIT_S = 90.0
MAX_MISUSES = 60
"""Invalid commands that a client sends at most; the gateway closes the socket after 100."""
LARGEST_WINDOW = 12
NOBODYS_IDS = ["", "x", "0123456789abcdef", "0123456789abcdef-1", "ä-1", "\n", "-"]
NONSENSE = [
    "garbage",
    "{",
    "null",
    "[]",
    '"NOP"',
    "\x00",
    '{"cmd":"NOP"',
    '{"cmd":"NOP","ref":[1]}',
    '{"cmd":"NOP","ref":1e999}',
    '{"cmd":"NOP"}{"cmd":"NOP"}',
    '{"cmd":7}',
    "[" * 2_000,
]
"""Invalid lines; the error response has no ref."""
WRONG: list[tuple[Json, str]] = [
    ({}, "E_INVALID"),
    ({"cmd": None}, "E_INVALID"),
    ({"cmd": "nop"}, "E_INVALID"),
    ({"cmd": "SUB", "topic": "t", "channel": "c"}, "E_INVALID"),
    ({"cmd": "FIN"}, "E_INVALID"),
    ({"cmd": "FIN", "id": 7}, "E_INVALID"),
    ({"cmd": "REQ", "ids": []}, "E_INVALID"),
    ({"cmd": "TOUCH", "id": "a", "ids": ["a"]}, "E_INVALID"),
    ({"cmd": "RDY"}, "E_INVALID"),
    ({"cmd": "RDY", "count": -1}, "E_INVALID"),
    ({"cmd": "RDY", "count": "1"}, "E_INVALID"),
    ({"cmd": "RDY", "count": 1_000_000}, "E_INVALID"),
    ({"cmd": "AUTH"}, "E_INVALID"),
    ({"cmd": "AUTH", "secret": 1}, "E_INVALID"),
    ({"cmd": "PUB", "body": "b"}, "E_BAD_TOPIC"),
    ({"cmd": "PUB", "topic": "no topic", "body": "b"}, "E_BAD_TOPIC"),
    ({"cmd": "PUB", "topic": "t"}, "E_BAD_MESSAGE"),
    ({"cmd": "PUB", "topic": "t", "body": ""}, "E_BAD_MESSAGE"),
    ({"cmd": "PUB", "topic": "t", "body": "b", "body_base64": "YQ=="}, "E_INVALID"),
    ({"cmd": "PUB", "topic": "t", "body_base64": "%"}, "E_INVALID"),
    ({"cmd": "DPUB", "topic": "t", "body": "b"}, "E_INVALID"),
    ({"cmd": "DPUB", "topic": "t", "body": "b", "defer_ms": -1}, "E_INVALID"),
    ({"cmd": "MPUB", "topic": "t"}, "E_BAD_BODY"),
    ({"cmd": "MPUB", "topic": "t", "bodies": ["b", ""]}, "E_BAD_MESSAGE"),
]
"""Invalid commands, and the expected error code; the response has their ref."""


class ChannelModel:
    """The messages of one channel, by the serial number at the start of each body."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.published: set[int] = set()
        """Serials of messages whose publish was confirmed."""
        self.maybe_published: set[int] = set()
        self.finished: set[int] = set()
        """Serials of messages whose FIN was confirmed; they must not be redelivered."""
        self.maybe_finished: set[int] = set()
        self.holders: dict[int, ModelClient] = {}
        """The client that received a message and may still acknowledge it, by serial."""
        self._last = 0

    def new_body(self, rng: random.Random) -> str:
        """Return the body of a new message."""
        self._last += 1
        return f"{self._last}:" + rng.choice(["", "ä\U0001f600\u2028", '"\\\n', "x" * 3_000])

    @property
    def unfinished(self) -> set[int]:
        """The messages that must be redelivered."""
        return self.published - self.finished - self.maybe_finished


class Expected(NamedTuple):
    """The expected answer to a command."""

    kind: str
    """``response`` or ``error``."""
    code: str | None = None
    refused: frozenset[str] = frozenset()
    """Message ids in the error response."""
    serials: tuple[int, ...] = ()
    """Serials that the command publishes if it succeeds."""


def serial_of(message: Json) -> int:
    return int(message["body"].partition(":")[0])


class ModelClient:
    """A WebSocket client with a subscription."""

    def __init__(
        self,
        connection: ClientConnection,
        channel: ChannelModel,
        rng: random.Random,
        *,
        kind: str,
        window: int,
    ) -> None:
        self.channel = channel
        self.kind = kind
        """``client``, ``auto`` (the gateway sends FIN) or ``viewer``."""
        self.held: dict[str, int] = {}
        """Serials of received and unacknowledged messages, by delivery id."""
        self.close: tuple[int | None, str | None] = (None, None)
        """Close code and reason; None while open."""
        self._connection = connection
        self._rng = rng
        self._window = window
        """Largest window so far: the gateway may still deliver that many."""
        self._expected: dict[Ref, Expected] = {}
        self._unasked: Counter[Expected] = Counter()
        """Expected answers to commands without a ref, with their number."""
        self._finishing: deque[tuple[int, int]] = deque()
        """Command number and serial of each FIN that is not confirmed yet."""
        self._answered_ids: list[str] = []
        self._number = 0
        self._misuses = 0
        self._has_auth = False
        self._is_subscribed = False
        self._is_leaving = False
        """True once the client has sent CLS or closed."""
        self._has_let_go = False
        self._unasked_serials: set[int] = set()
        """Serials published by commands without a ref."""
        self._news = asyncio.Event()

    # In

    async def read(self) -> None:
        """Process all frames until the connection closes."""
        try:
            async for frame in self._connection:
                for line in str(frame).split("\n"):
                    self._take(json.loads(line))
                self._news.set()
        except ConnectionClosed:
            pass
        self.close = self._connection.close_code, self._connection.close_reason
        self._news.set()

    def _take(self, line: Json) -> None:
        if line["type"] == "message":
            self._take_message(line)
            return
        if not self._is_subscribed:
            assert (line["type"], line["cmd"], line["ref"]) == ("response", "SUB", None), line
            self._is_subscribed = True
            return
        if line["ref"] is None and line["cmd"] == "NOP" and isinstance(line.get("data"), dict):
            assert not line["data"]["lost_ids"], line
            return
        told = frozenset(line.get("ids") or ([line["id"]] if "id" in line else []))
        seen = (line["type"], line.get("code"), told)
        ref = line["ref"]
        if ref is None:
            expected = next((each for each in self._unasked if each[:3] == seen), None)
            assert expected is not None, f"nobody expects {line}; expected: {self._unasked}"
            self._unasked[expected] -= 1
            self._unasked += Counter()
        else:
            assert ref in self._expected, f"nobody expects {line}"
            expected = self._expected.pop(ref)
            assert expected[:3] == seen, f"{line} in place of {expected}"
        self.channel.published.update(expected.serials)
        if isinstance(ref, int) and line["cmd"] in ("FIN", "REQ", "TOUCH", "RDY", "NOP"):
            self._is_carried_out(ref)

    def _take_message(self, message: Json) -> None:
        serial = serial_of(message)
        if self.kind == "viewer" or self._has_let_go:
            return
        assert serial not in self.channel.finished, f"{message} was finished"
        if self.kind == "auto":
            self.channel.finished.add(serial)
            return
        holder = self.channel.holders.get(serial)
        assert holder is None or holder._is_leaving, f"{message} is held by another socket"
        self.channel.holders[serial] = self
        self.held[message["id"]] = serial
        assert len(self.held) <= self._window, f"{len(self.held)} held of {self._window}"

    def _is_carried_out(self, number: int) -> None:
        """Mark the FINs up to command *number* as confirmed: commands are executed in order."""
        while self._finishing and self._finishing[0][0] <= number:
            self.channel.finished.add(self._finishing.popleft()[1])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* is true; it is checked after each frame."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            text = f"not answered: {self._expected} {self._unasked}; closed: {self.close}"
            raise AssertionError(text) from None

    # Out

    async def say(self) -> None:
        """Send one frame of random objects, whole or in fragments with pings between them."""
        rng = self._rng
        count = rng.choice([1, 1, 1, 2, 3, 8, 30])
        lines = [self._draw() for _ in range(count)]
        if rng.random() < 0.2:
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(["", "  ", "\t"]))
        await self._send("\n".join(lines) + rng.choice(["", "", "\n"]))
        if rng.random() < 0.4:
            await self.barrier()

    async def barrier(self) -> None:
        """Return once all commands were executed; publishes may be unanswered."""
        ref = self._next_number()
        self._expected[ref] = Expected("response")
        await self._send(json.dumps({"cmd": "NOP", "ref": ref}))
        await self.until(lambda: ref not in self._expected)

    async def _send(self, text: str) -> None:
        rng = self._rng
        if len(text) < 2 or rng.random() < 0.6:
            await self._connection.send(text)
            return
        ends = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randint(1, 4))))
        pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]

        async def fragments() -> AsyncIterator[str]:
            for piece in pieces:
                yield piece
                if rng.random() < 0.3:
                    await self._connection.ping()

        await self._connection.send(fragments())

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _draw(self) -> str:
        """Return a random line, and record its expected answer."""
        rng = self._rng
        kinds: list[tuple[int, Callable[[], str]]] = [
            (8, self._draw_answer),
            (4, self._draw_publish),
            (1, self._draw_ready),
            (1, self._draw_nop),
        ]
        if self._misuses < MAX_MISUSES:
            kinds += [(1, self._draw_nonsense), (1, self._draw_wrong), (1, self._draw_auth)]
        weights = [weight for weight, _ in kinds]
        return rng.choices([draw for _, draw in kinds], weights)[0]()

    def _command(self, command: Json, expected: Expected, *, is_told: bool) -> str:
        """Return *command* as a line, with or without a ref; *is_told*: answered in any case."""
        number = self._next_number()
        if self._rng.random() < 0.7:
            ref: Ref = number if self._rng.random() < 0.7 else f"r-{number}"
            self._expected[ref] = expected
            return json.dumps({**command, "ref": ref}, ensure_ascii=self._rng.random() < 0.5)
        if is_told or expected.kind == "error":
            # Without a ref, an answer cannot be assigned to one of several equal commands.
            self._unasked_serials.update(expected.serials)
            self._unasked[expected._replace(serials=())] += 1
        return json.dumps(command)

    def _refused(self, command: Json, code: str) -> str:
        self._misuses += 1
        return self._command(command, Expected("error", code), is_told=True)

    def _draw_nonsense(self) -> str:
        self._misuses += 1
        self._unasked[Expected("error", "E_INVALID")] += 1
        return self._rng.choice(NONSENSE)

    def _draw_wrong(self) -> str:
        command, code = self._rng.choice(WRONG)
        return self._refused(command, code)

    def _draw_auth(self) -> str:
        command = {"cmd": "AUTH", "secret": "nobody asks for it"}
        if self._has_auth:
            return self._refused(command, "E_INVALID")
        self._has_auth = True
        return self._command(command, Expected("response"), is_told=True)

    def _draw_nop(self) -> str:
        return self._command({"cmd": "NOP"}, Expected("response"), is_told=False)

    def _draw_ready(self) -> str:
        count = self._rng.choice([0, 1, 1, 3, LARGEST_WINDOW])
        command = {"cmd": "RDY", "count": count}
        if self.kind != "client":
            return self._refused(command, "E_INVALID")
        self._window = max(self._window, count)
        return self._command(command, Expected("response"), is_told=False)

    def _draw_publish(self) -> str:
        rng = self._rng
        verb = rng.choice(["PUB", "PUB", "DPUB", "MPUB"])
        bodies = [
            self.channel.new_body(rng) for _ in range(rng.randint(1, 5) if verb == "MPUB" else 1)
        ]
        serials = tuple(int(body.partition(":")[0]) for body in bodies)
        self.channel.maybe_published.update(serials)
        command: Json = {"cmd": verb, "topic": self.channel.topic}
        if verb == "DPUB":
            command["defer_ms"] = rng.choice([0, 1, 30])
        is_base64 = rng.random() < 0.3
        shown = [b64encode(body.encode()).decode() for body in bodies] if is_base64 else bodies
        name = ("bodies" if verb == "MPUB" else "body") + ("_base64" if is_base64 else "")
        command[name] = shown if verb == "MPUB" else shown[0]
        return self._command(command, Expected("response", serials=serials), is_told=True)

    def _draw_answer(self) -> str:
        """Return FIN, REQ or TOUCH with valid and invalid ids."""
        rng = self._rng
        verb = rng.choice(["FIN", "FIN", "FIN", "REQ", "TOUCH"])
        good = rng.sample(sorted(self.held), min(len(self.held), rng.choice([0, 1, 1, 2, 5])))
        strangers = [*NOBODYS_IDS, *self._answered_ids[-3:]]
        bad = rng.sample(strangers, rng.choice([0, 0, 0, 1, 2]) if good else 1)
        bad = list(dict.fromkeys(bad))
        ids = [*good, *bad]
        rng.shuffle(ids)
        command: Json = {"cmd": verb}
        if len(ids) == 1 and rng.random() < 0.7:
            command["id"] = ids[0]
        else:
            command["ids"] = ids
        if verb == "REQ" and rng.random() < 0.7:
            command["timeout_ms"] = rng.choice([0, 1, 40])
        if self.kind != "client":
            if self._misuses >= MAX_MISUSES:
                return self._draw_nop()
            return self._refused(command, "E_INVALID")
        expected = Expected("response")
        if bad:
            expected = Expected("error", f"E_{verb}_FAILED", frozenset(bad))
        line = self._command(command, expected, is_told=False)
        if verb != "TOUCH":
            for delivery_id in good:
                serial = self.held.pop(delivery_id)
                self._answered_ids.append(delivery_id)
                self.channel.holders.pop(serial)
                if verb == "FIN":
                    self._finishing.append((self._number, serial))
        return line

    # The end

    async def finish_and_close(self) -> None:
        """Close after all answers; the gateway requeues the held messages."""
        await self.barrier()
        await self.until(lambda: not self._expected and not self._unasked)
        self.channel.published |= self._unasked_serials
        self._let_go()
        await self._connection.close()

    async def say_cls(self) -> None:
        """Send CLS, and FIN all held messages, until the gateway closes with 1000."""
        ref = f"cls-{self._next_number()}"
        self._expected[ref] = Expected("response")
        self._is_leaving = True
        await self._connection.send(json.dumps({"cmd": "CLS", "ref": ref}))
        await self.until(lambda: ref not in self._expected)
        if self.held:
            await self._connection.send("\n".join(self._finish_held()))
        await self.until(lambda: self.close[0] is not None)
        assert self.close[0] == 1000, self.close
        assert not self._expected, self._expected
        assert not self._unasked, self._unasked
        self.channel.published |= self._unasked_serials
        self._is_carried_out(self._number)
        self._let_go()

    def _finish_held(self) -> Iterator[str]:
        for delivery_id, serial in list(self.held.items()):
            self._finishing.append((self._next_number(), serial))
            yield json.dumps({"cmd": "FIN", "id": delivery_id})
            del self.held[delivery_id]

    async def end_suddenly(self) -> None:
        """Disconnect without waiting for answers: abruptly, within a frame, or by a violation."""
        self._let_go()
        way = self._rng.choice(["abort", "half a frame", "close", "binary", "reserved bit"])
        transport = self._connection.transport
        if way == "close":
            await self._connection.close(3_001)
        elif way == "binary":
            await self._connection.send(b"no text")
            await self.until(lambda: self.close[0] is not None)
            assert self.close[0] == 1003, self.close
        elif way == "reserved bit":
            transport.write(b"\xc1\x80\x00\x00\x00\x00")
            await self.until(lambda: self.close[0] is not None)
            assert self.close[0] == 1002, self.close
        else:
            if way == "half a frame":
                transport.write(b"\x81\xfe\x10\x00")
            transport.abort()

    def _let_go(self) -> None:
        """Release all held messages; unconfirmed FINs become "maybe"."""
        self._is_leaving = self._has_let_go = True
        for serial in self.held.values():
            if self.channel.holders.get(serial) is self:
                del self.channel.holders[serial]
        self.held.clear()
        self.channel.maybe_finished.update(serial for _, serial in self._finishing)
        self._finishing.clear()
