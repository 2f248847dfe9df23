"""RFC 6455 §5, over TCP: frames, fragments, control frames, and sizes at every boundary."""

from __future__ import annotations

import random

import pytest

from tests.support.websocket.echo_handler import MAX_FRAME_BYTES
from tests.support.websocket.frames import (
    FIN,
    RSV1,
    RSV2,
    RSV3,
    Closed,
    read_closed,
    send_separately,
    wire_frame,
)
from tests.support.websocket.raw_socket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawWebSocket,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROBE = wire_frame(FIN | TEXT, b"probe")
ALIVE = (TEXT, b"probe")


# §5.2, sizes


@pytest.mark.parametrize("size_bytes", [0, 1, 124, 125, 126, 127, 128, 65_534, 65_535, 65_536])
async def test_a_text_of_any_size_is_one_frame_each_way(raw: RawWebSocket, size_bytes: int) -> None:
    """§5.2: sizes have 7, 16 or 64 bits; both sides of each boundary are tested."""
    text = b"x" * size_bytes

    await raw.send(wire_frame(FIN | TEXT, text))

    assert (TEXT, text) == await raw.read_frame()


@pytest.mark.parametrize(
    "size_bytes, head",
    [(125, b"\x81\x7d"), (126, b"\x81\x7e\x00\x7e"), (65_536, b"\x81\x7f" + (1 << 16).to_bytes(8))],
)
async def test_an_answer_tells_its_size_in_as_few_bytes_as_it_needs(
    raw: RawWebSocket, size_bytes: int, head: bytes
) -> None:
    """§5.2: the minimal number of bytes; and a server's frames are not masked (§5.1)."""
    await raw.send(wire_frame(FIN | TEXT, b"x" * size_bytes))

    assert head == await raw.read_exactly(len(head))


@pytest.mark.parametrize("size_bytes", [MAX_FRAME_BYTES - 1, MAX_FRAME_BYTES])
async def test_a_text_up_to_the_limit_is_taken(raw: RawWebSocket, size_bytes: int) -> None:
    """The bound is on what a message has; one that is exactly as long is right."""
    await raw.send(wire_frame(FIN | TEXT, b"x" * size_bytes))

    assert size_bytes == len((await raw.read_frame())[1])


@pytest.mark.parametrize("sent_bytes", [0, 1, 200_000])
async def test_a_text_above_the_limit_is_1009_once_its_size_is_known(
    raw: RawWebSocket, sent_bytes: int
) -> None:
    """§7.4.1: without waiting for its bytes; bytes that follow hide no close frame."""
    frame = wire_frame(FIN | TEXT, bytes(MAX_FRAME_BYTES + 1))
    await raw.send(frame[: 14 + sent_bytes])

    assert Closed(1009, [], b"") == await read_closed(raw)


async def test_a_size_that_nothing_has_is_1009(raw: RawWebSocket) -> None:
    """§5.2: the highest bit of 64 is never set; that many bytes are not waited for."""
    await raw.send(bytes((FIN | TEXT, 0xFF)) + b"\xff" * 8 + bytes(4))

    assert Closed(1009, [], b"") == await read_closed(raw)


@pytest.mark.parametrize(
    "size_bytes, width", [(0, 2), (1, 2), (125, 2), (0, 8), (125, 8), (126, 8), (65_535, 8)]
)
async def test_a_size_in_more_bytes_than_it_needs_is_1002(
    raw: RawWebSocket, size_bytes: int, width: int
) -> None:
    """§5.2: the minimal number of bytes must be used; two spellings of one size hide things."""
    await raw.send(wire_frame(FIN | TEXT, b"x" * size_bytes, width=width))

    assert Closed(1002, [], b"") == await read_closed(raw)


# §5.1 and §5.2, bits


@pytest.mark.parametrize("opcode", [TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG])
@pytest.mark.parametrize("payload", [b"", b"hi", b"x" * 70_000], ids=["none", "short", "long"])
async def test_a_frame_without_a_mask_is_1002(
    raw: RawWebSocket, opcode: int, payload: bytes
) -> None:
    """§5.1: a server must close the connection upon a frame that is not masked."""
    await raw.send(wire_frame(FIN | opcode, payload, mask=None, width=None))

    assert Closed(1002, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("mask", [bytes(4), b"\xff\xff\xff\xff", b"\x00\x00\x00\x01"])
async def test_any_mask_is_a_mask(raw: RawWebSocket, mask: bytes) -> None:
    """§5.3: the key may have any value, zeros as well."""
    await raw.send(wire_frame(FIN | TEXT, b"masked", mask=mask))

    assert (TEXT, b"masked") == await raw.read_frame()


@pytest.mark.parametrize("bits", [RSV1, RSV2, RSV3, RSV1 | RSV2 | RSV3])
@pytest.mark.parametrize("opcode", [TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG])
async def test_a_reserved_bit_is_1002(raw: RawWebSocket, bits: int, opcode: int) -> None:
    """§5.2: it means nothing without an extension, and none is ever agreed on."""
    await raw.send(wire_frame(FIN | bits | opcode))

    assert Closed(1002, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF])
