"""How much work a connection does at once: linear in its bytes, and in bounded steps."""

from __future__ import annotations

import pytest

from gateway.protocol.commands import (
    STEP_MESSAGES,
    Command,
    Identify,
    MultiPublish,
    Nop,
    Publish,
)
from gateway.protocol.connection import (
    Role,
    V2Connection,
)
from gateway.protocol.frames import (
    ErrorFrame,
    Message,
    encode_messages,
)
from gateway.protocol.wire import Limits
from tests.support.brokers.connected_pair import (
    CountedBytes,
    CountingBuffer,
    Cut,
    byte_by_byte,
    feed,
    in_steps,
    opened_broker,
    plain,
    whole,
)
from tests.support.brokers.nsqd_errors import ID

IDENTIFY = Identify(b"{}").encode()


# Linear time


@pytest.mark.parametrize(
    "command,step",
    [
        (MultiPublish("t", [b"x" * 1_048_576] * 4 + [b"x" * 1_048_500]), 61),
        (MultiPublish("t", [b"x"] * 30_000), 7),
        (Publish("t", b"x" * 1_048_576), 13),
        (Identify(b"x" * 5_242_880), 97),
    ],
    ids=["big-messages", "small-messages", "publish", "identify"],
)
def test_work_for_a_command_is_linear_in_its_bytes(command: Command, step: int) -> None:
    """However finely it is cut, each byte is looked at twice at most."""
    stream = command.encode()
    broker = opened_broker()
    buffer = broker._buffer = CountingBuffer()

    received = feed(broker, in_steps(stream, step))

    assert [command] == plain(received)
    assert buffer.handed_out_bytes <= 2 * len(stream)


def test_mpub_is_asked_for_at_most_twice_a_message() -> None:
    """In pieces of one byte, size and body of each message are waited for, not tried."""
    stream = MultiPublish("t", [b"x" * 100] * 500).encode()
    broker = opened_broker()
    buffer = broker._buffer = CountingBuffer()

    feed(broker, byte_by_byte(stream))

    assert buffer.times <= 2 * 500 + 4


def test_work_for_a_message_is_linear_in_its_bytes() -> None:
    """A big frame in small pieces is handed out twice at most: its head, and all of it."""
    stream = encode_messages([Message(0, 1, ID, b"x" * 1_048_576)] * 2)
    client = V2Connection(Role.CLIENT)
    buffer = client._buffer = CountingBuffer()

    feed(client, in_steps(stream, 13))

    assert (True, True) == (buffer.handed_out_bytes <= 2 * len(stream), buffer.times <= 4)


def test_many_identifies_in_one_read_are_read_in_place() -> None:
    """The data after each pause is not copied, which would take quadratic time."""
    copied_bytes: list[int] = []
    stream = CountedBytes.of(IDENTIFY * 1_000, copied_bytes)

    received = feed(opened_broker(), [stream])

    assert [Identify(b"{}")] * 1_000 == received
    assert sum(copied_bytes) <= len(stream)


# Large MPUBs

LARGE = MultiPublish("t", [b"%d" % number for number in range(2 * STEP_MESSAGES + 7)])


def steps_of(broker: V2Connection, data: bytes) -> list[list[object]]:
    steps = [plain(broker.receive_data(data))]
    while broker.is_paused:
        steps.append(plain(broker.resume()))
    return steps


@pytest.mark.parametrize("cut", [whole, byte_by_byte, lambda data: in_steps(data, 4_001)])
def test_a_large_mpub_is_the_same_in_any_pieces(cut: Cut) -> None:
    data = LARGE.encode() + Publish("t", b"behind").encode()

    received = feed(opened_broker(), cut(data))

    assert [LARGE, Publish("t", b"behind")] == plain(received)


def test_a_large_mpub_is_read_in_steps() -> None:
    """Each reads a bounded number of messages; then it pauses, that it can be stored in steps."""
    steps = steps_of(opened_broker(), LARGE.encode() + b"NOP\n")

    assert [[], [], [LARGE], [Nop()]] == steps


