"""The broker's side of a compressed connection: bounded steps, and the commands that were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.commands import (
    Command,
    DeferredPublish,
    Identify,
    MultiPublish,
    MultiPublishStart,
    Nop,
    PackedBodies,
    Publish,
)
from gateway.protocol.compression import DeflateCodec, SnappyCodec
from gateway.protocol.connection import (
    MAX_STEP_BYTES,
    Codec,
    Event,
    Role,
    V2Connection,
    ViolationReceived,
)

CODECS: dict[str, Callable[[], Codec]] = {"snappy": SnappyCodec, "deflate": lambda: DeflateCodec(1)}
LAYERS = pytest.mark.parametrize("new", CODECS.values(), ids=CODECS)

COMMANDS: dict[str, Command] = {
    "PUB, short": Publish("t", b"x"),
    "PUB, longer than a step": Publish("t", bytes(range(256)) * 300),
    "DPUB": DeferredPublish("t", 5, b"later"),
    "MPUB, small": MultiPublish("t", [b"x" * size for size in range(1, 20)]),
    "MPUB, stored in steps": MultiPublish("t", [b"x" * 20] * 5_000),
    "IDENTIFY": Identify(b"{}"),
    "NOP": Nop(),
}


def connected(new: Callable[[], Codec], *, announces_mpub: bool = False) -> V2Connection:
    """Return the broker's side of a connection after its upgrade."""
    broker = V2Connection(Role.BROKER, announces_mpub=announces_mpub)
    broker.receive_data(b"  V2" + Identify(b"{}").encode())
    broker.upgrade(new())
    return broker


def steps(broker: V2Connection, data: bytes) -> Iterator[list[Event]]:
    """Yield the events of *data*, a list for each step."""
    yield broker.receive_data(data)
    while broker.is_paused:
        yield broker.resume()


def as_sent(event: Event) -> object:
    """Return *event* with its bodies as a list."""
    if isinstance(event, MultiPublish):
        bodies = event.bodies
        whole = b"".join(bodies.chunks) if isinstance(bodies, PackedBodies) else None
        return (
            "MPUB",
            len(bodies),
            whole or b"".join(len(body).to_bytes(4, "big") + body for body in bodies),
        )
    return event


@LAYERS
@given(
    names=st.lists(st.sampled_from(list(COMMANDS)), max_size=12),
    cuts=st.lists(st.integers(0, 1_000_000), max_size=8),
    announces_mpub=st.booleans(),
)
def test_commands_are_those_that_were_sent(
    new: Callable[[], Codec], names: list[str], cuts: list[int], *, announces_mpub: bool
) -> None:
    """However the stream is cut, and however often the broker pauses."""
    client, broker = new(), connected(new, announces_mpub=announces_mpub)
    commands = [COMMANDS[name] for name in names]
    encoded = b"".join(client.encode(command.encode()) for command in commands)
    places = sorted({0, len(encoded), *(cut % (len(encoded) + 1) for cut in cuts)})

    events = [
        event
        for start, end in pairwise(places)
        for step in steps(broker, encoded[start:end])
        for event in step
    ]

    started = [event for event in events if isinstance(event, MultiPublishStart)]
    rest = [as_sent(event) for event in events if not isinstance(event, MultiPublishStart)]
    assert list(map(as_sent, commands)) == rest
    mpubs = sum(isinstance(command, MultiPublish) for command in commands)
    assert (mpubs if announces_mpub else 0) == len(started)


@LAYERS
def test_a_step_executes_no_more_than_a_piece(new: Callable[[], Codec]) -> None:
    """A read that becomes megabytes of commands takes as many turns as these bytes need."""
    count = 4 * MAX_STEP_BYTES
    encoded = new().encode(Nop().encode() * count)

    sizes = [len(step) for step in steps(connected(new), encoded)]

    nops_per_step = MAX_STEP_BYTES // len(Nop().encode())
    assert (count, True) == (sum(sizes), max(sizes) <= 2 * nops_per_step)


@LAYERS
def test_a_command_may_be_longer_than_a_step(new: Callable[[], Codec]) -> None:
    command = Publish("t", b"x" * (10 * MAX_STEP_BYTES))

    encoded = new().encode(command.encode() + b"NOP\n")

    events = list(chain.from_iterable(steps(connected(new), encoded)))

    assert [command, Nop()] == events


@LAYERS
@pytest.mark.parametrize(
    "command, error",
    [
        (b"NOP\n", ""),
        (b"NO", ""),
        (b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\x00\x00\x00\x09x", "E_BAD_MESSAGE PUB failed to read message body"),
        (b"MPUB t\n\x00\x00\x00\x09\x00", "E_BAD_BODY MPUB failed to read message count"),
    ],
)
def test_what_cannot_be_decoded_is_a_read_that_failed(
    new: Callable[[], Codec], command: bytes, error: str
) -> None:
    """Within a command it has nsqd's error, between commands none."""
    client, broker = new(), connected(new)
    events = broker.receive_data(client.encode(command))
    events += broker.receive_data(b"\xff\xff\xff\xff" * 4)

    (violation,) = (event for event in events if isinstance(event, ViolationReceived))
    code, _, description = error.partition(" ")
    assert code == violation.error.code
    assert not code or description == violation.error.description


@pytest.mark.parametrize("announces_mpub", [False, True])
def test_a_body_of_mpub_may_come_byte_by_byte(*, announces_mpub: bool) -> None:
    broker = V2Connection(Role.BROKER, announces_mpub=announces_mpub)
    sent = MultiPublish("t", [b"a", b"bc"])
    events: list[Event] = []
    for byte in b"  V2" + sent.encode() + b"NOP\n":
        events += broker.receive_data(bytes([byte]))
        while broker.is_paused:
            events += broker.resume()

    assert [MultiPublishStart("t")] * announces_mpub + [sent, Nop()] == events
