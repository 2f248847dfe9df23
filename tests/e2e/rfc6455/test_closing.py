"""RFC 6455 §5.5.1 and §7, over TCP: the close handshake from both sides, valid and invalid."""

from __future__ import annotations

import pytest

from tests.support.websocket.echo_handler import EchoHandler, EchoUpgradeHandler
from tests.support.websocket.frames import (
    FIN,
    Closed,
    close_payload,
    read_closed,
    send_separately,
    wire_frame,
)
from tests.support.websocket.raw_socket import (
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    RawWebSocket,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAIT_S = 60.0


@pytest.fixture
def handler(raw: RawWebSocket, gate: EchoUpgradeHandler) -> EchoHandler:
    del raw
    return gate.handlers[-1]


async def codes(handler: EchoHandler) -> list[int]:
    await handler.gone.wait()
    return handler.codes


# By the client


@pytest.mark.parametrize(
    "code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 3000, 3999, 4000, 4999]
)
@pytest.mark.parametrize("reason", [b"", b"bye", "schö".encode() * 24], ids=["0", "3", "120"])
async def test_a_close_is_answered_with_its_code(
    raw: RawWebSocket, handler: EchoHandler, code: int, reason: bytes
) -> None:
    """§5.5.1: the answer echoes it, and the server closes the connection (§7.1.1)."""
    await raw.send(wire_frame(FIN | CLOSE, close_payload(code, reason)))

    assert Closed(code, [], b"") == await read_closed(raw)
    assert [code] == await codes(handler)


async def test_a_close_without_a_code_is_answered_without_one(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§7.1.5: it is known as 1005, which never goes over the wire."""
    await raw.send(wire_frame(FIN | CLOSE))

    assert Closed(1005, [], b"") == await read_closed(raw)
    assert [1005] == await codes(handler)


@pytest.mark.parametrize(
    "code",
    [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 1999, 2000, 2999, 5000, 9999, 65_535],
)
async def test_a_close_with_a_code_that_is_none_is_1002(
    raw: RawWebSocket, handler: EchoHandler, code: int
) -> None:
    """§7.4: reserved, not assigned, or never to be on the wire."""
    await raw.send(wire_frame(FIN | CLOSE, close_payload(code)))

    assert Closed(1002, [], b"") == await read_closed(raw)
    assert [1002] == await codes(handler)


async def test_half_a_code_is_1002(raw: RawWebSocket, handler: EchoHandler) -> None:
    """§5.5.1: a body is at least two bytes."""
    await raw.send(wire_frame(FIN | CLOSE, b"\x03"))

    assert Closed(1002, [], b"") == await read_closed(raw)
    assert [1002] == await codes(handler)


@pytest.mark.parametrize("reason", [b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\xaf"])
async def test_a_reason_that_is_not_utf_8_is_1007(
    raw: RawWebSocket, handler: EchoHandler, reason: bytes
) -> None:
    """§5.5.1 and §8.1: the reason is text."""
    await raw.send(wire_frame(FIN | CLOSE, close_payload(1000, reason)))

    assert Closed(1007, [], b"") == await read_closed(raw)
    assert [1007] == await codes(handler)


@pytest.mark.parametrize("size_bytes", [123, 124])
async def test_a_reason_has_at_most_123_bytes(raw: RawWebSocket, size_bytes: int) -> None:
    """§5.5: with the code they are the 125 of a control frame."""
    await raw.send(wire_frame(FIN | CLOSE, close_payload(1000, b"x" * size_bytes)))

    assert (1000 if size_bytes == 123 else 1002) == (await read_closed(raw)).code


async def test_a_close_between_fragments_is_a_close(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§5.4: a control frame may come there; what there is of the message is thrown away."""
    await raw.send(wire_frame(TEXT, b"half") + wire_frame(FIN | CLOSE, close_payload(1001)))

    assert Closed(1001, [], b"") == await read_closed(raw)
    assert ([1001], []) == (await codes(handler), handler.heard)


@pytest.mark.parametrize(
    "behind",
    [
        wire_frame(FIN | TEXT, b"late"),
        wire_frame(FIN | PING, b"late"),
        wire_frame(FIN | CLOSE, close_payload(1001)),
        wire_frame(FIN | CONTINUATION, b"late"),
        b"garbage\x00\xff" * 100,
        bytes(300_000),
    ],
    ids=["text", "ping", "close", "continuation", "garbage", "much"],
)
@pytest.mark.parametrize("is_apart", [True, False], ids=["apart", "together"])
async def test_data_after_a_close_frame_is_discarded(
    raw: RawWebSocket,
    handler: EchoHandler,
    behind: bytes,
    is_apart: bool,  # noqa: FBT001
) -> None:
    """§1.4 and §5.5.1: and it does not keep the client from reading the answer."""
    close = wire_frame(FIN | CLOSE, close_payload(1000))
    pieces = [close, behind] if is_apart else [close + behind]
    await send_separately(raw, pieces)

    assert Closed(1000, [], b"") == await read_closed(raw)
    assert ([1000], []) == (await codes(handler), handler.heard)


async def test_messages_before_a_close_frame_are_processed(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§5.5.1: the answer is behind the answers to it."""
    await raw.send(wire_frame(FIN | TEXT, b"last") + wire_frame(FIN | CLOSE, close_payload(1000)))

    assert Closed(1000, [(TEXT, b"last")], b"") == await read_closed(raw)
    assert [1000] == await codes(handler)


@pytest.mark.parametrize("cut", range(1, 12))
async def test_a_close_frame_in_two_segments_is_a_close(raw: RawWebSocket, cut: int) -> None:
    """§5.2: wherever TCP cuts it."""
    frame = wire_frame(FIN | CLOSE, close_payload(4321, b"cut!"))

    await send_separately(raw, [frame[:cut], frame[cut:]])

    assert Closed(4321, [], b"") == await read_closed(raw)


# Without a close frame


async def test_a_half_close_without_a_close_frame_is_1006(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§7.1.5: 1006, known to this side only: nothing is sent."""
    raw.end()

    assert Closed(1006, [], b"") == await read_closed(raw)
    assert [1006] == await codes(handler)


@pytest.mark.parametrize(
    "half",
    [
        b"\x81",
        b"\x81\x85",
        b"\x81\x85abcd",
        wire_frame(TEXT, b"a"),
        b"\x81\xff" + (90_000).to_bytes(8),
    ],
    ids=["one byte", "no mask", "no payload", "a fragment", "a long one"],
)
async def test_a_half_close_inside_a_message_is_1006(
    raw: RawWebSocket, handler: EchoHandler, half: bytes
) -> None:
    """§7.1.5: half a message is none."""
    await raw.send(half)
    raw.end()

    assert 1006 == (await read_closed(raw)).code
    assert ([1006], []) == (await codes(handler), handler.heard)


async def test_a_text_before_the_end_of_a_half_is_taken(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§7.1.5: a complete message counts and is answered."""
    await raw.send(wire_frame(FIN | TEXT, b"last"))
    raw.end()

    assert Closed(1006, [(TEXT, b"last")], b"") == await read_closed(raw)
    assert ([1006], ["last"]) == (await codes(handler), handler.heard)


async def test_a_connection_reset_is_1006(raw: RawWebSocket, handler: EchoHandler) -> None:
    """§7.1.5: a crash is 1006 too."""
    raw.reset()

    assert [1006] == await codes(handler)


# By the server


async def test_a_close_of_ours_waits_for_the_clients(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§7.1.2: both have sent one; then the connection is closed by the server (§7.1.1)."""
    handler.socket.close(4001, "slow")
    assert (CLOSE, close_payload(4001, b"slow")) == await raw.read_frame()
    assert [] == handler.codes

    await raw.send(wire_frame(FIN | CLOSE, close_payload(4001)))

    assert b"" == await raw.read_to_end()
    assert [4001] == await codes(handler)


async def test_a_close_stands_behind_what_was_sent(raw: RawWebSocket, handler: EchoHandler) -> None:
    """§5.5.1: and nothing stands behind it."""
    handler.socket.send(b"before")
    handler.socket.close(1000, "")
    handler.socket.send(b"behind")
    handler.socket.close(4000, "again")
    await raw.send(wire_frame(FIN | CLOSE, close_payload(1000)))

    assert Closed(1000, [(TEXT, b"before")], b"") == await read_closed(raw)
    assert [1000] == await codes(handler)


async def test_data_after_our_close_frame_is_discarded(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§1.4: until the client's close frame, and no pong is sent any more (§5.5.2)."""
    handler.socket.close(1000, "")
    await raw.send(
        wire_frame(FIN | TEXT, b"late")
        + wire_frame(FIN | PING, b"late")
        + wire_frame(TEXT, b"late")
        + wire_frame(FIN | CLOSE, close_payload(1001))
    )

    assert Closed(1000, [], b"") == await read_closed(raw)
    assert ([1000], []) == (await codes(handler), handler.heard)


async def test_a_wrong_frame_behind_our_close_ends_it(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§7.1.7: there is no second close frame."""
    handler.socket.close(1000, "")
    await raw.send(wire_frame(FIN | TEXT, b"not masked", mask=None))

    assert Closed(1000, [], b"") == await read_closed(raw)
    assert [1000] == await codes(handler)


async def test_closes_that_cross_are_one_close(raw: RawWebSocket, handler: EchoHandler) -> None:
    """§7.1.5: each side has the code that it closed with, or the other's; neither is an answer."""
    await raw.send(wire_frame(FIN | CLOSE, close_payload(1001)))
    handler.socket.close(1000, "")

    assert Closed(1000, [], b"") == await read_closed(raw)
    assert [1000] == await codes(handler)


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "reset"])
async def test_a_client_that_does_not_answer_our_close_is_aborted(
    raw: RawWebSocket,
    handler: EchoHandler,
    is_silent: bool,  # noqa: FBT001
) -> None:
    """§7.1.1: the wait for the client's close is limited."""
    handler.socket.close(1000, "")
    if not is_silent:
        raw.reset()

    assert [1000] == await codes(handler)


async def test_a_long_reason_is_truncated_between_characters(
    raw: RawWebSocket, handler: EchoHandler
) -> None:
    """§5.5: 123 bytes have room, and what is sent is UTF-8."""
    handler.socket.close(1000, "€" * 50)
    opcode, payload = await raw.read_frame()

    assert (CLOSE, close_payload(1000, ("€" * 41).encode())) == (opcode, payload)