@pytest.mark.parametrize("payload", [b"", b"payload"], ids=["empty", "full"])
async def test_a_reserved_opcode_is_1002(raw: RawWebSocket, opcode: int, payload: bytes) -> None:
    """§5.2: an unknown opcode fails the connection."""
    await raw.send(wire_frame(FIN | opcode, payload))

    assert Closed(1002, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("payload", [b"", b"\x00\xff", b"x" * 70_000], ids=["0", "2", "70000"])
async def test_a_binary_message_is_1003(raw: RawWebSocket, payload: bytes) -> None:
    """§7.4.1: a kind of data that is not taken here."""
    await raw.send(wire_frame(FIN | BINARY, payload))

    assert Closed(1003, [], b"") == await read_closed(raw)


async def test_messages_before_an_invalid_frame_are_answered(raw: RawWebSocket) -> None:
    """§7.1.7: what is wrong is the frame that is wrong, though both came in one read."""
    await raw.send(PROBE + wire_frame(FIN | TEXT | RSV1, b"wrong") + PROBE)

    assert Closed(1002, [ALIVE], b"") == await read_closed(raw)


# §5.4, fragments


@pytest.mark.parametrize(
    "parts",
    [
        [b"ab", b"cd"],
        [b"", b"abcd"],
        [b"abcd", b""],
        [b"", b"", b""],
        [b"a", b"", b"b", b"", b"c"],
        [b"x" * 200, b"y" * 200],
        [b"x" * 30_000, b"y" * 30_000, b"z" * 40_000],
        [b"x" * 70_000, b"y"],
        [b"x", b"y" * 70_000],
    ],
    ids=lambda parts: "+".join(str(len(part)) for part in parts),
)
async def test_a_text_in_fragments_is_one_message(raw: RawWebSocket, parts: list[bytes]) -> None:
    """§5.4: wherever it is cut, fragments of no bytes included."""
    await raw.send(fragments(parts) + PROBE)

    assert [(TEXT, b"".join(parts)), ALIVE] == [await raw.read_frame() for _ in range(2)]


@pytest.mark.parametrize("control", [PING, PONG])
@pytest.mark.parametrize("payload", [b"", b"p" * 125], ids=["0", "125"])
async def test_control_frames_may_come_between_fragments(
    raw: RawWebSocket, control: int, payload: bytes
) -> None:
    """§5.4: they may be injected, and are answered at once."""
    between = wire_frame(FIN | control, payload)
    await raw.send(
        wire_frame(TEXT, b"a")
        + between
        + wire_frame(CONTINUATION, b"b")
        + between
        + wire_frame(FIN | CONTINUATION, b"c")
    )

    pongs = [(PONG, payload)] * 2 if control == PING else []
    assert [*pongs, (TEXT, b"abc")] == [await raw.read_frame() for _ in range(len(pongs) + 1)]


async def test_a_ping_between_fragments_does_not_count_in_their_size(raw: RawWebSocket) -> None:
    """§5.4: it is no part of the message, which may be at its limit."""
    whole = b"x" * MAX_FRAME_BYTES
    await raw.send(
        wire_frame(TEXT, whole) + wire_frame(FIN | PING, b"p") + wire_frame(FIN | CONTINUATION)
    )

    assert [(PONG, b"p"), (TEXT, whole)] == [await raw.read_frame() for _ in range(2)]


@pytest.mark.parametrize("last", [TEXT, BINARY])
@pytest.mark.parametrize("is_final", [True, False])
async def test_a_new_message_between_fragments_is_1002(
    raw: RawWebSocket,
    last: int,
    is_final: bool,  # noqa: FBT001
) -> None:
    """§5.4: the fragments of one message are not interleaved with those of another."""
    await raw.send(wire_frame(TEXT, b"a") + wire_frame((FIN if is_final else 0) | last, b"b"))

    assert Closed(1002, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("first", [CONTINUATION, FIN | CONTINUATION])
@pytest.mark.parametrize("before", [b"", PROBE], ids=["first", "behind a text"])
async def test_a_continuation_of_nothing_is_1002(
    raw: RawWebSocket, first: int, before: bytes
) -> None:
    """§5.4: there has to be a message that goes on."""
    await raw.send(before + wire_frame(first, b"b"))

    assert Closed(1002, [ALIVE] if before else [], b"") == await read_closed(raw)


@pytest.mark.parametrize("over", [0, 1])
async def test_fragments_are_bounded_in_all(raw: RawWebSocket, over: int) -> None:
    """§10.4: the limit is on the message, after it has been put together."""
    half = MAX_FRAME_BYTES // 2
    await raw.send(fragments([b"x" * half, b"x" * (half + over)]))

    if over:
        assert Closed(1009, [], b"") == await read_closed(raw)
    else:
        assert MAX_FRAME_BYTES == len((await raw.read_frame())[1])


async def test_fragments_without_bytes_do_not_go_on_for_ever(raw: RawWebSocket) -> None:
    """§10.4: 4096 of them are a message, one more is 1009."""
    await raw.send(fragments([b""] * 4_096))
    assert (TEXT, b"") == await raw.read_frame()

    await raw.send(fragments([b""] * 4_097))
    assert Closed(1009, [], b"") == await read_closed(raw)


# §5.5, control frames


@pytest.mark.parametrize("payload", [b"", b"\x00\xff\x80", b"x" * 125], ids=["0", "3", "125"])
async def test_a_pong_has_the_payload_of_its_ping(raw: RawWebSocket, payload: bytes) -> None:
    """§5.5.3: the same application data, text or not."""
    await raw.send(wire_frame(FIN | PING, payload))

    assert (PONG, payload) == await raw.read_frame()


@pytest.mark.parametrize("opcode", [CLOSE, PING, PONG])
@pytest.mark.parametrize("size_bytes", [126, 65_536])
async def test_a_control_frame_above_125_bytes_is_1002(
    raw: RawWebSocket, opcode: int, size_bytes: int
) -> None:
    """§5.5: all control frames have 125 bytes or less."""
    await raw.send(wire_frame(FIN | opcode, b"\x03\xe8" + b"x" * (size_bytes - 2)))

    assert Closed(1002, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("opcode", [CLOSE, PING, PONG])
async def test_a_control_frame_in_fragments_is_1002(raw: RawWebSocket, opcode: int) -> None:
    """§5.5: they must not be fragmented."""
    await raw.send(wire_frame(opcode) + wire_frame(FIN | CONTINUATION))

    assert Closed(1002, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("payload", [b"", b"unasked", b"x" * 125], ids=["0", "7", "125"])
async def test_an_unsolicited_pong_is_ignored(raw: RawWebSocket, payload: bytes) -> None:
    """§5.5.3: a heartbeat in one direction; no answer is expected."""
    await raw.send(wire_frame(FIN | PONG, payload) + PROBE)

    assert ALIVE == await raw.read_frame()


# Wherever the stream is cut

STREAM = (
    wire_frame(FIN | TEXT, b"one")
    + wire_frame(FIN | PING, b"two")
    + wire_frame(TEXT, b"th")
    + wire_frame(FIN | PONG, b"-")
    + wire_frame(FIN | PING)
    + wire_frame(CONTINUATION, b"re")
    + wire_frame(FIN | CONTINUATION, b"e" * 130)
    + wire_frame(FIN | TEXT, b"four" * 100)
    + wire_frame(FIN | TEXT, "fünf €".encode())
    + wire_frame(FIN | CLOSE, b"\x03\xe8six")
)
SAID = Closed(
    1000,
    [
        (TEXT, b"one"),
        (PONG, b"two"),
        (PONG, b""),
        (TEXT, b"thre" + b"e" * 130),
        (TEXT, b"four" * 100),
        (TEXT, "fünf €".encode()),
    ],
    b"",
)


@pytest.mark.parametrize("at", range(1, len(STREAM), 7))
async def test_a_stream_that_is_cut_once_is_read_the_same(raw: RawWebSocket, at: int) -> None:
    """§5.2: a frame has no relation to what TCP delivers at a time."""
    await send_separately(raw, [STREAM[:at], STREAM[at:]])

    assert SAID == await read_closed(raw)


async def test_a_stream_that_comes_byte_by_byte_is_read_the_same(raw: RawWebSocket) -> None:
    """§5.2: and a slow peer may cut it at every byte."""
    await send_separately(raw, [STREAM[at : at + 1] for at in range(len(STREAM))])

    assert SAID == await read_closed(raw)


@pytest.mark.parametrize("seed", range(20))
async def test_a_stream_that_is_cut_at_random_is_read_the_same(
    raw: RawWebSocket, seed: int
) -> None:
    """§5.2: in several places at once."""
    cuts = sorted(random.Random(seed).sample(range(1, len(STREAM)), 12))
    ends = zip([0, *cuts], [*cuts, len(STREAM)], strict=True)

    await send_separately(raw, [STREAM[start:end] for start, end in ends])

    assert SAID == await read_closed(raw)


@pytest.mark.parametrize("size_bytes", [5_000, 90_000])
async def test_a_long_frame_may_come_in_small_pieces(raw: RawWebSocket, size_bytes: int) -> None:
    """§5.2: and what follows it in the same piece is another frame."""
    stream = wire_frame(FIN | TEXT, b"x" * size_bytes) + PROBE
    await send_separately(raw, [stream[at : at + 997] for at in range(0, len(stream), 997)])

    assert size_bytes == len((await raw.read_frame())[1])
    assert ALIVE == await raw.read_frame()


async def test_many_frames_in_one_piece_are_all_taken(raw: RawWebSocket) -> None:
    """§5.2: more than are taken in one turn, in their order."""
    texts = [b"%d" % number for number in range(5_000)]
    await raw.send(b"".join(wire_frame(FIN | TEXT, text) for text in texts))

    assert [(TEXT, text) for text in texts] == [await raw.read_frame() for _ in texts]


def fragments(parts: list[bytes]) -> bytes:
    """Return one text message of these *parts*, a frame each."""
    last = len(parts) - 1
    return b"".join(
        wire_frame((FIN if at == last else 0) | (TEXT if at == 0 else CONTINUATION), part)
        for at, part in enumerate(parts)
    )