def test_many_mpubs_of_one_read_are_read_in_steps() -> None:
    """The number of messages counts, not the number of commands."""
    each = MultiPublish("t", [b"x"] * (STEP_MESSAGES // 2))

    steps = steps_of(opened_broker(), each.encode() * 5)

    assert [[each, each], [each, each], [each]] == steps


def test_identify_does_not_renew_the_step() -> None:
    """A client that sends IDENTIFY before each MPUB gets no more in one turn."""
    each = Identify(b"{}").encode() + MultiPublish("t", [b"x"] * STEP_MESSAGES).encode()
    broker = opened_broker()
    broker.receive_data(each * 2)

    received = broker.upgrade(None)

    assert [MultiPublish] == [type(event) for event in received]
    assert broker.is_paused


def test_an_mpub_of_one_step_does_not_pause() -> None:
    """Ordinary MPUBs are read like other commands."""
    ordinary = MultiPublish("t", [b"x"] * (STEP_MESSAGES - 1))

    steps = steps_of(opened_broker(), ordinary.encode() + b"NOP\n")

    assert [[ordinary, Nop()]] == steps


@pytest.mark.parametrize("at", [0, STEP_MESSAGES - 1, STEP_MESSAGES, 2 * STEP_MESSAGES + 6])
def test_a_large_mpub_is_refused_at_its_first_bad_message(at: int) -> None:
    """The error has nsqd's text and its number; no message of it is received."""
    head, count = b"MPUB t\n\x00\x00\xff\xff", 2 * STEP_MESSAGES + 7
    one = b"\x00\x00\x00\x01x"
    messages = one * at + b"\x00\x00\x00\x00" + one * (count - at - 1)

    received = feed(opened_broker(), [head + count.to_bytes(4, "big") + messages])

    description = f"MPUB invalid message({at}) body size 0"
    assert [ErrorFrame("E_BAD_MESSAGE", description).encode()] == plain(received)


def mpub_that_understates_its_size(last_size: int, *, at: int, count: int) -> bytes:
    """Return an MPUB of messages of 1 byte and, as the last one, message *at* of *last_size*."""
    head = b"MPUB t\n\x00\x00\x00\x08" + count.to_bytes(4, "big")
    return head + b"\x00\x00\x00\x01x" * at + last_size.to_bytes(4, "big") + b"x" * last_size


@pytest.mark.parametrize("at", [0, STEP_MESSAGES, 2 * STEP_MESSAGES + 6])
def test_the_real_bytes_of_a_large_mpub_are_limited(at: int) -> None:
    """nsqd checks only the announced size, which would allow any amount of memory."""
    count = 2 * STEP_MESSAGES + 7
    limits = Limits(max_body_size_bytes=4 + 5 * count)
    too_big = 5 * (count - at) - 4 + 1

    received = feed(
        opened_broker(limits), [mpub_that_understates_its_size(too_big, at=at, count=count)]
    )

    description = f"MPUB body too big {5 + 5 * count} > {4 + 5 * count}"
    assert [ErrorFrame("E_BAD_BODY", description).encode()] == plain(received)


def test_a_large_mpub_may_have_exactly_the_limit() -> None:
    """The count is a part of the body."""
    count = 2 * STEP_MESSAGES + 7
    limits = Limits(max_body_size_bytes=4 + 5 * count)

    received = feed(
        opened_broker(limits), [mpub_that_understates_its_size(1, at=count - 1, count=count)]
    )

    assert [MultiPublish("t", [b"x"] * count)] == plain(received)


@pytest.mark.parametrize(
    "missing_bytes,what", [(4 + 4, "message(4102) body size"), (1, "message body")]
)
def test_eof_within_a_large_mpub_has_nsqds_error(missing_bytes: int, what: str) -> None:
    broker = opened_broker()

    received = feed(broker, [LARGE.encode()[:-missing_bytes]])

    error = ErrorFrame("E_BAD_MESSAGE", f"MPUB failed to read {what}")
    assert ([], [error.encode()]) == (received, plain(broker.receive_eof()))
