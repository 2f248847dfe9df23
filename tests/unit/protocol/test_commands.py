"""Commands have the bytes of the specification."""

from __future__ import annotations

import pytest

from gateway.errors import LocalProtocolError
from gateway.protocol import commands
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
    encode_finishes,
)

ID = b"0123456789abcdef"


@pytest.mark.parametrize(
    "command,data",
    [
        (Identify(b"{}"), b"IDENTIFY\n\x00\x00\x00\x02{}"),
        (Auth(b"secret"), b"AUTH\n\x00\x00\x00\x06secret"),
        (Subscribe("t", "c#ephemeral"), b"SUB t c#ephemeral\n"),
        (Publish("t", b"a\nb\x00"), b"PUB t\n\x00\x00\x00\x04a\nb\x00"),
        (DeferredPublish("t", 5_000, b"a"), b"DPUB t 5000\n\x00\x00\x00\x01a"),
        (
            MultiPublish("t", [b"ab", b"c"]),
            b"MPUB t\n\x00\x00\x00\x0f\x00\x00\x00\x02\x00\x00\x00\x02ab\x00\x00\x00\x01c",
        ),
        (Ready(0), b"RDY 0\n"),
        (Ready(2_500), b"RDY 2500\n"),
        (Finish(ID), b"FIN 0123456789abcdef\n"),
        (Requeue(ID, 90_000), b"REQ 0123456789abcdef 90000\n"),
        (Touch(ID), b"TOUCH 0123456789abcdef\n"),
        (StartClose(), b"CLS\n"),
        (Nop(), b"NOP\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_command_has_its_bytes(command: Command, data: bytes) -> None:
    """A line, and after it the sizes and bodies of those that have one."""
    assert data == command.encode()


def test_finishes_are_one_line_each() -> None:
    """Many ids are the FIN lines of each, without anything between."""
    ids = [ID, b"fedcba9876543210"]

    assert b"".join(Finish(id_).encode() for id_ in ids) == encode_finishes(ids)


def test_secret_is_not_shown() -> None:
    """The repr of AUTH does not contain its secret."""
    assert "Auth(secret=\u2026)" == repr(Auth(b"secret"))


@pytest.mark.parametrize(
    "command",
    [
        Subscribe("t", "c\nPUB u"),
        Subscribe("t\n", "c"),
        Publish("t\nPUB u", b"a"),
        DeferredPublish("t\n", 1, b"a"),
        MultiPublish("t\nPUB u", [b"a"]),
    ],
)
def test_no_line_break_in_a_name_reaches_the_wire(command: Command) -> None:
    """It would be a second command."""
    with pytest.raises(LocalProtocolError, match="line break"):
        command.encode()


def test_the_cache_of_packed_sizes_is_bounded() -> None:
    sizes = commands._PackedSizes()

    packed = [sizes[size_bytes] for size_bytes in range(5_000)]

    assert [size_bytes.to_bytes(4, "big") for size_bytes in range(5_000)] == packed
    assert 4_096 == len(sizes)


def test_an_mpub_is_the_same_packed_joined_or_as_a_list() -> None:
    packed = commands.PackedBodies([commands.pack_bodies([b"ab", b"c"])], 2)

    joined = commands.join_bodies([packed, [b"def"]])

    expected = MultiPublish("t", [b"ab", b"c", b"def"]).encode()
    assert (3, expected) == (len(joined), MultiPublish("t", joined).encode())
