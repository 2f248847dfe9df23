"""
Scripts of bytes for one connection to a broker: by NSQ's grammar, by a model, and at random.

A script is a list of steps. Bytes are sent as they are, with ``<id-0>`` for the id of the first
message that came; a number is how many frames to wait for. Scripts are made for brokers with the
limits in `FLAGS`, which are low, so that a body beyond a limit is short.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TypeAlias
from unicodedata import ucd_3_2_0

from tests.support.brokers.v2_peer import identify, length_prefixed, multi_publish, publish

MAX_MSG_BYTES = 200
MAX_BODY_BYTES = 1_000
MAX_LINE_BYTES = 16_384
FLAGS = (f"--max-msg-size={MAX_MSG_BYTES}", f"--max-body-size={MAX_BODY_BYTES}")

Step: TypeAlias = bytes | int


@dataclass(frozen=True, kw_only=True)
class Script:
    """What one client sends, and where it waits."""

    kind: str
    steps: list[Step]
    topic: bytes
    """The topic that it publishes to; `subscribed_topic` is derived from it."""

    @property
    def subscribed_topic(self) -> bytes:
        """The topic that a script of the grammar subscribes to; it gets no messages."""
        return b"s" + self.topic

    @property
    def has_waits(self) -> bool:
        """True if it takes messages, in an order that it waits for."""
        return any(isinstance(step, int) for step in self.steps)

    def __str__(self) -> str:
        """Return the steps, for the report of a difference."""
        return "\n".join(f"  {step!r}" for step in self.steps)


def make_script(seed: int, number: int, life: str, secrets: Sequence[bytes] = ()) -> Script:
    """
    Return script *number* of *seed*; *life* keeps the topics of repetitions apart.

    Most scripts begin with AUTH if there are *secrets*: the first allows all, others need not.
    """
    random = Random(f"{seed}-{number}")
    name = f"t{life}{number:x}".encode()
    # Most topics are ephemeral: nsqd writes the names of all others to its disk with each change.
    topic = name if random.random() < 0.1 else name + b"#ephemeral"
    kind = random.choices(list(_KINDS), [6, 2, 2])[0]
    steps = _KINDS[kind](random, topic)
    if secrets and random.random() < 0.7:
        secret = secrets[0] if kind == "model" else random.choice(secrets)
        steps = _behind_auth(steps, secret, has_waits=kind == "model")
    return Script(kind=kind, steps=steps, topic=topic)


def _behind_auth(steps: list[Step], secret: bytes, *, has_waits: bool) -> list[Step]:
    first = steps[0] if steps else b""
    if not isinstance(first, bytes) or not first.startswith(b"  V2"):
        return steps
    auth = b"  V2AUTH\n" + length_prefixed(secret)
    if has_waits:
        return [auth, 1, first[4:], *steps[1:]]
    return [auth + first[4:], *steps[1:]]


# The grammar


def _by_grammar(random: Random, topic: bytes) -> list[Step]:
    """Return valid and invalid commands in any order, cut at random places."""
    return list(_cut(random, _grammar_bytes(random, topic)))


def _grammar_bytes(random: Random, topic: bytes) -> bytes:
    parts = [_magic(random)]
    for _ in range(random.choice([1, 1, 2, 3, 5, 8])):
        # A refusal ends the connection, so most commands are valid: others have to come after them.
        if random.random() < 0.6:
            parts.append(_valid(random, topic))
        else:
            parts.append(_any_command(random, topic))
    data = b"".join(parts)
    if random.random() < 0.3:
        return data[: random.randrange(len(data) + 1)]
    # Shows whether the connection is still open, and where it stands.
    return data + b"END\n"


def _by_mutation(random: Random, topic: bytes) -> list[Step]:
    """Return bytes of the grammar with some of them changed."""
    data = bytearray(_grammar_bytes(random, topic))
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(data) + 1)
        match random.randrange(4):
            case 0:
                del data[at : at + random.randrange(1, 5)]
            case 1:
                data[at:at] = random.randbytes(random.randrange(1, 5))
            case 2:
                data[at : at + 1] = random.choice([b"\n", b" ", b"\r", b"\0", b"0", b"#", b"-"])
            case _:
                end = at + random.randrange(20)
                data[at:at] = data[at:end]
    return list(_cut(random, bytes(data)))


def _cut(random: Random, data: bytes) -> list[bytes]:
    """Return *data* in one to four pieces, of which the first ones are often small."""
    if not data:
        return []
    spread = random.choice([len(data), len(data), 40])
    cuts = sorted(random.randrange(min(spread, len(data)) + 1) for _ in range(random.randrange(4)))
    edges = [0, *cuts, len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


def _magic(random: Random) -> bytes:
    if random.random() < 0.97:
        return b"  V2"
    return random.choice([b"", b"  V1", b" V2 ", b"  v2", b"\n  V2", b"  V", b"GET ", b"\0\0\0\0"])


def _valid(random: Random, topic: bytes) -> bytes:
    """Return a command that is valid in some state."""
    body = random.randbytes(random.choice([1, 2, 10, MAX_MSG_BYTES]))
    makers: list[Callable[[], bytes]] = [
        lambda: publish(topic, body),
        lambda: multi_publish(topic, *([body[:90]] * random.randrange(1, 5))),
        lambda: b"DPUB %b %b\n" % (topic, _digits(random)) + length_prefixed(body),
        lambda: b"SUB s%b %b\n" % (topic, random.choice([b"c", b"c#ephemeral"])),
        lambda: b"RDY %b\n" % random.choice([b"0", b"1", b"2500", b""]),
        lambda: b"FIN %b\n" % _message_id(random),
        lambda: b"REQ %b %b\n" % (_message_id(random), _digits(random)),
        lambda: b"TOUCH %b\n" % _message_id(random),
        lambda: b"CLS\n",
        lambda: b"NOP\n",
        lambda: identify(_valid_identity(random)),
    ]
    return random.choices(makers, [3, 3, 2, 4, 2, 2, 2, 2, 1, 1, 3])[0]()


_PARAMETERS: dict[str, str] = {
    "IDENTIFY": "",
    "AUTH": "",
    "SUB": "topic channel",
    "PUB": "topic",
    "DPUB": "topic number",
    "MPUB": "topic",
    "RDY": "number",
    "FIN": "id",
    "REQ": "id number",
    "TOUCH": "id",
    "CLS": "",
    "NOP": "",
}


def _any_command(random: Random, topic: bytes) -> bytes:
    """Return a command with any parameters, any body, or neither."""
    name = random.choice([*_PARAMETERS, "IDENTIFY", "IDENTIFY"])
    verb = name.encode()
    makers: dict[str, Callable[[], bytes]] = {
        "topic": lambda: _name(random, b"s" + topic if name == "SUB" else topic),
        "channel": lambda: _name(random, b"c"),
        "number": lambda: random.choice(_NUMBERS).encode(),
        "id": lambda: _message_id(random),
    }
    words = [verb, *(makers[each]() for each in _PARAMETERS[name].split())]
    match random.randrange(20):
        case 0 | 1:
            words.append(random.choice([b"", b"more", b"1 2 3"]))
        case 2 | 3:
            words.pop()
        case 4:
            words.insert(random.randrange(len(words) + 1), b"")
        case 5 | 6:
            words[0] = random.choice([verb.lower(), verb[:-1], verb + b"S", b"", b"\xff\xfe"])
    line = b" ".join(words) + random.choice([b"\n"] * 8 + [b"\r\n", b"\r\r\n", b" \n"])
    if random.random() < 0.02:
        # Around the longest line.
        line = line[:-1].ljust(MAX_LINE_BYTES - random.choice([1, 2, 0]), b"x") + b"\n"
    return line + _tail(random, verb)


def _tail(random: Random, verb: bytes) -> bytes:
    """Return what follows the line of a command that has a body."""
    if verb == b"IDENTIFY":
        return _sized(random, _identity(random), MAX_BODY_BYTES)
    if verb == b"AUTH":
        return _sized(random, b"secret", MAX_BODY_BYTES)
    if verb in (b"PUB", b"DPUB"):
        return _sized(random, random.randbytes(random.randrange(20)), MAX_MSG_BYTES)
    if verb == b"MPUB":
        bodies = [random.randbytes(random.randrange(6)) for _ in range(random.randrange(5))]
        sized = b"".join(_sized(random, body, MAX_MSG_BYTES, often=20) for body in bodies)
        most = (MAX_BODY_BYTES - 4) // 5
        others = [0, -1, len(bodies) + 1, most, most + 1, 2**31 - 1]
        count = random.choice([len(bodies)] * 8 + others)
        return _sized(random, struct.pack(">i", count) + sized, MAX_BODY_BYTES)
    return b""


def _sized(random: Random, body: bytes, limit: int, often: int = 4) -> bytes:
    """Return *body* behind its size, or behind any other; or a body around *limit*."""
    if random.randrange(often):
        return length_prefixed(body)
    size = random.choice([0, -1, -(2**31), 2**31 - 1, limit - 1, limit, limit + 1, len(body) + 1])
    if size > 0 and random.random() < 0.5:
        body = body.ljust(min(size, limit + 1), b"x")
    return struct.pack(">i", size) + body


_NAMES = [
    b"x" * 64,
    b"x" * 65,
    b"x" * 54 + b"#ephemeral",
    b"x" * 55 + b"#ephemeral",
    b"#ephemeral",
    b"x#ephemera",
    b"x#ephemeral#ephemeral",
    b"",
    b"a\tb",
    b'a"b\\',
    b"a\xffb",
    b"a/b",
    b"\x00\x07\x7f\x80",
    "ä\u00a0\u00ad\u2028\ufeff".encode(),
    b"\xed\xa0\x80",
]


def _name(random: Random, usual: bytes) -> bytes:
    match random.randrange(8):
        case 0:
            return random.choice(_NAMES)
        case 1:
            letters = (random.choice([0x7F, 0x7FF, 0x2FFF, 0xD7FF, 0x1F6FF]) for _ in range(4))
            text = "".join(chr(random.randrange(33, most)) for most in letters)
            # Go and Python quote what is unassigned, and know different versions of Unicode.
            text = "".join(each for each in text if ucd_3_2_0.category(each) != "Cn")
            return text.encode("utf-8", "surrogatepass")
    return usual


_NUMBERS = [
    *("0", "1", "00", "01", "-0", "-1", "+1", "", "1.0", "1e3", "0x10", "1_000", "x", "1x"),
    *("\u0663", "\uff11"),  # digits elsewhere
    *(str(limit + by) for limit in (2_500, 3_600_000) for by in (-1, 0, 1)),
    *(str(2**bits + by) for bits in (15, 31, 32, 63, 64, 65) for by in (-1, 0, 1)),
    # Durations in Go are nanoseconds in 64 bits.
    *(str(2**bits // 1_000_000 + by) for bits in (63, 64) for by in (-1, 0, 1)),
    *(str(number) for number in (9 * 10**17, 10**18, 10**19, 10**30, 10**400)),
]


def _digits(random: Random) -> bytes:
    return random.choice([b"0", b"60000", b"3600000", b"00060000", b""])


def _message_id(random: Random) -> bytes:
    if random.random() < 0.7:
        return b"%016x" % random.getrandbits(64)
    size = random.choice([0, 1, 15, 16, 17])
    return bytes(random.choice(b"0aZ\xff\xc3\xa4\t\r") for _ in range(size))


# IDENTIFY

_IDENTITY_NUMBERS = {
    "heartbeat_interval": (1_000, 60_000),
    "output_buffer_size": (64, 65_536),
    "output_buffer_timeout": (25, 30_000),
    "sample_rate": (0, 99),
    "msg_timeout": (1_000, 900_000),
    "deflate_level": (1, 6),
}
_IDENTITY_TEXTS = ("client_id", "hostname", "user_agent", "short_id", "long_id", "topology_zone")
_IDENTITY_FLAGS = ("tls_v1", "unknown", "another")


def _valid_identity(random: Random) -> bytes:
    identity: dict[str, object] = {"feature_negotiation": random.random() < 0.8}
    for name, bounds in _IDENTITY_NUMBERS.items():
        if random.random() < 0.3:
            # Without heartbeats there is no SUB, and no sampling, so that each message arrives.
            values = [*bounds, -1] if name.startswith("output") else bounds
            identity[name] = 0 if name == "sample_rate" else random.choice(values)
    if random.random() < 0.1:
        identity["heartbeat_interval"] = -1
    for name in random.sample(_IDENTITY_TEXTS, random.randrange(4)):
        identity[name] = random.choice(["", "x", "ä", '"', "\ud800", "x" * 70])
    return json.dumps(identity, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


_JSON_NUMBERS = [
    *("0", "-0", "1", "-1", "1.0", "1.5", "1e3", "1E+3", "0.0", "01", "+1", "1.", ".5", "0x10"),
    *(
        "1_0",
        "NaN",
        "Infinity",
        "-",
        "9" * 30,
        "1e400",
        "-9223372036854775808",
        "-9223372036854775809",
    ),
    *(str(2**bits + by) for bits in (31, 32, 63, 64) for by in (-1, 0, 1)),
]
_JSON_VALUES = [
    *("true", "false", "null", "True", "nul", '""', '"x"', '"1000"', "[]", "{}", "[1,2]"),
    *(
        '{"a":1}',
        '"\\u00e4"',
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        '"\\x"',
        '"\n"',
        '"\t"',
        '"\x7f"',
        "'x'",
        "",
    ),
    *('"\udcff"', "[" * 30 + "]" * 30, '{"a":[{"b":null}]}', "[1,]", '{"a":1,}', "/**/1"),
]
_JSON_BODIES = [
    *("", " ", "{", "}", "{}", "[]", "[{}]", "null", "true", "1", '"x"', "{} ", " {}", "{}x"),
    *(
        "{}{}",
        "\ufeff{}",
        "\0",
        "{}\0",
        "{}\n",
        "\t{}\r\n",
        "{,}",
        '{"a"}',
        '{"a":1,}',
        "{'a':1}",
        "{a:1}",
    ),
    *('{"a":1 "b":2}', '{"":1}', "[" * 40, '{"a":' * 40 + "1" + "}" * 40),
    '{"feature_negotiation":true',
    # Each alone would start another encoding.
    '{"feature_negotiation":true,"snappy":true,"deflate":true}',
]


def _identity(random: Random) -> bytes:
    """Return the body of an IDENTIFY, valid or not."""
    match random.randrange(6):
        case 0:
            return _encoded(random.choice(_JSON_BODIES))
        case 1:
            return _valid_identity(random)
    members = ['"feature_negotiation":true'] if random.random() < 0.7 else []
    # Each key once: nsqd refuses a wrong type even if a later member of the same name replaces it.
    keys = random.sample([*_IDENTITY_NUMBERS, *_IDENTITY_TEXTS, *_IDENTITY_FLAGS], 3)
    for key in keys[: random.randrange(1, 4)]:
        between = random.choice([":", " : ", ":", ":", "\n:\t", "="])
        members.append(f"{_key(random, key)}{between}{_value(random)}")
    random.shuffle(members)
    return _encoded("{" + random.choice([",", ", ", ",", ",,"]).join(members) + "}")


def _key(random: Random, key: str) -> str:
    match random.randrange(10):
        case 0:
            key = key.upper()
        case 1:
            key = key.title()
        case 2:
            # Go folds these two letters beyond ASCII, too.
            key = key.replace("s", "\u017f").replace("k", "\u212a")
        case 3:
            key = key.replace("e", "\\u0065")
    return f'"{key}"'


def _value(random: Random) -> str:
    if random.random() < 0.5:
        low, high = random.choice(list(_IDENTITY_NUMBERS.values()))
        return str(random.choice([low - 1, low, low + 1, high - 1, high, high + 1, 0, -1, -2]))
    return random.choice(random.choice([_JSON_NUMBERS, _JSON_VALUES]))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# A channel


def _by_model(random: Random, topic: bytes) -> list[Step]:
    """Return a dialogue with a channel; a model knows how many frames each step brings."""
    unbuffered = b'{"output_buffer_size":-1}' if random.random() < 0.9 else b"{}"
    model = _ChannelModel(random, topic)
    channel = random.choice([b"c", b"c", b"c#ephemeral"])
    model.say(b"  V2" + identify(unbuffered), 1)
    model.say(b"SUB %b %b\n" % (topic, channel), 1)
    for _ in range(random.randrange(3, 12)):
        model.step()
    if random.random() < 0.7:
        model.steps.append(b"END\n")
    return model.steps


class _ChannelModel:
    """What one consumer of one channel gets: messages by the order in which they first came."""

    def __init__(self, random: Random, topic: bytes) -> None:
        self.steps: list[Step] = []
        self._random = random
        self._topic = topic
        self._queue: list[int | None] = []
        """None for a message that has never been delivered, and so has no number yet."""
        self._in_flight: list[int] = []
        self._gone: list[int] = []
        self._known = 0
        self._ready = 0
        self._is_closing = False

    def say(self, data: bytes, answers: int) -> None:
        """Send *data*, and wait for its answers and for the messages that follow from it."""
        self.steps.append(data)
        while self._queue and len(self._in_flight) < self._ready:
            number = self._queue.pop(0)
            if number is None:
                number, self._known = self._known, self._known + 1
            self._in_flight.append(number)
            answers += 1
        if answers:
            self.steps.append(answers)

    def step(self) -> None:
        """Add one step of the dialogue."""
        choices: list[Callable[[], None]] = [self._publish, self._set_ready, self._refused]
        if self._in_flight:
            choices += [self._finish, self._requeue, self._defer, self._touch]
        if self._random.random() < 0.05 and not self._is_closing:
            choices = [self._close]
        self._random.choice(choices)()

    def _publish(self) -> None:
        count = self._random.randrange(1, 4)
        self._queue += [None] * count
        bodies = [self._random.randbytes(self._random.randrange(1, 9)) for _ in range(count)]
        if count == 1:
            self.say(publish(self._topic, bodies[0]), 1)
        else:
            self.say(multi_publish(self._topic, *bodies), 1)

    def _set_ready(self) -> None:
        ready = self._random.choice([0, 1, 1, 2, 3, 10, 2_500])
        if not self._is_closing:
            self._ready = ready
        self.say(b"RDY %d\n" % ready, 0)

    def _finish(self) -> None:
        self.say(b"FIN <id-%d>\n" % self._take(), 0)

    def _requeue(self) -> None:
        number = self._take()
        self._queue.append(number)
        self.say(b"REQ <id-%d> 0\n" % number, 0)

    def _defer(self) -> None:
        delay = self._random.choice([b"60000", b"3600000", b"3600001", b"99999999999"])
        self.say(b"REQ <id-%d> %b\n" % (self._take(), delay), 0)

    def _touch(self) -> None:
        self.say(b"TOUCH <id-%d>\n" % self._random.choice(self._in_flight), 0)

    def _take(self) -> int:
        number = self._in_flight.pop(self._random.randrange(len(self._in_flight)))
        self._gone.append(number)
        return number

    def _refused(self) -> None:
        """Acknowledge what is not in flight: an error that leaves the connection open."""
        verb = self._random.choice([b"FIN %b\n", b"REQ %b 0\n", b"TOUCH %b\n"])
        gone = [number for number in self._gone if number not in self._in_flight]
        name = b"<id-%d>" % self._random.choice(gone) if gone else b"0123456789abcdef"
        self.say(verb % name, 1)

    def _close(self) -> None:
        self._is_closing = True
        self._ready = 0
        self.say(b"CLS\n", 1)


_KINDS: dict[str, Callable[[Random, bytes], list[Step]]] = {
    "grammar": _by_grammar,
    "mutation": _by_mutation,
    "model": _by_model,
}
