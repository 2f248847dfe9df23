"""RFC 6455 on /sub of a running gateway; the other files here cover the chapters."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.gateways.gateway import RunningGateway
from tests.support.http.raw_http import read_response
from tests.support.websocket.frames import (
    FIN,
    RSV1,
    Closed,
    close_payload,
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
    handshake,
    raw_socket,
    raw_websocket,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

MAX_FRAME_BYTES = 2 * 1_048_576
COMMAND = '{"cmd":"NOP","ref":"grüße"}'.encode()


@pytest_asyncio.fixture(loop_scope="session")
async def raw(gateway: RunningGateway, topic: str) -> AsyncIterator[RawWebSocket]:
    """Return a subscribed WebSocket."""
    async with raw_websocket(gateway.sub_url(topic, "c")) as raw:
        told = ""
        while '"cmd":"SUB"' not in told:
            _, payload = await raw.read_frame()
            told = payload.decode()
        yield raw


async def read_ref(raw: RawWebSocket) -> object:
    """Return the ``ref`` of the next response, past unsolicited frames."""
    while True:
        opcode, payload = await raw.read_frame()
        assert TEXT == opcode
        for line in payload.split(b"\n"):
            if (ref := json.loads(line).get("ref")) is not None:
                return ref


async def test_a_command_may_be_cut_anywhere(raw: RawWebSocket) -> None:
    """§5.4 and §5.2: in fragments inside of characters, with pings between them, over any reads."""
    last = len(COMMAND) - 1
    ping = wire_frame(FIN | PING, b"p")
    stream = b"".join(
        wire_frame((FIN if at == last else 0) | (CONTINUATION if at else TEXT), COMMAND[at:][:1])
        + ping
        for at in range(len(COMMAND))
    )
    cuts = sorted(random.Random(6455).sample(range(1, len(stream)), 40))

    ends = zip([0, *cuts], [*cuts, len(stream)], strict=True)
    await send_separately(raw, [stream[start:end] for start, end in ends])

    assert [(PONG, b"p")] * last == [await raw.read_frame() for _ in range(last)]
    rest = [await raw.read_frame() for _ in range(2)]
    assert {PONG, TEXT} == {opcode for opcode, _ in rest}
    assert "grüße".encode() in b"".join(payload for _, payload in rest)


async def test_a_command_of_any_size_up_to_the_limit_is_taken(raw: RawWebSocket) -> None:
    """§5.2: white space is no command, and counts."""
    for size_bytes in (125, 126, 65_535, 65_536, MAX_FRAME_BYTES):
        await raw.send(wire_frame(FIN | TEXT, COMMAND.ljust(size_bytes)))
        assert "grüße" == await read_ref(raw)


@pytest.mark.parametrize(
    "frame, code",
    [
        (wire_frame(FIN | TEXT, b" " * (MAX_FRAME_BYTES + 1)), 1009),
        (wire_frame(FIN | BINARY, COMMAND), 1003),
        (wire_frame(FIN | TEXT, b'{"cmd":"NOP","ref":"\xff"}'), 1007),
        (wire_frame(FIN | TEXT, COMMAND, mask=None), 1002),
        (wire_frame(FIN | RSV1 | TEXT, COMMAND), 1002),
        (wire_frame(FIN | 3, COMMAND), 1002),
        (wire_frame(FIN | CONTINUATION, COMMAND), 1002),
        (wire_frame(FIN | CLOSE, b"\x03"), 1002),
        (wire_frame(FIN | CLOSE, close_payload(1006)), 1002),
    ],
    ids=["big", "binary", "Latin-1", "mask", "bit", "opcode", "order", "half a code", "code"],
)
async def test_each_violation_has_its_close_code(
    raw: RawWebSocket, frame: bytes, code: int
) -> None:
    """§7.4.1: and the client can read it, though it is sending."""
    await raw.send(frame)

    assert Closed(code, [], b"") == await read_closed(raw)


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4999])
async def test_a_close_is_answered_with_its_code(raw: RawWebSocket, code: int) -> None:
    """§5.5.1."""
    await raw.send(wire_frame(FIN | CLOSE, close_payload(code, b"bye")))

    assert Closed(code, [], b"") == await read_closed(raw)


async def test_a_close_of_the_gateway_waits_for_an_answer(raw: RawWebSocket) -> None:
    """§7.1.2: CLS, then a close frame, and the end once it is answered."""
    await raw.send(wire_frame(FIN | TEXT, b'{"cmd":"CLS","ref":1}'))
    while (frame := await raw.read_frame())[0] != CLOSE:
        pass
    assert close_payload(1000) == frame[1][:2]

    await raw.send(wire_frame(FIN | CLOSE, close_payload(1000)))

    assert b"" == await raw.read_to_end()


@pytest.mark.parametrize(
    "right, wrong, status",
    [
        (b"Version: 13", b"Version: 12", 426),
        (b"Key: AAAAAAAAAAAAAAAAAAAAAA==", b"Key: AAAA", 400),
        (b"Connection: Upgrade\r\n", b"", 426),
        (b"GET ", b"POST ", 405),
        (b" /sub", b" /bus", 404),
    ],
)
async def test_a_wrong_handshake_is_refused(
    gateway: RunningGateway, right: bytes, wrong: bytes, status: int
) -> None:
    """§4.2.2: before any request to NSQ."""
    request = handshake(gateway.address, "/sub?topic=t&channel=c")
    assert right in request

    async with raw_socket(gateway.address) as raw:
        await raw.send(request.replace(right, wrong))
        answer = await read_response(raw)

    assert (status, "application/problem+json") == (answer.status, answer.headers["content-type"])
