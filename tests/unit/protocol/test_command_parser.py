"""Bytes of a client are read, asked for or refused as nsqd does."""

from __future__ import annotations

import pytest

from gateway.errors import RemoteProtocolError
from gateway.protocol.command_parser import CommandParser, Incomplete
from gateway.protocol.commands import (
    Auth,
    Command,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    Nop,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from gateway.protocol.frames import ErrorFrame
from gateway.protocol.states import State
from gateway.protocol.wire import Limits
from tests.support.brokers.nsqd_errors import ID, NAME_64, NSQD_ERRORS

SMALL = Limits(max_msg_size_bytes=4, max_body_size_bytes=24)
"""A message has at most 4 bytes, an MPUB 24: its count and four messages of one byte."""


def read(data: bytes, state: State = State.INIT, limits: Limits | None = None) -> Command:
    command, end = CommandParser(limits or Limits()).read(data, 0, state)
    assert len(data) == end
    return command


def refused(data: bytes, state: State = State.INIT, limits: Limits | None = None) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        read(data, state, limits)
    return str(caught.value)


def wanted(data: bytes) -> Incomplete:
    with pytest.raises(Incomplete) as caught:
        read(data)
    return caught.value


# Taken

TAKEN_IN_INIT = [
    (b"NOP\n", Nop()),
    (b"NOP\r\n", Nop()),
    (b"NOP and more\n", Nop()),
    (b"IDENTIFY\n\x00\x00\x00\x02{}", Identify(b"{}")),
    (b"IDENTIFY x\r\n\x00\x00\x00\x01\x00", Identify(b"\x00")),
    (b"AUTH\n\x00\x00\x00\x03s\n\x00", Auth(b"s\n\x00")),
    (b"SUB t c\n", Subscribe("t", "c")),
    (b"SUB t#ephemeral c#ephemeral and more\n", Subscribe("t#ephemeral", "c#ephemeral")),
    (b"SUB " + NAME_64 + b" " + NAME_64 + b"\n", Subscribe("n" * 64, "n" * 64)),
    (b"PUB t\n\x00\x00\x00\x01x", Publish("t", b"x")),
    (b"PUB t and more\n\x00\x00\x00\x02\n\x00", Publish("t", b"\n\x00")),
    (b"DPUB t 5\n\x00\x00\x00\x01x", DeferredPublish("t", 5, b"x")),
    (b"DPUB t  more\n\x00\x00\x00\x01x", DeferredPublish("t", 0, b"x")),
    (b"DPUB t 3600000\n\x00\x00\x00\x01x", DeferredPublish("t", 3_600_000, b"x")),
    (b"DPUB t 18446744073709551616\n\x00\x00\x00\x01x", DeferredPublish("t", 0, b"x")),
    (b"DPUB t 18446744073710\n\x00\x00\x00\x01x", DeferredPublish("t", 0, b"x")),
    (
        b"MPUB t\n\x00\x00\x00\x0f\x00\x00\x00\x02\x00\x00\x00\x02ab\x00\x00\x00\x01c",
        MultiPublish("t", [b"ab", b"c"]),
    ),
]
TAKEN_IN_SUBSCRIBED = [
    (b"RDY\n", Ready(1)),
    (b"RDY \n", Ready(0)),
    (b"RDY 007 more\n", Ready(7)),
    (b"RDY 0\n", Ready(0)),
    (b"RDY 2500\n", Ready(2_500)),
    (b"RDY 18446744073709551617\n", Ready(1)),
    (b"FIN 0123456789abcdef more\n", Finish(ID)),
    (b"FIN " + b"\x00\xff" * 8 + b"\n", Finish(b"\x00\xff" * 8)),
    (b"TOUCH 0123456789abcdef\n", Touch(ID)),
    (b"REQ 0123456789abcdef 0\n", Requeue(ID, 0)),
    (b"REQ 0123456789abcdef  more\n", Requeue(ID, 0)),
    (b"REQ 0123456789abcdef 3600000\n", Requeue(ID, 3_600_000)),
    (b"REQ 0123456789abcdef 3600001\n", Requeue(ID, 3_600_000)),
    (b"REQ 0123456789abcdef 9223372036854\n", Requeue(ID, 3_600_000)),
    (b"REQ 0123456789abcdef 9223372036855\n", Requeue(ID, 0)),
    (b"REQ 0123456789abcdef 18446744073709551615\n", Requeue(ID, 0)),
    (b"CLS\n", StartClose()),
    (b"CLS now\n", StartClose()),
    (b"PUB t\n\x00\x00\x00\x01x", Publish("t", b"x")),
]


@pytest.mark.parametrize("data,command", TAKEN_IN_INIT)
def test_command_is_read(data: bytes, command: Command) -> None:
    """Commands that nsqd accepts before SUB, with extra words and odd numbers, are accepted."""
    assert command == read(data)


@pytest.mark.parametrize("data,command", TAKEN_IN_SUBSCRIBED)
def test_command_of_a_subscriber_is_read(data: bytes, command: Command) -> None:
    """Commands that nsqd accepts after SUB are accepted; a long delay of REQ is shortened."""
    assert command == read(data, State.SUBSCRIBED)


@pytest.mark.parametrize("line", [b"RDY 1\n", b"RDY\n", b"RDY -1\n", b"RDY 99999 x\n"])
def test_rdy_after_cls_is_ignored(line: bytes) -> None:
    """RDY does nothing after CLS, even with an invalid count."""
    assert Nop() == read(line, State.CLOSING)


def test_next_command_starts_after_the_last() -> None:
    """A reader is told where to begin, and says where it ended."""
    data = b"NOP\nPUB t\n\x00\x00\x00\x01xNOP\n"
    parser = CommandParser(Limits())

    command, end = parser.read(data, 4, State.INIT)

    assert (Publish("t", b"x"), b"NOP\n") == (command, data[end:])


# Refused


def test_invalid_commands_have_nsqds_errors() -> None:
    """Each has the code and the text of nsqd."""
    for error in [row for row in NSQD_ERRORS if not row.at_eof]:
        with pytest.raises(RemoteProtocolError) as caught:
            read(error.data, error.state)

        assert error.frame == ErrorFrame(caught.value.code, caught.value.description).encode()


def test_incomplete_commands_know_nsqds_error_at_the_end_of_the_stream() -> None:
    """Each has the text of nsqd."""
    for error in [row for row in NSQD_ERRORS if row.at_eof]:
        with pytest.raises(Incomplete) as caught:
            read(error.data, error.state)

        assert error.text == str(caught.value.error_at_eof)


def test_longest_line_is_read() -> None:
    """A line of 16 384 bytes, its newline included, is taken."""
    assert Nop() == read(b"NOP " + b"x" * 16_379 + b"\n")


@pytest.mark.parametrize("end", [b"\n", b"", b"x" * 100])
def test_longer_line_has_no_error_frame(end: bytes) -> None:
    """A line of 16 385 bytes, or one that will be, ends the connection without a word."""
    with pytest.raises(RemoteProtocolError) as caught:
        read(b"NOP " + b"x" * 16_380 + end)

    assert "" == caught.value.code


@pytest.mark.parametrize("verb,line", [("PUB", b"PUB t\n"), ("DPUB", b"DPUB t 0\n")])
def test_message_of_the_limit_is_read(verb: str, line: bytes) -> None:
    """The longest message has max_msg_size bytes, one more is refused."""
    too_big = refused(line + b"\x00\x00\x00\x05xxxxx", limits=SMALL)
    command = read(line + b"\x00\x00\x00\x04xxxx", limits=SMALL)

    assert isinstance(command, Publish | DeferredPublish)
    assert (b"xxxx", f"E_BAD_MESSAGE {verb} message too big 5 > 4") == (command.body, too_big)


@pytest.mark.parametrize("verb,line", [("IDENTIFY", b"IDENTIFY\n"), ("AUTH", b"AUTH\n")])
def test_body_of_the_limit_is_read(verb: str, line: bytes) -> None:
    """The longest body has max_body_size bytes, one more is refused."""
    too_big = refused(line + b"\x00\x00\x00\x19" + b"x" * 25, limits=SMALL)
    command = read(line + b"\x00\x00\x00\x18" + b"x" * 24, limits=SMALL)

    assert command in (Identify(b"x" * 24), Auth(b"x" * 24))
    assert f"E_BAD_BODY {verb} body too big 25 > 24" == too_big


# MPUB

ONE, TWO, THREE, FOUR = (bytes([0, 0, 0, number]) for number in (1, 2, 3, 4))


def test_mpub_of_the_limit_is_read() -> None:
    """The longest MPUB brings max_body_size bytes, its count and all sizes included."""
    data = b"MPUB t\n\x00\x00\x00\x18" + THREE + FOUR + b"abcd" + THREE + b"efg" + ONE + b"h"

    assert MultiPublish("t", [b"abcd", b"efg", b"h"]) == read(data, limits=SMALL)


def test_mpub_with_more_bytes_than_the_limit_is_refused() -> None:
    """The announced size does not bound what comes, so what comes is bounded itself."""
    data = b"MPUB t\n" + ONE + THREE + FOUR + b"abcd" + THREE + b"efg" + TWO

    assert "E_BAD_BODY MPUB body too big 25 > 24" == refused(data, limits=SMALL)


def test_mpub_announces_no_more_than_its_limit() -> None:
    """An outer size of one byte too much is refused before anything else is read."""
    assert "E_BAD_BODY MPUB body too big 25 > 24" == refused(
        b"MPUB t\n\x00\x00\x00\x19", limits=SMALL
    )


def test_mpub_message_one_byte_too_long_is_refused() -> None:
    data = b"MPUB t\n" + ONE + ONE + b"\x00\x00\x00\x05"

    assert "E_BAD_MESSAGE MPUB message too big 5 > 4" == refused(data, limits=SMALL)


def test_mpub_may_announce_as_many_messages_as_fit() -> None:
    """24 bytes hold a count and four messages of one byte."""
    data = b"MPUB t\n\x00\x00\x00\x18" + FOUR + (ONE + b"x") * 4

    assert MultiPublish("t", [b"x"] * 4) == read(data, limits=SMALL)


def test_mpub_that_counts_more_than_fit_is_refused() -> None:
    """24 bytes do not hold five messages, whatever their sizes."""
    data = b"MPUB t\n\x00\x00\x00\x18\x00\x00\x00\x05"

    assert "E_BAD_BODY MPUB invalid message count 5" == refused(data, limits=SMALL)


@pytest.mark.parametrize("size", [1, 9, 13, 14, 5_242_880])
def test_wrong_outer_size_of_mpub_is_not_noticed(size: int) -> None:
    """nsqd follows the count: an announced size within its limits says nothing."""
    data = b"MPUB t\n" + size.to_bytes(4, "big") + TWO + ONE + b"a" + ONE + b"b"

    assert MultiPublish("t", [b"a", b"b"]) == read(data)


def test_mpub_with_a_count_too_low_leaves_its_rest_to_the_next_line() -> None:
    """Bytes after the counted messages are read as a command."""
    data = b"MPUB t\n\x00\x00\x00\x0e" + ONE + ONE + b"a" + ONE + b"b"
    parser = CommandParser(Limits())

    command, end = parser.read(data, 0, State.INIT)

    assert (MultiPublish("t", [b"a"]), ONE + b"b") == (command, data[end:])


def test_mpub_continues_where_it_was_cut() -> None:
    """Messages that came are not read again: only the missing one is asked for."""
    parser = CommandParser(Limits())
    with pytest.raises(Incomplete) as caught:
        parser.read(b"MPUB t\n\x00\x00\x00\x0e" + TWO + ONE + b"a" + ONE, 0, State.INIT)

    command, end = parser.read(ONE + b"b" + b"NOP\n", 0, State.INIT)

    assert (20, 5) == (caught.value.offset, caught.value.wanted_bytes)
    assert (MultiPublish("t", [b"a", b"b"]), 5) == (command, end)


# Incomplete


@pytest.mark.parametrize(
    "data,wanted_bytes",
    [
        (b"", 16_384),
        (b"PUB t", 16_384),
        (b"PUB t\n", 10),
        (b"PUB t\n\x00\x00\x00", 10),
        (b"PUB t\n\x00\x00\x00\x05", 15),
        (b"PUB t\n\x00\x00\x00\x05abcd", 15),
        (b"MPUB t\n\x00\x00\x00\x0e", 15),
        (b"IDENTIFY\n\x00\x00\x00\x05{", 18),
    ],
)
def test_incomplete_command_says_how_many_bytes_it_needs(data: bytes, wanted_bytes: int) -> None:
    """A line may be as long as it can be; after it the needed bytes are known."""
    missing = wanted(data)

    assert (0, wanted_bytes) == (missing.offset, missing.wanted_bytes)


def test_incomplete_line_is_no_violation() -> None:
    """When nothing more comes after half a line, nsqd says nothing."""
    assert wanted(b"PUB").error_at_eof is None
